"""Simulated device: it compiles for the target chip, runs the kernel's PTX on the CPU, and predicts times."""

from __future__ import annotations

import math
from collections.abc import Sequence

from evokern.compile.cache import default_directory
from evokern.compile.pool import NICENESS, PRELOAD, CompileSettings, compile_spec
from evokern.declaration.genes import Config
from evokern.device._first import first_candidate, require_built, unbuilt_note
from evokern.device._pipeline import COMPILE_DEADLINE_S, EXTERNAL_COMPILE_WAIT_S, CompiledRequest, Pipeline
from evokern.device.contract import Answer, ExecutorState, Request, StartReport, StartStep, Task
from evokern.device.sim.host_memory import workers_that_fit
from evokern.device.sim.jobs import CheckGateSensitivity, SimSettings, Simulate
from evokern.errors import InternalError
from evokern.hardware.profiles import Profile, chip, limits_for
from evokern.study.discovery import WorkerContext
from evokern.study.trial import SMALLER, TOO_LARGE, Evaluation, Outcome
from evokern.workers.backend import Backend, HostCapacity, LocalBackend, PoolPlan
from evokern.workers.jobs import JobPool, WorkerSpec
from evokern.workers.single_job import JobDeadlineError, run_single_job

WINDOW = 8
"""Default maximum number of concurrent trials: enough for a few cores, but few enough for the sampler to learn soon."""
DEADLINE_S = 300.0
"""Seconds after which a simulation is stopped; the instruction limits normally end it long before."""
_OVERRAN = Evaluation(
    Outcome.INFEASIBLE,
    evidence={
        "constraint": TOO_LARGE, "needed": DEADLINE_S, "available": DEADLINE_S, "unit": "seconds",
        "reason": f"the simulation did not end within {DEADLINE_S:g} s; the candidate may be correct and fast on a GPU",
    },
)  # fmt: skip
_STEPS = 3
MODULES = ("numpy", "torch", "evokern.simt", "evokern.device.sim.screening")
"""Modules that the fork server imports once for all workers."""
PRELOADED = (*PRELOAD, *MODULES)
"""The same modules plus those for compiles."""


class SimulatedDevice:
    """Device that simulates a chip on the CPU."""

    predicted = True
    """Always True, because times come from a model."""
    diagnoses = False
    """Always False, because every failure already has a finding."""
    verifiable = True
    """Always True, because candidates are programs that can run again."""

    def __init__(
        self,
        name: str | Profile,
        cores: int | None = None,
        screening: bool = False,
        backend: Backend | None = None,
    ) -> None:
        """Create a device.

        Args:
            name: short name of a chip, or its profile.
            cores: number of worker processes; None for one per core.
            screening: only rank candidates.
            backend: where candidates are compiled and simulated; None for this machine.

        Raises:
            DeviceError: the chip is unknown.
        """
        self._profile = chip(name) if isinstance(name, str) else name
        self._screening = screening
        self._elsewhere = backend is not None
        # Importing torch takes seconds, so it starts before the kernel folder is read.
        self._backend: Backend = backend or LocalBackend(PRELOADED, cores)
        self._workers = self._backend.cores
        self._pipeline: Pipeline | None = None
        self._first_us: float | None = None

    @property
    def identity(self) -> str:
        """Name of the device, to which a study is bound."""
        return f"sim:{self._profile.name}"

    @property
    def window(self) -> int:
        """Default maximum number of concurrent trials for a new study."""
        return max(WINDOW, 2 * self._backend.cores) if self._elsewhere else WINDOW

    @property
    def at_once(self) -> int:
        """Always 1, because there is no GPU."""
        return 1

    @property
    def profile(self) -> Profile:
        """Resource limits and peak rates of the chip."""
        return self._profile

    def start(self, task: Task) -> StartReport:
        """Start the workers, and check the sensitivity of the gate on the default candidate's small problems.

        Raises:
            UsageError: the workload, the kernel folder or the compiler cannot be used.
        """
        task.on_step(
            StartStep(
                "starting the workers and checking that the gate distinguishes correct from wrong results", 0, _STEPS
            )
        )
        profile = limits_for(self._profile, task.study.limits)
        context, study = WorkerContext.of(task.kernel, task.problems, profile), task.study
        compiling = CompileSettings(context, default_directory(), foreign=task.foreign)
        first, remarks = first_candidate(task, profile)
        simulating = SimSettings(context, study.gate, study.timing, study.simulation, first, task.secret, task.foreign)
        # A source queued behind an external one in the same worker would wait for a compile that hangs.
        depth, patience_s = (1, EXTERNAL_COMPILE_WAIT_S) if task.foreign else (2, math.inf)
        name = "screening:ScreeningWorker" if self._screening else "worker:SimWorker"
        # The candidate is only data in the simulator, so it cannot end a worker.
        worker = WorkerSpec(f"evokern.device.sim.{name}", simulating, niceness=NICENESS, may_fault=False)
        workers: list[int] = []

        def plans(room: HostCapacity) -> dict[str, PoolPlan]:
            workers.append(workers_that_fit(task.kernel, first, task.problems, room.cores, room.memory_bytes))
            return {
                "compile": PoolPlan(compile_spec(compiling), max(1, workers[-1] // 2), depth, patience_s),
                "execute": PoolPlan(worker, workers[-1]),
            }

        pools = self._backend.open(plans, task.kernel)
        compilers, executors = pools["compile"], pools["execute"]
        self._workers = sum(workers)
        if not self._screening:  # screening does not use the gate
            run_single_job(executors, CheckGateSensitivity(), DEADLINE_S, "the check of the gate")
        self._first_us, doubt = _default_time(task, compilers, executors, first, profile)
        self._pipeline = Pipeline(
            compilers, executors, job=self._job, deadline_s=DEADLINE_S, overran=_OVERRAN, known=task.known
        )
        self._pipeline.begin()
        environment = {"chip": profile.model, "architecture": profile.architecture, **(compilers.ready_report or {})}
        notes = (
            f"no GPU is used; times are predicted for {profile.model} from its data sheet and the kernel's PTX",
            "baselines need a GPU, so no speedup is reported",
            *remarks,
            *doubt,
        )
        return StartReport(environment=environment, notes=notes)

    def submit(self, request: Request) -> None:
        """Accept one candidate; returns immediately."""
        self._running().submit(request)

    def poll(self, timeout_s: float) -> Sequence[Answer]:
        """Return the results that are ready; wait at most `timeout_s` for the first."""
        return self._running().poll(timeout_s)

    def executors(self) -> Sequence[ExecutorState]:
        """Return the state of each host; empty for a single host."""
        return self._pipeline.executors() if self._pipeline else ()

    def busy_s(self) -> float:
        """Return the seconds of simulation, per worker."""
        return self._pipeline.busy_s() / self._workers if self._pipeline else 0.0

    def stages(self) -> tuple[int, int]:
        """Return the number of candidates being compiled, and the number of compiled candidates without a result."""
        return self._pipeline.stages() if self._pipeline else (0, 0)

    def close(self) -> None:
        """Stop every worker; can be called twice."""
        if self._pipeline is not None:
            self._pipeline.close()
            self._pipeline = None
        self._backend.close()

    def _job(self, work: CompiledRequest) -> Simulate:
        # Before the search has an elite, candidates race against the default, because checking a slow one takes
        # minutes.
        known = min((time for time in (work.request.elite_us, self._first_us) if time is not None), default=None)
        return Simulate(work.request.config, work.built, known, work.request.elite_us)

    def _running(self) -> Pipeline:
        if self._pipeline is None:
            raise InternalError("the simulated device was not started")
        return self._pipeline


def _default_time(
    task: Task, compilers: JobPool, executors: JobPool, default: Config, profile: Profile
) -> tuple[float | None, Sequence[str]]:
    """Return the predicted time of the default candidate, and notes; None if it fails or racing is disabled.

    Raises:
        KernelError: no candidate compiles.
    """
    task.on_step(StartStep("compiling the default candidate", 1, _STEPS))
    answer = run_single_job(compilers, default, COMPILE_DEADLINE_S, "compiling the default candidate")
    if note := unbuilt_note(task, answer, profile):
        return None, (note,)
    built = require_built(task, answer)
    if not task.study.timing.race:
        return None, ()
    task.on_step(StartStep("predicting the default candidate's time", 2, _STEPS))
    job = Simulate(default, built, None, best_us=0.0)  # only the time is needed
    try:
        evaluation = run_single_job(executors, job, DEADLINE_S, "simulating the default candidate")
    except JobDeadlineError:
        evaluation = _OVERRAN
    if not isinstance(evaluation, Evaluation):
        return None, ()
    if evaluation.evidence.get("constraint") == TOO_LARGE:
        return None, (f"the default candidate is {evaluation.reason}; {SMALLER}",)
    return evaluation.time_us if isinstance(evaluation, Evaluation) else None, ()
