"""Read and write files that a user names, without blocking on FIFOs or devices.

A path can name a FIFO, on which a plain `open` blocks forever, or an endless device, or it can be too long. In all
these cases, the functions here raise an `OSError` whose `strerror` describes the problem.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path
from typing import TextIO

MOST_BYTES = 2**30
"""Maximum size in bytes of a file to read; sources, studies and recordings are far smaller."""

_KINDS = (
    (stat.S_ISDIR, "it is a folder"),
    (stat.S_ISFIFO, "it is a pipe (FIFO); write its content to a file first"),
    (stat.S_ISSOCK, "it is a socket"),
    (stat.S_ISCHR, "it is a device"),
    (stat.S_ISBLK, "it is a device"),
)


def is_file(path: Path) -> bool:
    """Return whether the path is a regular file; False for an invalid path."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):
        return False


def is_folder(path: Path) -> bool:
    """Return whether the path is a folder; False for an invalid path."""
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except (OSError, ValueError):
        return False


Stamp = tuple[int, int, int, int] | None
"""Change times, size and inode of a file, which differ after an edit; None if the file is missing."""


def stamp_of(path: Path) -> Stamp:
    """Return the stamp of a file."""
    try:
        state = path.stat()
    except (OSError, ValueError):
        return None
    return state.st_mtime_ns, state.st_ctime_ns, state.st_size, state.st_ino


def is_utf8(path: Path) -> bool:
    """Return whether a path, with its parents and the targets of its links, consists of UTF-8 names."""
    try:
        str(path.resolve()).encode()
    except UnicodeEncodeError:
        return False
    return True


def make_folder(path: Path) -> None:
    """Create a folder and its parents if they are missing.

    Raises:
        OSError: the folder cannot be created; `strerror` gives the reason.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise OSError(error.errno, "it is a file" if is_file(path) else error.strerror, str(path)) from None
    except ValueError as error:  # a zero byte
        raise OSError(errno.EINVAL, f"invalid folder name ({error})", str(path)) from None


def link_outside(folder: Path) -> str:
    """Return a clause if a folder that evokern names itself is reached by a link that leaves the working directory.

    Somebody else may have put the link there, for example in a repository. Empty for other folders.
    """
    here, path = Path.cwd(), folder.absolute()
    for place in (path, *path.parents):
        if place == here or not place.is_relative_to(here):
            return ""
        if place.is_symlink() and not place.resolve().is_relative_to(here.resolve()):
            return f"{place} is a link to {place.readlink()}, outside the working directory"
    return ""


def read_bytes(path: Path) -> bytes:
    """Return the content of a regular file.

    Raises:
        OSError: the file is missing, not regular, too large or unreadable; `strerror` gives the reason.
    """
    try:
        # Without O_NONBLOCK, opening a FIFO waits for a writer. Checking the path first would leave a race.
        opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:  # a zero byte
        raise OSError(errno.EINVAL, f"invalid file name ({error})", str(path)) from None
    with open(opened, "rb") as file:  # noqa: PTH123 (a descriptor)
        state = os.fstat(opened)
        for is_kind, reason in _KINDS:
            if is_kind(state.st_mode):
                raise OSError(errno.EINVAL, reason, str(path))
        if state.st_size > MOST_BYTES:
            raise OSError(errno.EFBIG, f"it has {state.st_size:,} bytes, more than {MOST_BYTES:,}", str(path))
        return file.read()


def read_text(path: Path, errors: str = "strict") -> str:
    """Return the text of a regular UTF-8 file without its byte order mark and with newlines normalised to LF.

    Args:
        path: the file.
        errors: error handling of `bytes.decode`.

    Raises:
        OSError: as for `read_bytes`.
        UnicodeDecodeError: the file is not valid UTF-8.
    """
    return read_bytes(path).decode("utf-8-sig", errors).replace("\r\n", "\n").replace("\r", "\n")


def open_own(path: Path) -> TextIO:
    """Open a file for reading and writing whose name evokern chose, such as a lock; create it if it is missing.

    Somebody else may have put a link or another file there, for example in a repository. Only a regular file with one
    name is opened.

    Raises:
        OSError: the file cannot be opened; `strerror` gives the reason.
    """
    try:
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise OSError(error.errno, why_not_own(path) or error.strerror, str(path)) from None
    if why := _why_not_own(os.fstat(opened)):
        os.close(opened)
        raise OSError(errno.EINVAL, why, str(path))
    return os.fdopen(opened, "r+", encoding="utf-8")


def why_not_own(path: Path) -> str:
    """Return a clause that says why evokern does not write to a file that it names itself; empty if it does."""
    try:
        return f"it is a link to {path.readlink()}" if path.is_symlink() else _why_not_own(path.lstat())
    except OSError:
        return ""


def _why_not_own(state: os.stat_result) -> str:
    for is_kind, told in _KINDS:
        if is_kind(state.st_mode):
            return told.partition(";")[0]
    return f"it is one of {state.st_nlink} hard links to the same file" if state.st_nlink > 1 else ""


_SYSTEM = (Path("/dev"), Path("/proc"))
"""Folders whose links lead to open streams, such as /dev/stdout."""


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file, or a FIFO that has a reader.

    A link, or a name that shares its file with other names, is replaced by a new file: somebody else may have put it
    there, for example in a repository.

    Raises:
        OSError: the file cannot be written; `strerror` gives the reason.
    """
    try:
        if any(place in path.absolute().parents for place in _SYSTEM):
            opened = _opened(path, os.O_CREAT | os.O_TRUNC)
        elif path.is_symlink() or (is_file(path) and path.lstat().st_nlink > 1):
            _replace(path, content)
            return
        else:
            opened = _opened(path, os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW)
    except ValueError as error:
        raise OSError(errno.EINVAL, f"invalid file name ({error})", str(path)) from None
    with open(opened, "wb") as file:  # noqa: PTH123 (a descriptor)
        file.write(content)


def _opened(path: Path, flags: int) -> int:
    try:
        opened = os.open(path, flags | os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise OSError(errno.ENXIO, "it is a pipe (FIFO) without a reader", str(path)) from None
        raise
    os.set_blocking(opened, True)  # the reader of a FIFO may be slow
    return opened


def _replace(path: Path, content: bytes) -> None:
    """Put a new file in the place of a link."""
    fresh = path.with_name(f".{path.name[:200]}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    with open(_opened(fresh, os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW), "wb") as file:
        file.write(content)
    fresh.replace(path)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file completely or not at all: an interrupted write keeps the previous file.

    A FIFO, a device, and a file that cannot be replaced are written as by `write_bytes`. A link is replaced, as there.

    Raises:
        OSError: as for `write_bytes`.
    """
    try:
        real = path.parent.resolve() / path.name
        linked = real.is_symlink()
        if linked and any(place in path.absolute().parents for place in _SYSTEM):
            write_bytes(path, content)
            return
        mode = stat.S_IMODE(real.stat().st_mode) if not linked and is_file(real) else None
        if (mode is None and not linked and real.exists()) or (mode is not None and not os.access(real, os.W_OK)):
            write_bytes(path, content)
            return
        opened, name = tempfile.mkstemp(prefix=f".{real.name[:100]}-", dir=real.parent)
    except (OSError, ValueError):
        write_bytes(path, content)
        return
    try:
        with open(opened, "wb") as file:  # noqa: PTH123 (a descriptor)
            file.write(content)
        if mode is None:
            mode = 0o666 & ~_umask()
        Path(name).chmod(mode)
        Path(name).replace(real)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def write_text(path: Path, text: str) -> None:
    """Write text as UTF-8, with escapes for lone surrogates.

    Raises:
        OSError: as for `write_bytes`.
    """
    write_bytes(path, text.encode("utf-8", errors="backslashreplace"))
