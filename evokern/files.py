"""Files that a user names: only regular ones are read, and whoever writes waits for nobody.

A name may lead to a FIFO, on which a plain `open` waits for ever, to a device without an end, or be longer than the
system takes. Here each of them is an `OSError` whose `strerror` says what is there, so that one `except OSError` tells
a user of everything that a name may lead to.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

MOST_BYTES = 2**30
"""Size above which no file is read: sources, studies and recordings are far smaller."""

_KINDS = (
    (stat.S_ISDIR, "it is a folder"),
    (stat.S_ISFIFO, "it is a pipe (FIFO); write what it carries to a file first"),
    (stat.S_ISSOCK, "it is a socket"),
    (stat.S_ISCHR, "it is a device"),
    (stat.S_ISBLK, "it is a device"),
)


def is_file(path: Path) -> bool:
    """Tell whether a name leads to a regular file; one that the system cannot take leads to none."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):
        return False


def is_folder(path: Path) -> bool:
    """Tell whether a name leads to a folder; one that the system cannot take leads to none."""
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except (OSError, ValueError):
        return False


def make_folder(path: Path) -> None:
    """Make a folder and those above it, where they are missing.

    Raises:
        OSError: it cannot be made; `strerror` says why.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise OSError(error.errno, "it is a file" if is_file(path) else error.strerror, str(path)) from None
    except ValueError as error:  # a zero byte
        raise OSError(errno.EINVAL, f"no folder can be named so ({error})", str(path)) from None


def read_bytes(path: Path) -> bytes:
    """Return what a regular file holds.

    Raises:
        OSError: it is missing, no regular file, too large, or cannot be read; `strerror` says which.
    """
    try:
        # Without O_NONBLOCK, opening a FIFO waits for its writer; what is asked of a name could change before it opens.
        opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:  # a zero byte
        raise OSError(errno.EINVAL, f"no file can be named so ({error})", str(path)) from None
    with open(opened, "rb") as file:  # noqa: PTH123 (a descriptor)
        state = os.fstat(opened)
        for is_kind, told in _KINDS:
            if is_kind(state.st_mode):
                raise OSError(errno.EINVAL, told, str(path))
        if state.st_size > MOST_BYTES:
            raise OSError(errno.EFBIG, f"it holds {state.st_size:,} bytes, more than {MOST_BYTES:,}", str(path))
        return file.read()


def read_text(path: Path, errors: str = "strict") -> str:
    """Return the text of a regular file: UTF-8, a byte order mark left out, every line end a line feed.

    Args:
        path: the file.
        errors: what becomes of bytes that are no UTF-8, as `bytes.decode` has it.

    Raises:
        OSError: as `read_bytes`.
        UnicodeDecodeError: it is no UTF-8.
    """
    return read_bytes(path).decode("utf-8-sig", errors).replace("\r\n", "\n").replace("\r", "\n")


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file, or what somebody reads at the other end of a FIFO.

    Raises:
        OSError: it cannot be written; `strerror` says why.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    try:
        opened = os.open(path, flags | os.O_NONBLOCK, 0o666)
    except ValueError as error:
        raise OSError(errno.EINVAL, f"no file can be named so ({error})", str(path)) from None
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise OSError(errno.ENXIO, "it is a pipe (FIFO) that nobody reads", str(path)) from None
        raise
    os.set_blocking(opened, True)  # a reader that is there may be slow
    with open(opened, "wb") as file:  # noqa: PTH123 (a descriptor)
        file.write(content)


def write_text(path: Path, text: str) -> None:
    """Write a text as UTF-8; what UTF-8 cannot hold is written as an escape.

    Raises:
        OSError: as `write_bytes`.
    """
    write_bytes(path, text.encode("utf-8", errors="backslashreplace"))
