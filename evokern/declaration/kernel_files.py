"""Which files make a kernel what it is: all of its folder, and the headers that these include from somewhere near.

    kernels/
        common/mma.cuh      headers that several kernels include; without a kernel.py it is no kernel folder
        matmul/kernel.cu    #include "../common/mma.cuh"

A name in quotes is looked up as a compiler does it: from the folder of the file that includes it. What is found below
the kernel folder's parent belongs to the kernel, so that its digest, the compiler, the copy that a database keeps and
an exported program all see the same text. Any other include is the compiler's to find: no file elsewhere is read, or
kept in a database, because a header names it.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from evokern.errors import KernelError
from evokern.files import is_file, read_bytes

REFERENCE = "reference.h"
"""The C++ reference, which the host's compiler reads: no device code includes it."""

_SOURCES = frozenset({".cu", ".cuh", ".h", ".hpp"})
CODE = _SOURCES | {".py"}
"""Endings of a folder's files that make a kernel."""
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)


@dataclass(frozen=True)
class KernelFile:
    """A file that a kernel is made of."""

    name: str
    """Its path from the kernel's folder, with slashes: `kernel.cu`, `../common/mma.cuh`."""
    path: Path
    """Where it is."""
    content: bytes
    """What it holds."""
    includes: tuple[str, ...] = ()
    """The names by which device code may include it, as written between the quotes; none for what is no header."""

    @property
    def text(self) -> str:
        """The content as text, every line end a line feed.

        Raises:
            KernelError: it is no UTF-8.
        """
        try:
            return _with_plain_ends(self.content.decode("utf-8-sig"))
        except UnicodeDecodeError as error:
            raise KernelError(f"cannot read {self.path}: {error}; save it as UTF-8") from error

    @property
    def kept_text(self) -> str:
        """The text that a database keeps: bytes that are no UTF-8 are replaced."""
        return _with_plain_ends(self.content.decode("utf-8-sig", errors="replace"))


def write_kernel_files(scratch: Path, kernel: str, contents: Mapping[str, bytes]) -> Path:
    """Write a kernel's files below a folder of our own: headers that lie above its folder go above it there too.

    Args:
        scratch: the folder of our own.
        kernel: the kernel folder's name, or its path from `scratch`.
        contents: what each file holds, by its path from the kernel's folder.

    Returns:
        The kernel's folder.

    Raises:
        KernelError: a file's name leads out of `scratch`.
    """
    root = Path(os.path.normpath(scratch))
    folder = root / kernel
    for name, content in contents.items():
        path = Path(os.path.normpath(folder / name))
        if root not in path.parents:
            raise KernelError(f"{name!r} is a file far from its kernel's folder: it is not written elsewhere")
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def kernel_files(folder: Path, source: str) -> tuple[KernelFile, ...]:
    """Return every file that makes a kernel what it is: the folder's own by name, then those from elsewhere.

    Files that did not change are not read again: a search asks for them with every candidate.

    Args:
        folder: the kernel's folder.
        source: the file with the device code, relative to the folder.

    Raises:
        KernelError: a file cannot be read, or one name in `#include` means two files.
    """
    kept = _READ.get((folder, source))
    if kept and all(_stamp(path) == stamp for path, stamp in kept[0].items()):
        return kept[1]
    stamps = {folder: _stamp(folder)}
    files = _read_files(folder, source, stamps)
    _READ[folder, source] = (stamps, files)
    return files


def files_digest(files: Iterable[KernelFile]) -> str:
    """Return a SHA-256 over a kernel's files: a study remembers it."""
    state = hashlib.sha256()
    for file in files:
        state.update(file.name.encode("utf-8", "surrogateescape") + b"\0" + file.content + b"\0")
    return state.hexdigest()


_Stamp = tuple[int, int, int, int] | None
_READ: dict[tuple[Path, str], tuple[dict[Path, _Stamp], tuple[KernelFile, ...]]] = {}
"""What was read last of each folder, with the stamps of all that was looked at."""


def _stamp(path: Path) -> _Stamp:
    """Return what changes when a file does: times of change, size, inode; None where there is none."""
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_mtime_ns, state.st_ctime_ns, state.st_size, state.st_ino


def _read_files(folder: Path, source: str, stamps: dict[Path, _Stamp]) -> tuple[KernelFile, ...]:
    """Read the files, and note the stamp of each path before it is looked at."""
    own = sorted(path for path in folder.iterdir() if path.suffix in CODE and is_file(path))
    first = own if folder / source in own else [*own, folder / source]
    content = {path: _read(path, stamps) for path in first}
    real = {path: path.resolve() for path in first}  # a link counts by what it leads to
    waiting = [path for path in first if path.suffix != ".py" and path.name != REFERENCE]
    named = {path.name: real[path] for path in waiting}
    while waiting:
        including = waiting.pop(0)
        for include, path in _included(including, content[including], folder.resolve().parent, stamps):
            if named.setdefault(include, path) != path:
                raise KernelError(
                    f'"{include}" in {including} means {path}, and {named[include]} in another file of the kernel: '
                    "the compiler knows a header by that name alone; rename one of the two"
                )
            if path not in real.values():
                content[path], real[path] = _read(path, stamps), path
                waiting.append(path)
    spelled: dict[Path, list[str]] = {}
    for include, path in named.items():
        spelled.setdefault(path, []).append(include)
    return tuple(
        KernelFile(
            path.name if path in own else _relative(real[path], folder), path, held, tuple(spelled.get(real[path], ()))
        )
        for path, held in content.items()
    )


def _relative(path: Path, folder: Path) -> str:
    return Path(os.path.relpath(path, folder.resolve())).as_posix()


def _included(including: Path, content: bytes, root: Path, stamps: dict[Path, _Stamp]) -> Iterator[tuple[str, Path]]:
    """Yield name and place of the headers below `root` that a file includes."""
    for include in _INCLUDE.findall(content.decode("utf-8", errors="replace")):
        found = including.parent / include
        stamps.setdefault(found, _stamp(found))
        if found.suffix in _SOURCES and is_file(found) and (path := found.resolve()).is_relative_to(root):
            yield include, path


def _with_plain_ends(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _read(path: Path, stamps: dict[Path, _Stamp]) -> bytes:
    stamps.setdefault(path, _stamp(path))
    try:
        return read_bytes(path)
    except OSError as error:
        raise KernelError(f"cannot read {path}: {error.strerror}") from error
