"""A file whose lock says who has something: dropped by the system when its process ends, however."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import TextIO

_held: set[Path] = set()
"""Files that this process has: POSIX locks do not keep a process from itself."""


def is_held_here(path: Path) -> bool:
    """Tell whether this process has a lock file, named by its resolved path."""
    return path in _held


def lock(file: TextIO) -> bool:
    """Take the lock of an open file for as long as it stays open; return whether nobody else has it."""
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def sign(path: Path, file: TextIO) -> None:
    """Write into a locked file who has it."""
    file.truncate(0)
    command = " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])
    now = time.strftime("%Y-%m-%d %H:%M:%S")
    json.dump({"pid": os.getpid(), "host": socket.gethostname(), "command": command, "since": now}, file)
    file.flush()
    _held.add(path)


def let_go(path: Path) -> None:
    """Note that this process has a lock file no more; closing it is its caller's."""
    _held.discard(path)


def holder(file: TextIO, unknown: str) -> str:
    """Return who has a locked file, as it was signed; `unknown` where it does not say."""
    try:
        file.seek(0)
        who = json.loads(file.read())
        return f"`{who['command']}` (process {who['pid']} on {who['host']}, since {who['since']})"
    except (ValueError, KeyError, TypeError, RecursionError, OSError):
        return unknown
