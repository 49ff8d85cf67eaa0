"""Findings: what the sanitizer saw, grouped by place and counted.

One finding stands for every occurrence of one kind at one pair of source lines; the first occurrence gives the block,
the thread and the address.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

FINDING_LIMIT = 64
"""Most groups that one launch reports."""

HINTS: dict[str, str] = {
    "out_of_bounds": "An index runs past its array: check the tail of the grid, row lengths and the allocation's size.",
    "misaligned": "A vector access needs an address that is a multiple of its width: check row pitch and start offset.",
    "uninitialised": "This memory was never written: check the bounds of the load phase, tails and accumulators.",
    "shared_race": "Two threads use the same memory with no barrier between: add __syncthreads() or __syncwarp().",
    "async_not_waited": "An asynchronous copy may be under way: wait for its group, then a barrier, then use the data.",
    "barrier_divergence": "Not every thread reaches this barrier: move it out of the condition.",
    "deadlock": "Threads wait for each other forever: check that barrier ids, counts and the order of waits agree.",
    "global_race": "Two blocks use the same global memory unordered: use atomics or give each its own part.",
    "input_write": "This buffer is an input: the kernel writes to it, probably through a wrong pointer or index.",
    "inactive_shuffle": "A lane named in the mask, or read from, is absent: bring all named lanes to the same call.",
    "instruction_limit": "The kernel does not end within the limit: check loop conditions, or raise the limit.",
    "trap": "The kernel stopped itself with trap.",
    "assert": "A device assert failed.",
}
"""Kind → the usual cause, in one sentence."""

FATAL = frozenset({"out_of_bounds", "misaligned", "deadlock", "instruction_limit", "trap", "assert"})
"""Kinds after which a GPU would not have finished the launch."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One defect, as ``--json`` prints it."""

    kind: str
    """One of `HINTS`."""
    line: int
    """Line of the source, 0 when the PTX carries no line information."""
    source: str
    """Text of that line, empty when the source was not given."""
    instruction: str
    """PTX instruction."""
    block: tuple[int, int, int]
    """Block index of the first occurrence."""
    thread: tuple[int, int, int]
    """Thread index of the first occurrence."""
    address: int
    """Address of the first occurrence, 0 where none is involved."""
    allocation: str
    """Name of the allocation concerned or nearest."""
    offset: int
    """Bytes from the start of the allocation."""
    other_line: int
    """Line of the other party, 0 when there is none."""
    count: int
    """Occurrences (lanes)."""
    hint: str
    """The usual cause, with what is particular to this case."""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields in order, ready for JSON."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


class Collector:
    """Gathers findings of one launch."""

    def __init__(self, source: str | None) -> None:
        self._lines: Sequence[str] = source.splitlines() if source is not None else ()
        self._groups: dict[tuple[str, int, int], list[Any]] = {}
        self.fatal_key: tuple[str, int, int] | None = None
        self.dropped = 0

    def text(self, line: int) -> str:
        """Return the text of a source line, stripped."""
        return self._lines[line - 1].strip() if 0 < line <= len(self._lines) else ""

    def add(
        self,
        kind: str,
        line: int,
        instruction: str,
        *,
        block: tuple[int, int, int] = (0, 0, 0),
        thread: tuple[int, int, int] = (0, 0, 0),
        address: int = 0,
        allocation: str = "",
        offset: int = 0,
        other_line: int = 0,
        count: int = 1,
        detail: str = "",
    ) -> None:
        """Record occurrences of one kind at one place; the first one is kept in full."""
        key = (kind, line, other_line) if line else (kind, hash(instruction), other_line)
        known = self._groups.get(key)
        if known is not None:
            known[1] += count
            return
        if len(self._groups) >= FINDING_LIMIT:
            self.dropped += count
            return
        hint = f"{detail}. {HINTS[kind]}" if detail else HINTS[kind]
        finding = Finding(
            kind,
            line,
            self.text(line),
            instruction,
            block,
            thread,
            address,
            allocation,
            offset,
            other_line,
            count,
            hint,
        )
        self._groups[key] = [finding, count]
        if kind in FATAL and self.fatal_key is None:
            self.fatal_key = key

    def wants(self, kind: str, line: int) -> bool:
        """Say whether an occurrence at this place would tell anything new."""
        return not any(key[0] == kind and key[1] == line and group[1] > 10_000 for key, group in self._groups.items())

    def _finish(self, key: tuple[str, int, int]) -> Finding:
        finding, count = self._groups[key]
        values = {name: getattr(finding, name) for name in Finding.__dataclass_fields__}
        return Finding(**{**values, "count": count})

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All groups, in the order in which they first occurred."""
        return tuple(self._finish(key) for key in self._groups)

    @property
    def fatal(self) -> Finding | None:
        """The first finding that would have ended the launch on a GPU."""
        return self._finish(self.fatal_key) if self.fatal_key is not None else None
