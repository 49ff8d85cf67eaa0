"""GPUs as a device, with one shared compile pool, and an isolated worker plus a warm spare for each GPU.

Most searches use one GPU of this machine. Several GPUs must be of one model. They share the compile pool, and each is
checked for drift from its own first times. `evokern.device._gpus` finds and opens them.
"""

from __future__ import annotations

import importlib.util
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from evokern.compile.cache import default_directory
from evokern.compile.headers import cuda_major
from evokern.compile.pool import CompileSettings
from evokern.compile.records import Built
from evokern.declaration.genes import Config
from evokern.device._comparison import calibration_of, comparison_note
from evokern.device._executors import Calibration, Executors
from evokern.device._first import first_candidate, require_built, unbuilt_note
from evokern.device._gpus import DEPTH, GpuPlan, Gpus, LocalGpus
from evokern.device._pipeline import COMPILE_DEADLINE_S, EXTERNAL_COMPILE_WAIT_S, CompiledRequest, Pipeline
from evokern.device.contract import (
    DEFAULT_US,
    Answer,
    BaselineResult,
    ExecutorState,
    Request,
    StartReport,
    StartStep,
    Task,
)
from evokern.device.gpu.jobs import (
    PLANNED,
    CheckGate,
    Contestant,
    Evaluate,
    GpuSettings,
    MeasureBaseline,
    MeasureRates,
    Round,
    TimeFirstLaunches,
)
from evokern.device.gpu.profile import LiveGpu, live_gpu
from evokern.device.rates_cache import load_rates, store_rates
from evokern.errors import DeviceError
from evokern.hardware.driver import driver_version, probe
from evokern.hardware.profiles import Profile, limits_for
from evokern.measurement.roofline import Rates
from evokern.study.discovery import WorkerContext
from evokern.wording import in_gib
from evokern.workers.backend import ReportingPool
from evokern.workers.members import MemberPool, SingleMemberPool
from evokern.workers.single_job import JobDeadlineError, run_single_job

_LOGGER = logging.getLogger("evokern")
_START_DEADLINE_S = 600.0
_RATES_DEADLINE_S = 5.0
"""Timeout in seconds; the measurement takes about 0.1 s."""
_RATES_PATIENCE_S = 5.0
"""Seconds to wait for a candidate that is still on the GPU when the search ends."""
_TRIALS_PER_COMPILER = 6
"""Maximum number of concurrent trials per compile worker. A slow compile eventually blocks further proposals, so this
number must cover the slowest compiles (docs/lab/2026-11-27-timing.md#trials-per-compile-worker)."""
_NOTE_FROM_BYTES = 2**30


class LiveDevice:
    """Device for one GPU, or for several GPUs of the same model."""

    def __init__(self, gpus: Gpus) -> None:
        """Create a device; `start` takes the GPUs and starts the workers.

        Args:
            gpus: GPUs of this machine or of a cluster.
        """
        self._gpus = gpus
        self._gpu = gpus.found[0]
        self._compilers: ReportingPool | None = None
        self._members: MemberPool | None = None
        self._executors: Executors | None = None
        self._pipeline: Pipeline | None = None
        self._default_us: tuple[float, ...] = ()

    @property
    def identity(self) -> str:
        """Model of the GPU."""
        return self._gpu.model

    @property
    def predicted(self) -> bool:
        """Always False, because times are measured."""
        return False

    @property
    def profile(self) -> Profile:
        """Resource limits and peak rates of the GPU."""
        return self._gpu.profile

    @property
    def window(self) -> int:
        """Default maximum number of concurrent trials for a new study, enough to keep compilers and GPUs busy."""
        return _TRIALS_PER_COMPILER * self._gpus.compile_workers + 2 * DEPTH * len(self._gpus.found)

    @property
    def at_once(self) -> int:
        """Number of GPUs that measure concurrently."""
        return len(self._gpus.found)

    @property
    def processes(self) -> list[int]:
        """Process IDs of the workers on this machine."""
        return self._gpus.processes()

    @property
    def verifiable(self) -> bool:
        """Always True, because candidates are programs that can run again."""
        return True

    @property
    def diagnoses(self) -> bool:
        """Always True, because a GPU reports an error without its line and address."""
        return True

    def start(self, task: Task) -> StartReport:
        """Start the compile pool and the GPU workers, check the sensitivity of the gate, and measure the baselines.

        Raises:
            UsageError: the GPU, the compiler, the kernel folder or the workload cannot be used.
        """
        profile = limits_for(self._gpu.profile, task.study.limits)
        first, remarks = first_candidate(task, profile)
        notes = [*self._gpus.notes(), *remarks]
        compilers, members = self._open(task, profile, first)
        self._compilers, self._members = compilers, members
        leader = members.working[0]
        executors, others = SingleMemberPool(members, leader), len(members.names) > 1
        named = {at: one.name for at, one in enumerate(task.kernel.workload.baselines) if one.installed}
        times_default = not task.default_us and task.study.timing.race > 0
        steps = 3 + times_default + len(named) + others
        task.on_step(StartStep("compiling the default candidate", 0, steps))
        built = run_single_job(compilers, first, COMPILE_DEADLINE_S, "compile of the default candidate")
        unbuilt = "" if others else unbuilt_note(task, built, profile)  # several GPUs are compared by the default
        program = None if unbuilt else require_built(task, built).without_ptx()
        notes += [unbuilt] if unbuilt else []
        _LOGGER.info("the default candidate is compiled")
        task.on_step(StartStep("starting the GPU worker", 1, steps))
        members.wait_ready(leader)
        _LOGGER.info("the GPU worker is ready")
        task.on_step(StartStep("checking that the gate distinguishes correct from wrong results", 2, steps))
        run_single_job(executors, CheckGate(), _START_DEADLINE_S, "the check of the gate")
        _LOGGER.info("the gate distinguishes correct from wrong results")
        self._default_us = task.default_us
        if times_default and program is not None:
            task.on_step(StartStep("timing the default candidate's first launches", 3, steps))
            job = TimeFirstLaunches(first, program)
            what = "timing of the default candidate's first launches"
            self._default_us = tuple(run_single_job(executors, job, _START_DEADLINE_S, what))
        baselines: list[BaselineResult] = []
        for index, name in named.items():
            done = len(baselines)
            task.on_step(StartStep(f"baseline {done + 1} of {len(named)}: {name}", 3 + times_default + done, steps))
            what = f"measurement of the baseline {name}"
            try:
                baselines.append(run_single_job(executors, MeasureBaseline(index), _START_DEADLINE_S, what))
            except JobDeadlineError:  # libraries that compile themselves may take long
                baselines.append(BaselineResult(name, error=f"it did not finish within {_START_DEADLINE_S:g} s"))
        _LOGGER.info("the baselines are measured")
        planned = int((members.ready_report or {}).get(PLANNED, 0))
        if planned >= _NOTE_FROM_BYTES:
            notes.append(f"each worker uses {in_gib(planned)} of GPU memory for inputs, outputs and references")
        members.keep_spares()
        self._executors = Executors(members)
        first_us: dict[int, list[float]] = {}
        if others and program is not None:
            task.on_step(StartStep("comparing the GPUs", steps - 1, steps))
            calibration = calibration_of(
                baselines,
                lambda at: MeasureBaseline([*named][at]),
                Evaluate(first, program, None, self._default_us),
                _START_DEADLINE_S,
                CheckGate(),
            )
            first_us = self._compared(members, leader, calibration)
            self._executors.compare_by(calibration, first_us)
            names, by_first = [members.names[place] for place in first_us], [one[0] for one in first_us.values()]
            notes.append(comparison_note(names, by_first, calibration.references[0].name))
        hang_s = task.study.timing.hang_s
        self._pipeline = Pipeline(
            compilers,
            self._executors,
            job=self._job,
            # The worker reports a hang itself; it is killed only if it is stuck inside the driver.
            deadline_s=30.0 + 10.0 * hang_s,
            known=task.known,
            hang_s=hang_s,
            ahead=self._gpus.compile_workers,
        )
        self._pipeline.begin()
        environment: dict[str, Any] = {
            "gpu": self._gpu.model,
            "uuid": self._gpu.uuid,
            "driver": driver_version(),
            "driver_cuda": self._gpu.driver,
            **(compilers.ready_report or {}),
            **(members.ready_report or {}),
        }
        if others:
            environment["gpus"] = [
                {"name": name, "uuid": gpu.uuid, "reference_us": first_us[place][0] if place in first_us else None}
                for place, (name, gpu) in enumerate(zip(members.names, members.held, strict=True))
                if gpu is not None
            ]
        if self._default_us:
            environment[DEFAULT_US] = self._default_us
        rates = load_rates(self._gpu.uuid, driver_version() or self._gpu.driver)
        if rates is not None:
            environment["rates"] = asdict(rates)
        return StartReport(tuple(baselines), environment, tuple(notes))

    def _compared(self, members: MemberPool, leader: int, calibration: Calibration) -> dict[int, list[float]]:
        """Return the time of each reference on each working GPU in µs, after checking the gate there.

        Raises:
            DeviceError: a reference cannot be measured on one of the GPUs.
        """
        found: dict[int, list[float]] = {}
        for place in members.working:
            name, pool = members.names[place], SingleMemberPool(members, place)
            if place != leader:
                members.wait_ready(place)
                run_single_job(pool, CheckGate(), _START_DEADLINE_S, f"the check of the gate on {name}")
            for reference in calibration.references:
                answer = run_single_job(pool, reference.job, _START_DEADLINE_S, f"{reference.name} on {name}")
                time_us = reference.time_us(answer)
                if time_us is None:
                    raise DeviceError(
                        f"{reference.name}, the reference for comparing GPUs, cannot be measured on {name}: "
                        f"{getattr(answer, 'error', '') or getattr(answer, 'reason', answer)}; exclude this GPU "
                        "with --device cuda:N,M"
                    )
                found.setdefault(place, []).append(time_us)
        return found

    def _open(self, task: Task, profile: Profile, first: Config) -> tuple[ReportingPool, MemberPool]:
        """Take the GPUs and open the pools."""
        context = WorkerContext.of(task.kernel, task.problems, profile)
        plan = GpuPlan(
            GpuSettings(
                context=replace(context, profile=self._gpu.profile),
                gate=task.study.gate,
                timing=task.study.timing,
                device_index=self._gpu.index,
                turn_lock=Path(),
                warm_config=first,
                secret=task.secret,
            ),
            CompileSettings(context, default_directory(), foreign=task.foreign),
            task.study.window or self.window,
            EXTERNAL_COMPILE_WAIT_S if task.foreign else math.inf,
        )
        return self._gpus.open(plan, task.kernel)

    def submit(self, request: Request) -> None:
        """Accept one candidate; returns immediately."""
        self._running().submit(request)

    def compile_ahead(self, configs: Sequence[Config]) -> None:
        """Compile likely next candidates on idle compile workers; returns immediately."""
        self._running().compile_ahead(configs)

    def poll(self, timeout_s: float) -> Sequence[Answer]:
        """Return the results that are ready; wait at most `timeout_s` for the first."""
        return self._running().poll(timeout_s)

    def remeasured(self) -> Mapping[int, Mapping[str, Any]]:
        """Return the trials that another GPU measured again since the last call."""
        return self._executors.remeasured() if self._executors else {}

    def executors(self) -> Sequence[ExecutorState]:
        """Return the state of each GPU; empty for a single GPU."""
        return self._pipeline.executors() if self._pipeline else ()

    def busy_s(self) -> float:
        """Return the seconds since `start` during which candidates occupied a GPU, per GPU."""
        return self._pipeline.busy_s() / len(self._gpus.found) if self._pipeline else 0.0

    def rounds(
        self, task: Task, candidates: Sequence[Config | str]
    ) -> Callable[[Sequence[int], int], Sequence[Sequence[float]]]:
        """Return a function that measures one playoff round; the device accepts no other work afterwards.

        Args:
            task: the task of `start`.
            candidates: configurations, or names of baselines.

        Raises:
            DeviceError: a candidate no longer compiles.
        """
        self._running().close()
        self._pipeline = None
        executors, compilers = self._leader(), self._compilers
        assert compilers is not None
        first, _ = first_candidate(task, limits_for(self._gpu.profile, task.study.limits))
        contestants = []
        for candidate in candidates:
            if isinstance(candidate, str):
                contestants.append(Contestant(first, None, candidate))
                continue
            built = run_single_job(compilers, candidate, COMPILE_DEADLINE_S, "compile of an elite")
            if not isinstance(built, Built):
                raise DeviceError(f"an elite no longer compiles: {built.reason}")
            contestants.append(Contestant(candidate, built))

        def play(alive: Sequence[int], samples: int) -> Sequence[Sequence[float]]:
            job = Round(tuple(contestants[index] for index in alive), samples)
            taken: Sequence[Sequence[float]] = run_single_job(
                executors, job, _START_DEADLINE_S, "a round of the playoff"
            )
            return taken

        return play

    def rates(self) -> Rates:
        """Return the copy and matrix rates of the GPU, measured once for each GPU and driver.

        The device accepts no further candidates afterwards.

        Raises:
            EvokernError: the rates cannot be measured.
        """
        driver, leader = driver_version() or self._gpu.driver, self._leader()
        uuid = (leader.held or self._gpu).uuid
        known = load_rates(uuid, driver)
        if known is None:
            self._running().close()
            what = "copy and matrix product"
            known = run_single_job(leader, MeasureRates(), _RATES_DEADLINE_S, what, _RATES_PATIENCE_S)
            store_rates(uuid, driver, known)
        return known

    def stages(self) -> tuple[int, int]:
        """Return the number of candidates being compiled, and the number of compiled candidates without a result."""
        return self._pipeline.stages() if self._pipeline else (0, 0)

    def close(self) -> None:
        """Stop every worker; can be called twice."""
        if self._pipeline is not None:
            self._pipeline.close()
        self._gpus.close()
        self._compilers = self._members = None

    def _leader(self) -> SingleMemberPool:
        """Return the GPU for playoffs and rates: the first working GPU."""
        assert self._members is not None
        return SingleMemberPool(self._members, next(iter(self._members.working), 0))

    def _job(self, work: CompiledRequest) -> Evaluate:
        return Evaluate(work.request.config, work.built.without_ptx(), work.request.elite_us, self._default_us)

    def _running(self) -> Pipeline:
        if self._pipeline is None:
            raise DeviceError(f"{self._gpu.model} was not started")
        return self._pipeline


def open_live(name: str) -> LiveDevice:
    """Return the GPUs of this machine for a name: `auto`, `cuda`, `cuda:N`, `cuda:N,M` or `cuda:all`.

    Raises:
        DeviceError: a GPU is missing or named twice, the models differ, or a package is missing.
    """
    gpus = [live_gpu(number) for number in gpu_numbers(name)]
    _require_packages(gpus[0])
    return LiveDevice(LocalGpus(gpus))


def gpu_numbers(name: str) -> list[int]:
    """Return the GPU indices in a device name; with CUDA_VISIBLE_DEVICES, visible GPUs are numbered from 0.

    Raises:
        DeviceError: the name is invalid.
    """
    _, _, listed = name.partition(":")
    if listed == "all":
        return [gpu.index for gpu in probe().gpus] or [0]
    parts = [part.strip() for part in (listed or "0").split(",")]
    wrong = next((part for part in parts if not part.isdecimal() or len(part) > 4), None)
    if wrong is not None:
        raise DeviceError(
            f"device {name!r}: {wrong!r} is not a GPU index; use cuda:N, cuda:0,1 for several, or cuda:all"
        )
    numbers = [int(part) for part in parts]
    twice = next((number for number in numbers if numbers.count(number) > 1), None)
    if twice is not None:
        raise DeviceError(f"device {name!r} names GPU {twice} more than once; name each GPU once, for example cuda:0,1")
    return numbers


def _require_packages(gpu: LiveGpu) -> None:
    if importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.bindings") is None:
        extra = f"cuda{min(int(gpu.driver.split('.')[0]), 13)}"
        raise DeviceError(
            f"cuda-bindings, which launches candidates, is not installed; run: pip install 'evokern[{extra}]'"
        )
    if int(gpu.driver.split(".")[0]) < cuda_major():
        raise DeviceError(
            f"the driver supports CUDA {gpu.driver}, but the installed CuPy needs CUDA {cuda_major()}; run: pip "
            "install 'evokern[cuda12]', or update the driver"
        )
