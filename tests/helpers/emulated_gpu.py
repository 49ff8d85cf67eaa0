"""The live device's worker as it is, on a stand-in for a GPU: buffers on the CPU, launches on the PTX machine.

Every line that judges a candidate on a GPU runs here: gate, timed runs, repetitions, what is done about a crash. Only
the driver's part is replaced: loading, launching, waiting, clocks. Like a GPU, and unlike the simulated device, it has
no sanitizer, keeps a module's variables over all calls, and checks the study's own problems.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from evokern import simt
from evokern.compile.build import Target, build
from evokern.compile.records import Built
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Kernel, Problem
from evokern.device import Answer, Request, StartReport, Task
from evokern.device.gpu import cuda as _cuda
from evokern.device.gpu import evaluation as _gpu_evaluation
from evokern.device.gpu import rounds as _gpu_rounds
from evokern.device.gpu import timed_runs as _gpu_timed_runs
from evokern.device.gpu import worker as _gpu_worker
from evokern.device.gpu.graph_clock import TimedCall
from evokern.device.gpu.jobs import Evaluate, GpuSettings
from evokern.device.gpu.nvml import Monitor, State
from evokern.device.gpu.timed_calls import StepsAround
from evokern.device.gpu.worker import GpuWorker
from evokern.device.sim.program import SimulatedProgram
from evokern.gate import Call, RunFailed
from evokern.gate.recorded_outputs import SLOTS, Copy
from evokern.gate.timed_plan import TimedCalls
from evokern.hardware.profiles import Profile, chip
from evokern.study.discovery import WorkerContext
from evokern.study.settings import Study, TimingSettings
from evokern.study.trial import Evaluation, Outcome
from evokern.workers.process import Retire

ERRORS = {"misaligned": "CUDA_ERROR_MISALIGNED_ADDRESS", "out_of_bounds": "CUDA_ERROR_ILLEGAL_ADDRESS"}

INSTRUCTION_LIMIT = 50_000_000
"""Warp instructions of a launch after which it counts as a hang."""


class Candidate:
    """Programs on the PTX machine; a tensor has the same address whenever it is an argument."""

    broken: str | None = None
    """The error that ended the context."""
    launch_us = 10.0
    """Time of a launch that is timed by itself, µs."""

    def __init__(self, built: Built) -> None:
        self.built = built
        self._programs = [_simulated(built, number) for number in range(len(built.programs))]
        self._memory = simt.Memory()
        self._buffers: dict[int, simt.Buffer] = {}

    def unload(self) -> None:
        """Nothing is held."""

    def prepare(self, program: int, call: Call) -> Prepared:
        """Bind a call's buffers."""
        return Prepared(self, program, call)

    def changed(self, program: int) -> list[str]:
        """Return the undeclared variables that calls left changed."""
        return self._programs[program].changed(self._memory)

    def launch(self, program: int, call: Call) -> None:
        """Run a call: declared state and tensors in, launches, tensors out."""
        self._programs[program].restore(self._memory)
        for name in call.zeroed:
            call.arguments[name].zero_()
        buffers = {name: self._upload(name, tensor) for name, tensor in call.arguments.items()}
        for launch in call.launches:
            result = self._programs[program].launch(
                launch, buffers, self._memory, instruction_limit=INSTRUCTION_LIMIT, sanitize=False
            )
            if result.fatal is not None:
                type(self).broken = ERRORS[result.fatal.kind]
                raise RunFailed(Outcome.CRASHED, {"error": self.broken})
        for name, tensor in call.arguments.items():
            raw = torch.from_numpy(buffers[name].read().reshape(-1))
            tensor.view(-1).view(torch.uint8).copy_(raw)

    def _upload(self, name: str, tensor: torch.Tensor) -> simt.Buffer:
        data: Any = tensor.reshape(-1).view(torch.uint8).numpy()
        known = self._buffers.get(tensor.data_ptr())
        if known is None:
            known = self._buffers[tensor.data_ptr()] = self._memory.allocate(name, data, writable=True)
        known.write(data)
        return known


def _simulated(built: Built, number: int) -> SimulatedProgram:
    program = built.programs[number]
    module = simt.parse(program.ptx, source_name="kernel.cu")
    for one in built.variables[number]:
        if one.restored is not None:
            filled = isinstance(one.restored, int)
            module.restored[one.symbol] = bytes([one.restored]) * one.size if filled else one.restored
    return SimulatedProgram(module, program.lowered, "", {}, module.target.removesuffix("a"))


class Prepared:
    """One launch sequence with its buffers bound."""

    def __init__(self, candidate: Candidate, program: int, call: Call) -> None:
        self._candidate, self._program, self._call = candidate, program, call

    def enqueue(self) -> None:
        """Run it at once."""
        self._candidate.launch(self._program, self._call)


class StepKernel:
    """Does the steps around drawn calls at once, with torch."""

    def __init__(self, profile: Profile) -> None:
        """Nothing is compiled."""

    def enqueue(self, timed: TimedCalls, number: int, copies: Sequence[Copy]) -> None:
        """Do what the kernel of `timed_calls.cu` does."""
        execution = int(timed.executions[number, 0])
        timed.executions[number] += 1
        for copy in copies:
            if copy.turn in ("always", ("even", "odd")[execution % 2]):
                to = copy.to
                if copy.kept:
                    ahead = execution % SLOTS * timed.slot_bytes
                    to = to.as_strided(to.shape, to.stride(), to.storage_offset() + ahead)
                to.fill_(copy.value) if copy.source is None else to.copy_(copy.source)


class Clock:
    """Runs every set's call twice for every batch of samples, and tells plausible times."""

    calls = 1

    def __init__(self, sequence: Sequence[TimedCall], around: StepsAround | None = None, rounds: int = 3) -> None:
        self._sequence = sequence
        self._around = around
        self._count = len(sequence) * (rounds if around else 1)
        self.timed = around.timed if around else None
        self.pilot_us = (10.0,) * 5
        self._time_us = itertools.cycle((10.0, 10.01, 10.02))
        self.states = [State()]

    def prepare(self) -> None:
        """Run every call, so that outputs hold answers when sampling begins."""
        if self.timed:
            self.timed.plan(self._count)
            self._run()

    def take(self, count: int, *, sustained: bool = False) -> list[float]:
        """Return samples, µs."""
        self._run()
        return [next(self._time_us) for _ in range(count)]

    def counted(self, samples_us: Sequence[float]) -> Sequence[float]:
        """Return all: nothing slows this device."""
        return samples_us

    def replay(self) -> None:
        """Run every call."""
        self._run()
        self.settle()

    def settle(self) -> None:
        """Run every call once more where the last run left changed inputs behind."""
        if self.timed and not self.timed.settled:
            self._run()

    def fault(self) -> dict[str, Any] | None:
        """Settle; return evidence of a kept answer that is wrong."""
        self.settle()
        return self.timed.fault() if self.timed else None

    def _run(self) -> None:
        for index in range(self._count):
            if self._around:
                self._around.before(index)
            outputs = self._sequence[index % len(self._sequence)]()
            if self._around:
                self._around.after(index, outputs)
        if self._around:
            self._around.before(self._count)
            self._around.timed.replays += 1


class Worker(GpuWorker):
    """A GPU worker without a GPU."""

    def _context(self) -> tuple[torch.device, Monitor]:
        return torch.device("cpu"), Monitor("0000:FF:00.0")

    def _own_kernels(self) -> None:
        """Torch does it all."""

    def _free_bytes(self) -> int:
        return 2**33

    def _total_bytes(self) -> int:
        return 2**33

    def _shared_memory(self) -> None:
        """Every launch on the PTX machine finds shared memory that nobody wrote."""


def worker(patch: pytest.MonkeyPatch, kernel: Kernel, problems: Sequence[Problem], study: Study, chip: Profile,
           turn: Path, *, race: float = 0.0, secret: int = 0) -> Worker:  # fmt: skip
    """Return a worker whose candidates run on the PTX machine for as long as the patch holds; `race` as in a study."""
    patch.setattr(Candidate, "broken", None)
    for module in (_gpu_worker, _gpu_rounds):
        patch.setattr(module, "Candidate", Candidate)
    patch.setattr(_gpu_timed_runs, "GraphClock", lambda sequence, *settings: Clock(sequence, settings[-1]))
    patch.setattr(_gpu_timed_runs, "StepKernel", StepKernel)
    patch.setattr(_gpu_worker, "context_error", lambda: Candidate.broken)
    for module in (_gpu_evaluation, _cuda):
        patch.setattr(module, "finish", lambda limit_s, hang_s=None: None)
    patch.setattr(_cuda, "timed_us", _timed_us)
    turn.touch()
    timing = TimingSettings(race=race, min_samples=3, max_samples=12 if race else 3, rotate_sets=2)
    context = WorkerContext(kernel.folder, tuple(problems), chip)
    settings = GpuSettings(context, study.gate, timing, 0, turn, kernel.space.default(), secret)
    return Worker(settings)


def _timed_us(enqueue: Callable[[], None], limit_s: float) -> float:
    enqueue()
    return Candidate.launch_us


def evaluated(
    worker: Worker, config: Config, built: Built, elite_us: float | None = None, default_us: tuple[float, ...] = ()
) -> Evaluation:
    """Evaluate a candidate; a worker that retires has answered, and is as good as new here."""
    try:
        answer = worker.handle(Evaluate(config, built, elite_us, default_us))
    except Retire as last:
        Candidate.broken = None
        answer = last.value
    assert isinstance(answer, Evaluation)
    return answer


class Device:
    """A device made of such a worker; what it says of a crash is the error's name."""

    identity, predicted, profile, window = "emulated GPU", False, chip("l4"), 4
    at_once, diagnoses, verifiable = 1, True, False

    def __init__(self, patch: pytest.MonkeyPatch, turn: Path) -> None:
        self._patch, self._turn = patch, turn
        self._asked: list[Request] = []

    def start(self, task: Task) -> StartReport:
        """Make the worker."""
        self._task = task
        self._worker = worker(self._patch, task.kernel, task.problems, task.study, self.profile, self._turn)
        return StartReport()

    def submit(self, request: Request) -> None:
        """Accept one candidate."""
        self._asked.append(request)

    def poll(self, timeout_s: float) -> Sequence[Answer]:
        """Evaluate the next candidate."""
        if not self._asked:
            return []
        request = self._asked.pop(0)
        made = build(self._task.kernel, request.config, self._task.problems, Target(self.profile, None))
        assert isinstance(made, Built), made.reason
        return [Answer(request.number, evaluated(self._worker, request.config, made))]

    def busy_s(self) -> float:
        """Nothing is held."""
        return 0.0

    def close(self) -> None:
        """Forget what was asked."""
        self._asked.clear()
