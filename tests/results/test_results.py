"""Results from Python: what `load_study` reads, writes and shows, from the database alone."""

from __future__ import annotations

import gzip
import json
import math
import sqlite3
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hostile_texts import HOSTILE, Markup, poison
from paths import DATA
from stored_studies import reseal, write_study
from typer.testing import CliRunner

import evokern
from evokern.cli.app import app
from evokern.store import Store, open_readonly


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with two studies, `other` and the one searched last, `small`."""
    path = tmp_path_factory.mktemp("results") / "r.db"
    write_study(path, 12, name="other", predicted=True)
    write_study(path, 40, control="random")
    return path


def _printed(*words: str) -> str:
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_study_is_loaded_by_name_or_as_the_last_one(db: Path) -> None:
    """Champion, trials and summary are those that the commands show."""
    study = evokern.load_study(db=db)
    assert (study.name, study.record.kernel, evokern.load_study("other", db=str(db)).name) == ("small", "tiny", "other")
    assert study.summary == json.loads(_printed("show", "--json", "--db", str(db)))
    assert study.best is not None
    assert study.best.number == study.summary["best"]["trial"]
    assert study.best.evaluation.timings[0].samples_us, "the champion comes with its samples"
    assert [trial.number for trial in study.trials] == list(range(40))


def test_what_cannot_be_loaded_is_said(db: Path, tmp_path: Path) -> None:
    """Each mistake is an EvokernError that says what there is."""
    with pytest.raises(evokern.EvokernError, match=r"'smal': did you mean 'small'\? known: small, other"):
        evokern.load_study("smal", db=db)
    with pytest.raises(evokern.EvokernError, match=r"none\.db; "):
        evokern.load_study(db=tmp_path / "none.db")


def test_a_study_stays_itself(tmp_path: Path) -> None:
    """New trials are seen; a fresh search that takes the name does not take the object; a deleted study is missed."""
    path = tmp_path / "r.db"
    first = write_study(path, 5)
    study = evokern.load_study(db=path)
    with sqlite3.connect(path) as database:
        database.execute("UPDATE evokern_trials SET outcome = NULL WHERE number = 4")
    reseal(path)
    assert len(study.trials) == 4, "a trial in flight is none yet"
    with Store(path) as store:
        store.rename_old_study("small")
    write_study(path, 3)
    assert (len(study.trials), len(evokern.load_study(db=path).trials)) == (4, 3)
    aside = study.summary["study"]
    assert aside != "small"
    assert f"<h1>{aside}</h1>" in study.report(tmp_path / "r.html").read_text(encoding="utf-8")
    with sqlite3.connect(path) as database:
        database.execute("DELETE FROM evokern_studies WHERE uuid = ?", [study.record.uuid])
    assert first.name == "small"
    with pytest.raises(evokern.EvokernError, match=r"'small' is no longer in .*load_study\(db="):
        _ = study.best
    assert "is no longer in" in repr(study), "a repr says so instead of raising"


class _Frame:
    """What the tests need of a pandas.DataFrame."""

    def __init__(self, columns: dict[str, list[Any]]) -> None:
        self.columns = columns

    def astype(self, kinds: dict[str, type]) -> _Frame:
        assert set(kinds.values()) == {float}
        return _Frame({name: [*map(_number, c)] if name in kinds else c for name, c in self.columns.items()})


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def test_trials_become_a_data_frame(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One row per trial, columns as documented; pandas gets whole columns."""
    pandas = ModuleType("pandas")
    pandas.DataFrame = _Frame  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pandas", pandas)
    study = evokern.load_study(db=db)
    columns = study.trials_dataframe().columns
    genes = [f"params_{gene.name}" for gene in study.record.genes]
    assert list(columns)[: 3 + len(genes)] == ["number", "outcome", "time_us", *genes]
    assert {len(column) for column in columns.values()} == {40}
    wrong = columns["outcome"].index("wrong")
    assert math.isnan(columns["time_us"][wrong])
    assert "expected" in columns["reason"][wrong]
    best = study.best
    assert best is not None
    assert columns["time_us"][best.number] == best.evaluation.time_us
    assert columns["ci95_low_us"][best.number] <= columns["time_us"][best.number]
    assert {name: columns[f"params_{name}"][best.number] for name in best.config} == dict(best.config)
    assert columns["registers"][best.number] == 128
    assert sum(columns["control"]) == 20


def test_pandas_itself_takes_them(db: Path) -> None:
    """Where pandas is installed: number of rows, kinds of columns, the fastest trial."""
    pytest.importorskip("pandas")
    study = evokern.load_study(db=db)
    frame = study.trials_dataframe()
    assert frame.shape == (40, 15 + len(study.record.genes))
    assert frame["time_us"].dtype == float
    assert study.best is not None
    fastest = frame[frame["outcome"] == "measured"].sort_values("time_us").iloc[0]
    assert fastest["number"] == study.best.number


def test_a_data_frame_without_pandas(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says how to get it."""
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(evokern.EvokernError, match="`pip install pandas`"):
        evokern.load_study(db=db).trials_dataframe()


def test_files_are_those_of_the_commands(db: Path, tmp_path: Path) -> None:
    """The report, the T4 file and the trace are the same, byte by byte; the path comes back."""
    study = evokern.load_study("other", db=db)
    _printed("report", "other", "--db", str(db), "-o", str(tmp_path / "command.html"))
    _printed("export", "other", "--db", str(db), "--format", "t4", "-o", str(tmp_path / "command.json.gz"))
    assert study.report(tmp_path / "own.html") == tmp_path / "own.html"
    _printed("export", "other", "--db", str(db), "--format", "trace", "-o", str(tmp_path / "command.trace"))
    assert study.export(str(tmp_path / "own.json.gz"), "t4") == tmp_path / "own.json.gz"
    assert study.export(tmp_path / "own.trace", "trace") == tmp_path / "own.trace"
    for end in ("html", "json.gz", "trace"):
        assert (tmp_path / f"own.{end}").read_bytes() == (tmp_path / f"command.{end}").read_bytes()


@pytest.mark.thorough
def test_what_cannot_be_written_is_said(db: Path, tmp_path: Path) -> None:
    """An unknown format, words that do not fit together, a folder that is not there, a study without a time."""
    study = evokern.load_study(db=db)
    with pytest.raises(evokern.EvokernError, match=r"'t5'.*did you mean 't4'"):
        study.export(tmp_path / "x", "t5")  # type: ignore[arg-type]
    for name, told in (("t4", "a T4 file contains all trials"), ("trace", "a trace contains all trials")):
        with pytest.raises(evokern.EvokernError, match=told):
            study.export(tmp_path / "x", name, trial=3)  # type: ignore[arg-type]
    assert not (tmp_path / "x").exists()
    with pytest.raises(evokern.EvokernError, match=r"cannot write .*absent"):
        study.report(tmp_path / "absent" / "r.html")
    write_study(tmp_path / "empty.db", 0)
    empty = evokern.load_study(db=tmp_path / "empty.db")
    assert (empty.best, empty.trials) == (None, [])
    with pytest.raises(evokern.EvokernError, match=r"no trial yet.*`evokern search`"):
        empty.export(tmp_path / "x", "trace")
    assert "0 trials, none measured>" in repr(empty)
    assert len(empty) == 0 and empty
    assert "no trial has been measured yet" in empty._repr_html_()
    assert "there is no champion" in empty.report(tmp_path / "r.html").read_text(encoding="utf-8")


def test_a_study_says_how_it_stands(db: Path) -> None:
    """Its repr names study, database, trials and best; a notebook shows champion, outcomes and the fastest trials."""
    study = evokern.load_study(db=db)
    best = study.summary["best"]
    told = repr(study)
    assert told.startswith(f"<study 'small' of {db}: 40 trials, best ")
    assert f"µs (trial {best['trial']}), {best['speedup']:.2f}× as fast as sdpa <math>, not verified>" in told
    assert "µs predicted (trial " in repr(evokern.load_study("other", db=db))
    trials = study.trials
    assert len(study) == len(trials) == 40 and [study[0], study[-1], *study[3:5]] == [
        trials[0], trials[-1], *trials[3:5]
    ]  # fmt: skip
    with pytest.raises(IndexError, match="has 40 trials"):
        study[40]
    shown = Markup(study._repr_html_())
    texts = " ".join(" ".join(shown.texts).split())
    for gene in study.record.genes:
        assert gene.name in shown.texts
    assert f"best configuration, trial {best['trial']}" in texts
    assert "40 trials in" in texts
    assert "sampler evo: " in texts
    assert "the 10 fastest of" in texts
    assert shown.tags.count(("tr",)) == 1 + len(study.record.genes) + 1 + 10
    assert "predicted by a model" in evokern.load_study("other", db=db)._repr_html_()


def test_a_notebook_shows_texts_as_they_are(tmp_path: Path) -> None:
    """Hostile words in the database leave the markup as it is."""
    path = tmp_path / "h.db"
    write_study(path, 30)
    plain = Markup(evokern.load_study(db=path)._repr_html_())
    poison(path)
    found = Markup(evokern.load_study(db=path)._repr_html_())
    assert found.tags == plain.tags
    assert any("small" + HOSTILE in text for text in found.texts)
    assert any("sdpa <math>" + HOSTILE in text for text in found.texts)


@pytest.mark.thorough
def test_reading_needs_no_kernel_and_nothing_heavy(db: Path, tmp_path: Path) -> None:
    """GPU libraries stay away, pandas and IPython need not be there; a report's model of the genes needs samplers."""
    gpu, others = ("cupy", "torch", "cuda", "pynvml"), ("optuna", "sklearn", "rich")
    code = (
        "import sys\nsys.modules['pandas'] = sys.modules['IPython'] = None  # as if they were not installed\n"
        "import evokern\n"
        f"study = evokern.load_study(db={str(db)!r})\n"
        "repr(study), study.best, study.trials, study.summary, study._repr_html_()\n"
        f"loaded = [name for name in {(*gpu, *others)!r} if name in sys.modules]\n"
        "study.report('r.html'), study.export('s.json', 't4')\n"
        f"print('heavy:', loaded, [name for name in {gpu!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "heavy: [] []"


def test_importing_evokern_reads_nothing(tmp_path: Path) -> None:
    """`load_study` is there at once; templates and databases are imported when a study is loaded."""
    code = (
        "import sys, evokern; evokern.load_study, evokern.StudyResults\n"
        "print([name for name in ('jinja2', 'sqlite_utils', 'evokern.store', 'evokern.report') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_old_databases_are_read(tmp_path: Path) -> None:
    """A study that an earlier version wrote has champion, trials and a notebook's view."""
    for name, trials in (("first_tables", 26), ("with_proofs_and_priors", 42)):
        path = tmp_path / f"{name}.db"
        path.write_bytes(gzip.decompress((DATA / "databases" / f"{name}.db.gz").read_bytes()))
        study = evokern.load_study("small", db=path)
        assert len(study.trials) == trials
        assert study.best is not None
        with open_readonly(path) as reader:
            assert study.best == reader.best(reader.study("small"))
        assert "fastest of" in study._repr_html_()
