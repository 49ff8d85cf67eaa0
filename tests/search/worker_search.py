"""A search of a recording whose answers come from worker processes: `python worker_search.py DB TRIALS`.

Compile pool, executor pool, fork server and pipeline are those of the devices that run candidates; the workers look
answers up. So everything that may die of a search is there, and a trial takes milliseconds.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from engine_helpers import small_table, study
from instant_devices import PipelineDevice

from evokern.api import search
from evokern.compile.records import Built, Program
from evokern.declaration.genes import Config
from evokern.device import StartReport, Task
from evokern.device._pipeline import CompiledRequest, Pipeline
from evokern.device.recorded.table import TableDevice
from evokern.study.trial import Evaluation, Resources
from evokern.workers.pool import ForkServer, WorkerPool, WorkerSpec

small_table()  # once, in the fork server
STEP_S = float(os.environ.get("EVOKERN_TEST_STEP_S", "0.01"))
"""What a compile and an evaluation take."""


class CompileWorker:
    """Compiles a configuration to the machine code that was recorded, where it ran."""

    def __init__(self, init: Any) -> None:
        pass

    def handle(self, config: Config) -> Built:
        """Return a build."""
        time.sleep(STEP_S)
        use = Resources(32, 0, 0, 0, 0, 1.0)
        code = small_table().answers[config].fingerprint or config.key
        return Built((Program(b"", {}, {}, ""),), (), (use,), code, STEP_S)


class TableWorker:
    """Evaluates as the recording says."""

    def __init__(self, init: Any) -> None:
        pass

    def handle(self, config: Config) -> Evaluation:
        """Return the recorded answer."""
        time.sleep(STEP_S)
        return small_table().answers[config]


class WorkerDevice(PipelineDevice, TableDevice):
    """The recording, looked up by worker processes."""

    def __init__(self, *, may_fault: bool = False) -> None:
        super().__init__(small_table(), window=4)
        self._may_fault = may_fault
        self._server = ForkServer(("worker_search",))
        self._pools: list[WorkerPool] = []

    def start(self, task: Task) -> StartReport:
        """Start the pools."""
        compilers = WorkerPool(self._server, WorkerSpec("worker_search:CompileWorker", None), size=1, depth=2)
        spec = WorkerSpec("worker_search:TableWorker", None, may_fault=self._may_fault)
        executors = WorkerPool(self._server, spec, size=2)
        self._pools = [compilers, executors]
        self.pipeline = Pipeline(compilers, executors, job=_job, deadline_s=20.0, known=task.known)
        self.pipeline.begin()
        return StartReport()

    def close(self) -> None:
        """Stop everything."""
        super().close()
        for pool in self._pools:
            pool.close()
        self._server.close()


def _job(work: CompiledRequest) -> Config:
    return work.request.config


def main() -> None:
    db, trials = Path(sys.argv[1]), int(sys.argv[2])
    found = search(study(), db=db, device=WorkerDevice(), trials=trials, sampler="evo", seed=11)
    sys.exit(130 if found.interrupted else 0)


if __name__ == "__main__":
    main()
