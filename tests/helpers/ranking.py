"""Predicted times of many candidates at once: compiled, sampled blocks counted, nothing checked, nothing kept."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from evokern.compile.cache import default_directory
from evokern.compile.pool import PRELOAD, CompileSettings, compile_spec
from evokern.compile.records import Built
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Kernel, Problem
from evokern.declaration.space import Space
from evokern.device._pipeline import COMPILE_DEADLINE_S
from evokern.device.sim.jobs import SimSettings
from evokern.device.sim.simulated import DEADLINE_S, MODULES
from evokern.hardware.profiles import Profile, limits_for
from evokern.study.discovery import WorkerContext
from evokern.study.settings import Study
from evokern.workers.fork_server import ForkServer
from evokern.workers.pool import JobResult, WorkerPool, WorkerSpec, wait


@dataclass(frozen=True)
class Predict:
    """Predict one candidate."""

    config: Config
    """Its configuration."""
    built: Built
    """Its programs and launches at the study's problems."""


class RankWorker:
    """Answers `Predict` with a time in µs, None where the candidate does not run."""

    def __init__(self, settings: SimSettings) -> None:
        import torch

        from evokern.device.sim.predict import Predictor
        from evokern.gate.comparison import tolerances

        torch.set_num_threads(1)
        kernel, chip = settings.context.kernel(), settings.context.profile
        tolerance = tolerances(kernel, settings.gate.atol, settings.gate.rtol)
        self._problems = settings.context.problems
        self._predictor = Predictor(kernel, chip, settings.timing, settings.simulation, tolerance)
        self.ready_report: dict[str, Any] = {}

    def handle(self, job: Predict) -> float | None:
        """Predict one candidate: the geometric mean over the problems."""
        from evokern.gate import RunFailed

        logs = []
        for problem in self._problems:
            try:
                found = self._predictor.predict(job.config, job.built, problem)
            except RunFailed:
                return None
            if found.sampled is not None:
                return None
            logs.append(math.log(found.total.time_us))
        return math.exp(sum(logs) / len(logs))


class Ranking:
    """Workers that compile and predict; a context manager."""

    def __init__(self, kernel: Kernel, problems: tuple[Problem, ...], study: Study, profile: Profile) -> None:
        """Start the workers.

        Args:
            kernel: the kernel, loaded from its folder.
            problems: the study's problems.
            study: its gate, timing and simulation settings.
            profile: the chip to predict for.

        Raises:
            UsageError: the kernel folder or the compiler cannot work as asked.
        """
        chip = limits_for(profile, study.limits)
        cores = len(os.sched_getaffinity(0))
        context = WorkerContext(kernel.folder, problems, chip)
        compiling = CompileSettings(context, default_directory())
        simulating = SimSettings(context, study.gate, study.timing, study.simulation, kernel.space.default())
        self._server = ForkServer((*PRELOAD, *MODULES))
        self._compilers = WorkerPool(self._server, compile_spec(compiling), size=max(1, cores // 2), depth=2)
        spec = WorkerSpec("ranking:RankWorker", simulating)
        self._executors = WorkerPool(self._server, spec, size=cores)

    def __enter__(self) -> Ranking:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._compilers.close()
        self._executors.close()
        self._server.close()

    def predict(self, configs: Sequence[Config]) -> list[float | None]:
        """Return the predicted time of each candidate in µs; None where it does not compile or run.

        Raises:
            UsageError: the kernel folder or the compiler cannot work as asked.
        """
        for key, config in enumerate(configs):
            self._compilers.submit(key, config, COMPILE_DEADLINE_S)
        times: list[float | None] = [None] * len(configs)
        open_keys = set(range(len(configs)))
        compiled: set[int] = set()
        while open_keys:
            for result in wait([self._compilers, self._executors], 1.0):
                if result.status == "raised":
                    raise result.value
                if result.key not in compiled:
                    compiled.add(result.key)
                    if _is_built(result):
                        job = Predict(configs[result.key], result.value)
                        self._executors.submit(result.key, job, DEADLINE_S)
                        continue
                elif result.status == "done":
                    times[result.key] = result.value
                open_keys.discard(result.key)
        return times


def _is_built(result: JobResult) -> bool:
    return result.status == "done" and isinstance(result.value, Built)


TRIES = 3000
"""Draws for each candidate, before the space counts as exhausted."""


def drawn_candidates(space: Space, rng: random.Random, count: int) -> list[Config]:
    """Return different feasible candidates in the order of the draws; fewer than `count` if no more are found."""
    found: dict[Config, None] = {}
    for _ in range(TRIES * count):
        if len(found) == count:
            break
        config = space.draw(rng)
        if space.feasible(config):
            found[config] = None
    return list(found)
