"""Run of a candidate in exact arithmetic on the PTX machine."""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from evokern import simt
from evokern.compile.build import tensors_of
from evokern.declaration.feasibility import launches_of
from evokern.declaration.genes import Config
from evokern.declaration.kernel import DTYPE_BYTES, SIGNIFICAND_BITS, Kernel, Launch, Problem, Tensor
from evokern.device.sim.arguments import draw_buffers, drawn
from evokern.device.sim.program import SimulatedProgram
from evokern.simt import NO_PATHS, Array, Paths
from evokern.simt.exact import CODES, NO_RULE, OUTPUT, REASON_SHIFT, ExactMemory, P, Q, Value, is_signless
from evokern.study.settings import SimulationSettings

INPUTS = 3
"""Number of sets of inputs; a seed from this number on only changes their residues."""
OTHER = 1000
"""Seed of slices that replace those of the inputs."""
LIMIT = 10 * SimulationSettings().instruction_limit


@dataclass(frozen=True, slots=True)
class ExactRun:
    """Outputs of one candidate in exact arithmetic."""

    values: Mapping[str, Value]
    """Floating-point output → the residues of its elements."""
    bits: Mapping[str, Array]
    """Other output → its bytes."""
    memory: ExactMemory
    """Shadow memory, which knows why values are not comparable."""
    paths: Paths = NO_PATHS
    """Paths that the threads took."""
    fault: str = ""
    """The finding that makes the run incorrect; empty if there is none."""
    stopped: str = ""
    """How far the run came until its time limit; empty if it ended."""
    issued: int = 0
    """Warp instructions."""
    seconds: float = 0.0
    """Duration of the launches."""
    roots: bool = False
    """Whether the program has a square root or a logarithm."""


@dataclass(frozen=True, slots=True)
class Slices:
    """Change of one input along one axis."""

    axis: int
    """The axis."""
    order: Array
    """For each index, the index whose slice takes its place."""
    fresh: Array
    """Whether the slice at an index is replaced by another random one, before the slices change places."""

    def of(self, array: Array, other: Array, shape: Sequence[int]) -> Array:
        """Return an array of elements with the change; `other` has the random slices."""
        whole, new = (one.reshape(*shape, -1) for one in (array, other))
        where = self.fresh.reshape([-1 if axis == self.axis else 1 for axis in range(whole.ndim)])
        return np.where(where, new, whole).take(self.order, self.axis).reshape(array.shape)


def exact_run(
    kernel: Kernel, config: Config, problem: Problem, program: SimulatedProgram, *, seed: int = 0,
    end: float = math.inf, launches: Sequence[Launch] = (), blocks: Sequence[int] | None = None,
    slices: Mapping[str, Slices] | None = None, clock: Callable[[], float] = time.monotonic,
) -> ExactRun:  # fmt: skip
    """Run a candidate; the shadows of its inputs are independent random residues.

    Args:
        kernel: the kernel.
        config: the candidate.
        problem: the problem.
        program: the candidate's program.
        seed: seed of the inputs and of their residues.
        end: time on the clock at which the run stops.
        launches: launches in place of those that the candidate declares.
        blocks: blocks to run of each launch; None for all.
        slices: changes of inputs.
        clock: returns the time in seconds.
    """
    tensors = tensors_of(kernel, config, problem)
    memory = simt.Memory()
    buffers = draw_buffers(memory, tensors, seed % INPUTS)
    exact = ExactMemory(memory, end, clock)
    shadows = input_shadows(tensors, seed, every=True)
    if slices:
        _change(slices, tensors, buffers, shadows)
    for name, shadow in shadows.items():
        exact.write(buffers[name], tensors[name].dtype, shadow)
    began, issued, found = clock(), 0, NO_PATHS
    launches, fault, stopped, roots = launches or launches_of(kernel, config, problem), "", "", False
    for number, launch in enumerate(launches, 1):
        result = program.launch(
            launch, buffers, memory, instruction_limit=LIMIT, sanitize=False, record_paths=True, exact=exact,
            blocks=blocks,
        )  # fmt: skip
        roots |= any(is_signless(one) for one in program.entry(launch).instructions)
        found = found.merged(result.paths or NO_PATHS)
        issued += result.warp_instructions
        if exact.late:
            spent = clock() - began
            stopped = f"was stopped after {spent:.0f} s, in launch {number} of {len(launches)}, at {issued:,} warp "
            stopped += "instructions"
            break
        if not result.completed or result.errors:
            one = result.fault
            fault = f"{one.kind} at {one.file or kernel.source}:{one.line}: {one.hint}" if one else "it does not end"
            break
    outputs = {name: tensor for name, tensor in tensors.items() if tensor.role in ("output", "inout")}
    values = {name: _read(exact, buffers[name], one) for name, one in outputs.items() if one.dtype in SIGNIFICAND_BITS}
    bits = {name: buffers[name].read().reshape(int(np.prod(one.shape)), -1) for name, one in outputs.items()
            if name not in values}  # fmt: skip
    return ExactRun(values, bits, exact, found, fault, stopped, issued, clock() - began, roots)


def _change(
    slices: Mapping[str, Slices], tensors: Mapping[str, Tensor], buffers: Mapping[str, simt.Buffer],
    shadows: dict[str, Value],
) -> None:  # fmt: skip
    """Change slices of inputs, the real bytes together with the residues."""
    fresh, residues = {name: data for name, _, data in drawn(tensors, seed=OTHER)}, input_shadows(tensors, OTHER)
    for name, change in slices.items():
        shape, bits = tensors[name].shape, buffers[name].read()
        buffers[name].write(change.of(bits, fresh[name].view(-1).view(torch.uint8).numpy(), shape))
        if (own := shadows.get(name)) is not None:
            new = residues[name]
            shadows[name] = Value(change.of(own.p, new.p, shape), change.of(own.q, new.q, shape))


def _read(exact: ExactMemory, buffer: simt.Buffer, tensor: Tensor) -> Value:
    """Return the shadow of an output; a format without a rule is not comparable."""
    if tensor.dtype in CODES:
        return exact.read(buffer, tensor.dtype)
    none = np.zeros(int(np.prod(tensor.shape)), np.uint64)
    return Value(none, none, none + (OUTPUT | NO_RULE << REASON_SHIFT))


def input_shadows(tensors: Mapping[str, Tensor], seed: int, *, every: bool = False) -> dict[str, Value]:
    """Return random residues of the floating-point inputs or, with `every`, of all floating-point buffers.

    Unwritten memory has random residues, too, so that a result that depends on it differs. Numbers of one byte have the
    residues of their real values, because a table of all bytes may decode them.
    """
    return {
        name: _random(f"{name} {seed}" if seed else name, int(np.prod(tensor.shape)))
        for name, tensor in tensors.items()
        if tensor.dtype in CODES
        and DTYPE_BYTES[tensor.dtype] > 1
        and (tensor.given or (every and tensor.initial != "zero"))
    }


def _random(name: str, count: int) -> Value:
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    return Value(rng.integers(0, P, count, np.uint64), rng.integers(0, Q, count, np.uint64))
