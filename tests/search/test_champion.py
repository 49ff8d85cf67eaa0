"""The end of a search: its champion is verified, a refuted one is none, and what was proved is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from paths import DATA
from typer.testing import CliRunner

from evokern.cli.app import app
from evokern.search.champion import reserve
from evokern.store import add_proof, open_readonly

STUDY = f'''kernel = "{DATA}/kernels/tail_bug"
problems = ["64,4096"]
device = "sim:l4"
sampler = "grid"
[genes]
TAIL = ["forgotten"]
TILE = [64]
ROWS = [1]
'''


def invoke(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(words))
    return done.exit_code, done.stdout


@pytest.mark.thorough
def test_a_refuted_champion_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a search finds the candidate wrong near the study's shape; where none is left there is no champion."""
    monkeypatch.chdir(DATA)
    study, db = tmp_path / "tails.toml", tmp_path / "t.db"
    study.write_text(STUDY)
    code, told = invoke("search", str(study), "--db", str(db))
    assert code == 1
    assert "every measured candidate that was verified is refuted" in told
    done = CliRunner().invoke(app, ["export", "tails", "--db", str(db), "--trial", "0", "-o", str(tmp_path / "a.cu")])
    assert done.exit_code == 2
    assert "is refuted (" in done.stderr
    assert "--force writes it all the same" in done.stderr


@pytest.mark.thorough
def test_the_next_one_takes_a_refuted_champion_s_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not asked for, nothing is known; a refuted trial is passed over; verifying the next one says what was proved."""
    monkeypatch.chdir(DATA)
    study, db = tmp_path / "tails.toml", tmp_path / "t.db"
    study.write_text(STUDY.replace('["forgotten"]', '["right"]').replace("TILE = [64]", "TILE = [32, 64]"))
    assert invoke("search", str(study), "--db", str(db), "--quiet", "--no-verify")[0] == 0
    with open_readonly(db) as reader:
        record = reader.study("tails")
        first, summary = reader.best(record), reader.summary(record)
    assert first is not None
    assert (None, True) == (summary["verified"], summary["verified_reason"].startswith("nobody asked"))
    add_proof(db, record, "verify", first.number, {"stages": {"fuzz": {"state": "failed", "detail": "wrong at 3,5"}}})
    code, told = invoke("verify", "tails", "--db", str(db), "--fuzz", "1s", "--json")
    with open_readonly(db) as reader:
        next_one, summary = reader.best(record), reader.summary(record)
        refuted = reader.verification(record, first)
    assert (0, True, 1.0) == (code, summary["verified"], summary["verified_share"])
    assert next_one is not None
    assert next_one.number == json.loads(told)["trial"] != first.number
    assert (False, "fuzz: wrong at 3,5") == (refuted.verified, refuted.reason)


@pytest.mark.parametrize(
    ("budget_s", "predicted", "kept"),
    [(None, False, 0.0), (45.0, False, 4.5), (600.0, False, 10.0), (600.0, True, 60.0)],
)
def test_a_tenth_of_a_budget_is_kept(budget_s: float | None, predicted: bool, kept: float) -> None:
    """Verification has its share of the budget, at most ten seconds on a GPU."""
    assert kept == reserve(budget_s, predicted)
