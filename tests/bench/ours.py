"""Repeats of evokern's own samplers (evo, and Optuna's behind the guard), through evokern's own search loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from evokern.device._base import Task
from evokern.device.table import TableDevice, problem_of
from evokern.samplers import History, Proposal, make_sampler
from evokern.search._loop import Limits, Loop, Nowhere
from evokern.study import Study
from evokern.trial import Trial
from tests.bench.records import Recording, Run


class _UntilOptimum(Nowhere):
    """Records evaluations; once the optimum is found, nothing after it changes the curve and the run may end."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self.evaluated: list[int] = []

    def record(self, trial: Trial, elapsed_s: float) -> None:
        if trial.outcome.evaluated:
            self.evaluated.append(self._recording.position[trial.config])

    @property
    def found(self) -> bool:
        return bool(self.evaluated) and self.evaluated[-1] == self._recording.optimum


class _Timed:
    """A sampler that keeps the time its proposals took, and has nothing more to propose when it may end."""

    def __init__(self, sampler: Any, done: Callable[[], bool]) -> None:
        self._sampler, self._done = sampler, done
        self.seconds = 0.0

    def propose(self, history: History, number: int) -> Proposal | None:
        if self._done():
            return None
        begun = time.perf_counter()
        proposal: Proposal | None = self._sampler.propose(history, number)
        self.seconds += time.perf_counter() - begun
        return proposal


def run(recording: Recording, sampler: str, seed: int, trials: int, window: int = 1) -> Run:
    """Search a recording once."""
    table = recording.table
    space, device, kept = table.space(), TableDevice(table), _UntilOptimum(recording)
    timed = _Timed(make_sampler(sampler, space, {}, seed, window), lambda: kept.found)
    limits = Limits(window, None, trials)
    loop = Loop(History(space), timed, device, kept, limits, table.violation, clock=device.clock)
    device.start(Task(table.kernel(), (problem_of(table),), Study(table.name, kernel=table.name, problems=("all",))))
    try:
        loop.run()
    finally:
        device.close()
    return Run(sampler, recording.name, seed, tuple(kept.evaluated), timed.seconds)
