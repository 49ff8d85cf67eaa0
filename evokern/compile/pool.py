"""The compile pool's worker: a process that compiles candidates, one at a time, and may crash with the compiler."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from evokern.compile.build import Target, build
from evokern.compile.cache import CompileCache
from evokern.compile.nvrtc import compiler_version
from evokern.compile.records import Built
from evokern.declaration.space import Config
from evokern.study.discovery import WorkerContext
from evokern.study.trial import Evaluation
from evokern.workers.pool import WorkerSpec

PRELOAD = ("cupy.cuda.nvrtc", "evokern.compile.pool")
"""Modules that the compile pool's fork server imports."""


@dataclass(frozen=True)
class CompileSettings:
    """What every compile of a study shares."""

    context: WorkerContext
    """The kernel, the problems that a candidate is built for, the chip under the study's limits."""
    cache: Path | None
    """The cache's folder, or None to keep nothing."""
    niceness: int = 10
    """Added to the workers' niceness: compiles run ahead of a GPU, and what feeds and times it goes first."""


class CompileWorker:
    """Answers a configuration with what can run or with an outcome."""

    def __init__(self, settings: CompileSettings) -> None:
        os.nice(settings.niceness)
        self._problems = settings.context.problems
        self._kernel = settings.context.kernel()
        self._target = Target(settings.context.profile, CompileCache(settings.cache) if settings.cache else None)
        self.ready_report = {"compiler": compiler_version()}

    def handle(self, config: Config) -> Built | Evaluation:
        """Build one candidate."""
        return build(self._kernel, config, self._problems, self._target)


def compile_spec(settings: CompileSettings) -> WorkerSpec:
    """Return what a compile worker runs."""
    # NVRTC's own cache would answer without the assembler's report, and would grow outside our size cap.
    return WorkerSpec("evokern.compile.pool:CompileWorker", settings, {"CUDA_CACHE_DISABLE": "1"})
