"""A launch that takes long is not taken for one that hangs, and a reason says what is known of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from engine_helpers import loop_over, small_table
from paths import DATA

from evokern.analysis.check.folder import Folder
from evokern.analysis.check.simulated_run import own_problem
from evokern.analysis.verify.fuzz import Checker, fuzz
from evokern.compile.build import Target, build
from evokern.compile.records import Built
from evokern.cuda_source import read
from evokern.declaration.genes import Config
from evokern.device.contract import Answer
from evokern.device.recorded.table import TableDevice
from evokern.device.sim.jobs import SimSettings, Simulate
from evokern.device.sim.worker import SimWorker
from evokern.errors import DeviceError
from evokern.hardware.profiles import chip
from evokern.study.discovery import WorkerContext, load_kernel
from evokern.study.settings import SimulationSettings, Study, TimingSettings
from evokern.study.trial import TOO_LARGE, Evaluation, Outcome

FOLDER = DATA / "kernels" / "long_loops"
KERNEL = load_kernel(FOLDER)
PROBLEM = KERNEL.problem("4096")
L4 = chip("l4")
FEW, MANY = 40_000, 400_000
"""Instruction limits: the finite loop of 24 rounds exceeds the lower one in six blocks, but not in one."""


def candidate(loop: str, rounds: int = 3) -> Config:
    """Return a candidate."""
    return KERNEL.space.canonical({"LOOP": loop, "ROUNDS": rounds})


def worker_with(limit: int, default: Config | None = None) -> SimWorker:
    """Return a worker of a simulated L4 with an instruction limit."""
    study = Study("long", "long_loops", ("4096",), timing=replace(TimingSettings(), race=0.0))
    context = WorkerContext(Path(FOLDER), (PROBLEM,), L4)
    simulation = SimulationSettings(instruction_limit=limit)
    default = default or KERNEL.space.default()
    return SimWorker(SimSettings(context, study.gate, study.timing, simulation, default, 5))


def evaluated(loop: str, rounds: int = 3, limit: int = FEW, default: Config | None = None) -> Evaluation:
    """Return what a simulated L4 says of a candidate that races against nothing."""
    config = candidate(loop, rounds)
    built = build(KERNEL, config, (PROBLEM,), Target(L4, None))
    assert isinstance(built, Built), built.reason
    found = worker_with(limit, default).handle(Simulate(config, built, None, 0.0))
    assert found is not None
    return found


@pytest.mark.parametrize("loop", ["finite", "handshake"])
def test_a_long_candidate_that_ends_is_measured(loop: str) -> None:
    """Six blocks exceed the limit, or wait for a block that is not among them: one block or all blocks decide."""
    found = evaluated(loop, 24)
    assert found.outcome is Outcome.MEASURED, found.reason


@pytest.mark.parametrize("loop", ["flag", "livelock"])
def test_a_state_that_repeats_is_hung(loop: str) -> None:
    """No block of the launch can end these loops, so that the reason claims it, with the line."""
    found = evaluated(loop)
    assert found.outcome is Outcome.HUNG
    assert "the state repeats, so this loop never ends" in found.reason
    assert found.evidence["finding"]["line"] > 0


def test_far_more_instructions_than_the_default_are_hung() -> None:
    """The state changes for ever; the reason tells the instructions of both candidates."""
    found = evaluated("counter", limit=MANY)
    assert (found.outcome, found.evidence["finding"]["line"] > 0) == (Outcome.HUNG, True)
    assert "more than 20 times as many count as endless" in found.reason
    assert found.evidence["executed"] > found.evidence["limit_instructions"]


def test_too_few_instructions_to_decide_are_too_large() -> None:
    """Nothing is said about a GPU, with the limit that was too low and the place where the launch stopped."""
    for loop, rounds in (("counter", 3), ("finite", 50)):
        found = evaluated(loop, rounds)
        assert (found.outcome, found.evidence["constraint"]) == (Outcome.INFEASIBLE, TOO_LARGE)
        assert found.evidence["needed"] > found.evidence["available"] == 5 * FEW
        assert "one of its 32 blocks at N=4096 did not end within 200,000 warp instructions" in found.reason
        assert "may be correct and fast on a GPU" in found.reason
        assert "hung" not in found.reason and "never ends" not in found.reason


def test_a_default_without_an_end_is_no_standard() -> None:
    """If the default candidate does not end either, no candidate is called hung for its number of instructions."""
    for loop in ("counter", "finite"):
        found = evaluated(loop, 50, default=candidate("counter"))
        assert (found.outcome, found.evidence["constraint"]) == (Outcome.INFEASIBLE, TOO_LARGE)


def test_a_long_candidate_is_checked_at_a_smaller_problem() -> None:
    """A small problem that takes too many instructions is halved, and the report names the problem that ran."""
    config = candidate("finite", 50)
    built = build(KERNEL, config, (PROBLEM,), Target(L4, None))
    assert isinstance(built, Built)
    against, reports = worker_with(15_000).gate(config, built, [KERNEL.problem("300")])
    assert (against, list(reports)) == (None, ["150"])


def test_check_tells_before_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """`check` warns that the default candidate is too large, with the remedies."""
    monkeypatch.setattr("evokern.analysis.check.simulated_run.SimulationSettings", lambda: SimulationSettings(2000))
    folder = Folder(KERNEL, (PROBLEM, *map(KERNEL.problem, KERNEL.workload.small_problems)), read(KERNEL.source_path))
    ((level, text),) = own_problem(folder)
    assert (level, True) == ("warning", f"is {TOO_LARGE}" in text and "use a smaller problem" in text)


def test_fuzzing_leaves_out_what_is_too_large() -> None:
    """Cases that are too large to simulate are counted, and are no failures."""
    study = Study("long", "long_loops", ("4096",), simulation=SimulationSettings(instruction_limit=1000))
    checker = Checker(KERNEL, KERNEL.space.default(), study, L4)
    found = fuzz(checker, iter([KERNEL.problem("300")] * 9), 60.0, seed=1)
    assert (found.cases, found.failures, found.too_large) == (0, (), 3)
    assert found.as_dict()["too_large"] == 3


def test_a_search_of_candidates_that_are_all_too_large_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such trials do not count towards `--trials`, so nine in a row end the search with the reason."""
    evidence = {
        "constraint": TOO_LARGE,
        "needed": 2,
        "available": 1,
        "unit": "warp instructions",
        "reason": "it is long",
    }
    too_large = Evaluation(Outcome.INFEASIBLE, evidence=evidence)
    poll = TableDevice.poll

    def long(self: TableDevice, timeout_s: float) -> list[Answer]:
        return [replace(answer, evaluation=too_large) for answer in poll(self, timeout_s)]

    monkeypatch.setattr(TableDevice, "poll", long)
    with pytest.raises(DeviceError, match=r"9 trials in a row were too large to simulate.*it is long; use a smaller"):
        loop_over(small_table(), "random", trials=3)
