"""GPUs of this machine as a device: one compile pool, and on each GPU an isolated worker with a warm spare beside it.

Most searches have one. Several are of one model, share the compile pool, and are checked against their own first times.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from evokern.compile import nvrtc
from evokern.compile.cache import default_directory
from evokern.compile.headers import cuda_major
from evokern.compile.pool import PRELOAD, CompileSettings, compile_spec
from evokern.compile.records import Built
from evokern.declaration.space import Config
from evokern.device._comparison import comparison, reference_of, require_one_model
from evokern.device._executors import GPU, Executors, Reference
from evokern.device._first import first_candidate, require_built
from evokern.device._pipeline import COMPILE_DEADLINE_S, FOREIGN_PATIENCE_S, CompiledRequest, Pipeline
from evokern.device.contract import DEFAULT_US, Answer, BaselineResult, Request, StartReport, StartStep, Task
from evokern.device.gpu.jobs import (
    FREE,
    PLANNED,
    Contestant,
    Evaluate,
    GpuSettings,
    MeasureBaseline,
    MeasureRates,
    Prove,
    Round,
    TimeFirstLaunches,
)
from evokern.device.gpu.lock import GpuLock
from evokern.device.gpu.nvml import Monitor
from evokern.device.gpu.profile import LiveGpu, live_gpu
from evokern.device.kept_rates import keep_rates, kept_rates
from evokern.errors import DeviceError
from evokern.hardware.driver import driver_version, probe
from evokern.hardware.profiles import Profile, limits_for
from evokern.measurement.roofline import Rates
from evokern.study.discovery import WorkerContext
from evokern.wording import in_gib
from evokern.workers.pool import ForkServer, WorkerPool, WorkerSpec
from evokern.workers.single_job import run_single_job

_LOGGER = logging.getLogger("evokern")
_GPU_PRELOAD = ("torch", "cuda.bindings.driver", nvrtc.PRELOAD, "evokern.device.gpu.worker")
_START_DEADLINE_S = 600.0
_RATES_DEADLINE_S = 5.0
"""Seconds for what takes a tenth of one."""
_RATES_PATIENCE_S = 5.0
"""Seconds that a candidate may take to end which the end of a search left on the GPU."""
_FOREIGN_PERIOD_S = 5.0
_BUSY_PERCENT = 15
_COMPILES_AHEAD = 3
"""Trials in flight for each compile worker: the slowest compiles take about three times the mean (of 60 candidates of
`attention`, 2026-11-21), and while one of them runs, no trial more than a window after it can be proposed."""
_EXECUTED_AHEAD = 3
"""Compiled candidates that the GPU's worker holds, the one it works on included: it never waits for this process."""
_CONTEXT_BYTES = 2**30
"""Memory of a worker's context and libraries, and what references need beside their buffers."""
_WORTH_TELLING_BYTES = 2**30
_SPARES = 2
"""Spare GPU workers: two, since the one that takes over must be replaced while the next candidate may crash too."""


class LiveDevice:
    """One GPU of this machine, or several of one model."""

    def __init__(self, gpus: Sequence[LiveGpu]) -> None:
        """Make a device; `start` opens its workers.

        Args:
            gpus: one or more; on the first alone baselines are measured and playoffs held.

        Raises:
            DeviceError: they are of several models, or a package is missing.
        """
        require_one_model([(_called(gpu), gpu.model) for gpu in gpus])
        self._gpus = tuple(gpus)
        self._gpu = gpu = gpus[0]
        _require_packages(gpu)
        # Importing torch takes seconds; it begins while the kernel folder is still being read. Compile workers need it
        # too where `kernel.py` imports it.
        self._servers = [ForkServer(_GPU_PRELOAD), ForkServer((*PRELOAD, "torch"))]
        self._monitors = [Monitor(gpu.pci_bus_id) for gpu in gpus]
        self._locks: list[GpuLock] = []
        self._compilers: WorkerPool | None = None
        self._on_gpus: list[WorkerPool] = []
        self._executors: Executors | None = None
        self._pipeline: Pipeline | None = None
        self._foreign: list[list[int]] = [[] for _ in gpus]
        self._suspects: list[list[int]] = [[] for _ in gpus]
        self._foreign_asked = 0.0
        self._default_us: tuple[float, ...] = ()

    @property
    def identity(self) -> str:
        """The GPU's model."""
        return self._gpu.model

    @property
    def predicted(self) -> bool:
        """Times come from a clock."""
        return False

    @property
    def profile(self) -> Profile:
        """The GPU's limits and peak rates."""
        return self._gpu.profile

    @property
    def window(self) -> int:
        """Default number of trials in flight for a new study: what keeps this machine's cores and its GPUs at work."""
        return _COMPILES_AHEAD * _compile_workers(len(self._gpus)) + 2 * _EXECUTED_AHEAD * len(self._gpus)

    @property
    def pools(self) -> list[WorkerPool]:
        """The pools that are open: one on each GPU, and the compilers'."""
        return [*self._on_gpus, *([self._compilers] if self._compilers else [])]

    @property
    def verifiable(self) -> bool:
        """Candidates are programs, which can be run again."""
        return True

    @property
    def diagnoses(self) -> bool:
        """A GPU names an error, and neither line nor access."""
        return True

    def start(self, task: Task) -> StartReport:
        """Open compile pool and GPU workers side by side, prove the gate's power, measure the baselines.

        Raises:
            UsageError: GPU, compiler, kernel folder or workload cannot work as asked.
        """
        for gpu in self._gpus:
            self._locks.append(GpuLock(gpu.uuid, f"{_called(gpu)} ({gpu.model})"))
        profile = limits_for(self._gpu.profile, task.study.limits)
        first, remarks = first_candidate(task, profile)
        notes = [*self._foreign_load(), *remarks]
        compilers = self._open_pools(task, profile, first)
        executors, others = self._on_gpus[0], self._on_gpus[1:]
        named = [baseline.name for baseline in task.kernel.workload.baselines]
        times_default = not task.default_us and task.study.timing.race > 0
        steps = 3 + times_default + len(named) + bool(others)
        task.on_step(StartStep("compiling the default candidate", 0, steps))
        built = run_single_job(compilers, first, COMPILE_DEADLINE_S, "compile of the default candidate")
        program = require_built(task, built).machine_code()
        _LOGGER.info("the default candidate is compiled")
        task.on_step(StartStep("starting the GPU's worker", 1, steps))
        executors.wait_ready()
        _LOGGER.info("the GPU's worker is ready")
        task.on_step(StartStep("proving that the gate tells right from wrong", 2, steps))
        run_single_job(executors, Prove(), _START_DEADLINE_S, "start of the study")
        _LOGGER.info("the gate's power is proved")
        self._default_us = task.default_us
        if times_default:
            task.on_step(StartStep("timing the default candidate's first launches", 3, steps))
            job = TimeFirstLaunches(first, program)
            what = "timing of the default candidate's first launches"
            self._default_us = tuple(run_single_job(executors, job, _START_DEADLINE_S, what))
        baselines: list[BaselineResult] = []
        for index, name in enumerate(named):
            before = 3 + times_default + index
            task.on_step(StartStep(f"baseline {index + 1} of {len(named)}: {name}", before, steps))
            what = f"measurement of the baseline {name}"
            baselines.append(run_single_job(executors, MeasureBaseline(index), _START_DEADLINE_S, what))
        _LOGGER.info("the baselines are measured")
        planned, free = (int((executors.ready_report or {}).get(key, 0)) for key in (PLANNED, FREE))
        if planned >= _WORTH_TELLING_BYTES:
            notes.append(f"inputs, answers and references take {in_gib(planned)} of the GPU's memory in a worker")
        for pool in self._on_gpus:
            pool.keep_spares(max(0, min(_SPARES, free // max(planned + _CONTEXT_BYTES, 1))))
        self._executors = Executors([*zip(map(_called, self._gpus), self._on_gpus, strict=True)], _EXECUTED_AHEAD)
        first_us: list[float] = []
        if others:
            task.on_step(StartStep("comparing the GPUs", steps - 1, steps))
            reference = reference_of(
                baselines, MeasureBaseline, Evaluate(first, program, None, self._default_us), _START_DEADLINE_S
            )
            first_us = self._compared(reference)
            self._executors.compare_by(reference, first_us)
            notes.append(comparison([*map(_called, self._gpus)], first_us, reference.name))
        hang_s = task.study.timing.hang_s
        self._pipeline = Pipeline(
            compilers,
            self._executors,
            job=self._job,
            # The worker reports a hang itself; it is killed only when it is stuck inside the driver.
            deadline_s=30.0 + 10.0 * hang_s,
            known=task.known,
            hang_s=hang_s,
            ahead=_compile_workers(len(self._gpus)),
        )
        self._pipeline.begin()
        environment: dict[str, Any] = {
            "gpu": self._gpu.model,
            "uuid": self._gpu.uuid,
            "driver": driver_version(),
            "driver_cuda": self._gpu.driver,
            **(compilers.ready_report or {}),
            **(executors.ready_report or {}),
        }
        if others:
            told = zip(self._gpus, first_us, strict=True)
            environment["gpus"] = [{"index": g.index, "uuid": g.uuid, "reference_us": us} for g, us in told]
        if self._default_us:
            environment[DEFAULT_US] = self._default_us
        rates = kept_rates(self._gpu.uuid, driver_version() or self._gpu.driver)
        if rates is not None:
            environment["rates"] = asdict(rates)
        notes += dict.fromkeys(monitor.problem for monitor in self._monitors if monitor.problem)
        return StartReport(tuple(baselines), environment, tuple(notes))

    def _compared(self, reference: Reference) -> list[float]:
        """Return what the reference takes on each GPU, µs, after each has proved the gate's power.

        Raises:
            DeviceError: it cannot be measured on one of them.
        """
        found = []
        for gpu, pool in zip(self._gpus, self._on_gpus, strict=True):
            if pool is not self._on_gpus[0]:
                pool.wait_ready()
                run_single_job(pool, Prove(), _START_DEADLINE_S, f"start of the study on {_called(gpu)}")
            answer = run_single_job(pool, reference.job, _START_DEADLINE_S, f"{reference.name} on {_called(gpu)}")
            time_us = reference.time_us(answer)
            if time_us is None:
                raise DeviceError(
                    f"{reference.name}, by which GPUs are compared, cannot be measured on {_called(gpu)}: "
                    f"{getattr(answer, 'error', '') or getattr(answer, 'reason', answer)}; "
                    "search on the others, with --device cuda:N,M"
                )
            found.append(time_us)
        return found

    def _open_pools(self, task: Task, profile: Profile, first: Config) -> WorkerPool:
        """Open the GPUs' workers, and return the compile pool."""
        size = min(_compile_workers(len(self._gpus)), task.study.window or self.window)
        context = WorkerContext(task.kernel.folder, task.problems, profile)
        settings = CompileSettings(context, default_directory(), foreign=task.foreign)
        for gpu, lock in zip(self._gpus, self._locks, strict=True):
            gpu_settings = GpuSettings(
                context=replace(context, profile=self._gpu.profile),
                gate=task.study.gate,
                timing=task.study.timing,
                device_index=gpu.index,
                turn_lock=lock.turn_lock,
                warm_config=first,
            )
            spec = WorkerSpec("evokern.device.gpu.worker:GpuWorker", gpu_settings)
            self._on_gpus.append(WorkerPool(self._servers[0], spec, size=1, depth=_EXECUTED_AHEAD))
        patience_s = FOREIGN_PATIENCE_S if task.foreign else math.inf
        self._compilers = WorkerPool(self._servers[1], compile_spec(settings), size=size, patience_s=patience_s)
        return self._compilers

    def submit(self, request: Request) -> None:
        """Accept one candidate; returns at once."""
        self._running().submit(request)

    def compile_ahead(self, configs: Sequence[Config]) -> None:
        """Compile candidates that may be submitted next where compile workers idle; returns at once."""
        self._running().compile_ahead(configs)

    def poll(self, timeout_s: float) -> Sequence[Answer]:
        """Return the answers that are ready, waiting at most `timeout_s` for the first."""
        answers = self._running().poll(timeout_s)
        if time.monotonic() - self._foreign_asked > _FOREIGN_PERIOD_S:
            self._foreign_asked = time.monotonic()
            for index, (monitor, pool) in enumerate(zip(self._monitors, self._on_gpus, strict=True)):
                seen = monitor.foreign(pool.processes)
                # A worker of ours that is starting or ending can look foreign once.
                self._foreign[index] = [pid for pid in seen if pid in self._suspects[index]]
                self._suspects[index] = seen
        if not any(self._foreign):
            return answers
        loads = dict(zip(map(_called, self._gpus), self._foreign, strict=True))
        return [_with_foreign_load(answer, loads) for answer in answers]

    def remeasured(self) -> Mapping[int, Mapping[str, Any]]:
        """Return what another GPU measured a second time since the last call, by trial."""
        return self._executors.remeasured() if self._executors else {}

    def busy_s(self) -> float:
        """Return the seconds since `start` in which a candidate, its gate or its timing held a GPU, per GPU."""
        return self._pipeline.busy_s() / len(self._gpus) if self._pipeline else 0.0

    def rounds(
        self, task: Task, candidates: Sequence[Config | str]
    ) -> Callable[[Sequence[int], int], Sequence[Sequence[float]]]:
        """Return what plays a round of a playoff between candidates; nothing can be submitted after.

        Args:
            task: what the device was started with.
            candidates: configurations, and names of baselines.

        Raises:
            DeviceError: a candidate does not compile any more.
        """
        self._running().close()
        self._pipeline = None
        executors, compilers = self._on_gpus[0], self._compilers
        assert compilers is not None
        first, _ = first_candidate(task, limits_for(self._gpu.profile, task.study.limits))
        contestants = []
        for candidate in candidates:
            if isinstance(candidate, str):
                contestants.append(Contestant(first, None, candidate))
                continue
            built = run_single_job(compilers, candidate, COMPILE_DEADLINE_S, "compile of an elite")
            if not isinstance(built, Built):
                raise DeviceError(f"an elite does not compile any more: {built.reason}")
            contestants.append(Contestant(candidate, built))

        def play(alive: Sequence[int], samples: int) -> Sequence[Sequence[float]]:
            job = Round(tuple(contestants[index] for index in alive), samples)
            taken: Sequence[Sequence[float]] = run_single_job(
                executors, job, _START_DEADLINE_S, "a round of the playoff"
            )
            return taken

        return play

    def rates(self) -> Rates:
        """Return how fast the GPU copies and multiplies, measured once for each GPU and driver.

        Nothing can be submitted after.

        Raises:
            EvokernError: it cannot be measured.
        """
        driver = driver_version() or self._gpu.driver
        known = kept_rates(self._gpu.uuid, driver)
        if known is None:
            self._running().close()
            what = "copy and matrix product"
            known = run_single_job(self._on_gpus[0], MeasureRates(), _RATES_DEADLINE_S, what, _RATES_PATIENCE_S)
            keep_rates(self._gpu.uuid, driver, known)
        return known

    def stages(self) -> tuple[int, int]:
        """Return how many candidates are being compiled, and how many are compiled and not answered."""
        return self._pipeline.stages() if self._pipeline else (0, 0)

    def close(self) -> None:
        """Stop every worker; safe to call twice."""
        if self._pipeline is not None:
            self._pipeline.close()
        for pool in self.pools:
            pool.close()
        for server in self._servers:
            server.close()
        self._on_gpus.clear()
        self._compilers = None
        self._servers.clear()
        for lock in self._locks:
            lock.release()

    def _job(self, work: CompiledRequest) -> Evaluate:
        return Evaluate(work.request.config, work.built.machine_code(), work.request.elite_us, self._default_us)

    def _running(self) -> Pipeline:
        if self._pipeline is None:
            raise DeviceError(f"{self._gpu.model} was not started")
        return self._pipeline

    def _foreign_load(self) -> list[str]:
        notes = []
        for gpu, monitor in zip(self._gpus, self._monitors, strict=True):
            name = gpu.model if len(self._gpus) == 1 else f"{_called(gpu)} ({gpu.model})"
            others = monitor.foreign(())
            if others:
                listed = ", ".join(map(str, others))
                notes.append(f"other processes compute on {name} ({listed}): times may be disturbed")
            busy = monitor.utilisation()
            if not others and busy is not None and busy >= _BUSY_PERCENT:
                notes.append(f"{name} is {busy} % busy with something else: times may be disturbed")
        return notes


def open_live(name: str) -> LiveDevice:
    """Return the GPUs that `auto`, `cuda`, `cuda:N`, `cuda:N,M` or `cuda:all` means.

    Raises:
        DeviceError: there is no such GPU, one is named twice, or they are of several models.
    """
    return LiveDevice([live_gpu(number) for number in gpu_numbers(name)])


def gpu_numbers(name: str) -> list[int]:
    """Return the numbers of the GPUs that a device's name means; those that CUDA_VISIBLE_DEVICES leaves count from 0.

    Raises:
        DeviceError: it is no such name.
    """
    _, _, listed = name.partition(":")
    if listed == "all":
        return [gpu.index for gpu in probe().gpus] or [0]
    parts = [part.strip() for part in (listed or "0").split(",")]
    wrong = next((part for part in parts if not part.isdecimal() or len(part) > 4), None)
    if wrong is not None:
        raise DeviceError(
            f"device {name!r}: {wrong!r} is no GPU's number; write cuda:N, several as cuda:0,1, or cuda:all"
        )
    numbers = [int(part) for part in parts]
    twice = next((number for number in numbers if numbers.count(number) > 1), None)
    if twice is not None:
        raise DeviceError(f"device {name!r} names GPU {twice} more than once; name each once, for example cuda:0,1")
    return numbers


def _called(gpu: LiveGpu) -> str:
    return f"cuda:{gpu.index}"


def _compile_workers(gpus: int) -> int:
    # A GPU's worker and this process keep about one core at work, and go before compiles where they need two.
    return max(1, len(os.sched_getaffinity(0)) - gpus)


def _with_foreign_load(answer: Answer, loads: Mapping[str, Sequence[int]]) -> Answer:
    """Return an answer with the foreign processes of the GPU that gave it: with several its evidence names that one."""
    evidence = answer.evaluation.evidence
    foreign = loads.get(str(evidence.get(GPU, next(iter(loads)))), ())
    if not foreign:
        return answer
    told = {**evidence, "foreign_load": list(foreign)}
    return replace(answer, evaluation=replace(answer.evaluation, evidence=told))


def _require_packages(gpu: LiveGpu) -> None:
    if importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.bindings") is None:
        extra = f"cuda{min(int(gpu.driver.split('.')[0]), 13)}"
        raise DeviceError(f"cuda-bindings is not installed, which launches candidates: pip install 'evokern[{extra}]'")
    if int(gpu.driver.split(".")[0]) < cuda_major():
        raise DeviceError(
            f"the driver supports CUDA {gpu.driver}, but the CuPy that is installed is for CUDA {cuda_major()}: "
            f"pip install 'evokern[cuda12]', or update the driver"
        )
