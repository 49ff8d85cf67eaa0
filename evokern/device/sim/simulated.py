"""The simulated device: the real compiler for the target chip, the kernel's real PTX on the CPU, a predicted time."""

from __future__ import annotations

import math
from collections.abc import Sequence

from evokern.compile.cache import default_directory
from evokern.compile.pool import NICENESS, PRELOAD, CompileSettings, compile_spec
from evokern.declaration.genes import Config
from evokern.device._first import first_candidate, require_built
from evokern.device._pipeline import COMPILE_DEADLINE_S, FOREIGN_PATIENCE_S, CompiledRequest, Pipeline
from evokern.device.contract import Answer, ExecutorState, Request, StartReport, StartStep, Task
from evokern.device.sim.host_memory import workers_that_fit
from evokern.device.sim.jobs import ProvePower, SimSettings, Simulate
from evokern.errors import InternalError
from evokern.hardware.profiles import Profile, chip, limits_for
from evokern.study.discovery import WorkerContext
from evokern.study.trial import Evaluation
from evokern.workers.backend import Backend, HostRoom, LocalBackend, PoolPlan
from evokern.workers.jobs import JobPool, WorkerSpec
from evokern.workers.single_job import run_single_job

WINDOW = 8
"""Trials in flight of a new study: enough for a few cores, and the sampler sees results soon."""
DEADLINE_S = 120.0
"""Seconds after which a simulation that does not answer is given up (the instruction limit ends it long before)."""
_STEPS = 3
MODULES = ("numpy", "torch", "evokern.simt", "evokern.device.sim.screening")
"""Modules that the fork server imports once for all workers."""
PRELOADED = (*PRELOAD, *MODULES)
"""The same with what compiles need."""


class SimulatedDevice:
    """Searches as on a GPU, without one."""

    predicted = True
    """Times come from a model."""
    diagnoses = False
    """Every failure comes with its finding already."""
    verifiable = True
    """Candidates are programs, which can be run again."""

    def __init__(
        self,
        name: str | Profile,
        cores: int | None = None,
        screening: bool = False,
        backend: Backend | None = None,
    ) -> None:
        """Make a device.

        Args:
            name: a chip's short name, or the chip itself.
            cores: worker processes; None takes the machine's cores.
            screening: only an order of candidates is wanted.
            backend: where candidates are compiled and simulated; None is this machine.

        Raises:
            DeviceError: there is no such chip.
        """
        self._profile = chip(name) if isinstance(name, str) else name
        self._screening = screening
        self._elsewhere = backend is not None
        # Importing torch takes seconds; it begins while the kernel folder is still being read.
        self._backend: Backend = backend or LocalBackend(PRELOADED, cores)
        self._workers = self._backend.cores
        self._pipeline: Pipeline | None = None
        self._first_us: float | None = None

    @property
    def identity(self) -> str:
        """Model that a study is bound to."""
        return f"sim:{self._profile.name}"

    @property
    def window(self) -> int:
        """Default trials in flight of a new study."""
        return max(WINDOW, 2 * self._backend.cores) if self._elsewhere else WINDOW

    @property
    def at_once(self) -> int:
        """1: there is no GPU."""
        return 1

    @property
    def profile(self) -> Profile:
        """The chip's limits and peak rates."""
        return self._profile

    def start(self, task: Task) -> StartReport:
        """Open workers and prove the gate's power on the default candidate's small problems.

        Raises:
            UsageError: the workload, the kernel folder or the compiler cannot work as asked.
        """
        task.on_step(StartStep("starting the workers and proving that the gate tells right from wrong", 0, _STEPS))
        profile = limits_for(self._profile, task.study.limits)
        context, study = WorkerContext(task.kernel.folder, task.problems, profile), task.study
        compiling = CompileSettings(context, default_directory(), foreign=task.foreign)
        first, remarks = first_candidate(task, profile)
        simulating = SimSettings(context, study.gate, study.timing, study.simulation, first, task.secret, task.foreign)
        # What stands behind a foreign source in a worker's queue would wait for a compile that hangs.
        depth, patience_s = (1, FOREIGN_PATIENCE_S) if task.foreign else (2, math.inf)
        name = "screening:ScreeningWorker" if self._screening else "worker:SimWorker"
        # The candidate is data there, which ends no worker.
        worker = WorkerSpec(f"evokern.device.sim.{name}", simulating, niceness=NICENESS, may_fault=False)
        workers: list[int] = []

        def plans(room: HostRoom) -> dict[str, PoolPlan]:
            workers.append(workers_that_fit(task.kernel, first, task.problems, room.cores, room.memory_bytes))
            return {
                "compile": PoolPlan(compile_spec(compiling), max(1, workers[-1] // 2), depth, patience_s),
                "execute": PoolPlan(worker, workers[-1]),
            }

        pools = self._backend.open(plans, task.kernel.folder)
        compilers, executors = pools["compile"], pools["execute"]
        self._workers = sum(workers)
        if not self._screening:  # what is not checked needs no proof
            run_single_job(executors, ProvePower(), DEADLINE_S, "proving the gate's power")
        self._first_us = _default_time(task, compilers, executors, first)
        self._pipeline = Pipeline(
            compilers, executors, job=self._job, deadline_s=DEADLINE_S, known=task.known
        )  # fmt: skip
        self._pipeline.begin()
        environment = {"chip": profile.model, "architecture": profile.architecture, **(compilers.ready_report or {})}
        notes = (
            f"no GPU is used: times are predicted for {profile.model}, from its data sheet and this kernel's PTX",
            "baselines run on a GPU only, so there is no speedup to report",
            *remarks,
        )
        return StartReport(environment=environment, notes=notes)

    def submit(self, request: Request) -> None:
        """Accept one candidate; returns at once."""
        self._running().submit(request)

    def poll(self, timeout_s: float) -> Sequence[Answer]:
        """Return the answers that are ready, waiting at most `timeout_s` for the first."""
        return self._running().poll(timeout_s)

    def executors(self) -> Sequence[ExecutorState]:
        """Return how each host stands, where there are several."""
        return self._pipeline.executors() if self._pipeline else ()

    def busy_s(self) -> float:
        """Return the seconds in which candidates were simulated, per worker."""
        return self._pipeline.busy_s() / self._workers if self._pipeline else 0.0

    def stages(self) -> tuple[int, int]:
        """Return how many candidates are being compiled, and how many are compiled and not answered."""
        return self._pipeline.stages() if self._pipeline else (0, 0)

    def close(self) -> None:
        """Stop every worker; safe to call twice."""
        if self._pipeline is not None:
            self._pipeline.close()
            self._pipeline = None
        self._backend.close()

    def _job(self, work: CompiledRequest) -> Simulate:
        # Before the search has an elite, candidates race against the default: a slow one costs minutes to check.
        known = min((time for time in (work.request.elite_us, self._first_us) if time is not None), default=None)
        return Simulate(work.request.config, work.built, known, work.request.elite_us)

    def _running(self) -> Pipeline:
        if self._pipeline is None:
            raise InternalError("the simulated device was not started")
        return self._pipeline


def _default_time(task: Task, compilers: JobPool, executors: JobPool, default: Config) -> float | None:
    """Return the predicted time of the default candidate; None when it fails, or there is no racing against it.

    Raises:
        KernelError: it does not compile.
    """
    task.on_step(StartStep("compiling the default candidate", 1, _STEPS))
    answer = run_single_job(compilers, default, COMPILE_DEADLINE_S, "compiling the default candidate")
    built = require_built(task, answer)
    if not task.study.timing.race:
        return None
    task.on_step(StartStep("predicting the default candidate's time", 2, _STEPS))
    job = Simulate(default, built, None, best_us=0.0)  # only its time is wanted
    evaluation = run_single_job(executors, job, DEADLINE_S, "simulating the default candidate")
    return evaluation.time_us if isinstance(evaluation, Evaluation) else None
