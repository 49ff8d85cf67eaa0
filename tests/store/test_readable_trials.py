"""The view `trials_readable`: what a trial is, in columns that fit a page of Datasette."""

from __future__ import annotations

import gzip
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hostile_texts import HOSTILE
from paths import DATA
from stored_studies import record, write_study

from evokern.store import Store, add_proof, open_readonly
from evokern.study.trial import Outcome
from evokern.wording import changed_genes_text

COLUMNS = ["study", "trial", "time_us", "time_is", "speedup", "changed_genes", "outcome", "reason"]


@contextmanager
def rows(path: Path) -> Iterator[list[sqlite3.Row]]:
    """Return the rows of the view."""
    with closing(sqlite3.connect(path)) as db:
        db.row_factory = sqlite3.Row
        yield db.execute("SELECT * FROM trials_readable ORDER BY study, trial").fetchall()


@pytest.mark.parametrize("predicted", [False, True])
def test_the_view_says_what_the_records_say(predicted: bool, tmp_path: Path) -> None:
    """Time, speedup, changed genes, outcome and reason of every trial, as `show` tells them."""
    path = tmp_path / "a.db"
    write_study(path, 60, name=HOSTILE, predicted=predicted)
    with open_readonly(path) as reader, rows(path) as found:
        study = reader.study()
        baseline = reader.baseline(study)
        trials = list(reader.trials(study))
    assert baseline is not None
    assert [list(row.keys()) for row in found] == [COLUMNS] * len(trials)
    assert {row["study"] for row in found} == {HOSTILE}
    assert {row["time_is"] for row in found} == {"predicted" if predicted else "measured"}
    for row, trial in zip(found, trials, strict=True):
        assert (row["trial"], row["outcome"]) == (trial.number, trial.outcome.value)
        assert row["changed_genes"] == changed_genes_text(trial.config, study.genes)
        time_us = trial.evaluation.time_us
        assert row["time_us"] == (None if time_us is None else pytest.approx(time_us, abs=5e-4))
        assert row["speedup"] == (None if time_us is None else pytest.approx(baseline[1] / time_us, abs=6e-3))
        measured = trial.outcome is Outcome.MEASURED
        assert row["reason"] == (None if measured else trial.evaluation.reason[:160])


def test_the_default_candidate_has_a_name(tmp_path: Path) -> None:
    """A trial that changes nothing says so; one in flight has no row; a study without a baseline no speedup."""
    path = tmp_path / "a.db"
    write_study(path, 4)
    with closing(sqlite3.connect(path)) as db, db:
        genes = "(SELECT json_group_object(json_extract(value, '$.name'), json_extract(value, '$.default')) "
        genes += "FROM json_each((SELECT genes FROM evokern_studies)))"
        db.execute(f"UPDATE evokern_trials SET config = {genes} WHERE number = 0")
        db.execute("UPDATE evokern_trials SET outcome = NULL WHERE number = 3")
        db.execute("UPDATE evokern_sessions SET baseline_us = NULL")
    with rows(path) as found:
        assert [row["trial"] for row in found] == [0, 1, 2]
        assert found[0]["changed_genes"] == "the default candidate"
        assert {row["speedup"] for row in found} == {None}


def test_damage_leaves_the_view_readable(tmp_path: Path) -> None:
    """A configuration or genes that are no JSON take that column's text away, not the whole page."""
    path = tmp_path / "a.db"
    write_study(path, 4)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE evokern_trials SET config = '{' WHERE number = 1")
    with rows(path) as found:
        assert [row["changed_genes"] is None for row in found] == [False, True, False, False]


@pytest.mark.parametrize("name", ["first_tables", "with_proofs_and_priors", "with_secret"])
def test_an_old_database_gets_it_when_it_is_written(name: str, tmp_path: Path) -> None:
    """The speedups of old sessions are known too; reading alone adds nothing; the rows stay sound."""
    path = tmp_path / "old.db"
    path.write_bytes(gzip.decompress((DATA / "databases" / f"{name}.db.gz").read_bytes()))
    with open_readonly(path) as reader:
        study = reader.study("small")
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'trials_readable'").fetchone() == (0,)
    add_proof(path, study, "ablate", 3, {"champion": {}})
    with open_readonly(path) as reader, rows(path) as found:
        baseline = reader.baseline(study)
        assert reader.damaged == ()
        best = reader.best(study)
    assert baseline is not None
    assert best is not None
    mine: Any = next(row for row in found if (row["study"], row["trial"]) == ("small", best.number))
    assert mine["speedup"] == pytest.approx(baseline[1] / (best.evaluation.time_us or 0.0), abs=6e-3)


def test_a_view_of_a_user_s_own_stays(tmp_path: Path) -> None:
    """Somebody who made a view of that name keeps it."""
    path = tmp_path / "old.db"
    path.write_bytes(gzip.decompress((DATA / "databases" / "with_secret.db.gz").read_bytes()))
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE VIEW trials_readable AS SELECT 1 AS mine")
    with open_readonly(path) as reader:
        study = reader.study("small")
    add_proof(path, study, "ablate", 3, {"champion": {}})
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT * FROM trials_readable").fetchall() == [(1,)]


def test_an_empty_study_has_no_rows(tmp_path: Path) -> None:
    """A database without trials has the view all the same."""
    with Store(tmp_path / "a.db") as store:
        store.create(record(), {})
    shutil.copy(tmp_path / "a.db", tmp_path / "b.db")
    with rows(tmp_path / "b.db") as found:
        assert found == []
