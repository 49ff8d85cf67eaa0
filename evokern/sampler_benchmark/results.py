"""Searches over a recording, their parallel repeats, and the results of a replay."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

from evokern.declaration.genes import Config
from evokern.device.contract import Task
from evokern.device.recorded.table import Table, TableDevice, problem_of
from evokern.errors import InternalError, UsageError
from evokern.samplers import History, make_sampler
from evokern.samplers.contract import TrialSchedule
from evokern.search.loop import Limits, Loop, NullRecorder
from evokern.store import open_recording
from evokern.study.settings import Study
from evokern.study.trial import Outcome, Trial
from evokern.workers.fork_server import ForkServer
from evokern.workers.pool import WorkerPool, WorkerSpec, wait

LIVE = 96
"""Maximum number of trials in flight of a time-limited search on a GPU with 16 cores."""
CHECKPOINTS = (50, 100, 200, 500, 1000, 2000, 5000)
"""Numbers of evaluations after which results are reported; the last evaluation of a replay is always added."""


@dataclass(frozen=True)
class Repeat:
    """One search over a recording."""

    sampler: str
    """Name of the sampler."""
    seed: int
    """Seed of the proposals."""
    best_us: tuple[float | None, ...]
    """Shortest time in µs after each evaluation; None while there is none."""
    elapsed_s: float = 0.0
    """Simulated seconds, the sum of the recorded durations of the evaluations; 0 if unknown."""


@dataclass(frozen=True)
class SamplerResult:
    """All repeats of one sampler, as fractions of the optimum: optimum ÷ best so far, or 0 without a time."""

    sampler: str
    """Name of the sampler."""
    curves: tuple[tuple[float, ...], ...]
    """Fraction after each evaluation, one curve per repeat."""
    score: float
    """Score: 0 for random search, 1 for finding the optimum at once (`evokern.sampler_benchmark.score`)."""
    elapsed_s: float = 0.0
    """Mean simulated seconds of a repeat."""

    def at(self, evaluations: int) -> list[float]:
        """Return each repeat's fraction after a number of evaluations."""
        return [curve[evaluations - 1] for curve in self.curves]


@dataclass(frozen=True)
class ReplayResult:
    """Results of a replay."""

    space: str
    """Name of the recording."""
    trials: int
    """Number of evaluations of each repeat."""
    optimum_us: float
    """Shortest recorded time in µs."""
    samplers: tuple[SamplerResult, ...]
    """Results per sampler, in the requested order."""
    random_curve: tuple[float, ...] = ()
    """Expected fraction of random search after each evaluation, computed from the recording."""
    notes: tuple[str, ...] = field(default=())
    """Notes for the user."""
    in_flight: str = ""
    """Schedule of the trials in flight, as text."""
    oracle: bool = False
    """Whether the samplers received the list of recorded configurations."""

    @property
    def checkpoints(self) -> tuple[int, ...]:
        """Numbers of evaluations after which results are reported."""
        return (*(n for n in CHECKPOINTS if n < self.trials), self.trials)

    def as_dict(self) -> dict[str, Any]:
        """Return the object printed by `replay --json`."""
        rows = [self._row(sampler) for sampler in self.samplers]
        return {
            "space": self.space,
            "trials": self.trials,
            "in_flight": self.in_flight,
            "oracle": self.oracle,
            "samplers": rows,
            "notes": list(self.notes),
        }

    def _row(self, result: SamplerResult) -> dict[str, Any]:
        at = {str(n): result.at(n) for n in self.checkpoints}
        return {
            "sampler": result.sampler,
            "repeats": len(result.curves),
            "fraction_of_optimum": {n: fmean(values) for n, values in at.items()},
            "worst": {n: min(values) for n, values in at.items()},
            "sd": {n: stdev(values) if len(values) > 1 else 0.0 for n, values in at.items()},
            "score": result.score,
        }


@dataclass(frozen=True)
class Settings:
    """Settings shared by all repeats of a replay."""

    source: str
    """File of a recording, or `runs.db:study`."""
    trials: int = 200
    """Number of evaluations of each repeat."""
    window: int | None = None
    """Maximum number of trials in flight; None for `LIVE`."""
    budget_s: float | None = None
    """Simulated seconds of each repeat."""
    oracle: bool = False
    """Whether samplers receive the list of recorded configurations, which a live search never does."""

    def __post_init__(self) -> None:
        if self.trials < 1:
            raise UsageError(f"trials = {self.trials}; use at least 1")
        if self.window is not None and not 1 <= self.window <= 1024:
            raise UsageError(f"max_in_flight = {self.window}; use a number from 1 to 1024")

    @property
    def in_flight(self) -> TrialSchedule:
        """Schedule that limits the number of concurrent trials."""
        return TrialSchedule(self.window or LIVE)


OnRepeat = Callable[[int, int, Repeat], None]
"""Callback with the number of completed repeats, the total, and the latest repeat."""


DEADLINE_S = 24 * 3600.0
"""Timeout of a repeat in seconds, a day; slow samplers need seconds per proposal."""


class Curve(NullRecorder):
    """Recorder of the best time so far after each evaluation."""

    def __init__(self) -> None:
        self.best_us: list[float | None] = []
        """Shortest time in µs after each evaluation."""
        self.configs: list[Config] = []
        """Evaluated configurations, in order."""

    def record(self, trial: Trial, elapsed_s: float) -> None:
        """Record the best time so far; infeasible trials and duplicate programs do not count as evaluations."""
        if not trial.outcome.evaluated:
            return
        best = self.best_us[-1] if self.best_us else None
        found = trial.evaluation.time_us if trial.outcome is Outcome.MEASURED else None
        self.configs.append(trial.config)
        self.best_us.append(best if found is None else found if best is None else min(best, found))


def one_repeat(table: Table, settings: Settings, sampler: str, seed: int, curve: Curve | None = None) -> Repeat:
    """Search a recording once.

    Args:
        table: Recording to search.
        settings: Settings shared by all repeats.
        sampler: Name of the sampler.
        seed: Seed of the proposals.
        curve: Empty recorder for callers that need every evaluation.

    Raises:
        StudyError: There is no such sampler.
    """
    space, device, curve = table.space(listed=settings.oracle), TableDevice(table), curve or Curve()

    def explain(config: Config) -> str:
        violation = table.violation(config)
        return violation.constraint if violation else "infeasible"

    loop = Loop(
        History(space),
        make_sampler(sampler, space, {}, seed, settings.in_flight, explain),
        device,
        curve,
        Limits(settings.in_flight, settings.budget_s, settings.trials),
        table.violation,
        clock=device.clock if table.timed else time.monotonic,
    )
    study = Study(table.name, kernel=table.name, problems=(table.name,))
    device.start(Task(table.kernel(), (problem_of(table),), study))
    try:
        loop.run()
    finally:
        device.close()
    return Repeat(sampler, seed, tuple(curve.best_us[: settings.trials]), loop.session_s if table.timed else 0.0)


class Repeats:
    """Worker that keeps the recording in memory between repeats."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._table = open_recording(settings.source)
        self.ready_report: None = None

    def handle(self, job: tuple[str, int]) -> Repeat:
        """Search once with a sampler and a seed."""
        return one_repeat(self._table, self._settings, *job)


def run_all(
    table: Table, settings: Settings, work: Sequence[tuple[str, int]], jobs: int, on_repeat: OnRepeat
) -> list[Repeat]:
    """Search once for each sampler and seed, in separate processes if `jobs` is greater than 1.

    Raises:
        UsageError: A sampler is unknown, or a worker fails.
    """
    space = table.space()
    for sampler in dict.fromkeys(sampler for sampler, _ in work):
        make_sampler(sampler, space, {}, 0, settings.in_flight)  # report an unknown sampler before starting
    done: list[Repeat] = []
    if jobs == 1:
        for sampler, seed in work:
            done.append(one_repeat(table, settings, sampler, seed))
            on_repeat(len(done), len(work), done[-1])
        return done
    server = ForkServer(("numpy", "optuna", "evokern.sampler_benchmark.results"))
    pool: WorkerPool | None = None
    try:
        spec = WorkerSpec("evokern.sampler_benchmark.results:Repeats", settings)
        pool = WorkerPool(server, spec, size=min(jobs, len(work)))
        for key, job in enumerate(work):
            pool.submit(key, job, DEADLINE_S)
        found: dict[int, Repeat] = {}
        while len(found) < len(work):
            for result in wait([pool], 1.0):
                if result.status == "raised":
                    raise result.value
                sampler, seed = work[result.key]
                if result.status == "lost":
                    raise result.lost_error(f"the replay of {sampler} with seed {seed}")
                if result.status != "done":
                    raise InternalError(f"the replay of {sampler} with seed {seed} {result.status}: {result.value}")
                found[result.key] = result.value
                on_repeat(len(found), len(work), result.value)
        return [found[key] for key in range(len(work))]
    finally:
        if pool is not None:
            pool.close()
        server.close()
