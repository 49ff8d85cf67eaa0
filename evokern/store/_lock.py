"""Lock of a database, detection of a file that was moved, and rescue of its content."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from itertools import count
from pathlib import Path

from evokern.errors import StoreError
from evokern.files import open_own, why_not_own
from evokern.lock_file import forget, holder, is_held_here, lock, write_holder


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
        """Return a context in which the connection may be closed: SQLite then removes the names, whatever they are."""
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
