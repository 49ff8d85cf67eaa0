"""The end of a search: its champion is verified, a refuted one is none, and what was proved is said."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from paths import DATA
from typer.testing import CliRunner

from evokern.cli.app import app
from evokern.declaration.genes import Config
from evokern.hardware.profiles import chip
from evokern.progress import best_text
from evokern.search import Progress, champion
from evokern.search.champion import LEAD_S, ChampionVerification, reserve
from evokern.store import add_proof, open_readonly
from evokern.store._proofs import ProofRecord
from evokern.store._verification import verification as verification_of
from evokern.study.settings import Study
from evokern.study.trial import Evaluation, Outcome, Proposal, Trial
from evokern.workers.jobs import JobResult

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
    assert "verification refuted every measured candidate" in told
    done = CliRunner().invoke(app, ["export", "tails", "--db", str(db), "--trial", "0", "-o", str(tmp_path / "a.cu")])
    assert done.exit_code == 2
    assert "is refuted (" in done.stderr
    assert "use --force" in done.stderr


@pytest.mark.slow
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
        tried = [ProofRecord("undone", first.number, "", {"why": "no core was free"})]
        told = [verification_of(record, first, [], undone, interrupted=True, db=db).reason for undone in (tried, [])]
        assert told[0].startswith("no core was free; run `evokern verify tails")
        assert "stopped before verification" in told[1]
        assert "`evokern verify tails" in told[1]
    assert (None, True) == (summary["verified"], "ended without verification" in summary["verified_reason"])
    add_proof(db, record, "verify", first.number, {"stages": {"fuzz": {"state": "failed", "detail": "wrong at 3,5"}}})
    code, told = invoke("verify", "tails", "--db", str(db), "--fuzz", "1s", "--json")
    with open_readonly(db) as reader:
        next_one, summary = reader.best(record), reader.summary(record)
        refuted = reader.verification(record, first)
    assert (0, True, 1.0) == (code, summary["verified"], summary["verified_share"])
    assert next_one is not None
    assert next_one.number == json.loads(told)["trial"] != first.number
    assert (False, "fuzz: wrong at 3,5") == (refuted.verified, refuted.reason)
    shown = invoke("show", "tails", "--db", str(db))[1].splitlines()
    assert f"refuted: trial {first.number}, fuzz: wrong at 3,5" in shown
    assert [line for line in shown if line.endswith("(refuted)") and line.split()[0] == str(first.number)]
    assert f"trial {first.number}" not in str(json.loads(told)["playoff"])


def test_who_stops_the_verification_is_told_so_and_the_same_command_does_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C after the last trial is an interruption as any: exit code 130, and the verification alone is left."""
    monkeypatch.chdir(DATA)
    study, db = tmp_path / "tails.toml", tmp_path / "t.db"
    study.write_text(STUDY.replace('["forgotten"]', '["right"]'))
    verified: list[int] = []

    def stopped(_self: ChampionVerification, _trial: Trial, _end: float, wish: Callable[[], bool]) -> str:
        os.kill(os.getpid(), signal.SIGINT)
        assert wish()
        return champion.INTERRUPTED

    def passes(self: ChampionVerification, trial: Trial, end: float, _wish: Callable[[], bool]) -> str:
        assert end - time.monotonic() > champion.TIME_WITHOUT_BUDGET_S[True] - 5.0
        verified.append(trial.number)
        stages = {"own problem": {"state": "passed", "detail": "all", "share": 1.0, "covered": True}}
        return self._store_result(JobResult(trial.number, "done", {"stages": stages}, 1.0))

    with monkeypatch.context() as patch:
        patch.setattr(ChampionVerification, "_verify", stopped)
        code, told = invoke("search", str(study), "--trials", "1", "--db", str(db))
        assert (code, "interrupted; all results are saved" in told) == (130, True)
        assert "not verified: interrupted" in told and "`evokern verify tails --trial 0" in told
        assert "repeat the command" in told
        code, told = invoke("search", str(study), "--trials", "1", "--db", str(db), "--fresh")
        assert (code, "repeat the command" in told, "`evokern resume tails --db" in told) == (130, False, True)
    monkeypatch.setattr(ChampionVerification, "_verify", passes)
    code, told = invoke("search", str(study), "--trials", "1", "--db", str(db), "--no-verify")
    assert (code, verified) == (0, []), "not asked for"
    code, told = invoke("search", str(study), "--trials", "1", "--db", str(db))
    assert (code, verified, "verified" in told) == (0, [0], True)
    assert invoke("search", str(study), "--trials", "1", "--db", str(db))[0] == 0
    assert verified == [0], "it is verified"


class Recorded:
    """A session with three measured trials, the fastest first, that keeps what is proved."""

    study = SimpleNamespace(name="three", secret=1, device="a GPU")
    db = Path("runs.db")

    def __init__(self) -> None:
        self.trials = [
            Trial(number, Proposal(Config({}), "random", {}), Evaluation(Outcome.MEASURED, 1.0 + number), 0.0)
            for number in range(3)
        ]
        self.kept: list[int] = []
        self.told: dict[int, bool] = {}
        self.undone: dict[int, str] = {}

    def proofs(self) -> list[Any]:
        return []

    def recorded_trials(self) -> tuple[list[Any], list[Trial]]:
        return [], self.trials

    def write_verification(self, number: int, found: dict[str, Any]) -> None:
        self.kept.append(number)

    def write_unfinished_verification(self, number: int, why: str) -> None:
        self.undone[number] = why


def verification(session: Recorded, notes: list[str], cores: int) -> ChampionVerification:
    kernel = SimpleNamespace(folder=DATA / "kernels" / "tail_bug", content=None)
    study = Study(name="three", kernel="tail_bug", problems=("64,4096",), device="cuda:0")
    target: Any = SimpleNamespace(
        device=SimpleNamespace(predicted=False, profile=chip("l4")),
        study=study,
        kernel=kernel,
        problems=(),
        limits=chip("l4"),
    )
    return ChampionVerification(
        target, cast(Any, session), "worker_handlers:Verifier", notes.append, session.told.__setitem__, cores=cores
    )


def test_the_best_is_verified_while_the_last_trials_run() -> None:
    """On a live device with idle cores: the best near the end is known at once, a refuted one is none."""
    session, notes = Recorded(), list[str]()
    one = verification(session, notes, cores=8)
    try:
        one.advance(session.trials[1], LEAD_S + 1)
        assert one._pool is None
        deadline = time.monotonic() + 60
        while session.kept != [1] and time.monotonic() < deadline:
            one.advance(session.trials[1], LEAD_S)
        while session.kept != [1, 0] and time.monotonic() < deadline:
            one.advance(session.trials[0], LEAD_S)
        one.finish(0.0, lambda: False)
        assert (session.kept, notes) == ([1, 0], ["trial 0 is refuted and cannot be the champion: fuzz: wrong at 3,5"])
    finally:
        one.close()


def test_with_few_cores_verification_waits_for_the_end() -> None:
    """Nothing starts beside the trials; afterwards the fastest are verified in turn until one is right."""
    session, notes = Recorded(), list[str]()
    one = verification(session, notes, cores=2)
    try:
        one.advance(session.trials[0], 1.0)
        assert one._pool is None
        one.finish(60.0, lambda: False)
        assert session.told == {0: False, 1: True}
        assert notes == [
            "verifying trial 0",
            "trial 0 is refuted and cannot be the champion: fuzz: wrong at 3,5",
            "verifying trial 1",
        ]
    finally:
        one.close()


def test_why_nothing_was_proved_is_kept() -> None:
    """A budget that ends first, and whatever else keeps a champion from being verified, is written down and said."""
    session, notes = Recorded(), list[str]()
    one = verification(session, notes, cores=2)
    try:
        one.finish(0.0, lambda: False)
        why = "the budget ended before the verification completed"
        assert session.undone == {0: why}
        assert notes[-1].startswith(f"trial 0 is not verified: {why}; ")
        assert "`evokern verify three --trial 0 --db runs.db`" in notes[-1]
    finally:
        one.close()


@pytest.mark.parametrize(("proofs", "said"), [({}, "µs (trial 1)"), ({1: True}, "verified"), ({1: False}, "refuted")])
def test_the_panel_says_what_was_proved(proofs: dict[int, bool], said: str) -> None:
    """The line of the best names its verification once it ended; that of another trial says nothing of it."""
    progress = Progress("trial", "three", "a GPU", best=Recorded().trials[1], proofs={0: True, **proofs})
    assert best_text(progress).endswith(said)


@pytest.mark.parametrize(
    ("budget_s", "predicted", "kept"),
    [(None, False, 0.0), (45.0, False, 9.0), (600.0, False, 10.0), (600.0, True, 60.0)],
)
def test_a_share_of_a_budget_is_kept(budget_s: float | None, predicted: bool, kept: float) -> None:
    """Verification has its share of the budget, at most ten seconds on a GPU."""
    assert kept == reserve(budget_s, predicted)
