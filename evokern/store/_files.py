"""The file itself: where it may be, who has it, what went wrong with it."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from evokern.errors import StoreError
from evokern.files import is_file, is_folder

NETWORK_FILE_SYSTEMS = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "lustre", "gpfs", "beegfs", "glusterfs"),
        *("fuse.glusterfs", "fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.davfs", "davfs", "ocfs2", "gfs2"),
        *("pvfs2", "orangefs", "panfs"),
    }
)
"""File systems whose locks and shared memory SQLite's write-ahead log cannot rely on (sqlite.org/wal.html)."""


def file_system(path: Path) -> str:
    """Return the type of the file system that holds a path, empty where the system does not say.

    Read from /proc/self/mounts (proc(5)): the longest mount point that is a parent of the path.
    """
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    target = str(path.resolve())
    best, kind = "", ""
    for line in mounts:
        parts = line.split()
        point = parts[1].replace("\\040", " ") if len(parts) > 2 else ""
        inside = target == point or target.startswith(point.rstrip("/") + "/")
        if point and inside and len(point) >= len(best):
            best, kind = point, parts[2]
    return kind


def check_place(path: Path) -> None:
    """Check that a database can live and be written at a path.

    Raises:
        StoreError: the folder is missing, is on a network file system, or the file cannot be written.
    """
    try:
        folder, there = path.resolve().parent, path.exists()
    except (OSError, ValueError, RuntimeError) as error:
        raise StoreError(f"no database can be named {path}: {_reason(error)}; give --db another name") from None
    if path.is_dir():
        raise StoreError(f"{path} is a folder; name a file with --db")
    if there and not path.is_file():
        raise StoreError(f"{path} is a pipe, a socket or a device; name a file with --db")
    if not folder.is_dir():
        raise StoreError(f"the folder {folder} does not exist; create it or name another file with --db")
    kind = file_system(folder)
    if kind in NETWORK_FILE_SYSTEMS:
        raise StoreError(
            f"{path} is on a network file system ({kind}), where SQLite's locks do not hold; "
            "name a file on a local disk with --db and copy it afterwards"
        )
    if path.exists() and not os.access(path, os.W_OK):
        raise StoreError(f"{path} is read-only; make it writable (chmod u+w) or name another file with --db")
    if not os.access(folder, os.W_OK):
        raise StoreError(f"the folder {folder} is read-only; SQLite writes beside the file, so name one with --db")


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn SQLite's errors, raw or wrapped by Optuna, into messages that say what to do.

    Raises:
        StoreError: the database cannot be used.
    """
    try:
        yield
    except Exception as error:
        # Readers do without importing Optuna and SQLAlchemy, so their errors are known by where they come from.
        wrapped = type(error).__module__.startswith(("sqlalchemy.", "optuna.exceptions"))
        if isinstance(error, UnicodeDecodeError):  # in a name of a table or column: texts are read whatever they hold
            raise StoreError(_remedy(path, "corrupt")) from error
        if not (isinstance(error, sqlite3.Error) or wrapped):
            raise
        text = " ".join(str(part) for part in (error, error.__cause__) if part)
        raise StoreError(_remedy(path, text)) from error


def _remedy(path: Path, text: str) -> str:
    low = text.lower()
    if "disk is full" in low or "disk i/o error" in low:
        return f"the disk of {path} is full or failing; free space and run the same command again, nothing is lost"
    if "readonly" in low:
        return f"{path} is read-only; make it and its folder writable or name another file with --db"
    if "locked" in low or "busy" in low:
        return (
            f"{path} stayed locked by another program for {int(TIMEOUT_S)} s; close it and run the same command again"
        )
    if "not a database" in low or "malformed" in low or "corrupt" in low:
        return (
            f"{path} is corrupt or no SQLite file; restore a copy, save what can be saved with "
            f"`sqlite3 {path} .recover`, or name another file with --db"
        )
    if "unable to open" in low:
        return f"{path} cannot be opened; check that the file and its folder exist and may be read"
    first = text.splitlines()[0] if text else "unknown error"
    return f"{path} cannot be used: {first}"


TIMEOUT_S = 30.0
"""How long to wait for another connection's write."""


def connect(path: Path) -> sqlite3.Connection:
    """Open a connection for writing: write-ahead log, every commit on disk before it returns."""
    connection = sqlite3.connect(path, timeout=TIMEOUT_S)
    connection.text_factory = plain_text
    apply_pragmas(connection)
    return connection


def plain_text(content: bytes) -> str:
    """Return a stored text; bytes that are no UTF-8 are replaced, which the row's digest tells."""
    return content.decode("utf-8", errors="replace")


def apply_pragmas(connection: Any) -> None:
    """Set what SQLite keeps per connection."""
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")


def remove(path: Path) -> None:
    """Remove a database that nobody has open, with what SQLite keeps beside it."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


def connect_readonly(path: Path) -> sqlite3.Connection:
    """Open a connection that cannot write, also where the file or its folder is read-only.

    Raises:
        StoreError: there is no such file.
    """
    if is_folder(path):
        raise StoreError(f"{path} is a folder; name a file with --db")
    if not is_file(path):
        raise StoreError(f"there is no database {path}; `evokern search` writes one, --db names another")
    folder = path.resolve().parent
    if os.access(path, os.W_OK) and os.access(folder, os.W_OK):
        # Not mode=ro: that would leave -wal and -shm files behind, which only a writing connection removes.
        connection = sqlite3.connect(path, timeout=TIMEOUT_S)
        connection.text_factory = plain_text
        connection.execute("PRAGMA query_only=ON")
        return connection
    pending = Path(f"{path}-wal").exists()
    mode = "mode=ro" if pending else "mode=ro&immutable=1"
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?{mode}", uri=True, timeout=TIMEOUT_S)
    connection.text_factory = plain_text
    return connection


_held: set[Path] = set()
"""Databases that this process has: POSIX locks do not keep a process from itself."""


class Lock:
    """One search per database: a POSIX lock on FILE.lock, which the system drops when the process ends, however."""

    def __init__(self, path: Path) -> None:
        """Take the lock of a database.

        Raises:
            StoreError: another search has it; the message says which.
        """
        self.path = Path(f"{path.resolve()}.lock")
        if self.path in _held:
            raise StoreError(f"{path} is in use by another search of this process; name another file")
        while True:
            try:
                self._file = self.path.open("a+", encoding="utf-8")
            except OSError as error:
                raise StoreError(self._not_taken(path, error)) from None
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                holder = self._holder()
                self._file.close()
                raise StoreError(f"{path} is in use by {holder}; wait for it, or name another file with --db") from None
            if self._still_the_file():
                break
            self._file.close()
        self._file.truncate(0)
        command = " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        json.dump({"pid": os.getpid(), "host": socket.gethostname(), "command": command, "since": now}, self._file)
        self._file.flush()
        _held.add(self.path)

    def _not_taken(self, path: Path, error: OSError) -> str:
        try:
            owner = self.path.stat().st_uid
        except OSError:  # the system's own folders claim that they can be written
            return f"{path} cannot be made: {error.strerror}; name another file with --db"
        return (
            f"{path} is locked by another user's search, or one that was killed left {self.path} behind (owner: "
            f"user {owner}; {error.strerror}); have it removed where nobody searches, or name another file with --db"
        )

    def _still_the_file(self) -> bool:
        # The former holder removes the file as it lets go; a lock on a removed file excludes nobody.
        try:
            return os.fstat(self._file.fileno()).st_ino == self.path.stat().st_ino
        except FileNotFoundError:
            return False

    def _holder(self) -> str:
        try:
            self._file.seek(0)
            who = json.loads(self._file.read())
            return f"`{who['command']}` (process {who['pid']} on {who['host']}, since {who['since']})"
        except (ValueError, KeyError, TypeError, RecursionError, OSError):
            return "another search"

    def release(self) -> None:
        """Let go; safe to call twice."""
        if not self._file.closed:
            _held.discard(self.path)
            self.path.unlink(missing_ok=True)
            self._file.close()
