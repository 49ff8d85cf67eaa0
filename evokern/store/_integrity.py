"""A digest in each row of our tables: a row whose text changed on the disk is named, left out, and never learned from.

SQLite finds pages that make no sense, not a flipped letter. The digest is no signature: whoever means to can make a new
one. Rows from before there were digests have none and count as they stand, until the file is opened for writing: the
migration `SEALED` then gives them theirs, and from there on a row without one is damaged.
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
from evokern.store._files import explained

COLUMN = "row_digest"
"""Column that holds a row's digest."""
TABLES = (
    *("evokern_studies", "evokern_sessions", "evokern_trials", "evokern_samples", "evokern_rejections"),
    *("evokern_sources", "evokern_proofs", "evokern_priors", "evokern_profiles"),
)
"""Tables whose rows have one."""
SEALED = "m007_every_row_sealed"
"""Migration after which every row has a digest."""
CHECKED_BYTES = 64 * 2**20
"""Files up to this size are looked through by SQLite before they are read: some hundredths of a second."""
UNREADABLE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError, EvokernError)
"""What comes of making a record from a row that is not what was written."""

_LOGGER = logging.getLogger("evokern")
# `json.dumps` makes an encoder for each row where it is given an option.
_encoded = json.JSONEncoder(separators=(",", ":")).encode
_T = TypeVar("_T")
Row = Mapping[str, Any]


def digest_of(row: Row) -> str:
    """Return the SHA-256 of a row as it is stored: every column but the digest itself, and those that are NULL.

    A column that a later version adds is NULL in older rows, so their digests stay.
    """
    parts = [(name, row[name]) for name in sorted(row) if name != COLUMN and row[name] is not None]
    return hashlib.sha256(_encoded(parts).encode()).hexdigest()


def sound(row: Row) -> bool:
    """Tell whether a row is what was written, as far as its digest knows."""
    return row.get(COLUMN) is None or row[COLUMN] == digest_of(row)


def _every_row_has_one(db: Database) -> bool:
    """Tell whether a row without a digest is damaged: the file was brought up to date when all got theirs."""
    tables = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = '_sqlite_migrations'"
    if db.conn.execute(tables).fetchone() is None:
        return False
    applied = "SELECT 1 FROM _sqlite_migrations WHERE migration_set = 'evokern' AND name = ?"
    return db.conn.execute(applied, [SEALED]).fetchone() is not None


def _judged(db: Database, rows: Iterable[tuple[int, dict[str, Any]]]) -> Iterator[tuple[int, Row]]:
    """Yield numbered rows; where every row has a digest, one that lacks it gets one that fits nothing."""
    every: bool | None = None
    for number, row in rows:
        if COLUMN in row and row[COLUMN] is None:
            every = _every_row_has_one(db) if every is None else every
            row[COLUMN] = "" if every else None
        yield number, row


def select_numbered(
    db: Database, table: str, where: str = "1", values: Sequence[Any] = (), order: str = "rowid"
) -> Iterator[tuple[int, Row]]:
    """Yield rows as they stand, each behind its number, whatever an index says: a damaged one would hide rows."""
    return _judged(db, _numbered(db, f"{table} NOT INDEXED", f"{where} ORDER BY {order}", values))


def select(
    db: Database, table: str, where: str = "1", values: Sequence[Any] = (), order: str = "rowid"
) -> Iterator[Row]:
    """Yield the same rows without their numbers."""
    return (row for _, row in select_numbered(db, table, where, values, order))


def write_row(db: Database, table: str, values: Row, *, replace: bool = False) -> None:
    """Insert a row with its digest.

    Args:
        db: the database, in a transaction.
        table: the table.
        values: column → value.
        replace: put it in the place of the one that has its key.
    """
    # Plain SQL on the hot path: `Table.insert` reads the schema again for every row.
    verb = "INSERT OR REPLACE" if replace else "INSERT"
    names, marks = ", ".join(values), ", ".join("?" * len(values))
    done = db.conn.execute(f"{verb} INTO {table} ({names}) VALUES ({marks})", list(values.values()))
    _seal(db, table, "rowid = ?", [done.lastrowid])


def change_rows(db: Database, path: Path, table: str, where: str, changes: str, values: Sequence[Any]) -> None:
    """Change rows, with their digests.

    Args:
        db: the database, in a transaction.
        path: its file, for messages.
        table: the table.
        where: which rows, with one `?`: the last of the values.
        changes: what follows SET.
        values: the values of changes and where, in that order.

    Raises:
        StoreError: one of the rows is damaged: a new digest would hide it.
    """
    for _, row in _judged(db, _numbered(db, table, where, values[-1:])):
        if not sound(row):
            raise damage(path, table, row)
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
    """Give every row the digest of what it holds now."""
    for table in TABLES:
        if table in db.table_names() and COLUMN in db.table(table).columns_dict:
            _seal(db, table, "1", [])


def seal_the_rest(db: Database) -> None:
    """Give every row that has no digest, because it is from before there were any, that of what it holds now."""
    for table in TABLES:
        _seal(db, table, f"{COLUMN} IS NULL", [])


def called(table: str, row: Row) -> str:
    """Return what to call a row in a message."""
    kind = table.removeprefix("evokern_")
    match kind:
        case "trials":
            return f"trial {row.get('number')}, row {row.get('uuid')} of {table}"
        case "studies":
            return f"study {row.get('name')!r}, row {row.get('uuid')} of {table}"
        case "samples":
            return f"samples of problem {row.get('problem')}, trial {row.get('trial')} in {table}"
        case "sources":
            return f"kept source {row.get('file')!r} of {table}"
        case "rejections":
            return f"count of {row.get('constraint_name')!r} in {table}"
    return f"row {row.get('uuid') or row.get('study')} of {table}"


def damage(path: Path, table: str, row: Row, why: str = "") -> StoreError:
    """Return what to raise where a damaged row is needed."""
    return StoreError(
        f"{path}: {called(table, row)} is damaged: {why or 'it is not what was written'}; restore a copy of the file, "
        "or name another one with --db"
    )


def require_sound(db: Database, path: Path, table: str, where: str = "1", values: Sequence[Any] = ()) -> list[Row]:
    """Return rows that a search would learn from or go on from.

    Raises:
        StoreError: one of them is damaged.
    """
    rows = list(select(db, table, where, values))
    for row in rows:
        if not sound(row):
            raise damage(path, table, row)
    return rows


def required(path: Path, table: str, row: Row, convert: Callable[[Row], _T]) -> _T:
    """Return the record that a row holds.

    Raises:
        StoreError: it holds none.
    """
    try:
        return convert(row)
    except UNREADABLE as error:
        raise damage(path, table, row, f"it cannot be read ({type(error).__name__}: {error})") from error


class SoundRows:
    """The rows of a database that is read: damaged ones are told of once and left out."""

    def __init__(self, db: Database, path: Path) -> None:
        self._db = db
        self._path = path
        self.told: list[str] = []
        """What is damaged, in the order in which it was met."""

    def look_through(self) -> None:
        """Have SQLite look for pages that make no sense.

        Raises:
            StoreError: there are some.
        """
        with explained(self._path):
            if self._path.stat().st_size <= CHECKED_BYTES:
                verdict = self._db.conn.execute("PRAGMA quick_check(1)").fetchone()[0]
                if verdict != "ok":
                    raise sqlite3.DatabaseError(f"corrupt: {verdict}")

    def tell(self, text: str) -> None:
        """Say once what is damaged."""
        if text not in self.told:
            self.told.append(text)
            _LOGGER.warning("%s", visible(f"{self._path}: {text}"))  # one line, whatever the row says

    def read(
        self,
        table: str,
        convert: Callable[[Row], _T],
        where: str = "1",
        values: Sequence[Any] = (),
        order: str = "rowid",
    ) -> Iterator[_T]:
        """Yield the records of sound rows."""
        with explained(self._path):
            for row in select(self._db, table, where, values, order):
                record = self.record(table, row, convert)
                if record is not None:
                    yield record

    def read_where(
        self, table: str, convert: Callable[[Row], _T], having: Mapping[str, Any], order: str = "rowid"
    ) -> Iterator[_T]:
        """Yield the records of sound rows whose columns have certain values.

        The rows of the whole table are looked at: a damaged one may not say any more whose it is, and would be missed.

        Args:
            table: the table; one of few rows.
            convert: makes a record of a row.
            having: column → value.
            order: as in SQL.
        """
        with explained(self._path):
            for row in select(self._db, table, order=order):
                if sound(row) and any(row[column] != value for column, value in having.items()):
                    continue
                record = self.record(table, row, convert)
                if record is not None:
                    yield record

    def record(self, table: str, row: Row, convert: Callable[[Row], _T]) -> _T | None:
        """Return the record of a row, None where the row is damaged."""
        why = "its text is not what was written"
        if sound(row):
            try:
                return convert(row)
            except UNREADABLE as error:
                why = f"it cannot be read ({type(error).__name__}: {error})"
        self.tell(f"{called(table, row)} is damaged and left out: {why}; a copy of the file may still have it")
        return None
