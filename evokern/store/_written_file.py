"""A database that is open for writing: its lock, durable transactions, and rescue of a file that was moved or removed.

Every method is one transaction over evokern's and Optuna's tables, committed to disk before the call returns. Use
`transaction` to combine several calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from sqlite_utils import Database

from evokern.errors import StoreError
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
from evokern.store._lock import Lock, Logs, rescue
from evokern.store._schema import migrations, refuse_newer

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
