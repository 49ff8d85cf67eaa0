"""Steps around a timed call (`evokern.gate.timed_plan`) as CUDA graph nodes that run one small kernel."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from cuda.bindings import driver

from evokern.compile.build import compile_internal
from evokern.device.gpu.cuda import check
from evokern.errors import InternalError
from evokern.gate.recorded_outputs import SLOTS, Copy
from evokern.gate.timed_plan import MOST_COPIES, TimedCalls
from evokern.hardware.profiles import Profile

SOURCE = Path(__file__).with_suffix(".cu")
"""Source of the kernel; the constants and layouts below must match it."""
_ENTRY = "timed_calls_step"
_THREADS = 256
_TURN = {"always": 0, "even": 1, "odd": 2}
_KEPT = 4
_FILL_SHIFT = 8


class _CopyRecord(ctypes.Structure):
    _fields_ = (("to", ctypes.c_void_p), ("source", ctypes.c_void_p), ("bytes", ctypes.c_uint32),
                ("what", ctypes.c_uint32))  # fmt: skip


class _StepRecord(ctypes.Structure):
    _fields_ = (("copies", _CopyRecord * MOST_COPIES), ("executions", ctypes.c_void_p),
                ("slot_bytes", ctypes.c_uint64), ("slots", ctypes.c_uint32))  # fmt: skip


class StepKernel:
    """Kernel of a step, loaded once into this process's context."""

    def __init__(self, profile: Profile) -> None:
        """Compile and load the kernel.

        Raises:
            DeviceError: the kernel does not compile.
        """
        program = compile_internal(SOURCE.read_text("utf-8"), SOURCE.name, _ENTRY, profile)
        self._module = check(driver.cuModuleLoadData(program.cubin))
        self._function = check(driver.cuModuleGetFunction(self._module, program.lowered[_ENTRY].encode()))

    def enqueue(self, timed: TimedCalls, number: int, copies: Sequence[Copy]) -> None:
        """Enqueue a step on the current stream, or add it to the graph being captured."""
        if len(copies) > MOST_COPIES:
            raise InternalError(f"a step has {len(copies)} copies, but kernel parameters hold at most {MOST_COPIES}")
        record = _record(copies, timed.executions[number].data_ptr(), timed.slot_bytes)
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = len(copies), 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = _THREADS, 1, 1
        config.hStream = torch.cuda.current_stream().cuda_stream
        # The driver copies the parameters before the call returns.
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(record))
        check(driver.cuLaunchKernelEx(config, self._function, ctypes.addressof(pointers), 0))


@dataclass(frozen=True)
class StepsAround:
    """Steps around the randomly chosen call of one graph."""

    timed: TimedCalls
    """Chosen call and its steps."""
    kernel: StepKernel
    """Kernel that runs the steps."""

    def before(self, index: int) -> None:
        """Enqueue the step that precedes a call, or the step after the last call."""
        step = self.timed.step(index) if self.timed.active else None
        if step is not None:
            self.kernel.enqueue(self.timed, *step)

    def after(self, index: int, outputs: Mapping[str, torch.Tensor] | None) -> None:
        """Register the outputs of the call that was just enqueued; None if the call wrote into the given buffers."""
        self.timed.captured(index, outputs)


def _record(copies: Sequence[Copy], executions: int, slot_bytes: int) -> _StepRecord:
    """Return a step in the layout of the kernel's parameters."""
    record = _StepRecord(executions=executions, slot_bytes=slot_bytes, slots=SLOTS)
    for place, copy in zip(record.copies, copies, strict=False):
        place.to = copy.to.data_ptr()
        place.source = None if copy.source is None else copy.source.data_ptr()
        place.bytes = copy.to.numel()
        place.what = _TURN[copy.turn] | (_KEPT if copy.kept else 0) | copy.value << _FILL_SHIFT
    return record
