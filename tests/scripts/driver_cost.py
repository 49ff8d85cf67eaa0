"""`python tests/scripts/driver_cost.py`: what a trial costs the process that asks, tells and writes the file.

A search of a real study's space with workers that answer at once: 64 processes of this machine, or with `--ray` of a
Ray cluster that is started here. Compiles, programs and times are made up, everything else is what a search on GPUs
does: evo's proposals, compile and executor pools, the pipeline, the study's file. A line per 1,000 trials says in ms of
processor time a trial what the driver spent on

    proposals   the sampler,
    store       the file,
    rest        loop, commits, feasibility, bookkeeping,
    threads     the thread that drives compile and executor pools, and with `--ray` Ray's own.

`own` is all but the proposals. Exit code 1 where it passes 8 ms in the last 1,000 trials.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import helpers_path  # noqa: E402, F401 (finds the helpers)
from instant_devices import PipelineDevice  # noqa: E402
from paths import ROOT  # noqa: E402

sys.path.append(str(ROOT / "tests" / "bench"))
from proposal_cost import landscape  # noqa: E402

from evokern.api import search  # noqa: E402
from evokern.compile.records import Built, Program  # noqa: E402
from evokern.declaration.genes import Config  # noqa: E402
from evokern.declaration.space import Space  # noqa: E402
from evokern.device import StartReport, Task  # noqa: E402
from evokern.device._pipeline import CompiledRequest, Pipeline  # noqa: E402
from evokern.hardware.profiles import Profile, chip  # noqa: E402
from evokern.samplers.evo._sampler import EvoSampler  # noqa: E402
from evokern.samplers.sampler_process import SamplerProcess  # noqa: E402
from evokern.search.results import Progress  # noqa: E402
from evokern.store.writer import Session  # noqa: E402
from evokern.study.discovery import find_study, kernel_of  # noqa: E402
from evokern.study.trial import Evaluation, Outcome, Resources, Timing  # noqa: E402
from evokern.workers.backend import Backend, HostCapacity, LocalBackend, PoolPlan  # noqa: E402
from evokern.workers.jobs import JobPool, WorkerSpec  # noqa: E402

STUDY = "attention-s512"
LIMIT_MS = 8.0
"""Most that the driver's own work may cost a trial, in ms of processor time."""
PROGRAM = bytes(40_000)
"""Machine code of the size that attention's has."""


@cache
def _log_time() -> Callable[[Config], float]:
    return landscape(Space(kernel_of(find_study(STUDY)).genes))


class CompileWorker:
    """Makes up a build."""

    def __init__(self, init: Any) -> None:
        pass

    def handle(self, config: Config) -> Built:
        """Return one whose machine code no other configuration has."""
        use = Resources(128, 49152, 0, 0, 0, 0.5)
        return Built((Program(PROGRAM, {}, {}, ""),), (), (use,), config.key, 0.5)


class ExecuteWorker:
    """Makes up a time."""

    def __init__(self, init: Any) -> None:
        _log_time()

    def handle(self, config: Config) -> Evaluation:
        """Return what a GPU's worker says of a candidate that it timed."""
        time_us = 4.0 * 2.718281828 ** _log_time()(config)
        timing = Timing(time_us, (0.99 * time_us, 1.01 * time_us), (time_us,) * 40, clock_mhz=1980.0)
        gate = {"worst": 0.012, "frobenius": 0.0003, "checks": 7}
        return Evaluation(Outcome.MEASURED, time_us, (timing,), (), config.key, {"gpu": "cuda:0"}, gate, 0.5, 0.1)


class InstantDevice(PipelineDevice):
    """A chip whose candidates cost nothing."""

    identity = "instant"
    predicted = True
    verifiable = False
    diagnoses = False

    def __init__(self, backend: Backend, workers: int, gpus: int = 1) -> None:
        self._backend, self.window, self.at_once = backend, workers, gpus

    @property
    def profile(self) -> Profile:
        """The H200's limits."""
        return chip("h200")

    def start(self, task: Task) -> StartReport:
        """Open both pools."""

        def plans(room: HostCapacity) -> dict[str, PoolPlan]:
            specs = (WorkerSpec(f"driver_cost:{one}Worker", None, may_fault=False) for one in ("Compile", "Execute"))
            return {
                one: PoolPlan(spec, self.window // 2) for one, spec in zip(("compile", "execute"), specs, strict=True)
            }

        pools: dict[str, JobPool] = dict(self._backend.open(plans, task.kernel))
        self.pipeline = Pipeline(pools["compile"], pools["execute"], job=_config, deadline_s=60.0, known=task.known)
        self.pipeline.begin()
        return StartReport()

    def close(self) -> None:
        """Stop the workers."""
        super().close()
        self._backend.close()


def _config(work: CompiledRequest) -> Config:
    return work.request.config


SPENT: Counter[str] = Counter()
"""Part → seconds of processor time of the search's own thread."""


def _timed(owner: type, method: str, part: str) -> None:
    """Count what a method of a class spends; of parts within parts the outer one has it all."""
    plain = getattr(owner, method)

    def timed(*args: Any, **kwargs: Any) -> Any:
        if SPENT[""]:
            return plain(*args, **kwargs)
        SPENT[""], began = 1, time.thread_time()
        try:
            return plain(*args, **kwargs)
        finally:
            SPENT[part] += time.thread_time() - began
            SPENT[""] = 0

    setattr(owner, method, timed)


class Table:
    """Prints a line per so many trials."""

    def __init__(self, every: int) -> None:
        self._every, self._next = every, every
        self._thread_s, self._process_s, self._wall_s = time.thread_time(), time.process_time(), time.monotonic()
        self._spent: Counter[str] = Counter()
        self.own_ms = float("inf")
        """The driver's own cost in the last line, ms a trial."""
        print("trials  trials/s   own  (store  rest  threads)  proposals   ms of processor time a trial")

    def __call__(self, progress: Progress) -> None:
        """Show an event."""
        if progress.event == "start":
            self._mark()
        if progress.event != "trial" or sum(progress.outcomes.values()) < self._next:
            return
        before = self._thread_s, self._process_s, self._wall_s, self._spent
        self._mark()
        thread, process, wall = self._thread_s - before[0], self._process_s - before[1], self._wall_s - before[2]
        ms = 1e3 / self._every
        store, proposals = (ms * (self._spent[one] - before[3][one]) for one in ("store", "proposals"))
        self.own_ms = ms * process - proposals
        print(
            f"{self._next:6d}  {self._every / wall:8.1f}  {self.own_ms:4.2f}  ({store:5.2f}"
            f"  {ms * thread - store - proposals:4.2f}  {ms * (process - thread):7.2f})  {proposals:9.2f}",
            flush=True,
        )
        self._next += self._every

    def _mark(self) -> None:
        self._thread_s, self._process_s, self._wall_s = time.thread_time(), time.process_time(), time.monotonic()
        self._spent = SPENT.copy()


def main() -> int:
    """Search, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=64, help="processes, half of them compile")
    parser.add_argument("--in-flight", type=int, help="trials in flight at most; default: as many as workers")
    parser.add_argument(
        "--gpus", type=int, default=1, help="that measure: beside several the sampler has its own process"
    )
    parser.add_argument("--every", type=int, default=1000, help="trials per line")
    parser.add_argument("--db", type=Path, help="keep the file there; a report of it is one of a large study")
    parser.add_argument("--ray", type=int, metavar="HOSTS", help="of a cluster that is started for it; default: no Ray")
    chosen = parser.parse_args()
    _timed(EvoSampler, "propose", "proposals")
    _timed(SamplerProcess, "propose", "proposals")
    for method in ("propose", "record", "write_result", "record_duration"):
        _timed(Session, method, "store")
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # workers find this module, too
    if chosen.ray:
        from ray.cluster_utils import Cluster

        from evokern.cluster.ray_backend import RayBackend
        from evokern.cluster.request import RayRequest

        cluster = Cluster()
        for _ in range(chosen.ray):
            cluster.add_node(num_cpus=chosen.workers // chosen.ray, object_store_memory=200_000_000)
        backend: Backend = RayBackend(RayRequest(cluster.address), ("driver_cost",))
        per_host = chosen.workers // chosen.ray
    else:
        backend, per_host = LocalBackend(("driver_cost",)), chosen.workers
    table = Table(chosen.every)
    with tempfile.TemporaryDirectory() as folder:
        file = chosen.db or Path(folder) / "runs.db"
        search(
            find_study(STUDY),
            db=file,
            device=InstantDevice(backend, per_host, chosen.gpus),
            trials=chosen.trials,
            sampler="evo",
            seed=1,
            max_in_flight=chosen.in_flight or chosen.workers,
            warm_start="none",
            on_progress=table,
        )
        size_mb = file.stat().st_size / 1e6
    print(f"the file has {size_mb:.1f} MB")
    return int(table.own_ms > LIMIT_MS)


if __name__ == "__main__":
    sys.exit(main())
