"""Predicted times of many candidates at once: compiled, sampled blocks counted, nothing checked, nothing kept.

A ranking is a guess to begin a search with, not a result: the gate is left out, and whoever is far slower than the
default candidate is not looked at to the end.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from evokern.compile.cache import default_directory
from evokern.compile.pool import PRELOAD, CompileSettings, compile_spec
from evokern.compile.records import Built
from evokern.device._pipeline import COMPILE_DEADLINE_S
from evokern.device._sim_worker import SimSettings
from evokern.device.simulated import DEADLINE_S, MODULES
from evokern.discovery import load_kernel
from evokern.fork_server import ForkServer
from evokern.kernel import Kernel, Problem
from evokern.profiles import Profile, limits_for
from evokern.space import Config
from evokern.study import Study
from evokern.workers import Result, WorkerPool, WorkerSpec, wait

SLOWEST = 4.0
"""Multiple of the default candidate's predicted time beyond which it does not matter how slow a candidate is."""


@dataclass(frozen=True)
class Predict:
    """Predict one candidate."""

    config: Config
    """Its configuration."""
    built: Built
    """Its programs and launches at the study's problems."""
    limit_us: float | None
    """Time, in µs, at which it counts as that slow."""


class RankWorker:
    """Answers `Predict` with a time in µs, None where the candidate does not run."""

    def __init__(self, settings: SimSettings) -> None:
        import torch

        from evokern.device._sim_predict import Predictor
        from evokern.gate.bench import tolerances

        torch.set_num_threads(1)
        kernel = load_kernel(settings.folder)
        tolerance = tolerances(kernel, settings.gate.atol, settings.gate.rtol)
        self._problems = settings.problems
        self._predictor = Predictor(kernel, settings.profile, settings.timing, settings.simulation, tolerance)
        self.greeting: dict[str, Any] = {}

    def handle(self, job: Predict) -> float | None:
        """Predict one candidate: the geometric mean over the problems."""
        from evokern.gate import RunFailed
        from evokern.trial import Outcome

        logs = []
        for problem in self._problems:
            try:
                found = self._predictor.predict(job.config, job.built, problem, job.limit_us)
            except RunFailed as failed:
                return job.limit_us if failed.outcome is Outcome.SLOW else None
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
        self._default = kernel.space.default()
        compiling = CompileSettings(kernel.folder, problems, chip, default_directory(), niceness=0)
        simulating = SimSettings(
            kernel.folder, problems, chip, study.gate, study.timing, study.simulation, self._default
        )  # fmt: skip
        self._server = ForkServer((*PRELOAD, *MODULES))
        self._compilers = WorkerPool(self._server, compile_spec(compiling), size=max(1, cores // 2), depth=2)
        spec = WorkerSpec("ranking:RankWorker", simulating, {"OMP_NUM_THREADS": "1"})
        self._executors = WorkerPool(self._server, spec, size=cores)

    def __enter__(self) -> Ranking:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._compilers.close()
        self._executors.close()
        self._server.close()

    def predict(self, configs: Sequence[Config], *, to_the_end: bool = False) -> list[float | None]:
        """Return the predicted time of each candidate in µs; None where it does not compile or run.

        Args:
            configs: the candidates.
            to_the_end: predict slow ones too, whose time is otherwise given as `SLOWEST` times the default's.

        Raises:
            UsageError: the kernel folder or the compiler cannot work as asked.
        """
        if to_the_end:
            return self._all(configs, None)
        first = self._all([self._default], None)[0]
        return self._all(configs, None if first is None else SLOWEST * first)

    def _all(self, configs: Sequence[Config], limit_us: float | None) -> list[float | None]:
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
                        job = Predict(configs[result.key], result.value, limit_us)
                        self._executors.submit(result.key, job, DEADLINE_S)
                        continue
                elif result.status == "done":
                    times[result.key] = result.value
                open_keys.discard(result.key)
        return times


def _is_built(result: Result) -> bool:
    return result.status == "done" and isinstance(result.value, Built)
