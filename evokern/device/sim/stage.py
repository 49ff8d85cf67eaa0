"""Buffers of a full-size problem on the PTX machine, and checks of the elements that sampled blocks wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from evokern import simt
from evokern.declaration.as_data.golden import KernelReference
from evokern.declaration.kernel import Kernel, Launch, Problem, Tensor, Tolerance
from evokern.device.sim.arguments import POISON, drawn
from evokern.device.sim.program import SimulatedProgram
from evokern.gate.comparison import allowed_error
from evokern.gate.data import torch_dtype
from evokern.gate.references import answers_of
from evokern.gate.sealed import ReferenceValues
from evokern.simt import WriteRecord
from evokern.study.settings import InputSet
from evokern.wording import distinguishing_digits

MOST_FLOPS_CHECKED = 1e10
"""Maximum number of operations for computing a float64 reference on the CPU to check sampled blocks."""
MOST_ELEMENTS_CHECKED = 1 << 25
"""Maximum number of output elements for that check."""
THOROUGH = 20
"""Factor of the number of operations in a verification, which checks one candidate: ten seconds on one core."""


class ProblemBuffers:
    """Buffers of one problem, reused between candidates."""

    def __init__(
        self,
        problem: Problem,
        tensors: Mapping[str, Tensor],
        kind: InputSet = "normal",
        seed: int = 0,
        memory: simt.Memory | None = None,
    ) -> None:
        """Allocate the buffers and generate the inputs.

        A write to an input is a finding and has no effect, because the next candidate needs the input.

        Args:
            problem: the problem.
            tensors: its buffers.
            kind: kind of inputs.
            seed: seed of the inputs.
            memory: memory for the buffers; None creates one.
        """
        self.key = (problem, tuple(tensors.items()))
        self.problem = problem
        self.tensors = dict(tensors)
        self.inputs: dict[str, torch.Tensor] = {}
        """Inputs by name, in their own dtypes."""
        self._raw: dict[str, Any] = {}
        self._kind = kind
        self._answers: dict[tuple[tuple[float, ...], ...], ReferenceValues] = {}
        self.memory = memory or simt.Memory()
        self.bytes = float(sum(tensor.bytes for tensor in tensors.values()))
        self.buffers: dict[str, simt.Buffer] = {}
        for name, tensor, data in drawn(tensors, kind, seed):
            if tensor.given:
                self.inputs[name] = data
            raw: Any = data.view(-1).view(torch.uint8).numpy()
            if tensor.role == "inout":
                self._raw[name] = raw
            self.buffers[name] = self.memory.allocate(
                name,
                np.asarray(raw),
                writable=not tensor.kept,
                space="const" if tensor.role == "constant" else "global",
            )

    def poison(self) -> None:
        """Fill the outputs with poison, to detect the elements that blocks write."""
        for name, tensor in self.tensors.items():
            if tensor.role == "output":
                self.buffers[name].write(np.full(tensor.bytes, POISON, np.uint8))

    def reset(self) -> None:
        """Set every buffer to its state before a call: inputs, declared zeros, poison elsewhere."""
        self.poison()
        for name, tensor in self.tensors.items():
            if tensor.role == "inout":
                self.buffers[name].write(self._raw[name])
            elif tensor.role == "workspace":
                fill = 0 if tensor.initial == "zero" else POISON
                self.buffers[name].write(np.full(tensor.bytes, fill, np.uint8))

    def written(self, record: WriteRecord) -> dict[str, npt.NDArray[np.bool_]]:
        """Return a mask of the written elements of each output, from a record of writes."""
        return {
            name: record.written(self.buffers[name], tensor.bytes // tensor.elements)
            for name, tensor in self.tensors.items()
            if tensor.role in ("output", "inout")
        }

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Restore all buffers when the context ends, for code that only counts."""
        before = self.memory.storage.copy()
        try:
            yield
        finally:
            self.memory.storage[:] = before

    def results(
        self,
        kernel: Kernel,
        tolerances: Mapping[str, Tolerance],
        marks: Mapping[str, npt.NDArray[np.bool_]] | None = None,
    ) -> Iterator[tuple[str, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Yield each output as its name, its elements, the reference, the allowed errors, and which were written.

        Args:
            kernel: kernel with the reference.
            tolerances: tolerance of each output.
            marks: which elements were written; None derives it from the remaining poison.
        """
        answers = self._answer(kernel, tolerances)
        for name, reference in answers.items():
            tensor = self.tensors[name]
            raw = self.buffers[name].read().reshape(tensor.elements, -1)
            changed = (raw != POISON).any(1) if marks is None else marks[name]
            written = torch.from_numpy(changed).view(tensor.shape)
            got = self.values(name).to(torch.float64)
            allowed = allowed_error(tolerances[name].for_tensor(tensor), reference, answers.errors.get(name))
            yield name, got.view(tensor.shape), reference, allowed, written

    def values(self, name: str) -> torch.Tensor:
        """Return the contents of a buffer in its own dtype, flat."""
        return torch.from_numpy(self.buffers[name].read().reshape(-1)).view(torch_dtype(self.tensors[name].dtype))

    def _answer(self, kernel: Kernel, tolerances: Mapping[str, Tolerance]) -> ReferenceValues:
        """Return the references with the bounds for the current candidate."""
        factors = tuple(tensor.factors for tensor in self.tensors.values())
        if factors not in self._answers:
            self._answers.clear()
            self._answers[factors] = answers_of(
                kernel, self.problem, self.tensors, tolerances, self.inputs, exact=self._kind == "exact"
            )
        return self._answers[factors]

    def fault(
        self,
        kernel: Kernel,
        tolerances: Mapping[str, Tolerance],
        marks: Mapping[str, npt.NDArray[np.bool_]] | None = None,
        who: str = "sampled blocks",
        *,
        idle: bool = False,
        block_of: Callable[[str, int], str] = lambda output, element: "",
    ) -> str | None:
        """Return a description of the wrong elements that some blocks wrote, or None.

        Blocks that skip their work only while they are counted would make a candidate look fast. The small problems of
        the gate may not reveal that.

        Args:
            kernel: kernel with the reference.
            tolerances: tolerance of each output.
            marks: as for `results`.
            who: description of the blocks for the message.
            idle: whether blocks may write nothing.
            block_of: returns which block wrote an element of an output, for example " of block 3"; empty if unknown.
        """
        written_at_all = idle
        for name, everything, reference, allowed, written in self.results(kernel, tolerances, marks):
            written_at_all |= bool(written.any())
            got, expected = everything[written], reference[written]
            wrong = ~((got - expected).abs() <= allowed[written])
            if wrong.any():
                first = int(wrong.nonzero()[0, 0])
                shown = distinguishing_digits(float(got[first]), float(expected[first]))
                place, limit = written.nonzero()[first].tolist(), float(allowed[written][first])
                block = block_of(name, int(np.ravel_multi_index(place, self.tensors[name].shape)))
                return (
                    f"{int(wrong.sum())} of {len(got)} elements of {name!r} written by {who} are wrong; the first, "
                    f"{name}{place}{block}, is {shown[0]} instead of {shown[1]} within {limit:.3g}"
                )
        return None if written_at_all else f"{who} wrote no element of any output"

    def fault_by_block(
        self,
        kernel: Kernel,
        tolerances: Mapping[str, Tolerance],
        record: WriteRecord,
        launch: Launch,
        who: str = "sampled blocks",
    ) -> str | None:
        """Return the same as `fault`, with the block of the first wrong element, from a record by block."""

        def block_of(name: str, element: int) -> str:
            by, elements = record.elements(self.buffers[name], self.tensors[name].bytes // self.tensors[name].elements)
            x, y, z = np.unravel_index(by[elements == element][-1], launch.grid, order="F")
            return f" of block {x}" if launch.grid[1:] == (1, 1) else f" of block ({x}, {y}, {z})"

        return self.fault(kernel, tolerances, self.written(record), who, block_of=block_of)


def judges_blocks(
    kernel: Kernel,
    problem: Problem,
    tensors: Mapping[str, Tensor],
    program: SimulatedProgram,
    launches: tuple[Launch, ...],
) -> bool:
    """Return whether each block can be checked separately: independent blocks and an affordable reference."""
    return independent(tensors, program, launches) and has_reference(kernel, problem, tensors)


def independent(tensors: Mapping[str, Tensor], program: SimulatedProgram, launches: tuple[Launch, ...]) -> bool:
    """Return whether blocks are independent: one launch, no barrier of the grid, workspace or module variable."""
    alone = len(launches) == 1 and not program.needs_whole_grid(launches[0])
    alone &= all(t.kept or t.role == "output" for t in tensors.values())
    return alone and not any(v.space == "global" for v in program.entry(launches[0]).data_symbols)


def has_reference(kernel: Kernel, problem: Problem, tensors: Mapping[str, Tensor], *, thorough: bool = False) -> bool:
    """Return whether the float64 reference of a problem is cheap enough for a CPU."""
    if elements_of_results(tensors) > MOST_ELEMENTS_CHECKED:
        return False
    reference = kernel.workload.reference
    known = reference.affordable(problem) if isinstance(reference, KernelReference) else None
    most = MOST_FLOPS_CHECKED * (THOROUGH if thorough else 1)
    return known if known is not None else kernel.workload.flops(problem) <= most


def elements_of_results(tensors: Mapping[str, Tensor]) -> int:
    """Return the number of elements of all outputs together."""
    return sum(tensor.elements for tensor in tensors.values() if tensor.role in ("output", "inout"))
