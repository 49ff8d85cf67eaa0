"""Files of a kernel while its `kernel.py` runs: a session uses its recorded content instead of the files on disk."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.abc import MetaPathFinder, SourceLoader
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from evokern.errors import KernelError
from evokern.files import read_text

_given: Mapping[Path, bytes] = {}
_folders: set[str] = set()
"""Folders of the kernels that this process loaded."""
_end_process = os._exit
_command = 0
"""Process of a command, whose end while kernel code loads must be reported; workers report their own end."""


def _exit(status: int) -> NoReturn:
    """Raise SystemExit if kernel code calls `os._exit`, which would end a command silently and as a success."""
    if os.path.dirname(sys._getframe(1).f_code.co_filename) in _folders:  # noqa: PTH120 (a name, not a file)
        raise SystemExit(f"os._exit({status})")
    _end_process(status)


def report_end_of(process: int) -> None:
    """Report on stderr if this process ends while a `kernel.py` loads, because C code in it can end the process."""
    global _command
    _command = process


@contextmanager
def _reported_end(folder: Path) -> Iterator[None]:
    """Print a message from another process if this one ends inside the context, whatever ends it."""
    if os.getpid() != _command:
        yield
        return
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        os.close(writer)
        if not os.read(reader, 1):
            os.write(2, f"evokern: the process ended while it loaded {folder}/kernel.py; code that this file calls "
                        "ended it, or a signal did. Let the code return or raise instead\n".encode())  # fmt: skip
        _end_process(0)
    os.close(reader)
    try:
        yield
    finally:
        os.write(writer, b".")
        os.close(writer)
        os.waitpid(child, 0)


@contextmanager
def loading(folder: Path, content: Mapping[Path, bytes]) -> Iterator[None]:
    """Use the given content of files, by absolute path, in the code of a folder that runs in this context.

    Modules that the process imports later are also executed from this content. Those that it imported before are
    executed again, because their text may differ.
    """
    global _given
    before, _given = _given, content
    _folders.add(str(folder))
    os._exit = _exit
    if content:
        for name, module in list(sys.modules.items()):
            if (file := getattr(module, "__file__", None)) and Path(file).absolute() in content:
                del sys.modules[name]
        sys.meta_path.insert(0, _Finder(content))
    try:
        with _reported_end(folder):
            yield
    finally:
        _given = before


def text_of(path: Path) -> str:
    """Return the text of a file that belongs to the kernel being loaded.

    Raises:
        OSError: the file cannot be read.
        UnicodeDecodeError: the file is not valid UTF-8.
    """
    given = _given.get(path.absolute())
    return read_text(path) if given is None else given.decode("utf-8-sig")


def load_name(path: Path, name: str) -> Any:
    """Return a name of a Python file in the folder of the kernel being loaded.

    Args:
        path: the file.
        name: name of a function or class at its top level.

    Raises:
        KernelError: the file does not define the name.
    """
    text = text_of(path)
    module = ModuleType(f"_evokern_{path.stem}_{hashlib.sha256(text.encode()).hexdigest()[:12]}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # classes of the file look up their module by name
    exec(compile(text, str(path), "exec", dont_inherit=True), module.__dict__)
    if name not in module.__dict__:
        raise KernelError(f"{path} does not define {name}")
    return module.__dict__[name]


class _Loader(SourceLoader):
    """Loader of one module from given text."""

    def __init__(self, path: str, content: bytes) -> None:
        self._path, self._content = path, content

    def get_filename(self, fullname: str) -> str:
        return self._path

    def get_data(self, path: Any) -> bytes:
        if str(path) != self._path:
            raise OSError(f"{path} is not cached")  # no bytecode, which may be of another text
        return self._content


class _Finder(MetaPathFinder):
    """Finder that replaces the text of modules on disk."""

    def __init__(self, content: Mapping[Path, bytes]) -> None:
        self._content = content

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        found = PathFinder.find_spec(fullname, path, target)
        given = self._content.get(Path(found.origin).absolute()) if found and found.origin else None
        if found is None or given is None:
            return None
        found.loader = _Loader(str(found.origin), given)
        return found
