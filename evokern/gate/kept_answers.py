"""Parts of a drawn call's answer, kept replay after replay of a timed graph, then compared with references."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from evokern.gate.bench import Bench
from evokern.gate.comparison import Rule, unravelled
from evokern.wording import told_apart

SLOTS = 96
"""Replays whose answers are kept: the samples of a candidate (60 unless a study says otherwise), and the untimed replay
before each batch of them."""

Turn = Literal["always", "even", "odd"]
Version = Literal["new", "old"]
_VERSIONS: tuple[Version, Version] = "new", "old"
"""What inputs are in even and in odd replays."""
Answers = tuple[torch.Tensor, torch.Tensor]
"""What an output must be, and the error allowed, in float64."""
Expected = dict[str, dict[Version, Answers]]
"""Output → what it must be in the pieces that are kept, shape (pieces, elements), for each version of the inputs; for
`old` ones alone where inputs keep their values. In host memory, where no candidate finds it."""


@dataclass(frozen=True)
class Copy:
    """Bytes that one step writes."""

    to: torch.Tensor
    """Where, a flat view of bytes; of a kept answer its place in slot 0."""
    source: torch.Tensor | None
    """What, a view of as many bytes; None fills with `value`."""
    value: int = 0
    """Byte of a fill."""
    turn: Turn = "always"
    """In which executions of the step, counted from 0."""
    kept: bool = False
    """Whether it goes into the slot of this execution."""


@dataclass(frozen=True)
class Piece:
    """Elements side by side."""

    name: str
    """The tensor."""
    start: int
    """First element, in row-major order."""
    count: int
    """Elements."""


class KeptAnswers:
    """The memory in which answers are kept, and what they must be."""

    def __init__(
        self,
        bench: Bench,
        index: int,
        pieces: Mapping[str, Sequence[Piece]],
        expected: Expected,
        position: int,
    ) -> None:
        """Make room.

        Args:
            bench: whose outputs they are.
            index: the input set.
            pieces: of each output what is kept, pieces of one length.
            expected: what they must be.
            position: the drawn call, from 0.
        """
        self._bench, self._index, self._pieces, self._expected = bench, index, pieces, expected
        self._kept_as: dict[str, tuple[torch.dtype, int]] = {}
        self.position = position
        """The drawn call, from 0."""
        self.outputs: Mapping[str, torch.Tensor] | None = None
        """Its outputs, from when it is captured until they are kept."""
        room = sum(len(kept) * _room(kept[0].count) for kept in pieces.values())
        self.ring = torch.zeros((SLOTS, room), dtype=torch.uint8, device=bench.generator.device)
        """What is kept: one slot per replay, in turn."""

    @property
    def elements(self) -> int:
        """Elements kept of each replay."""
        return sum(piece.count for kept in self._pieces.values() for piece in kept)

    def copies(self) -> list[Copy]:
        """Return what keeps the call's outputs, as they are captured; they are not held any longer."""
        assert self.outputs is not None, "the call was captured before"
        copies: list[Copy] = []
        offset = 0
        for name, pieces in self._pieces.items():
            output = self.outputs[name]
            addresses = [_addresses(output, piece) for piece in pieces]
            # A baseline may lay its answer out as it likes: of what does not lie side by side, one element is kept.
            whole = all(found[-1] - found[0] == len(found) - 1 for found in addresses)
            length = pieces[0].count if whole else 1
            self._kept_as[name] = output.dtype, length
            for found in addresses:
                source = output.as_strided((length,), (1,), found[0]).view(torch.uint8)
                copies.append(Copy(self.ring[0, offset : offset + len(source)], source, kept=True))
                offset += _room(pieces[0].count)
        self.outputs = None  # a baseline's later calls may take the memory
        return copies

    def fault(self, replays: int, changed: Sequence[str], graph_calls: int) -> dict[str, Any] | None:
        """Compare what was kept with what it must be; return evidence of an error, None where all is right.

        Args:
            replays: how often the graph ran.
            changed: inputs that changed, for the message.
            graph_calls: calls of the graph, for the message.
        """
        executions = range(max(0, replays - SLOTS), replays)
        offset = 0
        for name, pieces in self._pieces.items():
            end = offset + len(pieces) * _room(pieces[0].count)
            for version in _VERSIONS:
                slots = [at % SLOTS for at in executions if _VERSIONS[at % 2] == version]
                if not slots:
                    continue
                raw = self.ring[slots, offset:end].view(len(slots), len(pieces), -1)
                found = self._wrong(name, raw, version)
                if found is not None:
                    return self._evidence(found, version, changed, graph_calls)
            offset = end
        return None

    def _wrong(self, name: str, raw: torch.Tensor, version: Version) -> dict[str, Any] | None:
        """Compare one output's pieces over slots, bytes of shape (slots, pieces, room)."""
        dtype, length = self._kept_as[name]
        pieces, rule = self._pieces[name], self._bench.rule(name)
        versions = self._expected[name]
        expected, allowed = (part[:, :length].to(raw.device) for part in versions.get(version, versions["old"]))
        got = raw[:, :, : length * dtype.itemsize].contiguous().view(dtype)
        got, _ = rule.prepared(got, expected, None)
        # Written so that NaN is wrong.
        wrong = ~((got - expected).abs_() <= allowed)
        if not bool(wrong.any()):
            return None
        slot, piece, element = wrong.nonzero()[0].tolist()
        other = versions.get("old" if version == "new" else "new")
        stale = False
        if other is not None:
            before, room = (part[:, :length].to(raw.device) for part in other)
            stale = bool(((got - before).abs_() <= room)[wrong].all())
        return {
            "output": name,
            "index": unravelled(pieces[piece].start + element, rule.tensor.shape),
            "got": float(got[slot, piece, element]),
            "expected": float(expected[piece, element]),
            "allowed": float(allowed[piece, element]),
            "bad": int(wrong[slot].sum()),
            "elements": wrong[slot].numel(),
            "stale": stale,
        }

    def _evidence(
        self, found: dict[str, Any], version: Version, changed: Sequence[str], graph_calls: int
    ) -> dict[str, Any]:
        got, expected, allowed = found["got"], found["expected"], found["allowed"]
        shown = told_apart(got, expected)
        what = f"after {' and '.join(map(repr, changed))} changed" if changed else "on inputs as they were"
        if version == "new":
            what += ", parts of outputs and workspaces poisoned"
        message = (
            f"{found['output']}[{', '.join(map(str, found['index']))}] is {shown[0]}, expected {shown[1]} within "
            f"{allowed:.3g}; {found['bad']} of {found['elements']} elements that were kept are wrong (call "
            f"{self.position + 1} of {graph_calls} of a timed graph, {what})"
        )
        if found["stale"]:
            message += ": the answer to the inputs before"
        over = abs(got - expected) / allowed if allowed else float("inf")
        finite = over - over == 0
        return {
            **found,
            "check": "timed_runs",
            "message": message,
            "index": list(found["index"]),
            "got": got if got == got else "nan",
            "over": over if finite else "inf",
            "input_set": self._bench.kinds[self._index],
            "call": self.position,
            "calls": graph_calls,
            "changed": list(changed),
            "poisoned": version == "new",
        }


def pick(values: torch.Tensor, pieces: Sequence[Piece]) -> torch.Tensor:
    """Return the pieces, all of one length, of a tensor: shape (pieces, elements)."""
    starts = torch.tensor([piece.start for piece in pieces], device=values.device)
    return values.flatten()[starts[:, None] + torch.arange(pieces[0].count, device=values.device)]


def expectation(rule: Rule, reference: torch.Tensor) -> Answers:
    """Return what elements must be, within their type's range, and the errors allowed."""
    expected = rule.answer(reference.to(torch.float64))
    return expected, rule.allowed(expected)


def _room(count: int) -> int:
    """Return the bytes of a slot that so many elements take, in whatever type a baseline returns them."""
    return -(-count * 8 // 16) * 16


def _addresses(tensor: torch.Tensor, piece: Piece) -> Sequence[int]:
    """Return where the elements of a piece lie in a tensor's storage, in elements."""
    shape, strides, first = tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset())
    if tensor.is_contiguous():
        return range(first + piece.start, first + piece.start + piece.count)
    return [
        first + sum(at * stride for at, stride in zip(unravelled(flat, shape), strides, strict=True))
        for flat in range(piece.start, piece.start + piece.count)
    ]
