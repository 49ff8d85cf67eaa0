"""Parts of one call's outputs, recorded in each replay of a timed graph and then compared with references."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from evokern.gate.buffer_set import BufferSet
from evokern.gate.comparison import Rule, unravel_index
from evokern.wording import distinguishing_digits

SLOTS = 96
"""Maximum number of recorded replays: a candidate's samples (60 by default) and the untimed replays between them."""

Turn = Literal["always", "even", "odd"]
Version = Literal["new", "old"]
_VERSIONS: tuple[Version, Version] = "new", "old"
"""Version of the inputs in even and in odd replays."""
ExpectedValues = tuple[torch.Tensor, torch.Tensor]
"""Expected values of an output and their allowed errors, in float64."""
Expected = dict[str, dict[Version, ExpectedValues]]
"""Output → expected values of the recorded pieces, shape (pieces, elements), for each version of the inputs.

If inputs keep their values, only `old` is present. The values are in host memory, which candidates cannot read."""


@dataclass(frozen=True)
class Copy:
    """One copy or fill that a step performs."""

    to: torch.Tensor
    """Destination as a flat view of bytes; for a recorded output, its position in slot 0."""
    source: torch.Tensor | None
    """Source as a view of equally many bytes; None fills the destination with `value`."""
    value: int = 0
    """Byte with which to fill the destination."""
    turn: Turn = "always"
    """Executions of the step that perform the copy, counted from 0."""
    kept: bool = False
    """Whether each execution writes to its own slot."""


@dataclass(frozen=True)
class Piece:
    """A range of consecutive elements of a tensor."""

    name: str
    """The tensor."""
    start: int
    """First element, in row-major order."""
    count: int
    """Number of elements."""


class RecordedOutputs:
    """Recorded outputs of one call, with their expected values."""

    def __init__(
        self,
        bench: BufferSet,
        index: int,
        pieces: Mapping[str, Sequence[Piece]],
        expected: Expected,
        position: int,
    ) -> None:
        """Allocate the slots for recorded outputs.

        Args:
            bench: buffer set of the call.
            index: the input set.
            pieces: recorded pieces of each output, all of one length.
            expected: expected values of the pieces.
            position: the recorded call, from 0.
        """
        self._bench, self._index, self._pieces, self._expected = bench, index, pieces, expected
        self._kept_as: dict[str, tuple[torch.dtype, int]] = {}
        self.position = position
        """The recorded call, from 0."""
        self.outputs: Mapping[str, torch.Tensor] | None = None
        """Outputs of the call, kept from its capture until `copies` is called."""
        room = sum(len(kept) * _room(kept[0].count) for kept in pieces.values())
        self.ring = torch.zeros((SLOTS, room), dtype=torch.uint8, device=bench.generator.device)
        """Recorded bytes: one slot per replay, overwritten cyclically."""

    @property
    def elements(self) -> int:
        """Number of elements recorded in each replay."""
        return sum(piece.count for kept in self._pieces.values() for piece in kept)

    def copies(self) -> list[Copy]:
        """Return the copies that record the outputs of the captured call, and release these outputs."""
        assert self.outputs is not None, "the call was captured before"
        copies: list[Copy] = []
        offset = 0
        for name, pieces in self._pieces.items():
            output = self.outputs[name]
            addresses = [_addresses(output, piece) for piece in pieces]
            # A baseline may return any layout; of a piece that is not consecutive in memory, record one element.
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
        """Compare the recorded outputs with the expected values; return evidence of an error, or None.

        Args:
            replays: number of replays of the graph.
            changed: names of the inputs that changed, for the message.
            graph_calls: number of calls of the graph, for the message.
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
        """Compare the pieces of one output, bytes of shape (slots, pieces, bytes of a piece)."""
        dtype, length = self._kept_as[name]
        pieces, rule = self._pieces[name], self._bench.rule(name)
        versions = self._expected[name]
        expected, allowed = (part[:, :length].to(raw.device) for part in versions.get(version, versions["old"]))
        got = raw[:, :, : length * dtype.itemsize].contiguous().view(dtype)
        got, _ = rule.prepare_pair(got, expected, None)
        # This form counts NaN as wrong.
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
            "index": unravel_index(pieces[piece].start + element, rule.tensor.shape),
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
        shown = distinguishing_digits(got, expected)
        what = f"after {' and '.join(map(repr, changed))} changed" if changed else "on unchanged inputs"
        if version == "new":
            what += ", with parts of outputs and workspaces poisoned"
        message = (
            f"{found['output']}[{', '.join(map(str, found['index']))}] is {shown[0]}, expected {shown[1]} within "
            f"{allowed:.3g}; {found['bad']} of {found['elements']} recorded elements are wrong (call "
            f"{self.position + 1} of {graph_calls} in a timed graph, {what})"
        )
        if found["stale"]:
            message += ": the values are the results for the previous inputs"
        over = abs(got - expected) / allowed if allowed else float("inf")
        finite = over - over == 0
        bounded = self._bench.rule(found["output"]).tolerance.bound is not None
        return {
            **found,
            **({"limit": "bound"} if bounded else {}),
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
    """Return pieces of equal length of a tensor, as shape (pieces, elements)."""
    starts = torch.tensor([piece.start for piece in pieces], device=values.device)
    return values.flatten()[starts[:, None] + torch.arange(pieces[0].count, device=values.device)]


def expectation(rule: Rule, reference: torch.Tensor, error: torch.Tensor | None) -> ExpectedValues:
    """Return the expected values, clamped to the range of the dtype, and the allowed errors.

    Args:
        rule: rule of the output.
        reference: the reference.
        error: bound on the error before rounding; None for 0.
    """
    expected = rule.clamp_reference(reference.to(torch.float64))
    return expected, rule.allowed(expected, error)


def _room(count: int) -> int:
    """Return the bytes of a slot for this many elements of any type, in multiples of 16."""
    return -(-count * 8 // 16) * 16


def _addresses(tensor: torch.Tensor, piece: Piece) -> Sequence[int]:
    """Return the positions of a piece's elements in a tensor's storage, in elements."""
    shape, strides, first = tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset())
    if tensor.is_contiguous():
        return range(first + piece.start, first + piece.start + piece.count)
    return [
        first + sum(at * stride for at, stride in zip(unravel_index(flat, shape), strides, strict=True))
        for flat in range(piece.start, piece.start + piece.count)
    ]
