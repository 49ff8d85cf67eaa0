"""What the tests make in place of Optuna's work is what Optuna makes."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import optuna_tables
import pytest
from sqlite_utils import Database

from evokern.store import _optuna


def contents(path: Path) -> list[str]:
    """Return all that a database holds, as statements."""
    with sqlite3.connect(path) as connection:
        return list(connection.iterdump())


def test_new_databases_of_the_tests_are_as_optuna_makes_them(tmp_path: Path) -> None:
    """The first, by Optuna, and the later ones hold the same; Optuna's storage opens them."""
    from optuna.storages import RDBStorage

    paths = [tmp_path / f"{name}.db" for name in ("first", "second", "third")]
    with pytest.MonkeyPatch.context() as patch:
        optuna_tables.install(patch)
        for path in paths:
            _optuna.require_tables(Database(path), path)
    first, *later = map(contents, paths)
    assert any("CREATE TABLE studies" in statement for statement in first)
    assert [first] * 2 == later
    assert RDBStorage(f"sqlite:///{paths[2]}").get_all_studies() == []
