"""Reference for kernels without one: the outputs of the default candidate, computed by the simulator."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from evokern import simt
from evokern.compile.records import CompileFailure, needs_later_architecture
from evokern.declaration.as_data.golden import KernelReference, SomeOutputs
from evokern.declaration.feasibility import launches_of
from evokern.declaration.kernel import Kernel, Launch, Problem, Tensor
from evokern.declaration.render import Rendered, render
from evokern.device.sim import coverage
from evokern.device.sim.program import SimulatedProgram, compile_simulated
from evokern.device.sim.stage import independent
from evokern.errors import KernelError
from evokern.gate.data import torch_dtype
from evokern.hardware.profiles import CHIPS
from evokern.simt import WriteRecord, recording

MOST_INSTRUCTIONS = 30_000_000
"""Maximum number of warp instructions of the default candidate: about twenty seconds on one core."""
_COUNTED = 2
_CHIPS = ("l4", "h100", "b200")


class SameAsDefault(KernelReference):
    """Reference that returns the outputs of the default candidate, which the simulator runs on the same inputs.

    Candidates are compared with the default candidate, not with a known correct result: an error that all candidates
    share is not found.
    """

    compared_with = "the default candidate (no known result)"

    def __init__(self) -> None:
        self._kernel: Kernel | None = None
        self._programs: list[tuple[Rendered, SimulatedProgram]] = []  # few: one for each set of macros
        self._needed: dict[Problem, float] = {}

    def of(self, kernel: Kernel) -> SameAsDefault:
        """Return the reference of a loaded kernel."""
        made = SameAsDefault()
        made._kernel = kernel
        return made

    def affordable(self, problem: Problem) -> bool:
        """Return whether the default candidate needs at most `MOST_INSTRUCTIONS` at a problem."""
        if problem not in self._needed:
            launches, tensors = self._call(problem)
            self._needed[problem] = instructions(self._program(problem), launches, tensors)
        return self._needed[problem] <= MOST_INSTRUCTIONS

    def __call__(self, problem: Problem, inputs: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """Return the outputs of the default candidate.

        Raises:
            KernelError: it takes too long to simulate, or fails.
        """
        try:
            if not self.affordable(problem):
                raise KernelError(_why_unaffordable(self._needed[problem]))
            launches, tensors = self._call(problem)
            return outputs(self._program(problem), launches, tensors, inputs)
        except KernelError as error:
            raise KernelError(
                f"the default candidate, with which all others are compared, fails at {problem}: {error}; correct the "
                "kernel, write `reference` in kernel.py, or choose a smaller problem"
            ) from error

    def some(
        self, problem: Problem, inputs: Mapping[str, torch.Tensor], rng: random.Random, most: float
    ) -> SomeOutputs | None:
        """Return the outputs of some blocks of the default candidate; None if its blocks depend on each other.

        Raises:
            KernelError: it fails.
        """
        launches, tensors = self._call(problem)
        program = self._program(problem)
        if not independent(tensors, program, tuple(launches)):
            return None
        (launch,) = launches
        cluster = program.cluster(launch)
        each = instructions(program, launches, tensors) / launch.blocks
        chosen = coverage.sample(cluster.grid_of(launch.grid), rng)
        room = int(most / max(1.0, each * cluster.blocks))
        if not room:
            return None
        blocks = cluster.members(launch.grid, sorted(rng.sample(chosen, min(room, len(chosen)))))
        memory, buffers = _memory(tensors, inputs)
        program.restore(memory)
        with recording(memory, WriteRecord(memory, by_block=False)) as record:
            _launched(program, launch, buffers, memory, blocks)
        elements, values = {}, {}
        for name, tensor in tensors.items():
            if tensor.role == "output":
                elements[name] = np.flatnonzero(record.written(buffers[name], tensor.bytes // tensor.elements))
                whole = _values(buffers[name], tensor).view(-1)
                values[name] = whole[torch.from_numpy(elements[name])].to(torch.float64)
        return SomeOutputs(launch.grid, blocks, elements, values)

    def _call(self, problem: Problem) -> tuple[Sequence[Launch], Mapping[str, Tensor]]:
        kernel = self._loaded()
        config = kernel.space.default()
        return launches_of(kernel, config, problem), kernel.workload.tensors(problem, config)

    def _loaded(self) -> Kernel:
        if self._kernel is None:
            raise KernelError("SameAsDefault() is a reference only in the `kernel` of a kernel.py")
        return self._kernel

    def _program(self, problem: Problem) -> SimulatedProgram:
        kernel = self._loaded()
        rendered = render(kernel, kernel.space.default(), problem)
        known = next((program for one, program in self._programs if one == rendered), None)
        if known is None:
            known = compiled(rendered)
            self._programs = [*self._programs[-3:], (rendered, known)]
        return known


def compiled(rendered: Rendered) -> SimulatedProgram:
    """Compile a program for the first simulated chip that has its features.

    Raises:
        KernelError: it does not compile.
    """
    for name in _CHIPS:
        program = compile_simulated(rendered, CHIPS[name])
        if isinstance(program, SimulatedProgram):
            return program
        if not needs_later_architecture(program.message):
            break
    assert isinstance(program, CompileFailure), program
    raise KernelError(f"it does not compile: {program.message}")


def instructions(program: SimulatedProgram, launches: Sequence[Launch], tensors: Mapping[str, Tensor]) -> float:
    """Return the warp instructions of a call, estimated from some blocks of each launch."""
    memory, buffers = _memory(tensors, {})
    total = 0.0
    for launch in launches:
        blocks = sorted({0, launch.blocks // 2})[:_COUNTED]
        result = program.launch(
            launch, buffers, memory, instruction_limit=MOST_INSTRUCTIONS, blocks=blocks, sanitize=False
        )
        ended = result.completed or _fault(result)  # the run itself reports an invalid access
        total += result.warp_instructions / len(blocks) * launch.blocks if ended else float("inf")
    return total


def _why_unaffordable(needed: float) -> str:
    if math.isinf(needed):
        return f"one of its blocks does not end within {MOST_INSTRUCTIONS:,} warp instructions, perhaps never"
    return f"it would need {needed:.2g} warp instructions, but at most {MOST_INSTRUCTIONS:,} are simulated"


def outputs(
    program: SimulatedProgram,
    launches: Sequence[Launch],
    tensors: Mapping[str, Tensor],
    inputs: Mapping[str, torch.Tensor],
) -> dict[str, torch.Tensor]:
    """Return the outputs of a call by name, in float64.

    Args:
        program: program of the call.
        launches: launches of the call.
        tensors: all buffers.
        inputs: contents of the inputs, in float64.

    Raises:
        KernelError: a launch did not end, or made an invalid access.
    """
    memory, buffers = _memory(tensors, inputs)
    program.restore(memory)
    for launch in launches:
        _launched(program, launch, buffers, memory)
        for buffer in buffers.values():
            buffer.initialised = True
    made = {}
    device = next((one.device for one in inputs.values()), torch.device("cpu"))
    for name, tensor in tensors.items():
        if tensor.role in ("output", "inout"):
            made[name] = _values(buffers[name], tensor).view(tensor.shape).to(device, torch.float64)
    return made


def _launched(
    program: SimulatedProgram, launch: Launch, buffers: Mapping[str, simt.Buffer], memory: simt.Memory,
    blocks: Sequence[int] | None = None,
) -> None:  # fmt: skip
    result = program.launch(
        launch, buffers, memory, instruction_limit=MOST_INSTRUCTIONS, sanitize=False, until_fatal=True, blocks=blocks
    )
    if not result.completed or result.fatal is not None:
        raise KernelError(_fault(result) or _why_unaffordable(math.inf))


def _fault(result: simt.LaunchResult) -> str:
    """Return the finding that ended a launch, in words; empty if none did, apart from the limit of instructions."""
    found = result.fatal
    return f"{found.kind.replace('_', ' ')} at line {found.line}" if found and found.kind != simt.UNFINISHED else ""


def _values(buffer: simt.Buffer, tensor: Tensor) -> torch.Tensor:
    return torch.from_numpy(buffer.read().reshape(-1)).view(torch_dtype(tensor.dtype))


def _memory(
    tensors: Mapping[str, Tensor], inputs: Mapping[str, torch.Tensor]
) -> tuple[simt.Memory, dict[str, simt.Buffer]]:
    """Return the buffers of a call; those without contents are zero, because outputs may stay partly unwritten."""
    memory = simt.Memory()
    buffers: dict[str, simt.Buffer] = {}
    for name, tensor in tensors.items():
        data = torch.zeros(tensor.shape, dtype=torch_dtype(tensor.dtype))
        if tensor.given and name in inputs:
            data.copy_(inputs[name])
        raw: Any = data.view(-1).view(torch.uint8).numpy()
        space = "const" if tensor.role == "constant" else "global"
        buffers[name] = memory.allocate(name, raw, writable=not tensor.kept, space=space)
    return memory, buffers
