"""`export --format trace`: a search in the trace-event format that Perfetto opens, of times that a clock saw."""

from __future__ import annotations

import gzip
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from engine_helpers import tiny_table
from hostile_texts import HOSTILE
from paths import DATA
from stored_studies import MEASURED, record, reseal, write_study
from typer.testing import CliRunner

from evokern.cli._command import app
from evokern.cli.app import run  # noqa: F401 (registers every command)
from evokern.declaration.genes import Config
from evokern.device import BaselineResult, StartReport
from evokern.store import Store, open_readonly
from evokern.study.trial import Evaluation, Outcome, Proposal, Span, Timing, Trial

FIELDS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "X": {"ts": (int, float), "dur": (int, float), "cat": str},
    "b": {"ts": (int, float), "id": int, "cat": str},
    "e": {"ts": (int, float), "id": int, "cat": str},
    "i": {"ts": (int, float), "s": str},
    "C": {"ts": (int, float), "args": dict},
    "M": {"args": dict},
}
"""Phase of an event → its own fields, by the Trace Event Format; all have name, ph, pid, tid."""
METADATA = ("process_name", "thread_name", "thread_sort_index")


def invoke(*words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, list(words))
    return done.exit_code, done.stdout, done.stderr


def valid(made: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the events of a trace file, after holding it against the format."""
    assert {"traceEvents", "displayTimeUnit", "otherData"} == set(made)
    assert made["displayTimeUnit"] in ("ms", "ns")
    open_: dict[tuple[str, int], float] = {}
    ends: dict[int, list[float]] = {}
    for event in made["traceEvents"]:
        for name, kind in {"name": str, "ph": str, "pid": int, "tid": int, **FIELDS[event["ph"]]}.items():
            assert isinstance(event[name], kind), (name, event)
        assert event.get("ts", 0) >= 0
        assert event.get("dur", 0) >= 0
        match event["ph"]:
            case "M":
                assert event["name"] in METADATA
            case "b":
                assert open_.setdefault((event["cat"], event["id"]), event["ts"]) == event["ts"]
            case "e":
                assert open_.pop((event["cat"], event["id"])) <= event["ts"]
            case "X":
                # On one track spans follow one another or lie within one another.
                stack = ends.setdefault(event["tid"], [])
                while stack and stack[-1] <= event["ts"] + 1e-3:
                    stack.pop()
                assert not stack or event["ts"] + event["dur"] <= stack[-1] + 1e-3, event
                stack.append(event["ts"] + event["dur"])
    assert not open_, "what begins ends"
    return list(made["traceEvents"])


def spans_at(at: float) -> tuple[Span, ...]:
    """Return what a trial on a GPU does from a moment on."""
    return (
        Span("compile", at, 0.4, "compiler 3"),
        Span("evaluate", at + 0.5, 0.3, "executor 12"),
        Span("gate", at + 0.51, 0.1, "executor 12"),
        Span("timing", at + 0.62, 0.15, "executor 12"),
    )


@pytest.fixture
def timed(tmp_path: Path) -> Path:
    """A study of three trials with spans, one of them wrong, and one that a compile of earlier answered."""
    path = tmp_path / "t.db"
    study = record(name=HOSTILE)
    genes = {gene.name: gene.default for gene in study.genes}
    name = study.genes[0].name
    other = next(value for value in study.genes[0].values if value != genes[name])
    with Store(path) as store:
        kept = store.create(study, {})
        session = store.session(kept, tiny_table().space())
        session.write_start_report(StartReport((BaselineResult("sdpa", (Timing(11.0, (11.0, 11.0), (11.0,)),)),)))
        wrong = Evaluation(
            Outcome.WRONG, evidence={"check": "tolerance", "message": HOSTILE}, compile_s=0.4, spans=spans_at(2.0)
        )
        cached = Evaluation(Outcome.MEASURED, 4.4, MEASURED.timings, compile_s=0.0, spans=spans_at(3.0))
        first = Evaluation(Outcome.MEASURED, 5.5, MEASURED.timings, compile_s=0.4, spans=spans_at(1.0))
        for number, evaluation in enumerate((first, wrong, cached)):
            proposal = Proposal(Config({**genes, name: other} if number else genes))
            session.propose(number, proposal, 0.9 + number)
            session.record(Trial(number, proposal, evaluation, 1.9 + number), 1.9 + number)
        session.ended(5.0, "trials")
    return path


def test_a_search_becomes_a_trace(timed: Path, tmp_path: Path) -> None:
    """A track for each worker; spans of compile, gate and timing with trial, outcome and changed genes."""
    code, told, _ = invoke("export", "--format", "trace", "-o", str(tmp_path / "trace.json"), "--db", str(timed))
    assert code == 0
    assert "12 spans of 3 trials" in told
    made = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))
    events = valid(made)
    tracks = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert tracks == {0: "search", 1: "compiler 3", 2: "executor 12"}
    spans = [(tracks[e["tid"]], e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X" and e["tid"]]
    assert spans[:4] == [
        ("compiler 3", "compile", 1e6, 0.4e6),
        ("executor 12", "trial 0", 1.5e6, 0.3e6),
        ("executor 12", "gate", 1.51e6, 0.1e6),
        ("executor 12", "timing", 1.62e6, 0.15e6),
    ]
    named = {e["args"]["trial"]: e["args"] for e in events if e["name"] == "gate"}
    assert [named[n]["outcome"] for n in range(3)] == ["measured", "wrong", "measured"]
    assert named[1]["reason"] == HOSTILE
    assert (named[0]["changed genes"], named[1]["changed genes"][:6]) == ("the default candidate", "LOADS=")
    compiles = [e["args"].get("cached", False) for e in events if e["name"] == "compile"]
    assert compiles == [False, False, True]
    flights = [(e["ph"], e["id"], e["ts"]) for e in events if e.get("cat") == "in flight"]
    assert flights[:2] == [("b", 0, 0.9e6), ("e", 0, 1.9e6)]
    assert [e["args"] for e in events if e["ph"] == "C"] == [{"µs": 5.5}, {"µs": 4.4}]
    assert made["otherData"]["missing"] == ""
    with open_readonly(timed) as reader:
        kept = [trial.evaluation.spans for trial in reader.trials(reader.study())]
    assert kept == [spans_at(n) for n in (1.0, 2.0, 3.0)]


def test_what_nobody_timed_is_said_and_not_made_up(tmp_path: Path) -> None:
    """Trials without spans, as in a recording's study, have their time in flight only."""
    write_study(tmp_path / "a.db", 30)
    file = tmp_path / "a.json.gz"
    code, told, _ = invoke("export", "--format", "trace", "-o", str(file), "--db", str(tmp_path / "a.db"))
    assert code == 0
    assert "30 of 30 trials have only a time in flight" in told
    events = valid(json.loads(gzip.decompress(file.read_bytes())))
    assert {e["tid"] for e in events} == {0}
    assert sum(e["ph"] == "b" for e in events) == 30
    assert [e["name"] for e in events if e["ph"] == "X"] == ["session 1"]


@pytest.mark.parametrize("name", ["first_tables", "with_secret"])
def test_old_databases_are_traced_unchanged(name: str, tmp_path: Path) -> None:
    """A file whose tables have no spans is read as it is."""
    path = tmp_path / "old.db"
    path.write_bytes(gzip.decompress((DATA / "databases" / f"{name}.db.gz").read_bytes()))
    before = path.read_bytes()
    code, told, _ = invoke("export", "small", "--format", "trace", "-o", "-", "--db", str(path))
    assert code == 0
    valid(json.loads(told))
    assert path.read_bytes() == before


def test_what_cannot_be_traced(timed: Path, tmp_path: Path) -> None:
    """No trial, a trial named, a problem named: one message each, no file."""
    with Store(tmp_path / "empty.db") as store:
        store.create(record(), {})
    trace = ("export", "--format", "trace", "-o", str(tmp_path / "x.json"), "--db")
    code, _, remarks = invoke(*trace, str(tmp_path / "empty.db"))
    assert (code, "has no trial yet" in remarks) == (2, True)
    for more in (("--trial", "0"), ("--problem", "1")):
        code, _, remarks = invoke(*trace, str(timed), *more)
        assert (code, "omit --trial and --problem" in remarks) == (2, True)
    assert not (tmp_path / "x.json").exists()
    code, told, _ = invoke(*trace, str(timed), "--json")
    assert (code, json.loads(told)["spans"], json.loads(told)["trials"]) == (0, 12, 3)


def test_only_wrong_trials_are_traced(timed: Path, tmp_path: Path) -> None:
    """Without a champion there is no mark of one, and everything else."""
    with sqlite3.connect(timed) as db:
        db.execute("UPDATE evokern_trials SET outcome = 'wrong', time_us = NULL, evidence = '{\"check\":\"c\"}'")
    reseal(timed)
    code, told, _ = invoke("export", "--format", "trace", "-o", "-", "--db", str(timed))
    events = valid(json.loads(told))
    assert (code, [e for e in events if e["ph"] in "iC"]) == (0, [])
