"""A search over a recording, and its parallel repeats."""

from __future__ import annotations

import time
from collections.abc import Sequence

from evokern.declaration.genes import Config
from evokern.device.contract import Task
from evokern.device.recorded.table import Table, TableDevice, problem_of
from evokern.errors import InternalError
from evokern.sampler_benchmark.results import OnRepeat, Repeat, Settings
from evokern.samplers import History, make_sampler
from evokern.search.loop import Limits, Loop, NullRecorder
from evokern.store import open_recording
from evokern.study.settings import Study
from evokern.study.trial import Outcome, Trial
from evokern.workers.fork_server import ForkServer
from evokern.workers.pool import WorkerPool, WorkerSpec, wait

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
    server = ForkServer(("numpy", "optuna", "evokern.sampler_benchmark.repeat"))
    pool: WorkerPool | None = None
    try:
        spec = WorkerSpec("evokern.sampler_benchmark.repeat:Repeats", settings)
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
