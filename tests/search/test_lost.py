"""Trials whose workers died are lost: final, not counted, unseen, and what they tried may be tried again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest
from engine_helpers import go, loop_over, small_table, tiny_table, trials_of
from typer.testing import CliRunner

from evokern.cli.app import app
from evokern.device import Answer, Request
from evokern.device.recorded.table import Table, TableDevice
from evokern.report import page
from evokern.samplers import History, TrialResult
from evokern.samplers.contract import MOST_LOSSES
from evokern.store import open_readonly, open_recording
from evokern.study.settings import SAMPLERS
from evokern.study.trial import Evaluation, Outcome, Proposal

LOST = Evaluation(
    Outcome.LOST,
    evidence={
        "reason": "its worker processes died, and it cannot be the cause: killed by SIGKILL, then killed by SIGKILL",
        "memory": {"used_bytes": 15 << 30, "total_bytes": 16 << 30},
    },
)
QUICK = [name for name in SAMPLERS if name != "gp"]


class LosingDevice(TableDevice):
    """A recording whose machine kills the workers of some trials."""

    def __init__(self, table: Table, lost: set[int], **options: Any) -> None:
        super().__init__(table, **options)
        self._losing = lost

    def submit(self, request: Request) -> None:
        if self.is_lost(request):
            self._costs[request.number] = 0.0
            self._answers.put(Answer(request.number, LOST))
        else:
            super().submit(request)

    def is_lost(self, request: Request) -> bool:
        """Whether the workers of a trial die."""
        return request.number in self._losing


@pytest.fixture
def losing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the searches of `loop_over` lose some trials."""

    def device(table: Table, **options: Any) -> LosingDevice:
        return LosingDevice(table, {3, 4, 11, 20, 21, 33}, **options)

    monkeypatch.setattr("engine_helpers.TableDevice", device)


@pytest.mark.usefixtures("losing")
@pytest.mark.thorough
@pytest.mark.parametrize("name", [pytest.param(one, marks=[] if one == "evo" else [pytest.mark.slow]) for one in QUICK])
def test_losses_keep_a_search_repeatable(name: str) -> None:
    """However many workers there are, and wherever it is interrupted, what follows the same losses is the same."""
    whole, _, loop = loop_over(small_table(), name, trials=45, window=6)
    assert sum(trial.outcome.evaluated for trial in whole) == 45  # those that were lost come on top
    reached = [n for n in (3, 4, 11, 20, 21, 33) if whole[n].outcome is not Outcome.INFEASIBLE]  # as the grid's may be
    assert [trial.number for trial in whole if trial.outcome is Outcome.LOST] == reached != []
    shuffled, _, _ = loop_over(small_table(), name, trials=45, window=6, workers=4, delay_s=0.002)
    assert [(t.config, t.outcome) for t in whole] == [(t.config, t.outcome) for t in shuffled]
    for cut in (5, 14, 27, 40):
        earlier = loop._proposals[:cut], [trial for trial in whole[:cut] if trial.number not in (cut - 1, cut - 3)]
        resumed, _, _ = loop_over(small_table(), name, trials=45, window=6, earlier=earlier)
        assert [(t.config, t.outcome) for t in whole] == [(t.config, t.outcome) for t in resumed]


@pytest.mark.parametrize("name", [name for name in SAMPLERS if name not in ("gp", "grid")])
@pytest.mark.parametrize("losses", [1, MOST_LOSSES])
def test_what_was_lost_may_be_proposed_again(name: str, losses: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search to the end tries every configuration: one that was lost again, but not for ever."""
    table = tiny_table()
    unlucky = next(config for config, answer in table.answers.items() if answer.outcome is Outcome.MEASURED)

    class Device(LosingDevice):
        def is_lost(self, request: Request) -> bool:
            self._losing |= {request.number} if request.config == unlucky and len(self._losing) < losses else set()
            return super().is_lost(request)

    monkeypatch.setattr("engine_helpers.TableDevice", lambda table, **options: Device(table, set(), **options))
    trials, end, _ = loop_over(table, name, window=4)
    assert end == "exhausted"
    tried = [trial.outcome for trial in trials if trial.config == unlucky]
    assert tried == [Outcome.LOST] * losses + ([] if losses == MOST_LOSSES else [Outcome.MEASURED])
    assert len({trial.config for trial in trials}) == 24


def test_a_sampler_sees_nothing_of_a_loss() -> None:
    """No result, no pending trial, and a configuration as if it had never been proposed."""
    history = History(tiny_table().space())
    config = history.space.first_feasible()
    assert config is not None
    history.commit(0, Proposal(config))
    history.tell(TrialResult(0, config, Outcome.LOST))
    assert (history.results, history.pending, history.seen) == ([], {}, set())
    assert history.results_seen == 1


def test_a_loss_on_a_resumed_study_frees_nothing_that_was_proposed_again() -> None:
    """Proposals of earlier sessions are all there before results are told: a later one of the same candidate counts."""
    history = History(tiny_table().space())
    config = history.space.first_feasible()
    assert config is not None
    for number in range(2):
        history.commit(number, Proposal(config))
    history.tell(TrialResult(0, config, Outcome.LOST))
    assert (history.seen, history.pending) == ({config}, {1: config})


def test_a_lost_trial_in_the_database(tmp_path: Path) -> None:
    """It is final for its number, `FAIL` for Optuna, no entry of a recording, and every page and command tells it."""
    db = tmp_path / "a.db"
    device = LosingDevice(small_table(), {2, 5})
    found = go(db, device=device, sampler="evo", trials=12, max_in_flight=4)
    lost = [trial for trial in trials_of(db) if trial.outcome is Outcome.LOST]
    assert [trial.number for trial in lost] == [2, 5]
    assert found.summary["outcomes"]["lost"] == 2
    states = [t.state.name for t in optuna.load_study(study_name="small", storage=f"sqlite:///{db}").get_trials()]
    assert [number for number, state in enumerate(states) if state == "FAIL"] == [2, 5]
    go(db, device=LosingDevice(small_table(), set()), sampler="evo", trials=14, max_in_flight=4)
    assert [trial for trial in trials_of(db) if trial.outcome is Outcome.LOST] == lost
    again = {trial.config for trial in trials_of(db) if trial.outcome is not Outcome.LOST}
    table = open_recording(f"{db}:small")
    assert all(trial.config not in table.answers or trial.config in again for trial in lost)
    run = CliRunner()
    shown = run.invoke(app, ["show", "--db", str(db)]).output
    assert "2 lost" in shown and "killed by SIGKILL" in shown
    one = run.invoke(app, ["show", "--db", str(db), "--trial", "2"]).output
    assert "lost" in one and "killed by SIGKILL, then killed by SIGKILL" in one
    with open_readonly(db) as reader:
        assert "killed by SIGKILL" in page(reader)
    exported = run.invoke(app, ["export", "--db", str(db), "--format", "t4", "-o", str(tmp_path / "a.json")])
    assert exported.exit_code == 0, exported.output
    assert '"lost"' not in (tmp_path / "a.json").read_text()
