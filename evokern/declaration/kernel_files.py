"""Files of a kernel: the files of its folder, and the headers that these include from neighbouring folders.

    kernels/
        common/mma.cuh      headers that several kernels include; not a kernel folder, because it has no kernel.py
        matmul/kernel.cu    #include "../common/mma.cuh"

A quoted include is resolved as a compiler does, from the folder of the including file. A header found below the parent
of the kernel folder belongs to the kernel. The digest, the compiler, the copy in a database and an exported program all
use the same text. The compiler resolves all other includes. evokern neither stores these outside headers nor sends them
to other hosts. It records their SHA-256 digests, because a changed header makes another program from the same source.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from evokern.errors import KernelError
from evokern.files import Stamp, is_file, read_bytes, stamp_of

REFERENCE = "reference.h"
"""File with the C++ reference for the host compiler; device code does not include it or its headers."""

GENERATED = "evokern_genes.h"
"""Name of the header that evokern generates from the declaration."""

_SOURCES = frozenset({".cu", ".cuh", ".h", ".hpp"})
CODE = _SOURCES | {".py"}
"""Suffixes of the files in a kernel folder that belong to the kernel."""
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)


@dataclass(frozen=True)
class KernelFile:
    """One file of a kernel."""

    name: str
    """Path relative to the kernel's folder, with slashes: `kernel.cu`, `../common/mma.cuh`."""
    path: Path
    """Path of the file."""
    content: bytes
    """Content of the file."""
    includes: tuple[str, ...] = ()
    """Quoted names by which device code includes the file; empty if it is not a header."""

    @property
    def text(self) -> str:
        """Content as text, with line feeds as line ends.

        Raises:
            KernelError: the content is not UTF-8.
        """
        try:
            return _with_plain_ends(self.content.decode("utf-8-sig"))
        except UnicodeDecodeError as error:
            raise KernelError(f"cannot read {self.path}: {error}; save the file as UTF-8") from error

    @property
    def kept_text(self) -> str:
        """Text to store in a database; bytes that are not UTF-8 are replaced."""
        return _with_plain_ends(self.content.decode("utf-8-sig", errors="replace"))


def write_kernel_files(scratch: Path, kernel: str, contents: Mapping[str, bytes]) -> Path:
    """Write a kernel's files below a scratch folder, including headers above the kernel's folder.

    Args:
        scratch: the scratch folder.
        kernel: name of the kernel folder, or its path relative to `scratch`.
        contents: path relative to the kernel's folder → content of the file.

    Returns:
        The path of the kernel's folder.

    Raises:
        KernelError: a file would be outside `scratch`.
    """
    root = Path(os.path.normpath(scratch))
    folder = root / kernel
    for name, content in contents.items():
        path = Path(os.path.normpath(folder / name))
        if root not in path.parents:
            raise KernelError(f"{name!r} was not written, because it would be outside the folder for copies")
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def kernel_files(folder: Path, source: str) -> tuple[KernelFile, ...]:
    """Return all files of a kernel: first the folder's own, by name, then headers from other folders.

    Unchanged files are not read again, because a search calls this function for every candidate.

    Args:
        folder: the kernel's folder.
        source: the file with the device code, relative to the folder.

    Raises:
        KernelError: a file cannot be read, or one name in `#include` refers to two files.
    """
    kept = _READ.get((folder, source))
    if kept and all(stamp_of(path) == stamp for path, stamp in kept[0].items()):
        return kept[1]
    stamps = {folder: stamp_of(folder)}
    files = _read_files(folder, source, stamps)
    _READ[folder, source] = (stamps, files)
    return files


OUTSIDE = "outside: "
"""Start of the name under which a database stores a header outside the kernel: digest and path, instead of its text."""


@dataclass(frozen=True)
class KernelContent:
    """Content of a kernel when it was loaded. A search uses it to its end, even if the files change."""

    files: tuple[KernelFile, ...]
    """Files of the kernel."""
    outside: Mapping[str, str] = field(default_factory=dict)
    """Headers outside the kernel: path, relative to the kernel's folder where possible → SHA-256 digest."""
    functions: bytes = field(default=b"", repr=False, compare=False)
    """Pickled functions of a kernel that is declared as data; a database does not store them."""

    def digest(self) -> str:
        """Return the SHA-256 digest of all content, as stored in studies."""
        state = hashlib.sha256()
        for file in self.files:
            state.update(file.name.encode("utf-8", "surrogateescape") + b"\0" + file.content + b"\0")
        for name, digest in sorted(self.outside.items()):
            state.update(f"{OUTSIDE}{name}\0{digest}\0".encode("utf-8", "surrogateescape"))
        return state.hexdigest()

    def stored(self, folder: Path) -> dict[str, str]:
        """Return the texts to store in a database by name; of headers outside the kernel, digests and paths."""
        texts = {file.name: file.kept_text for file in self.files}
        paths = {name: os.path.normpath(folder / name) for name in self.outside}
        return texts | {OUTSIDE + name: f"{digest} {paths[name]}" for name, digest in self.outside.items()}


def stored_outside(stored: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return the headers outside a kernel that a database stores: name → digest and path."""
    found = {
        name.removeprefix(OUTSIDE): text.partition(" ") for name, text in stored.items() if name.startswith(OUTSIDE)
    }
    return {name: (digest, path) for name, (digest, _, path) in found.items()}


def changed_since(digest: str, path: Path) -> bool:
    """Return whether a file has another SHA-256 digest now, or is missing."""
    try:
        return hashlib.sha256(read_bytes(path)).hexdigest() != digest
    except OSError:
        return True


def outside_name(path: Path, folder: Path) -> str:
    """Return a header's path relative to the kernel's folder, or absolute if the two share only the root `/`."""
    return str(path) if os.path.commonpath((path, folder)) == "/" else Path(os.path.relpath(path, folder)).as_posix()


_READ: dict[tuple[Path, str], tuple[dict[Path, Stamp], tuple[KernelFile, ...]]] = {}
"""Files last read from each folder, with the stamps of all paths that were checked."""


def source_files(source: Path, text: str | None = None) -> tuple[KernelFile, ...]:
    """Return a source and the headers that it includes, without the other files of its folder.

    Args:
        source: path of the source.
        text: text of the source if no such file exists.

    Raises:
        KernelError: a file cannot be read, or one name in `#include` refers to two files.
    """
    stamps: dict[Path, Stamp] = {}
    content = _read(source, stamps) if text is None else text.encode("utf-8", "replace")
    return _with_headers(source.parent, [source], {source: content}, stamps)


def _read_files(folder: Path, source: str, stamps: dict[Path, Stamp]) -> tuple[KernelFile, ...]:
    """Read the files, and record the stamp of each path before reading it."""
    own = sorted(path for path in folder.iterdir() if _belongs(path, stamps))
    first = own if folder / source in own else [*own, folder / source]
    return _with_headers(folder, own, {path: _read(path, stamps) for path in first}, stamps)


def _with_headers(
    folder: Path, own: Sequence[Path], content: dict[Path, bytes], stamps: dict[Path, Stamp]
) -> tuple[KernelFile, ...]:
    """Return files with the headers that they include.

    Args:
        folder: folder of the kernel.
        own: files that are named without a path.
        content: path → content of the first files.
        stamps: stamps of the paths, to which those of headers are added.
    """
    first = list(content)
    real = {path: path.resolve() for path in first}  # links count as their targets
    waiting = [path for path in first if path.suffix != ".py" and path.name != REFERENCE]
    named = {path.name: real[path] for path in waiting}
    hosted = [path for path in first if path.name == REFERENCE]  # these and their own headers are for the host only
    while waiting or hosted:
        on_device = bool(waiting)
        including = (waiting or hosted).pop(0)
        for include, path in _included(including, content[including], folder.resolve().parent, stamps):
            if on_device and named.setdefault(include, path) != path:
                raise KernelError(
                    f'"{include}" in {including} refers to {path}, but in another file of the kernel it refers to '
                    f"{named[include]}; rename one of the two headers, because the compiler identifies headers by this "
                    "name"
                )
            if path not in real.values():
                content[path], real[path] = _read(path, stamps), path
                (waiting if on_device else hosted).append(path)
    spelled: dict[Path, list[str]] = {}
    for include, path in named.items():
        spelled.setdefault(path, []).append(include)
    return tuple(
        KernelFile(
            path.name if path in own else _relative(real[path], folder), path, held, tuple(spelled.get(real[path], ()))
        )
        for path, held in content.items()
    )


def _belongs(path: Path, stamps: dict[Path, Stamp]) -> bool:
    """Return whether a file in the folder belongs to the kernel; a written copy of the generated header does not.

    Raises:
        KernelError: a file has the name of the generated header, but other content.
    """
    if path.suffix not in CODE or not is_file(path):
        return False
    if path.name != GENERATED:
        return True
    if not _read(path, stamps).startswith(f"// {GENERATED}:".encode()):
        raise KernelError(f"{path} has the name of the header that evokern generates; rename the file")
    return False


def _relative(path: Path, folder: Path) -> str:
    return Path(os.path.relpath(path, folder.resolve())).as_posix()


def _included(including: Path, content: bytes, root: Path, stamps: dict[Path, Stamp]) -> Iterator[tuple[str, Path]]:
    """Yield name and path of the headers below `root` that a file includes."""
    for include in _INCLUDE.findall(content.decode("utf-8", errors="replace")):
        found = including.parent / include
        stamps.setdefault(found, stamp_of(found))
        if found.name == GENERATED:
            continue
        if found.suffix in _SOURCES and is_file(found) and (path := found.resolve()).is_relative_to(root):
            yield include, path


def _with_plain_ends(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _read(path: Path, stamps: dict[Path, Stamp]) -> bytes:
    stamps.setdefault(path, stamp_of(path))
    try:
        return read_bytes(path)
    except OSError as error:
        raise KernelError(f"cannot read {path}: {error.strerror}") from error


_GAP = r"(?:[ \t]|/\*.*?\*/)*"
_NAMED = re.compile(
    rf'(?:^{_GAP}#{_GAP}(?:include(?:_next)?\b|define\b{_GAP}\w+)|\b__has_include{_GAP}\(){_GAP}(?:"([^"\n]+)"|<([^>\n]+)>)',
    re.MULTILINE,
)
"""Quoted and bracketed names that may be headers: in `#include`, in `__has_include`, and as values of macros."""
_MACRO_INCLUDE = re.compile(rf"^{_GAP}#{_GAP}include(?:_next)?\b{_GAP}[A-Za-z_]", re.MULTILINE)
_SUFFIXES = frozenset({".cuh", ".h", ".hh", ".hpp", ".hxx", ".inc", ".inl", ".ipp", ".cu"})
_SEARCHED = ("-I", "--include-path")
_FORCED = ("-include", "--pre-include")
_DEFINED = ("-D", "--define-macro")

_Read = tuple[Stamp, str, str]
_READ_UNITS: dict[Path, _Read] = {}
"""Headers read before: the stamp when they were read, their digest and their text."""


def outside_headers(texts: Iterable[str], options: Sequence[str], known: Collection[str] = ()) -> dict[Path, str]:
    """Return the headers that the compiler may read from disk: absolute path → SHA-256 digest.

    Conditions are not evaluated, and a name counts in every folder that has it. A header may therefore be listed
    although the compiler does not read it. Names that a macro builds are not known; if a file includes a macro, all
    headers of the searched folders count.

    Args:
        texts: the source and the headers that evokern passes to the compiler itself.
        options: compiler options; relative paths are relative to the working directory.
        known: names of the headers that evokern passes; the compiler does not look for them on disk.
    """
    folders = [Path(folder) for folder in searched_folders(options)]
    forced = "".join(f'#include "{name}"\n' for name in _values(options, _FORCED))
    defined = "".join(f"#define {value.replace('=', ' ', 1)}\n" for value in _values(options, _DEFINED))
    waiting = [(Path(), text) for text in (*texts, forced, defined)]
    found: dict[Path, str] = {}
    while waiting:
        base, text = waiting.pop()
        for path in dict.fromkeys(_candidates(base, folders, text, known)):
            place = path.absolute()
            if place not in found and is_file(place) and (read := _read_unit(place)):
                found[place] = read[1]
                waiting.append((place.parent, read[2]))
    return found


def searched_folders(options: Sequence[str]) -> tuple[str, ...]:
    """Return the folders in which the compiler looks for headers, as given by `-I`."""
    return tuple(_values(options, _SEARCHED))


def _candidates(base: Path, folders: Sequence[Path], text: str, known: Collection[str]) -> Iterator[Path]:
    """Yield the paths that a file's includes may mean."""
    text = text.replace("\\\n", "")
    for quoted, bracketed in _NAMED.findall(text):
        name = quoted or bracketed
        if name not in known:
            yield from (folder / name for folder in ((base, *folders) if quoted else folders))
            if Path(name).is_absolute():
                yield Path(name)
    if _MACRO_INCLUDE.search(text):
        for folder in folders:
            yield from (path for path in _listed(folder) if path.suffix in _SUFFIXES)


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _read_unit(path: Path) -> _Read | None:
    """Return a header's stamp, digest and text; None if it cannot be read, which the compiler reports."""
    stamp = stamp_of(path)
    before = _READ_UNITS.get(path)
    if before and before[0] == stamp:
        return before
    try:
        content = read_bytes(path)
    except OSError:
        return None
    _READ_UNITS[path] = (stamp, hashlib.sha256(content).hexdigest(), content.decode(errors="replace"))
    return _READ_UNITS[path]


def _values(options: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the values of some options, which follow directly, after `=`, or as the next option."""
    found = []
    for option, following in zip(options, (*options[1:], ""), strict=False):
        for name in names:
            if option == name:
                found.append(following)
            elif option.startswith(f"{name}="):
                found.append(option[len(name) + 1 :])
            elif len(name) == 2 and option.startswith(name):
                found.append(option[2:])
    return [value for value in found if value]
