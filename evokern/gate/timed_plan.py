"""Plan of the input changes in a timed graph, which catch candidates that skip work in timed calls.

A call that is timed repeatedly on the same inputs could do nothing: its output, or a workspace, already holds the
result. Before one call at a random position p, the graph therefore changes some inputs and poisons parts of outputs
and workspaces. After the call, it records parts of the outputs, which are compared with float64 references after the
timing (`RecordedOutputs`).

The input set of call p has two versions: `old`, the original inputs, and `new`, with changes in random pieces of one
random input. Replays alternate between them:

    before call p   even replays write the `new` inputs, and poison outputs and workspaces;
                    odd replays write the `old` inputs, so that the result of the previous call is now wrong
    after call p    its outputs are recorded

In every replay, call p thus sees inputs that differ from those of the set's previous call. An even number of replays
leaves the original inputs. A candidate may work only in every second or third call. The number of calls per set is
therefore chosen so that p meets each phase of such a cycle (`evokern.measurement.timing.with_steps`).

The copies of one step run concurrently; none writes to memory that another one reads or writes. This module needs no
GPU: `evokern.device.gpu.timed_calls` turns each list of `Copy` into a graph node.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from evokern.declaration.kernel import Tensor
from evokern.gate.buffer_set import BufferSet
from evokern.gate.data import draw, is_float, poison_byte, torch_dtype
from evokern.gate.recorded_outputs import (
    SLOTS,
    Copy,
    Expected,
    Piece,
    RecordedOutputs,
    Turn,
    Version,
    expectation,
    pick,
)
from evokern.gate.sealed import ReferenceValues
from evokern.gate.slicing import Indices, SlicedTensors
from evokern.measurement.timing import STEPS
from evokern.study.settings import InputSet

InputSlice = tuple[SlicedTensors, Indices]
"""A declared slice with indices along its axes."""
_POISONED = 24
"""Maximum number of poisoned parts."""
_POISON_BYTES = 4096
"""Maximum bytes of a poisoned part; a step writes at most 96 KB of poison, which takes less time than a launch."""


class RandomPieces:
    """Random choice of pieces of tensors."""

    def __init__(self, generator: torch.Generator) -> None:
        """Seed the random number generator.

        Args:
            generator: private source of the seed.
        """
        seed = torch.randint(2**62, (), generator=generator, device=generator.device)
        self._random = random.Random(int(seed))

    def integer(self, below: int) -> int:
        """Draw a number from 0 to `below` - 1, or 0 if `below` is less than 1."""
        return self._random.randrange(max(below, 1))

    def distinct(self, below: int, count: int) -> list[int]:
        """Draw up to `count` different numbers below `below`, in random order."""
        return self._random.sample(range(below), min(below, count))

    def poison(self, tensors: Mapping[str, Tensor]) -> list[tuple[str, int, int]]:
        """Draw the parts to poison as (tensor, first byte, bytes): up to half of each output and workspace."""
        targets = {
            name: tensor
            for name, tensor in tensors.items()
            if tensor.role == "output" or (tensor.role == "workspace" and tensor.initial == "poison")
        }
        parts: list[tuple[str, int, int]] = []
        for name, tensor in list(targets.items())[:_POISONED]:
            count = max(1, _POISONED // len(targets))
            size = max(1, min(_POISON_BYTES, tensor.bytes // (2 * count)))
            size = size // 16 * 16 or size
            parts += [self._inside(name, at * size, size) for at in self.distinct(tensor.bytes // size, count)]
        return parts

    def _inside(self, name: str, start: int, size: int) -> tuple[str, int, int]:
        """Draw a sub-range of random length, so that a candidate that checks one element per block misses some."""
        units = size // 16
        if units < 2:
            return name, start, size
        length = max(1, int(units ** self._random.random()))
        return name, start + 16 * self.integer(units - length + 1), 16 * length

    def input_slice(self, name: str, tensor: Tensor, slices: Sequence[SlicedTensors], size: int) -> InputSlice | None:
        """Draw a position of a declared slice in which an input changes; None if no slice contains the input.

        Args:
            name: the input.
            tensor: declaration of the input.
            slices: the declared slices.
            size: bytes of a piece that must fit in the slice.
        """
        able = [one for one in slices if name in one.inputs]
        if not able:
            return None
        one = able[self.integer(len(able))]
        at: list[list[int]] = []
        for axis, extent in zip(one.declared.cut(name), one.extents, strict=True):
            # A piece is consecutive in memory, so it spans as many indices of the last axis as it has elements.
            count = min(extent, _length(tensor, size)) if axis == len(tensor.shape) - 1 else 1
            first = self.integer(extent - count + 1)
            at.append(list(range(first, first + count)))
        return one, tuple(at)

    def pieces(self, name: str, tensor: Tensor, size: int, count: int, inside: InputSlice | None = None) -> list[Piece]:
        """Draw pieces that do not overlap, each in a different row if there are enough rows.

        Args:
            name: the tensor.
            tensor: declaration of the tensor.
            size: bytes of a piece; at least one element, at most the tensor.
            count: number of pieces; fewer are returned if they do not fit.
            inside: slice that must contain the pieces.
        """
        length = _length(tensor, size)
        row = tensor.shape[-1] if tensor.shape else 1
        rows = tensor.elements // row
        if inside is not None:
            return self._pieces_inside(inside, name, tensor, min(length, row), count)
        if row >= length and rows >= count:
            starts = [at * row + self.integer(row - length + 1) for at in self.distinct(rows, count)]
        else:
            phase = self.integer(tensor.elements % length + 1)
            starts = [phase + at * length for at in self.distinct(tensor.elements // length, count)]
        return [Piece(name, start, length) for start in starts]

    def _pieces_inside(self, inside: InputSlice, name: str, tensor: Tensor, length: int, count: int) -> list[Piece]:
        """Draw pieces inside a slice of an input."""
        one, at = inside
        fixed = dict(zip(one.declared.cut(name), at, strict=True))
        last = len(tensor.shape) - 1
        starts = set()
        for _ in range(count):
            start = 0
            for axis, extent in enumerate(tensor.shape):
                place = fixed[axis][0] if axis in fixed else self.integer(extent)
                if axis == last and axis not in fixed:
                    place = self.integer(extent // length) * length
                start = start * extent + place
            starts.add(start)
        return [Piece(name, start, length) for start in sorted(starts)]


def _length(tensor: Tensor, size: int) -> int:
    """Return the number of elements of a piece of `size` bytes, at least 1."""
    return max(1, min(tensor.elements, size * tensor.elements // tensor.bytes))


MOST_COPIES = 160
"""Maximum number of copies in one step; they fit in the 4 KB of kernel parameters, which need no memory loads."""
PIECE_BYTES = 128
"""Bytes of one recorded piece of an output: four sectors."""
_KEPT = 96
"""Number of recorded pieces of one call: 64 in random rows, 16 in poisoned parts, 16 where the change shows."""
_CHANGES: tuple[tuple[int, int, InputSet], ...] = (
    (6, 1, "large"), (2, 128, "normal"), (8, 1024, "normal"), (24, 4096, "normal")
)  # fmt: skip
"""Levels of an input change: number of pieces, bytes of each (at least an element), and kind of the new values.

Few small pieces deceive candidates that recognise inputs by some elements, and one large value shows in the output. If
no output differs by more than the tolerance, the next level is used."""
_IN_PLACE_BYTES = 256 * 1024
"""Maximum bytes of in-place outputs that a step rewrites. If they are larger, calls compute on their own results, which
have no reference, and the graph gets no steps."""
_IN_PLACE_STEP = 32 * 1024
"""Bytes of in-place outputs in one copy."""
_VISIBLE_FACTOR = 2.0
"""A change shows where the results for new and old inputs differ by more than this multiple of both tolerances."""


class TimedCalls:
    """Input change and recorded call in the timed graph of one candidate or baseline."""

    def __init__(self, bench: BufferSet, *, still: bool = False) -> None:
        """Create a plan for the buffers of a graph; `plan` makes the random choices.

        Args:
            bench: the buffer set, filled with inputs.
            still: whether inputs keep their values; the same bytes are rewritten. Used for a baseline that prepared
                its own inputs.
        """
        self._bench = bench
        self._still = still
        self._steps: dict[int, int] = {}
        self._in_place = [name for name, tensor in bench.tensors.items() if tensor.role == "inout"]
        self._change_visible = False
        self._pieces: list[Piece] = []
        self._draw = RandomPieces(bench.generator)
        self.replays = 0
        """Number of replays of the graph; the caller that runs it must update this count."""
        self.calls = 0
        """Number of calls in the graph; 0 before `plan`."""

    @property
    def active(self) -> bool:
        """Whether the graph has any steps."""
        return bool(self._steps)

    @property
    def settled(self) -> bool:
        """Whether the last replay left the original inputs and the results for these inputs."""
        return not self.active or self.replays % 2 == 0

    @property
    def changed(self) -> list[str]:
        """Names of the changed inputs; empty if the change does not affect the recorded pieces."""
        return sorted({piece.name for piece in self._pieces}) if self._change_visible else []

    # ---- drawing

    def plan(self, calls: int) -> None:
        """Choose the call, the input change and the recorded pieces at random for a graph of `calls` calls.

        Raises:
            KernelError: the reference raised.
        """
        bench = self._bench
        self.calls = calls
        if sum(bench.tensors[name].bytes for name in self._in_place) > _IN_PLACE_BYTES:
            return
        drawn = self._draw.integer(calls)
        self._index = drawn % bench.sets
        self._poisoned = self._draw.poison(bench.tensors)
        kept, expected = self._draw_change()
        self._steps = {drawn: 0, drawn + 1: 1}
        # Erase the computed references before the candidate runs.
        bench.erase_secrets()
        self._answers = RecordedOutputs(bench, self._index, kept, expected, drawn)
        device = bench.generator.device
        self.executions = torch.zeros((STEPS, MOST_COPIES), dtype=torch.int32, device=device)
        """Number of executions of each step so far, once per copy; used by the graph nodes."""

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot of recorded outputs."""
        return self._answers.ring.shape[1]

    def _draw_change(self) -> tuple[dict[str, list[Piece]], Expected]:
        """Draw the input change and the recorded pieces, such that the change shows in them.

        Returns:
            Output → recorded pieces, and their expected values.
        """
        bench = self._bench
        if self._index in bench.changes and not self._still:
            self._pieces, old_values, new_values, self._poisoned, kept, expected = bench.changes[self._index]
            self._old, self._new, self._change_visible = _copied(old_values), _copied(new_values), True
            return kept, expected
        # Compute it now, because the inputs are changed below.
        old = bench.reference(self._index)
        given = bench.given(self._index)
        self._pieces = []
        able = [
            name for name in given  # only elements that may change independently
            if is_float((tensor := bench.tensors[name]).dtype) and tensor.draw is None and tensor.change == "elements"
        ]  # fmt: skip
        showing = [name for name in able if bench.reach.get(name, 0) < len(_CHANGES)]
        name = showing[self._draw.integer(len(showing))] if showing and not self._still else ""
        for level in range(bench.reach.get(name, 0), len(_CHANGES)) if name else ():
            count, size, kind = _CHANGES[level]
            part = self._draw.input_slice(name, bench.tensors[name], bench.slices, size)
            self._pieces = self._draw.pieces(name, bench.tensors[name], size, count, part)
            self._old, drawn = self._values(given), self._drawn_values(name, kind)
            try:
                self._write(given, drawn)
                self._new = drawn | self._in_place_values(given)
                answers = bench.current_reference(self._index, part)
            finally:
                self._write(given, self._old)
            kept, expected = self._draw_kept(old, answers)
            if self._change_visible:
                if bench.large and part is None:
                    values = _copied(self._old), _copied(self._new)
                    bench.changes[self._index] = self._pieces, *values, self._poisoned, kept, expected
                return kept, expected
            bench.reach[name] = level + 1
        self._old, self._new = self._values(given), self._values(given)
        return self._draw_kept(old, ReferenceValues({}))

    def _drawn_values(self, name: str, kind: InputSet) -> dict[Piece | str, torch.Tensor]:
        """Return new bytes for the pieces, which all belong to one input."""
        tensor, count = self._bench.tensors[name], sum(piece.count for piece in self._pieces)
        drawn = torch.empty(count, dtype=torch_dtype(tensor.dtype), device=self._bench.generator.device)
        if self._bench.kinds[self._index] == "exact":
            kind = "exact"  # its references have no error bound
        draw(replace(tensor, shape=(count,)), kind, drawn, self._bench.generator)
        parts = drawn.split([piece.count for piece in self._pieces])  # type: ignore[no-untyped-call]
        return {piece: _flat(part) for piece, part in zip(self._pieces, parts, strict=True)}

    def _write(self, given: Mapping[str, torch.Tensor], values: Mapping[Piece | str, torch.Tensor]) -> None:
        for piece in self._pieces:
            _flat(_elements(given, piece)).copy_(values[piece])

    def _values(self, given: Mapping[str, torch.Tensor]) -> dict[Piece | str, torch.Tensor]:
        """Return copies of the bytes of each changed piece and of all in-place outputs."""
        values: dict[Piece | str, torch.Tensor] = {p: _flat(_elements(given, p)).clone() for p in self._pieces}
        return values | self._in_place_values(given)

    def _in_place_values(self, given: Mapping[str, torch.Tensor]) -> dict[Piece | str, torch.Tensor]:
        return {name: _flat(given[name]).clone() for name in self._in_place}

    def _draw_kept(self, old: ReferenceValues, answers: ReferenceValues) -> tuple[dict[str, list[Piece]], Expected]:
        """Draw the recorded pieces and their expected values; set `_change_visible` if the change shows in them.

        Args:
            old: output → result for the original inputs.
            answers: output → result for the new inputs; empty if nothing changes.
        """
        kept: dict[str, list[Piece]] = {}
        self._change_visible = False
        finite = all(bool(answer.isfinite().all()) for answer in answers.values())
        for name, tensor in self._bench.results.items():
            count = max(3, _KEPT // len(self._bench.results))
            kept[name] = self._draw.pieces(name, tensor, PIECE_BYTES, 2 * count // 3)
            length = kept[name][0].count
            starts = self._poisoned_elements(name, tensor, length, count // 6)
            if name in answers and finite:
                starts += self._changed_elements(name, old, answers, count // 6)
            kept[name] += [Piece(name, min(start, tensor.elements - length), length) for start in starts]
        versions: dict[Version, ReferenceValues] = {"old": old}
        if answers:
            versions["new"] = answers
        expected: Expected = {
            name: {
                version: expectation(
                    self._bench.rule(name),
                    pick(answer[name], pieces).to("cpu"),
                    None if name not in answer.errors else pick(answer.errors[name], pieces).to("cpu"),
                )
                for version, answer in versions.items()
            }
            for name, pieces in kept.items()
        }
        return kept, expected

    def _poisoned_elements(self, name: str, tensor: Tensor, length: int, count: int) -> list[int]:
        """Draw first elements of pieces in the poisoned parts of an output."""
        width = tensor.bytes // tensor.elements
        own = [(at, size) for of, at, size in self._poisoned if of == name]
        chosen = [own[number] for number in self._draw.distinct(len(own), count)] if own else []
        return [at // width + self._draw.integer(size // width - length + 1) for at, size in chosen]

    def _changed_elements(self, name: str, before: ReferenceValues, after: ReferenceValues, count: int) -> list[int]:
        """Return elements of an output in which the change shows: half with the largest change, half random."""
        rule = self._bench.rule(name)
        old, old_room = expectation(rule, before[name], before.errors.get(name))
        new, new_room = expectation(rule, after[name], after.errors.get(name))
        over = ((new - old).abs_() - _VISIBLE_FACTOR * (new_room + old_room)).flatten()
        most = over.topk(min(count // 2, over.numel())).indices
        where = (over > 0).nonzero().flatten()
        self._change_visible |= len(where) > 0
        drawn = where[self._draw.distinct(len(where), count - count // 2)]
        chosen: list[int] = torch.cat([most, drawn]).tolist() if len(where) else []
        return chosen

    # ---- while the graph is captured

    def step(self, index: int) -> tuple[int, list[Copy]] | None:
        """Return number and copies of the step before call `index` or after the last call; None without a step."""
        number = self._steps.get(index)
        if number == 0:
            new = self._pieces_of("new", "even") + self._in_place_of("new", "even") + self._poison("even")
            return 0, new + self._pieces_of("old", "odd") + self._in_place_of("old", "odd")
        return None if number is None else (1, self._answers.copies())

    def captured(self, index: int, outputs: Mapping[str, torch.Tensor] | None) -> None:
        """Store the outputs of the call that was just captured; None if the call wrote into the buffer set."""
        if self.active and index == self._answers.position:
            self._answers.outputs = self._bench.arguments(self._index) if outputs is None else outputs

    def _pieces_of(self, version: Version, turn: Turn) -> list[Copy]:
        given = self._bench.given(self._index)
        values = self._new if version == "new" else self._old
        # In-place outputs are written by `_in_place_of`.
        pieces = [piece for piece in self._pieces if piece.name not in self._in_place]
        return [Copy(_flat(_elements(given, piece)), values[piece], turn=turn) for piece in pieces]

    def _in_place_of(self, version: Version, turn: Turn) -> list[Copy]:
        arguments = self._bench.arguments(self._index)
        values = self._new if version == "new" else self._old
        return [
            Copy(_flat(arguments[name])[at : at + _IN_PLACE_STEP], values[name][at : at + _IN_PLACE_STEP], turn=turn)
            for name in self._in_place
            for at in range(0, len(values[name]), _IN_PLACE_STEP)
        ]

    def _poison(self, turn: Turn) -> list[Copy]:
        arguments, tensors = self._bench.arguments(self._index), self._bench.tensors
        return [
            Copy(_flat(arguments[name])[at : at + size], None, poison_byte(tensors[name], 0), turn)
            for name, at, size in self._poisoned
        ]

    # ---- afterwards

    def reset_versions(self) -> None:
        """Set both versions of the inputs to the current inputs, before the graph runs again on new inputs."""
        if self.active:
            given = self._bench.given(self._index)
            for key in self._old:
                value = _flat(given[key] if isinstance(key, str) else _elements(given, key))
                self._old[key].copy_(value)
                self._new[key].copy_(value)

    def fault(self) -> dict[str, Any] | None:
        """Compare the recorded outputs with the expected values; return evidence of an error, or None."""
        return self._answers.fault(self.replays, self.changed, self.calls) if self.active else None

    def report(self) -> dict[str, Any]:
        """Return a summary of the plan, as JSON values."""
        if not self.active:
            return {"calls": self.calls, "drawn": []}
        return {
            "calls": self.calls,
            "drawn": [self._answers.position],
            "changed": self.changed,
            "kept": self._answers.elements,
            "replays": min(self.replays, SLOTS),
        }


def _copied(values: Mapping[Piece | str, torch.Tensor]) -> dict[Piece | str, torch.Tensor]:
    return {key: value.clone() for key, value in values.items()}


def _elements(tensors: Mapping[str, torch.Tensor], piece: Piece) -> torch.Tensor:
    return tensors[piece.name].view(-1)[piece.start : piece.start + piece.count]


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a contiguous tensor as a flat view."""
    return tensor.view(-1).view(torch.uint8)
