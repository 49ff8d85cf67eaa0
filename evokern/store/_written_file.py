"""A database open for writing: its lock, transactions on the disk, and what is saved where the file went away.

Every step is one transaction, in our tables and Optuna's, that is on disk when the call returns; a `transaction` makes
several steps one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from sqlite_utils import Database

from evokern.errors import StoreError
from evokern.store._files import FOLD_S, check_place, connect, explained, fold_in, refuse_foreign, remove
from evokern.store._integrity import change_rows
from evokern.store._lock import Lock, rescue
from evokern.store._schema import migrations, refuse_newer

CHECKED_BYTES = 512 * 2**20
"""Files up to this size are checked for corruption on opening (about a second for the largest)."""


class WrittenFile:
    """A database open for writing; a context manager that folds the write-ahead log in when it closes."""

    def __init__(self, path: str | Path) -> None:
        """Open or create a database and take its lock.

        Raises:
            StoreError: the place or the file is unusable, or another search has it; nothing was changed.
        """
        self.path = Path(path)
        check_place(self.path)
        self._lock = Lock(self.path)
        self._made = self._lock.made
        self._rescued: Path | None = None
        self._folded: bool | None = None
        try:
            with explained(self.path):
                self._open()
        except BaseException:
            if self._made:
                remove(self.path)
            self._lock.release()
            raise

    def _open(self) -> None:
        # Writing needs Optuna, which takes a while to import; commands that only read do without.
        from evokern.store._optuna import quiet, refuse_other_version, require_tables

        quiet()
        refuse_foreign(self.path)
        connection = connect(self.path)
        try:
            self.db = Database(connection)
            refuse_newer(self.db, self.path)
            if self.path.stat().st_size <= CHECKED_BYTES:
                verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
                if verdict != "ok":
                    raise StoreError(
                        f"{self.path} is corrupt ({verdict}); restore a copy or save what can be saved with "
                        f"`sqlite3 {self.path} .recover`"
                    )
            refuse_other_version(self.db, self.path)
            migrations.apply(self.db)
            require_tables(self.db, self.path)
            fold_in(connection, 0.0)  # what a killed search, or a reader that outlasted one, left behind
        except BaseException:
            connection.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(failed=kind is not None)

    def close(self, *, failed: bool = False) -> None:
        """Fold the write-ahead log in and let go of the file; safe to call twice.

        Args:
            failed: something went wrong; a file that was made for it and holds no study is then removed again.
        """
        empty = False
        try:
            empty = failed and self._made and not self.db.execute("SELECT 1 FROM evokern_studies LIMIT 1").fetchone()
            if self._rescued is None:
                fold_in(self.db.conn, FOLD_S if self._folded is None and not failed else 0.0)
            else:
                rescue(self.db.conn, self.path, self._rescued)  # with what was written after it was noticed
            self.db.conn.close()
        except Exception:  # closing must not hide what went wrong before; the log is folded in by the next opening
            pass
        if empty:
            remove(self.path)
        self._lock.release()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Write all that is done inside to the disk at once, or nothing of it.

        Raises:
            StoreError: the database cannot be written; or it was removed, moved or replaced since it was opened, and
                what this connection holds was written beside it.
        """
        outermost = not self.db.conn.in_transaction
        with explained(self.path), self.db.atomic():
            yield
        if outermost and self._rescued is None and self._lock.displaced():
            with explained(self.path):
                self._rescued = rescue(self.db.conn, self.path)
            raise StoreError(
                f"{self.path} was removed, moved or replaced while it was searched; all that was found is in "
                f"{self._rescued}: put it where it should be (`mv {self._rescued} {self.path}`), and run the same "
                "command again"
            )

    def fold_in(self) -> str:
        """Write what the write-ahead log holds into the database; returns what keeps it from that, empty if nothing."""
        with explained(self.path):
            self._folded = fold_in(self.db.conn, FOLD_S)
        log = Path(f"{self.path}-wal")
        if self._folded or not log.exists():
            return ""
        return (
            f"another program reads {self.path}, so that {log.stat().st_size / 2**20:.1f} MB stay in {log} until it "
            "has ended: copy the two files together, or close it and run any command on the study"
        )


def update_row(db: Database, path: Path, table: str, key: str, values: Mapping[str, Any]) -> None:
    """Change columns of the row with a UUID, and its digest.

    Raises:
        StoreError: the row is damaged.
    """
    changes = ", ".join(f"{name} = ?" for name in values)
    change_rows(db, path, table, "uuid = ?", changes, [*values.values(), key])
