"""Row digests, which detect rows that changed on disk; damaged rows are reported and not used.

SQLite detects malformed pages but not a changed character. The digest is not a signature; anyone can compute a new one.
Rows written before digests existed have no digest and are accepted unchecked. The migration `SEALED`, which runs when
the file is opened for writing, adds the missing digests. After that migration, a row without a digest is damaged.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from sqlite_utils import Database

from evokern.errors import EvokernError, StoreError
from evokern.escaping import visible
from evokern.store._files import explain_errors
from evokern.wording import unreadable_text

COLUMN = "row_digest"
"""Column that contains the digest of a row."""
TABLES = (
    *("evokern_studies", "evokern_sessions", "evokern_trials", "evokern_samples", "evokern_rejections"),
    *("evokern_sources", "evokern_proofs", "evokern_priors", "evokern_profiles"),
)
"""Tables whose rows have a digest."""
SEALED = "m007_every_row_sealed"
"""Migration after which every row has a digest."""
CHECKED_BYTES = 64 * 2**20
"""Maximum size in bytes of a file that SQLite checks before reading; the check takes some hundredths of a second."""
UNREADABLE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError, EvokernError)
"""Exceptions that the conversion of a damaged row to a record can cause."""

_LOGGER = logging.getLogger("evokern")
# `json.dumps` with options would create an encoder for each row.
_encoded = json.JSONEncoder(separators=(",", ":")).encode
_T = TypeVar("_T")
Row = Mapping[str, Any]


def digest_of(row: Row) -> str:
    """Return the SHA-256 digest of a stored row, without the digest column and columns that are NULL.

    A column added by a later version is NULL in older rows, so their digests remain valid.
    """
    parts = [(name, row[name]) for name in sorted(row) if name != COLUMN and row[name] is not None]
    return hashlib.sha256(_encoded(parts).encode()).hexdigest()


def is_intact(row: Row) -> bool:
    """Return whether a row matches its digest or has none."""
    return row.get(COLUMN) is None or row[COLUMN] == digest_of(row)


def _every_row_has_one(db: Database) -> bool:
    """Return whether the migration `SEALED` was applied, so that a row without a digest is damaged."""
    tables = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = '_sqlite_migrations'"
    if db.conn.execute(tables).fetchone() is None:
        return False
    applied = "SELECT 1 FROM _sqlite_migrations WHERE migration_set = 'evokern' AND name = ?"
    return db.conn.execute(applied, [SEALED]).fetchone() is not None


def _judged(db: Database, rows: Iterable[tuple[int, dict[str, Any]]]) -> Iterator[tuple[int, Row]]:
    """Yield numbered rows; if every row must have a digest, replace a missing digest with an invalid one."""
    every: bool | None = None
    for number, row in rows:
        if COLUMN in row and row[COLUMN] is None:
            every = _every_row_has_one(db) if every is None else every
            row[COLUMN] = "" if every else None
        yield number, row


def select_numbered(
    db: Database, table: str, where: str = "1", values: Sequence[Any] = (), order: str = "rowid"
) -> Iterator[tuple[int, Row]]:
    """Yield (row number, row) pairs without using an index, because a damaged index could hide rows."""
    return _judged(db, _numbered(db, f"{table} NOT INDEXED", f"{where} ORDER BY {order}", values))


def select(
    db: Database, table: str, where: str = "1", values: Sequence[Any] = (), order: str = "rowid"
) -> Iterator[Row]:
    """Yield the rows of `select_numbered` without their numbers."""
    return (row for _, row in select_numbered(db, table, where, values, order))


def write_row(db: Database, table: str, values: Row, *, replace: bool = False) -> None:
    """Insert a row with its digest.

    Args:
        db: the database, in a transaction.
        table: name of the table.
        values: values of the columns, by column.
        replace: whether to replace an existing row that has the same key.
    """
    # Plain SQL, because `Table.insert` reads the schema again for every row and this code runs for every trial.
    verb = "INSERT OR REPLACE" if replace else "INSERT"
    names, marks = ", ".join(values), ", ".join("?" * len(values))
    done = db.conn.execute(f"{verb} INTO {table} ({names}) VALUES ({marks})", list(values.values()))
    _seal(db, table, "rowid = ?", [done.lastrowid])


def change_rows(db: Database, path: Path, table: str, where: str, changes: str, values: Sequence[Any]) -> None:
    """Update rows and their digests.

    Args:
        db: the database, in a transaction.
        path: the database file, for messages.
        table: name of the table.
        where: SQL condition with one `?`, which takes the last of the values.
        changes: SQL after SET.
        values: values for `changes`, then the value for `where`.

    Raises:
        StoreError: if one of the rows is damaged, because a new digest would hide the damage.
    """
    for _, row in _judged(db, _numbered(db, table, where, values[-1:])):
        if not is_intact(row):
            raise damaged_row_error(path, table, row)
    db.conn.execute(f"UPDATE {table} SET {changes} WHERE {where}", values)
    _seal(db, table, where, values[-1:])


def _numbered(db: Database, table: str, where: str, values: Sequence[Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    found = db.conn.execute(f"SELECT rowid, * FROM {table} WHERE {where}", values)
    names = [column[0] for column in found.description[1:]]
    for number, *row in found:
        yield number, dict(zip(names, row, strict=True))


def _seal(db: Database, table: str, where: str, values: Sequence[Any]) -> None:
    for number, row in list(_numbered(db, table, where, values)):
        db.conn.execute(f"UPDATE {table} SET {COLUMN} = ? WHERE rowid = ?", [digest_of(row), number])


def seal_all(db: Database) -> None:
    """Set the digest of every row according to its current content."""
    for table in TABLES:
        if table in db.table_names() and COLUMN in db.table(table).columns_dict:
            _seal(db, table, "1", [])


def seal_missing(db: Database) -> None:
    """Set the digest of every row that has none according to its current content."""
    for table in TABLES:
        _seal(db, table, f"{COLUMN} IS NULL", [])


def describe_row(table: str, row: Row) -> str:
    """Return a description of a row, for messages."""
    kind = table.removeprefix("evokern_")
    match kind:
        case "trials":
            return f"trial {row.get('number')}, row {row.get('uuid')} of {table}"
        case "studies":
            return f"study {row.get('name')!r}, row {row.get('uuid')} of {table}"
        case "samples":
            return f"samples of problem {row.get('problem')}, trial {row.get('trial')} in {table}"
        case "sources":
            return f"stored source {row.get('file')!r} of {table}"
        case "rejections":
            return f"count of {row.get('constraint_name')!r} in {table}"
    return f"row {row.get('uuid') or row.get('study')} of {table}"


def damaged_row_error(path: Path, table: str, row: Row, why: str = "") -> StoreError:
    """Return the error for a damaged row that is required."""
    return StoreError(
        f"{path}: {describe_row(table, row)} is damaged: {why or 'its content changed on disk'}; "
        "restore a backup of the file or choose another file with --db"
    )


def require_intact(db: Database, path: Path, table: str, where: str = "1", values: Sequence[Any] = ()) -> list[Row]:
    """Return rows on which a search depends.

    Raises:
        StoreError: if one of the rows is damaged.
    """
    rows = list(select(db, table, where, values))
    for row in rows:
        if not is_intact(row):
            raise damaged_row_error(path, table, row)
    return rows


def convert_row(path: Path, table: str, row: Row, convert: Callable[[Row], _T]) -> _T:
    """Convert a row to a record.

    Raises:
        StoreError: if the row cannot be converted.
    """
    try:
        return convert(row)
    except UNREADABLE as error:
        raise damaged_row_error(path, table, row, f"it cannot be read ({unreadable_text(error)})") from error


class IntactRows:
    """Rows of a database that is open for reading; each damaged row is reported once and omitted."""

    def __init__(self, db: Database, path: Path) -> None:
        self._db = db
        self._path = path
        self.reports: list[str] = []
        """Reports of damage, in the order in which the damage was found."""

    def check_pages(self) -> None:
        """Run SQLite's check for malformed pages.

        Raises:
            StoreError: if a page is malformed.
        """
        with explain_errors(self._path):
            if self._path.stat().st_size <= CHECKED_BYTES:
                verdict = self._db.conn.execute("PRAGMA quick_check(1)").fetchone()[0]
                if verdict != "ok":
                    raise sqlite3.DatabaseError(f"corrupt: {verdict}")

    def tell(self, text: str) -> None:
        """Report damage, unless the same text was already reported."""
        if text not in self.reports:
            self.reports.append(text)
            _LOGGER.warning("%s", visible(f"{self._path}: {text}"))  # one line even if the row contains line breaks

    def read(
        self,
        table: str,
        convert: Callable[[Row], _T],
        where: str = "1",
        values: Sequence[Any] = (),
        order: str = "rowid",
    ) -> Iterator[_T]:
        """Yield the records of undamaged rows."""
        with explain_errors(self._path):
            for row in select(self._db, table, where, values, order):
                record = self.record(table, row, convert)
                if record is not None:
                    yield record

    def read_where(
        self, table: str, convert: Callable[[Row], _T], having: Mapping[str, Any], order: str = "rowid"
    ) -> Iterator[_T]:
        """Yield the records of undamaged rows whose columns have the given values.

        The whole table is read, because damage can change the columns that select a row.

        Args:
            table: name of the table, which should be small.
            convert: converts a row to a record.
            having: required values, by column.
            order: SQL after ORDER BY.
        """
        with explain_errors(self._path):
            for row in select(self._db, table, order=order):
                if is_intact(row) and any(row[column] != value for column, value in having.items()):
                    continue
                record = self.record(table, row, convert)
                if record is not None:
                    yield record

    def record(self, table: str, row: Row, convert: Callable[[Row], _T]) -> _T | None:
        """Return the record of a row, or None if the row is damaged."""
        why = "its content changed on disk"
        if is_intact(row):
            try:
                return convert(row)
            except UNREADABLE as error:
                why = f"it cannot be read ({unreadable_text(error)})"
        self.tell(f"{describe_row(table, row)} is damaged and was skipped: {why}; a backup of the file may contain it")
        return None
