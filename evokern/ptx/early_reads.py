"""Reads of shared memory after which a thread may release the memory before any instruction has used the data.

A read is complete once an instruction uses one of its registers. An arrival at a barrier publishes the read, but does
not wait for it. This only matters if the asynchronous proxy then overwrites the memory: the proxy is ordered after the
read itself only through ``fence.proxy.async`` (PTX ISA 9.0, "Causality Order"). A read is also complete after the wait
for a later wgmma product, which takes longer. A ``mov`` does not count as a use,
because the assembler removes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from evokern.ptx.instruction_set import Operation
from evokern.ptx.register_accesses import is_product, register_access
from evokern.ptx.segments import Segment, following
from evokern.ptx.syntax import Instruction

Places = Mapping[int, tuple[int, ...]]
"""Instruction → reads that it concerns."""


@dataclass(frozen=True, slots=True)
class EarlyReads:
    """Reads that an arrival may release too early, and the instructions on the paths from them."""

    reads: frozenset[int] = frozenset()
    """The reads."""
    rotating: frozenset[int] = frozenset()
    """Reads that may run again while a copy of their registers still waits for its use."""
    releases: Places = field(default_factory=dict)
    """Arrivals that may come before the first use of a read."""
    uses: Places = field(default_factory=dict)
    """Instructions that may be the first to use the registers of a read."""
    completions: Places = field(default_factory=dict)
    """Fences and waits after which a read is complete."""


def early_reads(
    segments: Sequence[Segment],
    instructions: Sequence[Instruction],
    operations: Sequence[Operation],
    labels: Mapping[tuple[int, str], int],
) -> EarlyReads:
    """Return the reads of a program that may be released too early.

    Args:
        segments: segments of all functions.
        instructions: instructions of all segments.
        operations: table entry of each instruction.
        labels: (number of the function, label) → segment that starts there.
    """
    if not any(item.has("mbarrier::complete_tx::bytes") for item in instructions):
        return EarlyReads()  # Nothing writes shared memory through the asynchronous proxy.
    paths = _Paths(segments, instructions, operations, labels)
    reads: set[int] = set()
    places: tuple[dict[int, tuple[int, ...]], ...] = {}, {}, {}
    for segment in segments:
        for number in range(segment.base, segment.base + segment.stop - segment.start):
            found = paths.walk(segment, number) if _reads_shared(instructions[number]) else None
            if found is None:
                continue
            reads.add(number)
            for table, numbers in zip(places, found, strict=True):
                for place in sorted(numbers):
                    table[place] = (*table.get(place, ()), number)
    releases, uses, completions = places
    return EarlyReads(frozenset(reads), frozenset(paths.rotating), releases, uses, completions)


class _Paths:
    """Paths from a read to the first uses of its registers.

    Attributes:
        rotating: reads that may run again while a copy of their registers waits for its use.
    """

    def __init__(
        self,
        segments: Sequence[Segment],
        instructions: Sequence[Instruction],
        operations: Sequence[Operation],
        labels: Mapping[tuple[int, str], int],
    ) -> None:
        self._segments, self._instructions = segments, instructions
        self._accesses = [register_access(*pair) for pair in zip(instructions, operations, strict=True)]
        self._kinds = [_kind(item) for item in instructions]
        self._following = [following(segment, labels) for segment in segments]
        self.rotating: set[int] = set()

    def walk(self, segment: Segment, read: int) -> tuple[set[int], set[int], set[int]] | None:
        """Return the releases, uses and completions after a read; None if no release comes before a use."""
        releases: set[int] = set()
        uses: set[int] = set()
        completions: set[int] = set()
        early = False
        waiting = [(segment.index, read + 1, self._accesses[read][1], False, False, False)]
        known = set()
        while waiting:
            index, start, holders, released, multiplied, complete = waiting.pop()
            here = self._segments[index]
            for number in range(start, here.base + here.stop - here.start):
                reads, writes = self._accesses[number]
                kind = self._kinds[number]
                if not holders.isdisjoint(reads):
                    if kind != "copy":
                        uses.add(number)
                        early |= released
                        break
                    holders |= writes
                elif not holders.isdisjoint(writes):
                    holders -= writes
                    if not holders:
                        break
                    if number == read:
                        self.rotating.add(read)
                multiplied |= kind == "product"
                if (kind == "fence" or (kind == "wait" and multiplied)) and not complete:
                    completions.add(number)
                    if not released:
                        break
                    complete = True
                elif kind == "release" and not complete:
                    releases.add(number)
                    released = True
            else:
                for after in self._following[index]:
                    state = after, self._segments[after].base, holders, released, multiplied, complete
                    if state not in known:
                        known.add(state)
                        waiting.append(state)
        return (releases, uses, completions) if early else None


def _reads_shared(item: Instruction) -> bool:
    """Return whether an instruction may read shared memory into registers without synchronising."""
    if item.opcode not in ("ld", "ldu", "ldmatrix") and not (item.opcode == "wmma" and item.has("load")):
        return False
    spaces = {word.split("::")[0] for word in item.modifiers}
    return spaces.isdisjoint(("global", "local", "const", "param", "relaxed", "acquire", "mmio"))


def _kind(item: Instruction) -> str:
    """Return what an instruction is on a path from a read, or an empty text."""
    if item.opcode == "mov":
        return "copy"
    if item.opcode in ("bar", "barrier"):
        waits_only = item.has("cluster") and item.has("wait")
        return "" if item.has("warp") or waits_only else "release"
    if item.opcode in ("mbarrier", "cp") and item.has("arrive", "arrive_drop"):
        return "release"
    if item.opcode == "fence":
        return "fence" if item.has("proxy") and item.has("async") and not item.has("global") else ""
    return (
        ("product" if is_product(item) else "wait" if item.has("wait_group") else "") if item.opcode == "wgmma" else ""
    )
