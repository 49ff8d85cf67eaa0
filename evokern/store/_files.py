"""The file itself: where it may be, who has it, what went wrong with it."""

from __future__ import annotations

import os
import sqlite3
import threading
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

DEFAULT_DB = "evokern.db"
"""The database that commands take unless told otherwise."""


def db_option(path: str | Path) -> tuple[str, ...]:
    """Return what a command line needs to name a database; nothing for the one that commands take."""
    return () if str(path) == DEFAULT_DB else ("--db", str(path))


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
    check_links(path)


def check_links(path: Path) -> None:
    """Check that a file, if it is there, has one name.

    SQLite keeps its log and its locks under the name that it was opened by: two names of one file corrupt it
    (sqlite.org/howtocorrupt.html, "Multiple links to the same file").

    Raises:
        StoreError: it has more.
    """
    if path.is_file() and (names := path.stat().st_nlink) > 1:
        raise StoreError(
            f"{path} is one of {names} names (hard links) of one file, which SQLite would corrupt: make it a file of "
            f"its own (`cp {path} {path}.own && mv {path}.own {path}`), or remove the other names"
        )


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
LOG_BYTES = 4 << 20
"""What is kept of the write-ahead log's file once its content is in the database: a reader that held the log for hours
leaves no more on the disk than this, as soon as it has ended."""
FOLD_S = 2.0
"""How long to wait for readers when the log is folded in."""
_CLOSING = threading.Lock()


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
    connection.execute(f"PRAGMA journal_size_limit={LOG_BYTES}")


def fold_in(connection: sqlite3.Connection, wait_s: float) -> bool:
    """Write what the write-ahead log holds into the database and empty it; False where a reader keeps it from that.

    Args:
        connection: an open one, outside a transaction.
        wait_s: how long to wait for readers, seconds.
    """
    connection.execute(f"PRAGMA busy_timeout={int(1000 * wait_s)}")
    busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    connection.execute(f"PRAGMA busy_timeout={int(1000 * TIMEOUT_S)}")
    return not busy


def refuse_foreign(path: Path) -> None:
    """Refuse a database that another program made, before anything of it is changed.

    One with tables of Optuna's alone is taken: evokern's stand beside them.

    Raises:
        StoreError: it has tables, and none of them is evokern's or Optuna's.
    """
    if not path.is_file() or not path.stat().st_size:
        return
    connection = _connect_without_writing(path)
    try:
        rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
        tables = [name for (name,) in rows if not name.startswith("sqlite_")]
    finally:
        connection.close()
    optunas = {"studies", "study_directions", "trials"} <= set(tables)
    if tables and not optunas and not any(name.startswith(OWN_TABLES) for name in tables):
        listed = ", ".join(tables[:5]) + (", …" if len(tables) > 5 else "")
        raise StoreError(f"{path} is another program's database (its tables: {listed}); name another file with --db")


OWN_TABLES = ("evokern_", "_sqlite_migrations", "version_info")
"""How the names of tables begin that a search makes, from the first one on: an interruption may leave few of them."""


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
    check_links(path)
    folder = path.resolve().parent
    if os.access(path, os.W_OK) and os.access(folder, os.W_OK):
        # Not mode=ro: that would leave -wal and -shm files behind, which only a writing connection removes.
        connection = sqlite3.connect(path, timeout=TIMEOUT_S)
        connection.text_factory = plain_text
        connection.execute("PRAGMA query_only=ON")
        return connection
    return _connect_without_writing(path)


def close_reading(connection: sqlite3.Connection) -> None:
    """Close what `connect_readonly` opened; safe to call twice.

    SQLite removes a database's -wal and -shm files when its last connection closes. Two of one process that close at
    once each still see the other's lock, and the files would stay: here one closes after the other.
    """
    with _CLOSING:
        connection.close()


def _connect_without_writing(path: Path) -> sqlite3.Connection:
    pending = Path(f"{path}-wal").exists()
    mode = "mode=ro" if pending else "mode=ro&immutable=1"
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?{mode}", uri=True, timeout=TIMEOUT_S)
    connection.text_factory = plain_text
    return connection
