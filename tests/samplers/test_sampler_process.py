"""A sampler in a process of its own proposes what it would propose in this one, whatever becomes of the process."""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from paths import ROOT

from evokern.declaration.feasibility import check, feasible_space
from evokern.declaration.genes import Config
from evokern.errors import InternalError, KernelError
from evokern.hardware.profiles import chip
from evokern.samplers import History, Sampler, TrialResult, TrialSchedule, make_sampler, sampler_process
from evokern.samplers.evo import EvoSampler
from evokern.samplers.sampler_process import SamplerPlan, SamplerProcess
from evokern.search._arms import ArmSchedule
from evokern.study.discovery import WorkerContext, load_kernel
from evokern.study.trial import Outcome, Proposal

FOLDER = ROOT / "kernels" / "rmsnorm"
SCHEDULE = TrialSchedule(12, 4, 4)


def _plan() -> SamplerPlan:
    kernel = load_kernel(FOLDER)
    context = WorkerContext(FOLDER, (kernel.problem("64,1024"),), chip("l4"))
    return SamplerPlan(context, {}, "evo", {}, 3, SCHEDULE, None)


def _here(plan: SamplerPlan) -> Sampler:
    kernel, context = plan.context.kernel(), plan.context
    space = feasible_space(kernel, context.problems, context.profile, plan.genes)

    def explain(config: Config) -> str:
        violation = check(kernel, config, context.problems, context.profile)
        return violation.constraint if violation else "infeasible"

    return make_sampler(plan.name, space, plan.options, plan.seed, plan.schedule, explain, plan.prior)


def _answer(number: int, config: Config) -> TrialResult:
    """Return a made-up result: one in eight failed, was lost, or lost its race."""
    drawn = int(hashlib.md5(config.key.encode()).hexdigest(), 16)
    value, kind = 1.0 + drawn % 1000 / 1000, drawn // 1000 % 8
    if kind == 0:
        return TrialResult(number, config, Outcome.WRONG, fingerprint=config.key, constraints={"wrong": 1.0})
    if kind == 1:
        return TrialResult(number, config, Outcome.LOST)
    outcome = Outcome.SLOW if kind == 2 else Outcome.MEASURED
    return TrialResult(number, config, outcome, value, config.key)


def _sequence(sampler: Sampler, history: History, trials: int, killed: Sequence[int] = ()) -> list[Proposal]:
    """Return what a sampler proposes; the process is killed before the trials that are named."""
    while len(history.proposals) < trials:
        number = len(history.proposals)
        while history.results_seen <= number - SCHEDULE(number):
            history.tell(_answer(history.results_seen, history.proposals[history.results_seen].config))
        if isinstance(sampler, SamplerProcess):
            if number % 3:  # else it is idle until it is asked
                sampler.prepare(history, number)
            if number in killed:
                sampler.start()
                assert sampler.processes
                for process in sampler.processes:
                    os.kill(process, signal.SIGKILL)
        proposal = sampler.propose(history, number)
        assert proposal is not None
        history.commit(number, proposal)
    return history.proposals


@pytest.fixture
def process() -> Iterator[SamplerProcess]:
    """A sampler's process, ended with the test."""
    made = SamplerProcess(_plan())
    yield made
    made.close()


def test_the_sequence_is_the_same_as_in_one_process(process: SamplerProcess) -> None:
    """Losses, failures, races and deaths of the process, at work or idle, change nothing; nor does asking ahead."""
    plan = _plan()
    space = feasible_space(plan.context.kernel(), plan.context.problems, plan.context.profile)
    expected = _sequence(_here(plan), History(space), 44)
    assert {_answer(n, p.config).outcome for n, p in enumerate(expected[:40])} >= {Outcome.LOST, Outcome.SLOW}
    assert _sequence(process, History(space), 44, (17, 40)) == expected


def test_a_process_that_begins_late_is_told_everything(process: SamplerProcess) -> None:
    """A resumed study's sampler knows the trials before, and tells what is likely next."""
    plan = _plan()
    space = feasible_space(plan.context.kernel(), plan.context.problems, plan.context.profile)
    here, history = _here(plan), History(space)
    _sequence(here, history, 30)
    number = 30
    while history.results_seen <= number - SCHEDULE(number):
        history.tell(_answer(history.results_seen, history.proposals[history.results_seen].config))
    assert process.propose(history, number) == here.propose(history, number)
    assert process.likely()
    assert list(process.likely()) == list(here.likely())  # type: ignore[attr-defined]


def test_the_processes_end(process: SamplerProcess) -> None:
    """Nothing is left of a sampler that is closed."""
    plan = _plan()
    space = feasible_space(plan.context.kernel(), plan.context.problems, plan.context.profile)
    _sequence(process, History(space), 2)
    left = process.processes
    process.close()
    process.close()
    end = time.monotonic() + 5
    while any(Path(f"/proc/{one}").exists() and "Z" not in _state(one) for one in left) and time.monotonic() < end:
        time.sleep(0.02)
    assert left
    assert not any(Path(f"/proc/{one}").exists() and "Z" not in _state(one) for one in left)


def _state(process: int) -> str:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def test_what_the_kernel_raises_there_is_raised_here(tmp_path: Path) -> None:
    """A folder that is gone is named, as in one process."""
    plan = _plan()
    gone = SamplerProcess(replace(plan, context=replace(plan.context, folder=tmp_path / "gone")))
    try:
        with pytest.raises(KernelError, match="gone"):
            gone.propose(History(load_kernel(FOLDER).space), 0)
    finally:
        gone.close()


def test_a_process_that_stands_still_is_replaced(process: SamplerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that was frozen for longer than an answer may take loses nothing; nobody is kept from stopping."""
    plan = _plan()
    space = feasible_space(plan.context.kernel(), plan.context.problems, plan.context.profile)
    expected = _sequence(_here(plan), History(space), 12)
    history = History(space)
    _sequence(process, history, 10)
    monkeypatch.setattr(sampler_process, "DEADLINE_S", 5.0)
    for stopped in process.processes:
        os.kill(stopped, signal.SIGSTOP)
    process.prepare(history, 10)
    process.stopped = lambda: True
    with pytest.raises(KeyboardInterrupt):
        process.propose(history, 10)
    process.stopped = lambda: False
    assert _sequence(process, history, 12) == expected


def test_an_edited_kernel_does_not_change_the_space(tmp_path: Path) -> None:
    """A process that takes a dead one's place searches the space with which the search began."""
    plan = _plan()
    folder = Path(shutil.copytree(FOLDER, tmp_path / "rmsnorm"))
    kernel = load_kernel(folder, keep=True)
    context = WorkerContext.of(kernel, plan.context.problems, plan.context.profile)
    process = SamplerProcess(replace(plan, context=context))
    space = feasible_space(kernel, context.problems, context.profile)
    history = History(space)
    try:
        _sequence(process, history, 3)
        (folder / "kernel.py").write_text("raise RuntimeError('edited')\n")
        os.kill(process.processes[0], signal.SIGKILL)
        assert process.propose(history, 3) is not None
    finally:
        process.close()


def test_another_history_begins_anew() -> None:
    """A sampler that is asked for another study remembers nothing of the one before, failures least of all."""
    plan = _plan()
    space = feasible_space(plan.context.kernel(), plan.context.problems, plan.context.profile)
    sampler = _here(plan)
    expected = _sequence(sampler, History(space), 40)
    assert _sequence(sampler, History(space), 40) == expected


def test_generations_follow_what_is_in_flight() -> None:
    """A generation has 24 trials, or an eighth of what an arm may have in flight."""
    space = load_kernel(FOLDER).space
    for schedule, longest in (
        (TrialSchedule(199), 24),
        (TrialSchedule(384, 8, 4), 48),
        (ArmSchedule.of(TrialSchedule(384, 8, 4), 2), 24),
    ):
        starts = {EvoSampler(space, window=schedule)._generations.start_of(number) for number in range(4000, 4200)}
        assert {later - earlier for earlier, later in itertools.pairwise(sorted(starts))} == {longest}


def test_another_trial_than_the_one_begun_with_is_refused(process: SamplerProcess) -> None:
    """Who asks ahead for one trial and then wants another has lost count."""
    history = History(load_kernel(FOLDER).space)
    process.prepare(history, 0)
    with pytest.raises(InternalError, match=r"trial 0 .* trial 1\b"):
        process.propose(history, 1)
