"""The database file: checks of its location, connections, and explanations of SQLite errors."""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from evokern.errors import StoreError
from evokern.files import is_file, is_folder, why_not_own
from evokern.lock_file import locked_inode

NETWORK_FILE_SYSTEMS = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "lustre", "gpfs", "beegfs", "glusterfs"),
        *("fuse.glusterfs", "fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.davfs", "davfs", "ocfs2", "gfs2"),
        *("pvfs2", "orangefs", "panfs"),
    }
)
"""File systems on which SQLite's write-ahead log is unsafe (sqlite.org/wal.html)."""

DEFAULT_DB = "evokern.db"
"""Default database of every command."""


def db_option(path: str | Path) -> tuple[str, ...]:
    """Return the `--db` arguments for a database; empty for the default database."""
    return () if str(path) == DEFAULT_DB else ("--db", str(path))


def file_system(path: Path) -> str:
    """Return the type of the file system that contains a path, or an empty string if the type is unknown.

    The type is that of the longest mount point in /proc/self/mounts (proc(5)) that is a parent of the path.
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


def check_location(path: Path) -> None:
    """Check that a database can be created or written at a path.

    Raises:
        StoreError: if the folder is missing or on a network file system, or the file cannot be written.
    """
    try:
        folder, there = path.resolve().parent, path.exists()
    except (OSError, ValueError, RuntimeError) as error:
        raise StoreError(f"invalid database path {path}: {_reason(error)}; choose another path with --db") from None
    if path.is_dir():
        raise StoreError(f"{path} is a folder; choose a file with --db")
    if there and not path.is_file():
        raise StoreError(f"{path} is a pipe, a socket or a device; choose a regular file with --db")
    if not folder.is_dir():
        raise StoreError(f"the folder {folder} does not exist; create it or choose another file with --db")
    kind = file_system(folder)
    if kind in NETWORK_FILE_SYSTEMS:
        raise StoreError(
            f"{path} is on a network file system ({kind}), where SQLite's locks are unreliable; "
            "choose a file on a local disk with --db and copy it afterwards"
        )
    if path.exists() and not os.access(path, os.W_OK):
        raise StoreError(f"{path} is read-only; make it writable (chmod u+w) or choose another file with --db")
    if not os.access(folder, os.W_OK):
        raise StoreError(
            f"{folder} is read-only and SQLite needs to create files next to the database; choose another location "
            "with --db"
        )
    check_links(path)


def check_links(path: Path) -> None:
    """Check that a database and SQLite's files next to it are not links that somebody else may have put there.

    SQLite derives the names of its log and locks from the path that was opened. Access to one file by two names
    corrupts the file (sqlite.org/howtocorrupt.html, "Multiple links to the same file").

    Raises:
        StoreError: if there is such a link, or the database has several hard links.
    """
    for suffix in ("-wal", "-shm", "-journal"):
        side = Path(f"{path.resolve()}{suffix}")
        if why := why_not_own(side):
            raise StoreError(f"{path} cannot be used: {side}: {why}; SQLite would write to it. Remove {side}")
    _check_log(path)
    if path.is_symlink() and not (is_file(path) and path.stat().st_size):
        raise StoreError(
            f"{path} is a link to {path.resolve()}, which is not a database; remove the link, or choose that file with "
            "--db"
        )
    if path.is_file() and (names := path.stat().st_nlink) > 1:
        raise StoreError(
            f"{path} is one of {names} hard links to the same file, and SQLite would corrupt it; make a separate copy "
            f"(`cp {path} {path}.own && mv {path}.own {path}`) or remove the other links"
        )


def _check_log(path: Path) -> None:
    """Check that SQLite's log next to a database belongs to it, and not to a file that it replaced during a search.

    SQLite would apply the log to the replacement, and so destroy it. It does not check whose log it is.

    Raises:
        StoreError: if the log belongs to another file.
    """
    database = path.resolve()
    log, lock = Path(f"{database}-wal"), Path(f"{database}.lock")
    try:
        state, pending = database.stat(), log.stat().st_size
    except OSError:
        return
    locked = locked_inode(lock) if pending else None
    if locked is not None and locked != (state.st_dev, state.st_ino):
        raise StoreError(
            f"{path} was replaced while a search used it, and {log} belongs to the former file; wait until the search "
            f"has ended. If no search is running, remove {log} and {lock}"
        )


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


@contextmanager
def explain_errors(path: Path) -> Iterator[None]:
    """Convert SQLite errors, including errors that Optuna wraps, into a `StoreError` that names the remedy.

    Raises:
        StoreError: if the database cannot be used.
    """
    try:
        yield
    except Exception as error:
        # Compare module names, because readers must not import Optuna and SQLAlchemy.
        wrapped = type(error).__module__.startswith(("sqlalchemy.", "optuna.exceptions"))
        if isinstance(error, UnicodeDecodeError):  # a table or column name: `plain_text` decodes any stored text
            raise StoreError(_remedy(path, "corrupt")) from error
        if not (isinstance(error, sqlite3.Error) or wrapped):
            raise
        text = " ".join(str(part) for part in (error, error.__cause__) if part)
        raise StoreError(_remedy(path, text)) from error


def _remedy(path: Path, text: str) -> str:
    low = text.lower()
    if "disk i/o error" in low and (gone := _missing_log(path)):
        return f"{gone}, SQLite's log of {path}, was removed while it was in use; run the same command again"
    if "disk is full" in low or "disk i/o error" in low:
        return f"the disk of {path} is full or failing; free space and run the same command again (nothing is lost)"
    if "readonly" in low:
        return f"{path} is read-only; make the file and its folder writable or choose another file with --db"
    if "locked" in low or "busy" in low:
        return (
            f"{path} was locked by another program for {int(TIMEOUT_S)} s; close that program and run the same "
            "command again"
        )
    if "not a database" in low or "malformed" in low or "corrupt" in low:
        return (
            f"{path} is corrupt or not an SQLite file; restore a backup, recover its data with "
            f"`sqlite3 {path} .recover`, or choose another file with --db"
        )
    if "unable to open" in low and _no_more_files():
        return f"{path} cannot be opened: too many open files; raise the limit of open files (ulimit -n)"
    if "unable to open" in low:
        return f"{path} cannot be opened; check that the file and its folder exist and are readable"
    first = text.splitlines()[0] if text else "unknown error"
    return f"{path} cannot be used: {first}"


def _missing_log(path: Path) -> Path | None:
    """Return a file of SQLite that is missing next to a database, if its disk has space."""
    try:
        if not os.statvfs(path.resolve().parent).f_bavail:
            return None
    except OSError:
        return None
    logs = (Path(f"{path}{suffix}") for suffix in ("-wal", "-shm"))
    return next((log for log in logs if not log.exists()), None)


def _no_more_files() -> bool:
    """Return whether this process cannot open the three files that SQLite needs for a database."""
    opened: list[int] = []
    try:
        for _ in range(3):
            opened.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return error.errno in (errno.EMFILE, errno.ENFILE)
    finally:
        for one in opened:
            os.close(one)
    return False


TIMEOUT_S = 30.0
"""Seconds to wait for the write lock of another connection."""
LOG_BYTES = 4 << 20
"""Maximum size in bytes of the write-ahead log after a checkpoint. A long-running reader can make the log grow; this
limit truncates the file when that reader ends."""
CHECKPOINT_WAIT_S = 2.0
"""Seconds to wait for readers during a checkpoint."""
_CLOSING = threading.Lock()


def connect(path: Path) -> sqlite3.Connection:
    """Open a connection for writing that uses a write-ahead log and durable commits (`synchronous=FULL`)."""
    connection = sqlite3.connect(path, timeout=TIMEOUT_S)
    connection.text_factory = plain_text
    apply_pragmas(connection)
    return connection


def plain_text(content: bytes) -> str:
    """Return a stored text with invalid UTF-8 replaced; the row's digest detects the replacement."""
    return content.decode("utf-8", errors="replace")


def apply_pragmas(connection: Any) -> None:
    """Set the SQLite options that apply to one connection."""
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute(f"PRAGMA journal_size_limit={LOG_BYTES}")


def checkpoint(connection: sqlite3.Connection, wait_s: float) -> bool:
    """Checkpoint the write-ahead log and truncate it; return False if a reader prevented it.

    Args:
        connection: an open connection without an active transaction.
        wait_s: maximum time to wait for readers, in seconds.
    """
    connection.execute(f"PRAGMA busy_timeout={int(1000 * wait_s)}")
    busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    connection.execute(f"PRAGMA busy_timeout={int(1000 * TIMEOUT_S)}")
    return not busy


def refuse_foreign(path: Path) -> None:
    """Reject a database that another program created, before changing the file.

    A database that contains only Optuna's tables is accepted; evokern adds its own tables to it.

    Raises:
        StoreError: if the file contains tables, but none from evokern or Optuna.
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
        raise StoreError(f"{path} is another program's database (its tables: {listed}); choose another file with --db")


OWN_TABLES = ("evokern_", "_sqlite_migrations", "version_info")
"""Prefixes of the tables that a search creates; an interrupted search may have created only some of these tables."""


def remove(path: Path) -> None:
    """Remove a database that is not open, together with SQLite's log and journal files."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


def connect_readonly(path: Path) -> sqlite3.Connection:
    """Open a read-only connection; the file and its folder may be read-only.

    Raises:
        StoreError: if the file does not exist.
    """
    if is_folder(path):
        raise StoreError(f"{path} is a folder; choose a file with --db")
    if not is_file(path):
        raise StoreError(
            f"there is no database {path}; create it with `evokern search` or choose another database with --db"
        )
    check_links(path)
    folder = path.resolve().parent
    if os.access(path, os.W_OK) and os.access(folder, os.W_OK):
        # Not mode=ro: such a connection would leave -wal and -shm files, which only a writable connection removes.
        connection = sqlite3.connect(path, timeout=TIMEOUT_S)
        connection.text_factory = plain_text
        connection.execute("PRAGMA query_only=ON")
        return connection
    return _connect_without_writing(path)


def close_reading(connection: sqlite3.Connection) -> None:
    """Close a connection from `connect_readonly`; repeated calls have no effect.

    SQLite removes the -wal and -shm files when the last connection closes. If two threads close at the same time, each
    still sees the other's lock and the files remain. This function therefore closes one connection after another.
    """
    with _CLOSING:
        connection.close()


def _connect_without_writing(path: Path) -> sqlite3.Connection:
    pending = Path(f"{path}-wal").exists()
    mode = "mode=ro" if pending else "mode=ro&immutable=1"
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?{mode}", uri=True, timeout=TIMEOUT_S)
    connection.text_factory = plain_text
    return connection
