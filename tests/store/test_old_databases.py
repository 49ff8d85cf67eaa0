"""Databases that earlier versions wrote: read as they are, brought up to date by whoever writes, and searched further.

The files were made by `evokern search`, `verify` and `ablate` of those versions, in an empty folder: a search of the
small recording, and in the newer one the README's kernel `scale` on `sim:l4`. Host and folder were renamed afterwards.
"""

from __future__ import annotations

import gzip
import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from paths import DATA
from typer.testing import CliRunner

from evokern.cli._command import app
from evokern.cli.app import run  # noqa: F401 (registers every command)
from evokern.store import add_profile, add_proof, open_readonly
from evokern.store._schema import known_migrations

FILES = {"first_tables": 24, "with_proofs_and_priors": 40, "with_secret": 32}
"""File → evaluated trials of its study `small`."""


@pytest.fixture(params=FILES)
def old(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An old database in a folder of its own, with the recording that its study plays."""
    path = tmp_path / "evokern.db"
    path.write_bytes(gzip.decompress((DATA / "databases" / f"{request.param}.db.gz").read_bytes()))
    shutil.copy(DATA / "table_small.json.gz", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EVOKERN_DB", raising=False)
    monkeypatch.setenv("EVOKERN_CACHE", str(tmp_path / "cache"))
    return path


def _run(*words: str) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, result.output
    return result.stdout


def _json(*words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_run(*words, "--json"))
    return found


def _applied(path: Path) -> set[str]:
    with sqlite3.connect(path) as db:
        return {name for (name,) in db.execute("SELECT name FROM _sqlite_migrations WHERE migration_set = 'evokern'")}


def _evaluated(path: Path) -> int:
    with sqlite3.connect(path) as db:
        sql = "SELECT count(*) FROM evokern_trials JOIN evokern_studies s ON study = s.uuid WHERE s.name = 'small' "
        return int(db.execute(sql + "AND outcome NOT IN ('infeasible', 'duplicate')").fetchone()[0])


def test_an_old_database_is_older_than_the_schema(old: Path) -> None:
    """The files lack migrations, the newest one among them: otherwise they would test nothing."""
    assert _applied(old) < known_migrations()
    assert max(known_migrations()) not in _applied(old)


@pytest.mark.thorough
def test_reading_leaves_an_old_database_as_it_is(old: Path) -> None:
    """Every reading command works on it, and changes no byte of it."""
    before = old.read_bytes()
    summary = _json("show", "small")
    best = summary["best"]
    assert (_evaluated(old), "recorded baseline") == (FILES[_name(old)], summary["baseline"]["name"])
    assert summary["limit"] is None
    assert f"best: trial {best['trial']}" in _run("show", "small")
    assert best["trial"] == _json("show", "small", "--trial", str(best["trial"]))["trial"]
    assert f"small: {summary['trials']} trials, " in _run("show", "small", "--genes")
    _run("report", "small", "-o", "r.html")
    _run("export", "small", "--format", "t4", "-o", "small.json")
    with open_readonly(old) as reader:
        assert [] == reader.profiles(reader.study("small"), best["trial"])
    assert before == old.read_bytes()


def _name(path: Path) -> str:
    """Return which file it is: by the migrations it has."""
    return {1: "first_tables", 3: "with_proofs_and_priors", 6: "with_secret"}[len(_applied(path))]


def test_a_search_goes_on_in_an_old_database(old: Path) -> None:
    """Told to go on by new rules, `resume` brings the tables up to date, keeps every trial and goes on after them."""
    trials = "SELECT number, config, outcome, time_us, evidence FROM evokern_trials ORDER BY study, number"
    with sqlite3.connect(old) as db:
        before = db.execute(trials).fetchall()
    more = FILES[_name(old)] + 6
    refused = CliRunner().invoke(app, ["resume", "small", "--trials", str(more)])
    assert (refused.exit_code, "sampler evo was version 1" in refused.output) == (2, True)
    _run("resume", "small", "--go-on", "--trials", str(more))
    assert known_migrations() == _applied(old)
    assert more == _evaluated(old)
    with sqlite3.connect(old) as db:
        after = db.execute(trials).fetchall()
        assert ("ok",) == db.execute("PRAGMA integrity_check").fetchone()
    assert set(before) <= set(after)
    assert _json("show", "small")["control"] is None


def test_a_proof_or_a_profile_brings_an_old_database_up_to_date(old: Path) -> None:
    """What other commands keep is written into tables that the file did not have."""
    with open_readonly(old) as reader:
        study = reader.study("small")
        earlier = len(reader.proofs(study, "ablate"))
    add_proof(old, study, "ablate", 3, {"champion": {}})
    add_profile(old, study, 3, {"problem": "recorded", "source": "ncu", "device": "NVIDIA H200", "launches": []})
    assert known_migrations() == _applied(old)
    with open_readonly(old) as reader:
        assert (earlier + 1, 1) == (len(reader.proofs(study, "ablate")), len(reader.profiles(study, 3)))


def test_a_playoff_kept_by_an_earlier_version_still_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The champion of a study verified then is the playoff's, with its limit at peak rates."""
    (tmp_path / "evokern.db").write_bytes(
        gzip.decompress((DATA / "databases" / "with_proofs_and_priors.db.gz").read_bytes())
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EVOKERN_DB", raising=False)
    summary = _json("show", "scale")
    with open_readonly(tmp_path / "evokern.db") as reader:
        (proof,) = reader.proofs(reader.study("scale"), "verify")
        (ablation,) = reader.proofs(reader.study("scale"), "ablate")
    assert summary["best"]["trial"] == int(proof.result["playoff"]["finalists"][0]["name"].split()[1])
    assert ablation.result["champion"]["ratio"] == 1.0
    assert (False, "memory") == (summary["limit"]["measured"], summary["limit"]["bound"])
    assert "at the vendor's peak rates" in _run("show", "scale")
