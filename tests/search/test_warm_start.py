"""Warm starts: common genes are used and named, the others reported, and a study keeps the one it began with."""

from __future__ import annotations

import importlib
import math
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engine_helpers import small_table, study
from instant_devices import InstantH200
from kernel_tuner_files import kernel_tuner_cache, write_json
from paths import DATA
from ranking import Ranking
from typer.testing import CliRunner

import evokern
from evokern.api import search
from evokern.cli._command import app
from evokern.cli.app import run  # noqa: F401 (registers every command)
from evokern.declaration.genes import Config
from evokern.device import Request
from evokern.device.recorded.table import Table, TableDevice, measured
from evokern.errors import DeviceError, StudyError
from evokern.hardware.profiles import CHIPS
from evokern.search import Progress
from evokern.store import Store, open_readonly
from evokern.study.discovery import load_kernel
from evokern.study.settings import Study
from evokern.study.trial import Evaluation

SCALE_ROWS = DATA / "kernels" / "scale_rows"


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with a study of the same kernel that found something good."""
    path = tmp_path_factory.mktemp("other") / "runs.db"
    search(study("other"), db=path, device=TableDevice(small_table()), trials=40, sampler="evo", seed=11)
    return path


def _search(db: Path, table: Table | None = None, **keywords: Any) -> tuple[evokern.SearchResult, list[Progress]]:
    seen: list[Progress] = []
    device = TableDevice(table or small_table())
    found = search(study("small"), db=db, device=device, on_progress=seen.append, **{"trials": 12, **keywords})
    return found, seen


def _configs(db: Path) -> list[Config]:
    with open_readonly(db) as reader:
        return [trial.config for trial in reader.trials(reader.study("small"))]


def _best(db: Path, name: str) -> Config:
    with open_readonly(db) as reader:
        best = reader.best(reader.study(name))
    assert best is not None
    return best.config


def test_a_search_begins_with_what_another_found(tmp_path: Path, other: Path) -> None:
    """The other study's champion is the first candidate; the note names how much was taken over."""
    _, seen = _search(tmp_path / "a.db", warm_start=f"{other}:other")
    assert _configs(tmp_path / "a.db")[0] == _best(other, "other")
    notes = seen[-1].notes
    assert len(notes) == 1
    assert notes[0].startswith(f"warm start from {other}:other: ")
    assert "genes used: all 8" in notes[0]


@pytest.mark.thorough
def test_an_interrupted_warm_start_goes_on_as_it_would_have(tmp_path: Path, other: Path) -> None:
    """The prior is kept with the study: the source may be gone, and the sequence stays the same."""
    source = tmp_path / "gone.db"
    source.write_bytes(other.read_bytes())
    _search(tmp_path / "whole.db", trials=20, warm_start=str(source))
    _search(tmp_path / "parts.db", trials=9, warm_start=str(source))
    source.unlink()
    _search(tmp_path / "parts.db", trials=20)
    assert _configs(tmp_path / "parts.db") == _configs(tmp_path / "whole.db")
    _search(tmp_path / "parts.db", trials=21, warm_start=str(source))


def test_a_study_keeps_the_warm_start_that_it_began_with(tmp_path: Path, other: Path) -> None:
    """Another one would mean another sequence of candidates; nothing is changed by asking."""
    db = tmp_path / "a.db"
    _search(db)
    before = db.read_bytes()
    with pytest.raises(StudyError, match=r"started without a warm start.*fresh=True.*small\.1"):
        _search(db, warm_start=f"{other}:other", trials=20)
    assert db.read_bytes() == before
    _search(db, warm_start=f"{other}:other", fresh=True)
    with pytest.raises(StudyError, match=r"started from .*:other.*old study as small\.2"):
        _search(db, warm_start="sim")
    with pytest.raises(StudyError, match=r"seed was 0, is 4.*keeps the old study as small\.2.*`allow_changes=True`"):
        _search(db, seed=4)
    with Store(db) as store:
        assert store.rename_old_study("small") == "small.2"


def test_a_search_beside_a_control_takes_what_is_named(tmp_path: Path, other: Path) -> None:
    """Only by itself it begins cold: a study that is named is its warm start."""
    for name, named in (("cold", None), ("warm", f"{other}:other")):
        _search(tmp_path / f"{name}.db", control="random", warm_start=named)
        with open_readonly(tmp_path / f"{name}.db") as reader:
            warm = reader.summary(reader.study("small"))["warm_start"]
        assert (warm and warm["source"]) == named


def test_genes_that_differ_are_named(tmp_path: Path, other: Path) -> None:
    """Common genes are used; those unknown here, and those not there, are reported."""
    whole = small_table()
    genes = tuple(replace(gene, name="STEPS") if gene.name == "UNROLL" else gene for gene in whole.genes)
    answers = {
        Config({("STEPS" if name == "UNROLL" else name): value for name, value in config.items()}): answer
        for config, answer in whole.answers.items()
    }
    _, seen = _search(tmp_path / "a.db", Table("renamed", genes, answers, whole.profile), warm_start=f"{other}:other")
    assert "genes used: LOADS, LAYOUT, SPLIT_KEYS, TILE_M, TILE_N, WARPS, STAGES; ignored:" in seen[-1].notes[0]
    assert "UNROLL (unknown here)" in seen[-1].notes[0]
    assert "STEPS (not there" in seen[-1].notes[0]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ("none.db:small", DeviceError, "nor a database none.db; .*runs.db:STUDY"),
        ("{other}:othr", StudyError, "did you mean 'other'"),
        ("{toy}", StudyError, "shares no gene with this kernel .LOADS, LAYOUT"),
        ("sim", StudyError, "warm_start='sim' needs a GPU"),
        ("AUTO", DeviceError, "no recording AUTO; .*runs.db:STUDY.; or use auto, none or sim$"),
        (" ", StudyError, "warm_start= is empty; use auto, none, sim, DB:STUDY or FILE"),
    ],
)
def test_a_source_that_says_nothing_loses_nothing(
    source: str, error: type[Exception], message: str, tmp_path: Path, other: Path
) -> None:
    """An earlier study is not set aside for a warm start that cannot be used."""
    db = tmp_path / "a.db"
    _search(db)
    toy = write_json(tmp_path / "toy.json", kernel_tuner_cache())
    with pytest.raises(error, match=message):
        _search(db, warm_start=source.format(other=other, toy=toy), fresh=True)
    with open_readonly(db) as reader:
        assert [record.name for record in reader.studies()] == ["small"]
        assert len(list(reader.trials(reader.study("small")))) >= 12


def test_a_recording_that_cannot_be_read_is_no_misspelt_word(tmp_path: Path) -> None:
    """A file that is there was meant: what is wrong with it is told, and no word is offered in its place."""
    path = tmp_path / "half.json"
    path.write_text("[")
    with pytest.raises(DeviceError, match="is truncated or not JSON") as told:
        _search(tmp_path / "a.db", warm_start=str(path))
    assert "or use auto" not in str(told.value)


@pytest.mark.thorough
@pytest.mark.parametrize("source", ["none.db:small", "none.json"])
def test_a_first_search_that_is_refused_leaves_no_database(source: str, tmp_path: Path) -> None:
    """What was never begun leaves no file behind, neither the database nor what SQLite and the lock put beside it."""
    with pytest.raises(DeviceError, match=f"there is no recording {source}"):
        _search(tmp_path / "a.db", warm_start=source)
    assert list(tmp_path.iterdir()) == []
    _search(tmp_path / "a.db")
    with pytest.raises(DeviceError):
        _search(tmp_path / "a.db", warm_start=source, fresh=True)
    assert [file.name for file in tmp_path.iterdir()] == ["a.db"]


def test_a_sampler_that_cannot_use_it_says_so(tmp_path: Path, other: Path) -> None:
    """In one line, and the search goes on without."""
    found, seen = _search(tmp_path / "a.db", warm_start=f"{other}:other", sampler="tpe")
    assert found.end == "trials"
    (note,) = seen[-1].notes
    assert "sampler tpe cannot use a warm start" in note and note.endswith("evo can")


def test_the_command_line_takes_a_warm_start(tmp_path: Path, other: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`evokern search STUDY --warm-start DB:STUDY` tells what was taken over."""
    table = DATA / "table_small.json.gz"
    (tmp_path / "small.toml").write_text(f'kernel = "x"\nproblems = ["x"]\ndevice = "replay:{table}"\n')
    monkeypatch.chdir(tmp_path)
    arguments = ["search", "./small.toml", "--trials", "9", "--warm-start", f"{other}:other", "--db", "a.db"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert f"note: warm start from {other}:other: " in result.stderr


def test_a_database_from_before_warm_starts_is_brought_up_to_date(tmp_path: Path) -> None:
    """A file without the table of priors is searched on, and gets it."""
    db = tmp_path / "old.db"
    _search(db, trials=6)
    with sqlite3.connect(db) as connection:
        connection.execute("DROP TABLE evokern_priors")
        connection.execute("DELETE FROM _sqlite_migrations WHERE name = 'm002_priors'")
    _search(db, trials=8)
    with sqlite3.connect(db) as connection:
        assert connection.execute("SELECT count(*) FROM evokern_priors").fetchone() == (0,)


def test_a_simulated_device_on_which_nothing_runs_is_no_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user is told so, and how to go on without."""
    monkeypatch.setattr(importlib.import_module("evokern.search._warm"), "search_model", lambda *given: [])
    scaled = Study(name="scaled", kernel=str(SCALE_ROWS), problems=("64,256",))
    with pytest.raises(StudyError, match="no candidate ran on the simulated NVIDIA H200; omit warm_start='sim'"):
        search(scaled, db=tmp_path / "a.db", device=WarpsGpu(), trials=6, warm_start="sim", trust=True)
    told = r"H200 within 4 s, 40% of the budget; increase budget=, or omit warm_start='sim'"
    with pytest.raises(StudyError, match=told):
        search(scaled, db=tmp_path / "b.db", device=WarpsGpu(), budget="10s", warm_start="sim", trust=True)


class WarpsGpu(InstantH200):
    """An H200 whose candidates all take as long as their blocks have warps."""

    def evaluation(self, request: Request) -> Evaluation:
        return measured(float(request.config.WARPS))


@pytest.mark.thorough
def test_the_simulated_device_is_searched_for_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`sim` searches the chip at hand on the simulated device first; the best that was right there is tried first."""
    monkeypatch.setattr(importlib.import_module("evokern.search._warm"), "SIMULATED_TRIALS", 4)
    monkeypatch.setenv("EVOKERN_CACHE", str(tmp_path / "cache"))
    scaled = Study(name="scaled", kernel=str(SCALE_ROWS), problems=("64,256",))
    device, seen = WarpsGpu(), list[Progress]()
    db = tmp_path / "a.db"
    search(scaled, db=db, device=device, trials=6, warm_start="sim", trust=True, on_progress=seen.append)
    assert seen[-1].notes[0] == "warm start: searching the simulated NVIDIA H200, 4 candidates"
    # Where it takes long, notes on how far it has come stand between the two.
    assert seen[-1].notes[-1].startswith("warm start from sim: 4 candidates; genes used: all ")
    with Store(db) as store:
        record = store.study("scaled")
        assert record is not None
        prior = store.prior(record)
    assert prior is not None
    assert device.requests[0].config == prior.entries[0][0]
    logs = [log for _, log in prior.entries]
    assert logs == sorted(logs)
    kernel = load_kernel(SCALE_ROWS)
    with Ranking(kernel, (kernel.problem("64,256"),), scaled, CHIPS["h200"]) as ranking:
        assert ranking.predict([prior.entries[0][0]]) == [pytest.approx(math.exp(logs[0]))]
