"""Optuna's tables in new databases, made by Optuna once and by what it made from then on.

Optuna and Alembic read thirty migration scripts for each new database, a sixth of a second of a core, and the tests
make hundreds. Here the first new database of a process is Optuna's own work; in later ones its statements are said
again. Whatever holds tables of Optuna's already goes to Optuna.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from sqlite_utils import Database

from evokern.store import _optuna

BY_OPTUNA = _optuna.require_tables
_ALL = "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL"


def install(patch: pytest.MonkeyPatch) -> None:
    """Let databases of this process get their tables so."""
    made: list[str] = []

    def require_tables(db: Database, path: Path) -> None:
        before = {name for _, name, _ in db.execute(_ALL)}
        if "version_info" in before or "alembic_version" in before:
            BY_OPTUNA(db, path)
        elif made:
            db.conn.executescript(f"BEGIN; {';'.join(made)}; COMMIT")
        else:
            BY_OPTUNA(db, path)
            made.extend(_statements(db.conn, before))

    patch.setattr(_optuna, "require_tables", require_tables)


def _statements(connection: sqlite3.Connection, before: set[str]) -> list[str]:
    """Return what makes everything that is in a database and was not before: tables, their indices, their rows."""
    new = [row for row in connection.execute(_ALL) if row[1] not in before]
    statements = [sql for kind in ("table", "index") for found, _, sql in new if found == kind]
    for table in (name for kind, name, _ in new if kind == "table"):
        for row in connection.execute(f'SELECT * FROM "{table}"'):
            values = connection.execute(f"SELECT {', '.join(['quote(?)'] * len(row))}", tuple(row)).fetchone()
            statements.append(f'INSERT INTO "{table}" VALUES ({", ".join(values)})')
    return statements
