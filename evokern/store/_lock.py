"""Who has a database, and whether it is still the file that it was when it was opened."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import tempfile
from contextlib import closing
from itertools import count
from pathlib import Path

from evokern.errors import StoreError
from evokern.lock_file import holder, is_held_here, let_go, lock, sign


class Lock:
    """One search per database: locks that the system drops when the process ends, however.

    One is on FILE.lock, which says who has it; one on the database itself (flock(2), which SQLite does not use), so
    that no second name of the file, by a mount or a link, lets another search in.
    """

    def __init__(self, path: Path) -> None:
        """Take the locks of a database, and make the file where there is none.

        Raises:
            StoreError: another search has it; the message says which.
        """
        self.database = path.resolve()
        """The database."""
        self.path = Path(f"{self.database}.lock")
        self.made = False
        """Whether the database was not there."""
        self._descriptor = -1
        if is_held_here(self.path):
            raise StoreError(f"{path} is in use by another search of this process; name another file")
        while True:
            try:
                self._file = self.path.open("a+", encoding="utf-8")
            except OSError as error:
                raise StoreError(self._not_taken(path, error)) from None
            if not lock(self._file):
                who = holder(self._file, "another search")
                self._file.close()
                raise StoreError(f"{path} is in use by {who}; wait for it, or name another file with --db")
            if self._still_the_file():
                break
            self._file.close()
        sign(self.path, self._file)
        try:
            self._lock_database(path)
        except BaseException:
            self.release()
            raise

    def _not_taken(self, path: Path, error: OSError) -> str:
        try:
            owner = self.path.stat().st_uid
        except OSError:  # the system's own folders claim that they can be written
            return f"{path} cannot be made: {error.strerror}; name another file with --db"
        return (
            f"{path} is locked by another user's search, or one that was killed left {self.path} behind (owner: "
            f"user {owner}; {error.strerror}); have it removed where nobody searches, or name another file with --db"
        )

    def _lock_database(self, path: Path) -> None:
        # Open for as long as SQLite has the file: closing it would drop SQLite's own locks of this process (fcntl(2)).
        try:
            try:
                self._descriptor = os.open(self.database, os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:
                self._descriptor = os.open(self.database, os.O_RDWR | os.O_CLOEXEC | os.O_CREAT | os.O_EXCL, 0o644)
                self.made = True
        except OSError as error:
            raise StoreError(f"{path} cannot be opened: {error.strerror}; name another file with --db") from None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StoreError(
                f"{path} is in use by another search, which knows the file by another name; wait for it, or name "
                "another file with --db"
            ) from None

    def displaced(self) -> bool:
        """Tell whether the file is not there any more under its name, or another one is."""
        ours = os.fstat(self._descriptor)
        try:
            found = self.database.stat()
        except OSError:
            return True
        return not os.path.samestat(ours, found)

    def _still_the_file(self) -> bool:
        # The former holder removes the file as it lets go; a lock on a removed file excludes nobody.
        try:
            return os.path.samestat(os.fstat(self._file.fileno()), self.path.stat())
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Let go; safe to call twice."""
        if not self._file.closed:
            let_go(self.path)
            if self._still_the_file():
                self.path.unlink(missing_ok=True)
            self._file.close()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _made(path: Path) -> bool:
    """Make an empty file of this user's alone; return whether nothing had that name, not even a link to nowhere."""
    # In a folder for temporary files anybody may have put one there.
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return False
    return True


def rescue(connection: sqlite3.Connection, database: Path, into: Path | None = None) -> Path:
    """Write what an open connection holds to a file beside its database, which is gone from its place.

    Args:
        connection: the connection; its file lives on until it is closed.
        database: where the file was.
        into: a file that an earlier call wrote, to be written again; None takes a name that is free.

    Returns:
        The file: FILE.rescued, FILE.rescued.1 …; in the folder for temporary files where that of the database is gone.
    """
    if into is None:
        folder = database.parent if database.parent.is_dir() else Path(tempfile.gettempdir())
        names = (f"{database.name}.rescued{f'.{n}' if n else ''}" for n in count())
        into = next(folder / name for name in names if _made(folder / name))
    with closing(sqlite3.connect(into)) as copy:
        connection.backup(copy)
        copy.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return into
