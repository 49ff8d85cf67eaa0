"""Lock of a database, rescue of its content if the file was moved, and transactions on the locked file.

Every method is one transaction over evokern's and Optuna's tables, committed to disk before the call returns. Use
`transaction` to combine several calls.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, Self

from sqlite_utils import Database

from evokern.errors import StoreError
from evokern.files import open_own, why_not_own
from evokern.lock_file import forget, holder, is_held_here, lock, write_holder
from evokern.store._files import (
    CHECKPOINT_WAIT_S,
    check_location,
    checkpoint,
    connect,
    explain_errors,
    refuse_foreign,
    remove,
)
from evokern.store._integrity import change_rows
from evokern.store._schema import migrations, refuse_newer


class Lock:
    """Lock that allows only one search per database; the system releases it when the process ends.

    The lock consists of two file locks. FILE.lock also names the holder. The flock(2) on the database itself, which
    SQLite does not use, excludes searches that open the file by another name (a mount or a link).
    """

    def __init__(self, path: Path) -> None:
        """Lock a database; create the file if it does not exist.

        Raises:
            StoreError: if another search uses the database; the message names that search.
        """
        self.database = path.resolve()
        """Resolved path of the database."""
        self.path = Path(f"{self.database}.lock")
        self.made = False
        """Whether this lock created the database."""
        self._descriptor = -1
        if is_held_here(self.path):
            raise StoreError(f"{path} is in use by another search in this process; choose another file")
        while True:
            try:
                self._file = open_own(self.path)
            except OSError as error:
                raise StoreError(self._not_taken(path, error)) from None
            if not lock(self._file):
                who = holder(self._file, "another search")
                self._file.close()
                raise StoreError(f"{path} is in use by {who}; wait for it to end or choose another file with --db")
            if self._still_the_file():
                break
            self._file.close()
        try:
            write_holder(self.path, self._file)
            self._lock_database(path)
            state = os.fstat(self._descriptor)
            write_holder(self.path, self._file, (state.st_dev, state.st_ino))
        except OSError as error:
            self.release()
            raise StoreError(f"{path} cannot be locked: {error.strerror}; choose another file with --db") from None
        except BaseException:
            self.release()
            raise

    def _not_taken(self, path: Path, error: OSError) -> str:
        if why := why_not_own(self.path):
            return (
                f"{path} cannot be locked with {self.path}: {why}; remove {self.path}, or choose another file with --db"
            )
        try:
            owner = self.path.stat().st_uid
        except OSError:  # system folders such as /proc report that they are writable
            return f"{path} cannot be created: {error.strerror}; choose another file with --db"
        return (
            f"{path} is locked by another user's search: {self.path} belongs to user {owner} ({error.strerror}); wait "
            "for that search, choose another file with --db, or, if no search is running, ask the owner to remove "
            "the lock file"
        )

    def _lock_database(self, path: Path) -> None:
        # Keep the descriptor open while SQLite uses the file: closing it releases SQLite's own locks (fcntl(2)).
        try:
            try:
                self._descriptor = os.open(self.database, os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:
                self._descriptor = os.open(self.database, os.O_RDWR | os.O_CLOEXEC | os.O_CREAT | os.O_EXCL, 0o644)
                self.made = True
        except OSError as error:
            raise StoreError(f"{path} cannot be opened: {error.strerror}; choose another file with --db") from None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StoreError(
                f"{path} is in use by another search, which opened the file under another name; wait for it to end or "
                "choose another file with --db"
            ) from None

    def was_moved(self) -> bool:
        """Return whether the database was removed, moved or replaced by another file."""
        ours = os.fstat(self._descriptor)
        try:
            found = self.database.stat()
        except OSError:
            return True
        return not os.path.samestat(ours, found)

    def _still_the_file(self) -> bool:
        # The previous holder removes the lock file on release; a lock on a removed file excludes no one.
        try:
            return os.path.samestat(os.fstat(self._file.fileno()), self.path.stat())
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Release the lock; repeated calls have no effect."""
        if not self._file.closed:
            forget(self.path)
            if self._still_the_file():
                self.path.unlink(missing_ok=True)
            self._file.close()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class Logs:
    """The -wal and -shm files of an open database. SQLite would apply them to a file that replaced the database."""

    def __init__(self, database: Path) -> None:
        """Record the files that exist now; they stay the same while the database is open."""
        paths = (Path(f"{database.resolve()}{suffix}") for suffix in ("-wal", "-shm"))
        self._states = {path: path.lstat() for path in paths if path.exists()}

    def gone(self) -> Path | None:
        """Return a file that was removed or replaced; other connections then do not see what this one commits."""
        for path, state in self._states.items():
            try:
                if not os.path.samestat(path.lstat(), state):
                    return path
            except OSError:
                return path
        return None

    def remove(self) -> None:
        """Remove the files, unless other files have taken their names; the open connection can still use them."""
        for path, state in self._states.items():
            with suppress(FileNotFoundError):
                if os.path.samestat(path.lstat(), state):
                    path.unlink()

    @contextmanager
    def kept_for_the_replacement(self) -> Iterator[None]:
        """Return a context for closing the connection, so that SQLite does not remove the files of a replacement."""
        self.remove()
        aside = {path: path.with_name(f"{path.name}.kept") for path in self._states if os.path.lexists(path)}
        for path, kept in aside.items():
            path.rename(kept)
        try:
            yield
        finally:
            for path, kept in aside.items():
                kept.rename(path)


def _made(path: Path) -> bool:
    """Create an empty private file; return False if the name already exists, even as a dangling link."""
    # Any user can create a file or a link of that name in a shared temporary folder.
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return False
    return True


def rescue(connection: sqlite3.Connection, database: Path, into: Path | None = None) -> Path:
    """Copy the content of a database that was moved or removed while open into a new file next to it.

    Args:
        connection: open connection to the database; the file exists until the connection is closed.
        database: original path of the database.
        into: file from an earlier call, which is overwritten; None chooses a free name.

    Returns:
        The new file: FILE.rescued, FILE.rescued.1, and so on. It is in the temporary folder if the original folder no
        longer exists.
    """
    if into is None:
        folder = database.parent if database.parent.is_dir() else Path(tempfile.gettempdir())
        names = (f"{database.name}.rescued{f'.{n}' if n else ''}" for n in count())
        into = next(folder / name for name in names if _made(folder / name))
    with closing(sqlite3.connect(into)) as copy:
        connection.backup(copy)
        copy.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return into


CHECKED_BYTES = 512 * 2**20
"""Maximum size in bytes of a file that is checked for corruption when it is opened; the check takes about a second."""


class WrittenFile:
    """A database that is open for writing; as a context manager, it checkpoints the write-ahead log and closes it."""

    def __init__(self, path: str | Path) -> None:
        """Open or create a database and lock it.

        Raises:
            StoreError: if the location or the file is unusable, or another search uses it; the file is unchanged.
        """
        self.path = Path(path)
        check_location(self.path)
        self._lock = Lock(self.path)
        self._made = self._lock.made
        self._rescued: Path | None = None
        self._ending = False
        self._folded: bool | None = None
        try:
            with explain_errors(self.path):
                self._open()
        except BaseException:
            if self._made:
                remove(self.path)
            self._lock.release()
            raise

    def _open(self) -> None:
        # Imported here, because Optuna is slow to import and reading does not need it.
        from evokern.store._optuna import hide_optuna_messages, refuse_other_version, require_tables

        hide_optuna_messages()
        refuse_foreign(self.path)
        connection = connect(self.path)
        try:
            self.db = Database(connection)
            refuse_newer(self.db, self.path)
            if self.path.stat().st_size <= CHECKED_BYTES:
                verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
                if verdict != "ok":
                    raise StoreError(
                        f"{self.path} is corrupt ({verdict}); restore a backup or recover its data with "
                        f"`sqlite3 {self.path} .recover`"
                    )
            refuse_other_version(self.db, self.path)
            migrations.apply(self.db)
            require_tables(self.db, self.path)
            checkpoint(connection, 0.0)  # a killed search or a long-running reader may have left a log
            self._logs = Logs(self.path)
        except BaseException:
            connection.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(failed=kind is not None)

    def close(self, *, failed: bool = False) -> None:
        """Checkpoint the write-ahead log, close the file and release its lock; repeated calls have no effect.

        Args:
            failed: whether an error ended the work; if so, a newly created file without a study is removed.
        """
        empty = False
        try:
            empty = failed and self._made and not self.db.execute("SELECT 1 FROM evokern_studies LIMIT 1").fetchone()
            if self._rescued is None:
                checkpoint(self.db.conn, CHECKPOINT_WAIT_S if self._folded is None and not failed else 0.0)
                self.db.conn.close()
            else:
                rescue(self.db.conn, self.path, self._rescued)  # include rows written after the first rescue
                with self._logs.kept_for_the_replacement():
                    self.db.conn.close()
        except Exception:  # closing must not hide an earlier error; the next opening checkpoints the log
            pass
        if empty:
            remove(self.path)
        self._lock.release()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Return a context whose changes are committed together at its end, or not at all.

        Raises:
            StoreError: if the database cannot be written, or if the file was removed, moved or replaced since it was
                opened. In the latter case, its content is rescued to a new file.
        """
        outermost = not self.db.conn.in_transaction
        with explain_errors(self.path), self.db.atomic():
            yield
        if outermost and self._rescued is None and self._lock.was_moved():
            with explain_errors(self.path):
                self._rescued = rescue(self.db.conn, self.path)
                self._logs.remove()
            raise StoreError(
                f"{self.path} was removed, moved or replaced during the search; all results are in {self._rescued}: "
                f"move that file back (`mv {self._rescued} {self.path}`) and run the same command again"
                + (f", or keep the file that is there now and use `--db {self._rescued}`" if self.path.exists() else "")
            )
        if outermost and self._rescued is None and not self._ending and (gone := self._logs.gone()):
            self._ending = True
            with explain_errors(self.path):
                checkpoint(self.db.conn, CHECKPOINT_WAIT_S)
            raise StoreError(
                f"{gone}, SQLite's log of {self.path}, was removed during the search; all results are in {self.path}, "
                "so run the same command again"
            )

    def fold_in(self) -> str:
        """Checkpoint the write-ahead log; return a note if another program prevented it, else an empty string."""
        with explain_errors(self.path):
            self._folded = checkpoint(self.db.conn, CHECKPOINT_WAIT_S)
        log = Path(f"{self.path}-wal")
        if self._folded or not log.exists():
            return ""
        return (
            f"another program is reading {self.path}, so {log.stat().st_size / 2**20:.1f} MB of results are still in "
            f"{log}; to copy the study, copy both files, or close that program and run any evokern command on the study"
        )


def update_row(db: Database, path: Path, table: str, key: str, values: Mapping[str, Any]) -> None:
    """Update columns of the row with the given UUID, and its digest.

    Raises:
        StoreError: if the row is damaged.
    """
    changes = ", ".join(f"{name} = ?" for name in values)
    change_rows(db, path, table, "uuid = ?", changes, [*values.values(), key])
