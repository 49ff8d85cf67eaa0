"""What changes around a call of a timed graph, so that no call can know its answer beforehand.

A call that is timed again and again on the same inputs may do nothing: its output holds the answer already, or a
workspace remembers it. So before a call at a drawn position some inputs change, and outputs and workspaces are poisoned
in part; parts of that call's answer are kept in memory of ours, replay after replay, and compared with float64
references afterwards (`KeptAnswers`).

All of it concerns the input set of the drawn call p. Its inputs are `old` (as the bench drew them), or `new` in drawn
pieces of one drawn input (who watches another one must not see it), and replays take turns:

    before call p   in even replays inputs become `new`, and outputs and workspaces are poisoned;
                    in odd ones inputs become `old`, alone: what the calls before left in the output is wrong now
    behind call p   its answer is kept

So the drawn call of every replay sees inputs that differ from those of the set's call before, and an even number of
replays leaves inputs as the bench drew them. The number of calls of a set is chosen so that whoever works in every
second or third call only meets p in each of its phases, replay after replay (`evokern.measurement.timing.with_steps`).

Copies of one step happen at once: none writes what another one reads or writes. Nothing here needs a GPU: each step is
a list of `Copy`, which `evokern.device.gpu.timed_calls` makes a node of a graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from evokern.declaration.kernel import Tensor
from evokern.gate.bench import Bench
from evokern.gate.data import draw, is_float, poison_byte, torch_dtype
from evokern.gate.kept_answers import (
    SLOTS,
    Copy,
    Expected,
    KeptAnswers,
    Piece,
    Turn,
    Version,
    expectation,
    pick,
)
from evokern.gate.piece_draw import PieceDraw
from evokern.measurement.timing import STEPS
from evokern.study.settings import InputSet

MOST_COPIES = 160
"""Copies in one step: what a kernel's parameters have room for (4 KB), which take no load from memory."""
PIECE_BYTES = 128
"""Bytes of one kept piece of an output: four sectors."""
_KEPT = 96
"""Kept pieces of one call: 64 in rows drawn from all, 16 where poison was, 16 where the change shows."""
_CHANGES: tuple[tuple[int, int, InputSet], ...] = (
    (6, 1, "large"), (2, 128, "normal"), (8, 1024, "normal"), (24, 4096, "normal")
)  # fmt: skip
"""Pieces of an input that change, the bytes of each (at least an element), and how they are drawn. Few and small ones
deceive who recognises inputs by some of their elements, and a single one shows where it is large; where no output
differs by more than the tolerance, the next are taken."""
_IN_PLACE_BYTES = 256 * 1024
"""Bytes of what is computed in place that a step writes anew. Where it has more, calls work on their own results, which
nothing can be compared with, and no step is taken."""
_IN_PLACE_STEP = 32 * 1024
"""Bytes of it in one copy."""
_SHOWS = 2.0
"""A change shows where the answers to new and old inputs differ by more than this multiple of both tolerances."""


class TimedCalls:
    """The drawn call of one candidate's, or baseline's, timed graph on one bench."""

    def __init__(self, bench: Bench, *, still: bool = False) -> None:
        """Take the buffers that the graph works on; `plan` draws.

        Args:
            bench: the buffers, with inputs in them.
            still: inputs keep their values, though the same bytes are written: for a baseline that prepared its own.
        """
        self._bench = bench
        self._still = still
        self._steps: dict[int, int] = {}
        self._in_place = [name for name, tensor in bench.tensors.items() if tensor.role == "inout"]
        self._shows = False
        self._pieces: list[Piece] = []
        self._draw = PieceDraw(bench.generator)
        self.replays = 0
        """How often the graph ran; whoever runs it counts."""
        self.calls = 0
        """Calls of the graph; 0 before `plan`."""

    @property
    def active(self) -> bool:
        """Whether any step is taken."""
        return bool(self._steps)

    @property
    def settled(self) -> bool:
        """Whether the last replay left the inputs as the bench drew them, and answers to these."""
        return not self.active or self.replays % 2 == 0

    @property
    def changed(self) -> list[str]:
        """Inputs that change, where the change shows in what is kept."""
        return sorted({piece.name for piece in self._pieces}) if self._shows else []

    # ---- drawing

    def plan(self, calls: int) -> None:
        """Draw the call, what changes and what is kept, for a graph of so many calls.

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
        # References were computed; none is to be found while the candidate runs.
        bench.conceal()
        self._answers = KeptAnswers(bench, self._index, kept, expected, drawn)
        device = bench.generator.device
        self.executions = torch.zeros((STEPS, MOST_COPIES), dtype=torch.int32, device=device)
        """Executions of each step so far, once for every copy: for whoever makes nodes of them."""

    @property
    def slot_bytes(self) -> int:
        """Bytes from one slot of kept answers to the next."""
        return self._answers.ring.shape[1]

    def _draw_change(self) -> tuple[dict[str, list[Piece]], Expected]:
        """Draw what changes and what is kept, so that the change shows there.

        Returns:
            Output → pieces that are kept, and what they must be.
        """
        bench = self._bench
        if self._index in bench.changes and not self._still:
            self._pieces, old_values, new_values, self._poisoned, kept, expected = bench.changes[self._index]
            self._old, self._new, self._shows = _copied(old_values), _copied(new_values), True
            return kept, expected
        # Now, for the inputs are others below.
        old = bench.reference(self._index)
        given = bench.given(self._index)
        self._pieces = []
        able = [name for name in given if _changeable(bench.tensors[name])]
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
                answers = bench.answers(self._index, part)
            finally:
                self._write(given, self._old)
            kept, expected = self._draw_kept(old, answers)
            if self._shows:
                if bench.large and part is None:
                    values = _copied(self._old), _copied(self._new)
                    bench.changes[self._index] = self._pieces, *values, self._poisoned, kept, expected
                return kept, expected
            bench.reach[name] = level + 1
        self._old, self._new = self._values(given), self._values(given)
        return self._draw_kept(old, {})

    def _drawn_values(self, name: str, kind: InputSet) -> dict[Piece | str, torch.Tensor]:
        """Return new bytes for the pieces, which are all of one input."""
        tensor, count = self._bench.tensors[name], sum(piece.count for piece in self._pieces)
        drawn = torch.empty(count, dtype=torch_dtype(tensor.dtype), device=self._bench.generator.device)
        draw(replace(tensor, shape=(count,)), kind, drawn, self._bench.generator)
        parts = drawn.split([piece.count for piece in self._pieces])  # type: ignore[no-untyped-call]
        return {piece: _flat(part) for piece, part in zip(self._pieces, parts, strict=True)}

    def _write(self, given: Mapping[str, torch.Tensor], values: Mapping[Piece | str, torch.Tensor]) -> None:
        for piece in self._pieces:
            _flat(_elements(given, piece)).copy_(values[piece])

    def _values(self, given: Mapping[str, torch.Tensor]) -> dict[Piece | str, torch.Tensor]:
        """Return copies of the inputs' bytes: of each piece that changes, and all of what is computed in place."""
        values: dict[Piece | str, torch.Tensor] = {p: _flat(_elements(given, p)).clone() for p in self._pieces}
        return values | self._in_place_values(given)

    def _in_place_values(self, given: Mapping[str, torch.Tensor]) -> dict[Piece | str, torch.Tensor]:
        return {name: _flat(given[name]).clone() for name in self._in_place}

    def _draw_kept(
        self, old: Mapping[str, torch.Tensor], answers: Mapping[str, torch.Tensor]
    ) -> tuple[dict[str, list[Piece]], Expected]:
        """Draw what is kept; note whether the change shows there, and what the answers must be.

        Args:
            old: output → answer to the inputs as the bench drew them.
            answers: output → answer to the new inputs; none where nothing changes.
        """
        kept: dict[str, list[Piece]] = {}
        self._shows = False
        finite = all(bool(answer.isfinite().all()) for answer in answers.values())
        for name, tensor in self._bench.results.items():
            count = max(3, _KEPT // len(self._bench.results))
            kept[name] = self._draw.pieces(name, tensor, PIECE_BYTES, 2 * count // 3)
            length = kept[name][0].count
            starts = self._poisoned_elements(name, tensor, length, count // 6)
            if name in answers and finite:
                starts += self._changed_elements(name, old[name], answers[name], count // 6)
            kept[name] += [Piece(name, min(start, tensor.elements - length), length) for start in starts]
        versions: dict[Version, Mapping[str, torch.Tensor]] = {"old": old}
        if answers:
            versions["new"] = answers
        expected: Expected = {
            name: {
                version: expectation(self._bench.rule(name), pick(answer[name], pieces).to("cpu"))
                for version, answer in versions.items()
            }
            for name, pieces in kept.items()
        }
        return kept, expected

    def _poisoned_elements(self, name: str, tensor: Tensor, length: int, count: int) -> list[int]:
        """Draw elements of an output with which pieces begin that are poisoned."""
        width = tensor.bytes // tensor.elements
        own = [(at, size) for of, at, size in self._poisoned if of == name]
        chosen = [own[number] for number in self._draw.distinct(len(own), count)] if own else []
        return [at // width + self._draw.integer(size // width - length + 1) for at, size in chosen]

    def _changed_elements(self, name: str, before: torch.Tensor, after: torch.Tensor, count: int) -> list[int]:
        """Return elements of an output in which the change shows: half of them most, the others drawn."""
        rule = self._bench.rule(name)
        (old, old_room), (new, new_room) = expectation(rule, before), expectation(rule, after)
        over = ((new - old).abs_() - _SHOWS * (new_room + old_room)).flatten()
        most = over.topk(min(count // 2, over.numel())).indices
        where = (over > 0).nonzero().flatten()
        self._shows |= len(where) > 0
        drawn = where[self._draw.distinct(len(where), count - count // 2)]
        chosen: list[int] = torch.cat([most, drawn]).tolist() if len(where) else []
        return chosen

    # ---- while the graph is captured

    def step(self, index: int) -> tuple[int, list[Copy]] | None:
        """Return number and copies of the step before a call, or behind the last one; None where there is none."""
        number = self._steps.get(index)
        if number == 0:
            new = self._pieces_of("new", "even") + self._in_place_of("new", "even") + self._poison("even")
            return 0, new + self._pieces_of("old", "odd") + self._in_place_of("old", "odd")
        return None if number is None else (1, self._answers.copies())

    def captured(self, index: int, outputs: Mapping[str, torch.Tensor] | None) -> None:
        """Take the outputs of a call, just captured; None where it wrote into the bench's."""
        if self.active and index == self._answers.position:
            self._answers.outputs = self._bench.arguments(self._index) if outputs is None else outputs

    def _pieces_of(self, version: Version, turn: Turn) -> list[Copy]:
        given = self._bench.given(self._index)
        values = self._new if version == "new" else self._old
        # What is computed in place is written where a call finds it: see `_in_place_of`.
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

    def quiet(self) -> None:
        """Make both versions of the inputs what the bench has now: it drew them anew, and the graph runs again."""
        if self.active:
            given = self._bench.given(self._index)
            for key in self._old:
                value = _flat(given[key] if isinstance(key, str) else _elements(given, key))
                self._old[key].copy_(value)
                self._new[key].copy_(value)

    def fault(self) -> dict[str, Any] | None:
        """Compare what was kept with what it must be; return evidence of an error, None where all is right."""
        return self._answers.fault(self.replays, self.changed, self.calls) if self.active else None

    def report(self) -> dict[str, Any]:
        """Return what was done, as JSON values."""
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


def _changeable(tensor: Tensor) -> bool:
    """Whether elements of an input may be others, each by itself."""
    return is_float(tensor.dtype) and tensor.draw is None and tensor.change == "elements"


def _elements(tensors: Mapping[str, torch.Tensor], piece: Piece) -> torch.Tensor:
    return tensors[piece.name].view(-1)[piece.start : piece.start + piece.count]


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous tensor's bytes."""
    return tensor.view(-1).view(torch.uint8)
