"""Compile the programs of the next shapes while a GPU measures one shape.

The programs go to the compile cache, where the measurement of a shape finds them. A failure has no effect: the
measurement compiles the program again and reports the failure.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections.abc import Iterator, Sequence

from evokern.compile.build import build
from evokern.compile.cache import default_directory
from evokern.compile.pool import PRELOAD, CompileSettings, CompileWorker, compile_spec
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Problem
from evokern.errors import EvokernError
from evokern.pack.candidates import Place
from evokern.study.discovery import WorkerContext
from evokern.workers.jobs import WorkerSpec
from evokern.workers.pool import OwnServerPool, wait


class AheadWorker(CompileWorker):
    """Compile worker whose jobs name the problem."""

    def handle(self, config: tuple[Problem, Config]) -> None:  # type: ignore[override]
        """Compile a candidate for a problem, which puts the program into the cache."""
        build(self._kernel, config[1], (config[0],), self._target)


@contextlib.contextmanager
def compiling_ahead(work: Sequence[tuple[Place, Sequence[Config]]]) -> Iterator[None]:
    """Compile candidates for places in the background, in their order, until the context ends.

    Half of the processors are used. Places on simulated chips are left out, because their processors are busy.
    """
    real = [(place, configs) for place, configs in work if not place.device.startswith("sim:")]
    programs = {
        place.program(config): (place.problem, config) for place, configs in reversed(real) for config in configs
    }
    jobs, cache = [*programs.values()][::-1], default_directory()
    if not jobs or cache is None:
        yield
        return
    spec = compile_spec(CompileSettings(WorkerContext.of(real[0][0].kernel, (), real[0][0].chip), cache))
    spec = WorkerSpec("evokern.pack.ahead:AheadWorker", spec.init, spec.environment, spec.niceness)
    stop = threading.Event()

    def compile_all() -> None:
        with contextlib.suppress(EvokernError):
            pool = OwnServerPool(spec, PRELOAD, size=max(1, len(os.sched_getaffinity(0)) // 2))
            try:
                for number, job in enumerate(jobs):
                    pool.submit(number, job, math.inf)
                while pool.pending and not stop.is_set():
                    wait([pool], 0.2)
            finally:
                pool.close()

    thread = threading.Thread(target=compile_all, name="compile ahead", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
