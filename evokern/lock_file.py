"""Lock files; when the process that holds a lock ends for any reason, the system releases the lock."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import TextIO

from evokern.files import read_text

_held: set[Path] = set()
"""Resolved paths of the lock files that this process holds, because POSIX locks do not exclude the same process."""


def is_held_here(path: Path) -> bool:
    """Return whether this process holds the lock file with this resolved path."""
    return path in _held


def lock(file: TextIO) -> bool:
    """Lock an open file until it is closed; return False if another process holds the lock."""
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def write_holder(path: Path, file: TextIO, inode: tuple[int, int] | None = None) -> None:
    """Write a description of this process, which holds the lock, to the lock file.

    Args:
        path: resolved path of the lock file.
        file: the lock file.
        inode: device and inode of the locked file, for `locked_inode`.

    Raises:
        OSError: the file cannot be written, for example on a full disk; the exception names it.
    """
    command = " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])
    now = time.strftime("%Y-%m-%d %H:%M:%S")
    text = json.dumps(
        {"pid": os.getpid(), "host": socket.gethostname(), "command": command, "since": now, "inode": inode}
    )
    try:  # without a buffer, which closing the file would write again
        os.ftruncate(file.fileno(), 0)
        os.pwrite(file.fileno(), text.encode(), 0)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    _held.add(path)


def locked_inode(path: Path) -> tuple[int, int] | None:
    """Return the device and inode of the file that the holder of a lock file locked; None if the file names none.

    A process that was killed leaves its lock file. This process's own lock is not read: closing would release it.
    """
    if path in _held:
        return None
    try:
        device, inode = json.loads(read_text(path))["inode"]
        return int(device), int(inode)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def forget(path: Path) -> None:
    """Record that this process no longer holds a lock file. The caller closes the file."""
    _held.discard(path)


def holder(file: TextIO, unknown: str) -> str:
    """Return a description of the process that holds a lock file, or `unknown` if the file does not name it."""
    try:
        file.seek(0)
        who = json.loads(file.read())
        return f"`{who['command']}` (process {who['pid']} on {who['host']}, since {who['since']})"
    except (ValueError, KeyError, TypeError, RecursionError, OSError):
        return unknown
