"""Worker process that owns a GPU; it checks and times candidates and exits if one breaks the CUDA context."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from cuda.bindings import driver

from evokern.declaration.bounds.strict import judged_in
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Problem
from evokern.device.contract import BaselineResult
from evokern.device.gpu.baselines import BaselineRunner, baseline_call
from evokern.device.gpu.between_calls import SharedMemory
from evokern.device.gpu.cuda import Candidate, GpuRunner, check, context_error
from evokern.device.gpu.evaluation import CandidateEvaluator, timings_of
from evokern.device.gpu.gate_kernels import GateKernels
from evokern.device.gpu.jobs import (
    CONTEXT_BYTES,
    FREE,
    HELD,
    PEAK,
    PLANNED,
    CheckGate,
    Evaluate,
    GpuSettings,
    MeasureBaseline,
    MeasureRates,
    Round,
    TimeFirstLaunches,
)
from evokern.device.gpu.nvml import Monitor
from evokern.device.gpu.rates import measure_rates
from evokern.device.gpu.rounds import play_round
from evokern.device.gpu.timed_runs import TimedRuns
from evokern.errors import KERNEL_CODE_EXCEPTIONS, DeviceError, EvokernError
from evokern.gate import Gate, prove_power
from evokern.gate.buffer_set import BufferSet, planned_bytes
from evokern.gate.check import RunFailed, calls, candidate_seed
from evokern.gate.device_kernels import DeviceKernels
from evokern.gate.verdict import judge
from evokern.measurement.phases import PhaseClock
from evokern.measurement.roofline import Rates
from evokern.measurement.timing import FIRST_LAUNCHES, measure
from evokern.study.trial import Evaluation, Outcome, Timing
from evokern.wording import first_line, in_gib, limit_name
from evokern.workers.process import Retire

OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"
"""Error name of the driver for exhausted memory."""


class GpuWorker:
    """Worker for `CheckGate`, `MeasureBaseline`, `TimeFirstLaunches`, `Evaluate`, `Round` and `MeasureRates` jobs."""

    def __init__(self, settings: GpuSettings) -> None:
        """Create the context, the gates and their buffers; load everything that the first candidate needs.

        Raises:
            KernelError: the kernel folder or its reference is invalid.
        """
        self._settings = settings = replace(settings, secret=settings.secret or random.SystemRandom().getrandbits(62))
        self._turn_lock = settings.turn_lock.open("rb")
        self._phases = PhaseClock()
        device, self._monitor = self._context()
        self._kernel = judged_in(settings.context.kernel(), settings.gate.precision)
        own = self._own_kernels()
        self._gates = {
            problem: Gate(self._kernel, problem, settings.gate, device, own=own)
            for problem in settings.context.problems
        }
        profile = settings.context.profile
        self._runs = TimedRuns(self._kernel, self._gates, settings.timing, self._monitor, device, profile)
        self._evaluator = CandidateEvaluator(
            settings, self._kernel, self._gates, self._runs, self._shared_memory(), self._phases
        )
        planned = self._require_memory()
        with self._exclusive_gpu():
            self._warm()
            torch.cuda.empty_cache()  # frees memory that the references used, for other workers
        self._held_bytes = max(planned, torch.cuda.memory_reserved())
        self._peak_bytes = max(self._held_bytes, torch.cuda.max_memory_reserved())
        self.ready_report = {
            PLANNED: planned,
            HELD: self._held_bytes,
            PEAK: self._peak_bytes,
            FREE: self._free_bytes(),
            "torch": str(torch.__version__),  # a plain text, because unpickling torch's own class would import torch
            "gpu": settings.context.profile.model,
            "clock_mhz": self._monitor.read().clock_mhz,
            "monitor": self._monitor.problem,
        }

    @staticmethod
    def freed() -> None:
        """Return the memory of a dropped worker to the GPU."""
        torch.cuda.empty_cache()

    def _context(self) -> tuple[torch.device, Monitor]:
        """Create the CUDA context of this process and its stream."""
        torch.cuda.set_device(self._settings.device_index)
        # Baselines must satisfy the bounds for accumulators in float32.
        matmul = torch.backends.cuda.matmul
        matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        matmul.allow_fp16_reduced_precision_reduction = matmul.allow_bf16_reduced_precision_reduction = False
        device = torch.device("cuda", self._settings.device_index)
        torch.cuda.set_stream(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]
        torch.empty(1, device=device)
        address = check(driver.cuDeviceGetPCIBusId(64, check(driver.cuCtxGetDevice())))
        return device, Monitor(address.decode().strip("\0"))

    def _own_kernels(self) -> DeviceKernels | None:
        """Return the kernels that seal and compare the gate's values."""
        return GateKernels(self._settings.context.profile)

    def _shared_memory(self) -> SharedMemory | None:
        """Return the object that overwrites shared memory between calls."""
        return SharedMemory(self._settings.context.profile)

    def _require_memory(self) -> int:
        """Return the number of bytes for buffers.

        Raises:
            DeviceError: the GPU has less free memory.
        """
        needed, free = self._planned_bytes(self._settings.warm_config), self._free_bytes()
        if sum(needed.values()) > free:
            largest = max(needed, key=lambda problem: needed[problem])
            raise DeviceError(
                f"{self._kernel.name} at {largest} needs {in_gib(needed[largest])} of GPU memory for inputs, "
                "outputs and "
                f"references{f' ({in_gib(sum(needed.values()))} for all problems)' if len(needed) > 1 else ''}, "
                f"but only {in_gib(free)} is free. Reduce gate.input_sets, set timing.rotate_sets = 1, or use a "
                "smaller problem"
            )
        return sum(needed.values())

    def _planned_bytes(self, config: Config) -> dict[Problem, int]:
        """Return the bytes of a candidate's buffers for each problem."""
        settings, planned = self._settings, {}
        for problem in self._gates:
            tensors, _ = self._runs.workload(config, problem)
            planned[problem] = planned_bytes(self._kernel, problem, tensors, settings.gate, settings.timing)
        return planned

    def _free_bytes(self) -> int:
        """Return the number of free bytes in GPU memory."""
        return torch.cuda.mem_get_info()[0]

    def _total_bytes(self) -> int:
        """Return the total number of bytes in GPU memory."""
        return torch.cuda.mem_get_info()[1]

    def listen(self, next_waits: Callable[[], bool]) -> None:
        """Set the function that reports whether another candidate is waiting.

        While none waits, the current candidate gets more samples.
        """
        self._evaluator.next_waits = next_waits

    def handle(
        self, job: CheckGate | MeasureBaseline | TimeFirstLaunches | Evaluate | Round | MeasureRates
    ) -> Evaluation | BaselineResult | tuple[tuple[float, ...], ...] | tuple[float, ...] | Rates | None:
        """Run one job while holding the GPU.

        Raises:
            MemoryError: the GPU's memory is full, and no candidate is the cause.
        """
        with _as_memory_error(), self._exclusive_gpu():
            if isinstance(job, CheckGate):
                self._prove()
                return None
            if isinstance(job, MeasureBaseline):
                return self._baseline(job.index)
            if isinstance(job, Round):
                return play_round(self._runs, job)
            if isinstance(job, MeasureRates):
                return _rates()
            if isinstance(job, TimeFirstLaunches):
                return self._first_launches(job)
            began = time.perf_counter()
            self._phases.taken()
            evaluation, healthy = self._evaluate(job)
            evaluation = replace(evaluation, device_s=time.perf_counter() - began, spans=self._phases.taken())
            gate_broken = healthy and evaluation.outcome is Outcome.WRONG and not self._sane(job)
        if gate_broken or not healthy:
            raise Retire(evaluation, busy=evaluation.outcome is Outcome.HUNG, retry=gate_broken)
        return evaluation

    def _sane(self, job: Evaluate) -> bool:
        try:
            return all(gate.accepts_reference(self._runs.workload(job.config, p)[0]) for p, gate in self._gates.items())
        except (EvokernError, RuntimeError):
            # The gate cannot even check the correct result any more.
            return False

    @contextlib.contextmanager
    def _exclusive_gpu(self) -> Iterator[None]:
        fcntl.flock(self._turn_lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._turn_lock, fcntl.LOCK_UN)

    def _warm(self) -> None:
        """Run the gate and the timing once with a trivial candidate, so that torch's kernels are loaded.

        Raises:
            DeviceError: the GPU has too little memory.
        """
        try:
            self._warm_gates()
        except torch.OutOfMemoryError as error:
            problems = ", ".join(map(str, self._gates))
            raise DeviceError(
                f"{self._kernel.name} at {problems} needs more GPU memory than is free, mostly temporary memory "
                f"for a float64 reference: {first_line(error)}. Compute the reference's outputs in parts, reduce "
                "gate.input_sets, set timing.rotate_sets = 1, use a smaller problem, or stop other programs on "
                "the GPU"
            ) from error

    def _warm_gates(self) -> None:
        for problem, gate in self._gates.items():
            tensors, launches = self._runs.workload(self._settings.warm_config, problem)
            gate.check(_NullRunner(), launches, tensors)
            bench = self._runs.bench(tensors, problem)
            bench.poison()
            clock = self._runs.clock([functools.partial(_clear, bench)] * bench.sets)
            clock.prepare()
            clock.take(self._settings.timing.min_samples)
            bench.verify()

    def _evaluate(self, job: Evaluate) -> tuple[Evaluation, bool]:
        """Return the evaluation, and whether the context is still usable.

        After an out-of-memory error the candidate is evaluated again without buffers of earlier candidates.

        Raises:
            OutOfMemoryError: memory ran out again although the whole GPU would suffice, so other programs use it.
        """
        message = ""
        for again in (False, True):
            try:
                return self._attempt(job, again=again)
            except torch.OutOfMemoryError as error:
                message = first_line(error)
            self._free_buffers()
        # Planned buffers plus the temporary memory of a reference.
        needed = sum(self._planned_bytes(job.config).values()) + self._peak_bytes - self._held_bytes
        room = self._total_bytes() - CONTEXT_BYTES
        if needed <= room:
            raise torch.OutOfMemoryError(message)
        evidence = {"constraint": "gpu_memory", "needed": needed, "available": room, "unit": "bytes"}
        return Evaluation(Outcome.OVER_RESOURCES, evidence=evidence), True

    def _attempt(self, job: Evaluate, *, again: bool) -> tuple[Evaluation, bool]:
        """Evaluate a candidate. A repeated out-of-memory error of the driver counts as the candidate's own crash."""
        candidate: Candidate | None = None
        try:
            candidate = Candidate(job.built)
            evaluation = self._evaluator.evaluate(job, candidate)
        except RunFailed as failure:
            if failure.outcome is Outcome.HUNG:
                return Evaluation(Outcome.HUNG, evidence=failure.evidence), False
            if failure.evidence.get("error") == OUT_OF_MEMORY and not again:
                _unload(candidate)
                raise torch.OutOfMemoryError(OUT_OF_MEMORY) from failure
            bound = failure.evidence.pop("bound_us", None)
            evaluation = Evaluation(failure.outcome, bound, evidence=failure.evidence)
        except torch.OutOfMemoryError:
            _unload(candidate)
            raise
        except EvokernError:
            if context_error() is None:
                raise
            evaluation = Evaluation(Outcome.CRASHED, evidence={"error": context_error()})
        except RuntimeError as error:
            # An asynchronous CUDA error can surface in any later torch operation.
            if context_error() is None:
                if "CUBLAS_STATUS_ALLOC_FAILED" in str(error):  # the reference's library allocates memory itself
                    _unload(candidate)
                    raise torch.OutOfMemoryError(first_line(error)) from error
                raise
            evaluation = Evaluation(Outcome.CRASHED, evidence={"error": context_error()})
        broken = context_error()
        if broken is not None:
            if evaluation.outcome is not Outcome.CRASHED:
                evaluation = Evaluation(Outcome.CRASHED, evidence={"error": broken})
            return evaluation, False
        _unload(candidate)
        return evaluation, True

    def _free_buffers(self) -> None:
        """Release the buffers kept for candidates with the same tensors, and torch's cached memory."""
        for gate in self._gates.values():
            gate.release_buffers()
        torch.cuda.empty_cache()

    def _prove(self) -> None:
        for problem, gate in self._gates.items():
            tensors, launches = self._runs.workload(self._settings.warm_config, problem)
            prove_power(gate, launches, tensors)
            gate.prove_slices(tensors)

    def _first_launches(self, job: TimeFirstLaunches) -> tuple[float, ...]:
        """Return the shortest time of a candidate's first launches on each problem in µs; empty if one failed."""
        try:
            candidate = Candidate(job.built)
            taken = []
            for problem, gate in self._gates.items():
                tensors, launches = self._runs.workload(job.config, problem)
                bench = gate.bench(tensors, gate.kinds(tensors), self._settings.gate.runs)
                bench.refresh()
                bench.poison()
                runner = GpuRunner(candidate, job.built.build(problem).program, self._settings.timing.hang_s)
                taken.append(min(runner.times(calls(bench, launches)[:FIRST_LAUNCHES])))
            candidate.unload()
            return tuple(taken)
        except (RunFailed, EvokernError, RuntimeError) as failed:
            hung = isinstance(failed, RunFailed) and failed.outcome is Outcome.HUNG
            if hung or context_error() is not None:
                raise Retire((), busy=hung) from failed
            return ()

    def _baseline(self, index: int) -> BaselineResult:
        baseline = self._kernel.workload.baselines[index]
        try:
            timings: list[Timing] = []
            for problem, gate in self._gates.items():
                tensors, launches = self._runs.workload(self._settings.warm_config, problem, baseline.name)
                runner = BaselineRunner(baseline, problem, self._settings.timing.hang_s)
                checked = gate.bench(tensors, gate.kinds(tensors), runs=1)
                warm, secret = self._settings.warm_config, self._settings.secret
                gate.reseed(candidate_seed(secret, warm, problem, f"baseline {baseline.name}"))
                checked.refresh()
                checked.poison()
                runner.run(calls(checked, launches))
                verdict = judge(checked, checked.verify(), deterministic=False, problem=problem)
                if not verdict.passed:
                    return BaselineResult(baseline.name, error=_rejection(verdict.evidence))
                bench = self._runs.bench(tensors, problem)
                sequence = [baseline_call(baseline, problem, call.arguments) for call in calls(bench, launches)]
                clock = self._runs.clock(sequence, bench, baseline.name)
                clock.prepare()
                measurement = measure([clock], self._settings.timing)
                fault = clock.fault()
                if fault is not None:
                    return BaselineResult(baseline.name, error=f"{_rejection(fault)} at {problem}")
                timings += timings_of(measurement, [clock])
            return BaselineResult(baseline.name, tuple(timings))
        except RunFailed as failure:
            reason = failure.message or failure.evidence.get("error") or failure.evidence.get("check", "")
            rejected, hung = f"{failure.outcome.value}: {reason}", failure.outcome is Outcome.HUNG
        except KERNEL_CODE_EXCEPTIONS as error:
            # A backend may report an unsupported problem with an exception of any class.
            rejected, hung = f"{type(error).__name__}: {first_line(error)}", False
        result = BaselineResult(baseline.name, error=rejected)
        if hung or context_error() is not None:
            raise Retire(result, busy=hung)
        return result


def _rates() -> Rates:
    try:
        return measure_rates()
    except RunFailed as failed:
        raise DeviceError(f"cannot measure the GPU's copy and matrix rates: {failed.evidence}") from failed
    except torch.OutOfMemoryError as error:
        raise DeviceError("cannot measure the GPU's copy and matrix rates: its memory is full") from error


@contextlib.contextmanager
def _as_memory_error() -> Iterator[None]:
    """Convert torch's out-of-memory error to `MemoryError`, which worker processes handle."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise MemoryError(f"the GPU's memory is full: {first_line(error)}") from error


def _unload(candidate: Candidate | None) -> None:
    if candidate is not None:
        candidate.unload()


def _clear(bench: BufferSet) -> None:
    for output in bench.outputs().values():
        output.zero_()


class _NullRunner:
    def run(self, calls: Sequence[object]) -> None:
        return


def _rejection(evidence: Mapping[str, Any]) -> str:
    """Return why the gate rejected a baseline: the check, its largest error and the message."""
    over = evidence.get("over")
    largest = "" if over is None else f", largest error {float(over):.3g} × the {limit_name(evidence)}"
    return f"wrong (check {evidence['check']}{largest}): {evidence['message']}"
