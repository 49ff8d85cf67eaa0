"""Exact proof: a candidate against the default candidate, in exact arithmetic on the PTX machine."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from evokern import simt
from evokern.analysis.sanitize.candidate import few_rounds_remarks
from evokern.compile.build import tensors_of
from evokern.declaration.feasibility import check, launches_of
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Kernel, Problem, Tensor
from evokern.declaration.render import render
from evokern.device.sim.arguments import draw_buffers
from evokern.device.sim.program import SimulatedProgram, compile_simulated
from evokern.errors import SourceError, UsageError
from evokern.hardware.profiles import Profile
from evokern.simt import NO_PATHS, Array, Paths
from evokern.simt.exact import NO_Q, REASON_SHIFT, ZERO, ExactMemory, Obstacle, P, Q, Value
from evokern.study.settings import SimulationSettings

FLOATS = ("f16", "bf16", "f32")
LIMIT = 10 * SimulationSettings().instruction_limit
SAME, DIFFERENT, NOT_COMPARABLE, FAULT = "same", "different", "not comparable", "fault"


@dataclass(frozen=True, slots=True)
class ExactRun:
    """Outputs of one candidate in exact arithmetic."""

    values: Mapping[str, Value]
    """Floating-point output → the residues of its elements."""
    bits: Mapping[str, Array]
    """Other output → its bytes."""
    real: Mapping[str, Array]
    """Floating-point output → its real bytes."""
    memory: ExactMemory
    """Shadow memory, which knows why values are not comparable."""
    paths: Paths
    """Paths that the threads took."""
    fault: str
    """The finding that makes the run incorrect; empty if there is none."""


@dataclass(frozen=True, slots=True)
class OutputComparison:
    """Comparison of one output with that of another candidate."""

    output: str
    verdict: str
    element: int = -1
    """First element that differs or is not comparable."""
    count: int = 0
    """Number of such elements."""
    obstacle: Obstacle | None = None
    """Why it is not comparable."""
    detail: str = ""

    def __str__(self) -> str:
        """Return the verdict on one line."""
        text = f"{self.output}: {self.verdict}"
        if self.element >= 0:
            text += f" ({self.count} elements, the first is {self.element})"
        if self.obstacle is not None:
            one = self.obstacle
            where = f"{one.location.file or 'the source'}:{one.location.line}, {one.instruction}"
            text += f": {one.reason} ({where})" if one.instruction else f": {one.reason}"
        return text + (f": {self.detail}" if self.detail else "")


@dataclass(frozen=True, slots=True)
class ExactProof:
    """Comparison of a candidate with the default candidate at one problem."""

    title: str
    verdicts: tuple[OutputComparison, ...]
    remarks: tuple[str, ...]
    """Loops that did not repeat, so that the run says little about them."""

    def as_dict(self) -> dict[str, Any]:
        """Return the proof as data for JSON."""
        return asdict(self)


def prove_candidate(
    kernel: Kernel, config: Config, problem: Problem, chip: Profile, note: Callable[[str], None]
) -> ExactProof:
    """Compare a candidate with the default candidate at one problem.

    Args:
        kernel: the kernel.
        config: the candidate.
        problem: the problem.
        chip: chip with the resource limits.
        note: receives progress.

    Raises:
        UsageError: one of them cannot run there or does not compile.
    """
    basis = kernel.space.default()
    runs = []
    for which, one in (("default", basis), ("", config)):
        violation = check(kernel, one, [problem], chip, essential=True)
        if violation:
            raise UsageError(
                f"{f'the {which}' if which else 'this'} candidate of {kernel.name} cannot run at {problem} on "
                f"{chip.model}: {violation}; choose another problem with --problem"
            )
        note(f"{kernel.name} at {problem}: running the {which or 'changed'} candidate in exact arithmetic")
        runs.append(exact_run(kernel, one, problem, compiled(kernel, one, problem, chip), paths=one is config))
    default, run = runs
    if default.fault:
        raise UsageError(f"the default candidate of {kernel.name} does not run at {problem}: {default.fault}")
    remarks = few_rounds_remarks(run.paths, kernel.source)
    return ExactProof(f"{kernel.name} at {problem}", tuple(compared(run, default)), remarks)


def compiled(kernel: Kernel, config: Config, problem: Problem, chip: Profile) -> SimulatedProgram:
    """Return a candidate's program.

    Raises:
        SourceError: it does not compile.
    """
    program = compile_simulated(render(kernel, config, problem), chip)
    if not isinstance(program, SimulatedProgram):
        raise SourceError(f"the candidate does not compile: {program.log}")
    return program


def exact_run(
    kernel: Kernel, config: Config, problem: Problem, program: SimulatedProgram, *, paths: bool = False
) -> ExactRun:
    """Run a candidate; the shadows of its inputs are independent random residues.

    Args:
        kernel: the kernel.
        config: the candidate.
        problem: the problem.
        program: the candidate's program.
        paths: whether to record loops and branches.
    """
    tensors = tensors_of(kernel, config, problem)
    memory = simt.Memory()
    buffers = draw_buffers(memory, tensors)
    exact = ExactMemory(memory)
    for name, tensor in tensors.items():
        # Unwritten memory has random residues, too, so that a result that depends on it differs.
        if tensor.dtype in FLOATS and tensor.initial != "zero":
            exact.write(buffers[name], tensor.dtype, _random(name, tensor))
    fault, found = "", NO_PATHS
    for launch in launches_of(kernel, config, problem):
        result = program.launch(
            launch, buffers, memory, instruction_limit=LIMIT, sanitize=False, record_paths=paths, exact=exact
        )
        found = found.merged(result.paths or NO_PATHS)
        if not result.completed or result.errors:
            one = result.fault
            where = f"{one.kind} at {one.file or kernel.source}:{one.line}: {one.hint}" if one else "it does not end"
            fault = fault or where
    outputs = {name: tensor for name, tensor in tensors.items() if tensor.role in ("output", "inout")}
    values = {name: exact.read(buffers[name], one.dtype) for name, one in outputs.items() if one.dtype in FLOATS}
    bits = {name: buffers[name].read() for name in outputs if name not in values}
    real = {name: buffers[name].read() for name in values}
    return ExactRun(values, bits, real, exact, found, fault)


def _random(name: str, tensor: Tensor) -> Value:
    count = int(np.prod(tensor.shape))
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    return Value(rng.integers(0, P, count, np.uint64), rng.integers(0, Q, count, np.uint64))


def compared(run: ExactRun, other: ExactRun) -> list[OutputComparison]:
    """Compare the outputs of a candidate with those of another candidate on the same inputs."""
    if run.fault:
        return [OutputComparison(name, FAULT, detail=run.fault) for name in (*run.values, *run.bits)]
    found = [_values(name, value, run, other.values[name], other) for name, value in run.values.items()]
    for name, bits in run.bits.items():
        wrong = np.flatnonzero(bits.reshape(-1) != other.bits[name].reshape(-1))
        found.append(_verdict(name, DIFFERENT if wrong.size else SAME, wrong))
    return found


def _values(name: str, value: Value, run: ExactRun, wanted: Value, other: ExactRun) -> OutputComparison:
    bads = [np.zeros_like(one.p) if one.bad is None else one.bad for one in (value, wanted)]
    comparable = (bads[0] == 0) & (bads[1] == 0)
    both = (value.q != NO_Q) & (wanted.q != NO_Q)
    wrong = comparable & ((value.p != wanted.p) | (both & (value.q != wanted.q)))
    # Only an expression whose divisor is zero for all inputs is likely to divide by zero.
    wrong |= (bads[0] >> REASON_SHIFT == ZERO) & (bads[1] == 0)
    if wrong.any():
        return _verdict(name, DIFFERENT, np.flatnonzero(wrong))
    if comparable.all():
        return OutputComparison(name, SAME)
    at = np.flatnonzero(~comparable)
    for bad, owner in zip(bads, (run, other), strict=True):
        if bad[at[0]]:
            return OutputComparison(name, NOT_COMPARABLE, int(at[0]), at.size, owner.memory.obstacle(int(bad[at[0]])))
    raise AssertionError(name)


def _verdict(name: str, verdict: str, places: Array) -> OutputComparison:
    return OutputComparison(name, verdict, int(places[0]) if places.size else -1, int(places.size))
