"""`python tests/scripts/paced_gpus.py`: how many trials more GPUs bring, where compiles and runs take as long as there.

The search of `driver_cost.py` with workers that sleep as long as compiling and measuring a candidate of
`attention-s512` took on a machine with H100s (2026-11-25): a compile 0.72 s on average with a long tail, a run 55 ms.
Each of 1, 2 … GPUs comes with 16 cores, as one host has them, of which it takes one; the rest compile, some of them
ahead. What is measured is evokern's own part: the schedule of trials in flight, proposals, pipeline, file.

    python tests/scripts/paced_gpus.py [--gpus 1,2] [--seconds 75] [--in-flight N]

Prints trials after thirds of the time, how busy each GPU was, and the ratio to the first.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

import helpers_path  # noqa: F401 (finds the helpers)
from driver_cost import STUDY, CompileWorker, ExecuteWorker, InstantDevice, _config

from evokern.api import search
from evokern.compile.records import Built
from evokern.declaration.genes import Config
from evokern.device import StartReport, Task
from evokern.device._gpus import DEPTH
from evokern.device._pipeline import Pipeline
from evokern.device.gpu.live import _TRIALS_PER_COMPILER
from evokern.search.results import Progress
from evokern.study.discovery import find_study
from evokern.study.trial import Evaluation
from evokern.workers.backend import HostCapacity, LocalBackend, PoolPlan
from evokern.workers.jobs import JobPool, WorkerSpec

CORES = 16
"""Cores beside each GPU."""
COMPILE_S = (0.35, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.9, 1.8)
"""Tenths of the distribution of compile times, seconds."""
RUN_S = 0.055
"""Seconds of a GPU for a candidate."""


def _paced(config: Config) -> float:
    return COMPILE_S[zlib.crc32(config.key.encode()) % len(COMPILE_S)]


class PacedCompileWorker(CompileWorker):
    """Takes its time."""

    def handle(self, config: Config) -> Built:
        """Make up a build."""
        time.sleep(_paced(config))
        return super().handle(config)


class PacedExecuteWorker(ExecuteWorker):
    """Takes its time."""

    def handle(self, config: Config) -> Evaluation:
        """Make up a time."""
        began = time.monotonic()
        found = super().handle(config)
        time.sleep(max(0.0, RUN_S - (time.monotonic() - began)))
        return found


class PacedDevice(InstantDevice):
    """GPUs that take their time."""

    def __init__(self, gpus: int) -> None:
        self.compilers = (CORES - 1) * gpus
        super().__init__(
            LocalBackend(("driver_cost", "paced_gpus")), _TRIALS_PER_COMPILER * self.compilers + 2 * DEPTH * gpus, gpus
        )

    def start(self, task: Task) -> StartReport:
        """Open both pools."""
        workers = {"Compile": self.compilers, "Execute": self.at_once}

        def plans(room: HostCapacity) -> dict[str, PoolPlan]:
            return {
                one: PoolPlan(WorkerSpec(f"paced_gpus:Paced{one}Worker", None, may_fault=False), count)
                for one, count in workers.items()
            }

        pools: dict[str, JobPool] = dict(self._backend.open(plans, task.kernel))
        self.pipeline = Pipeline(
            pools["Compile"], pools["Execute"], job=_config, deadline_s=60.0, known=task.known, ahead=self.compilers
        )
        self.pipeline.begin()
        return StartReport()

    def compile_ahead(self, configs: Any) -> None:
        """Compile what may come next."""
        assert self.pipeline is not None
        self.pipeline.compile_ahead(configs)

    def busy_s(self) -> float:
        """Return the seconds of all GPUs."""
        return self.pipeline.busy_s() if self.pipeline else 0.0


class Marks:
    """Notes trials and seconds."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.times: list[float] = []

    def __call__(self, progress: Progress) -> None:
        """Show an event."""
        if progress.event == "start":
            self.began = time.monotonic()
        if progress.event == "trial":
            self.times.append(time.monotonic() - self.began)


def main() -> int:
    """Search with each number of GPUs; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", default="1,2")
    parser.add_argument("--seconds", type=float, default=75.0)
    parser.add_argument("--in-flight", type=int, help="as --max-in-flight: one schedule for all")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # workers find this module, too
    first = 0
    for gpus in map(int, given.gpus.split(",")):
        marks = Marks()
        with tempfile.TemporaryDirectory() as folder:
            search(
                find_study(STUDY),
                db=Path(folder) / "runs.db",
                device=PacedDevice(gpus),
                budget=given.seconds,
                sampler="evo",
                seed=given.seed,
                max_in_flight=given.in_flight,
                warm_start="none",
                verify=False,
                on_progress=marks,
            )
        thirds = [sum(at <= given.seconds * part / 3 for at in marks.times) for part in (1, 2, 3)]
        first = first or max(1, thirds[-1])
        print(
            f"{gpus} GPUs: {', '.join(map(str, thirds))} trials after thirds of {given.seconds:g} s, "
            f"busy {100 * RUN_S * thirds[-1] / given.seconds / gpus:.0f} % each, "
            f"{thirds[-1] / first:.2f} times the first",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
