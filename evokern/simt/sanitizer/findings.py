"""Findings of the sanitizer, grouped by source location and counted.

One finding represents all occurrences of one kind at one pair of source lines and in one allocation. Its block, thread
and address are those of the first occurrence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, Generic, TypeVar

import numpy as np

from evokern.compile.elf import variable_name
from evokern.ptx.lines import UNKNOWN_LOCATION, SourceLocation
from evokern.simt.arrays import Array

FINDING_LIMIT = 64
"""Maximum number of findings that one launch reports."""

HINTS: dict[str, str] = {
    "out_of_bounds": "An index is outside its array: check the last block, row lengths and allocation size.",
    "misaligned": "A vector access needs an address that is a multiple of its width: check pitch and offset.",
    "uninitialised": "This memory was never written: check load loops, tails and accumulators.",
    "shared_race": "Two threads access the same memory without a barrier: add __syncthreads() or __syncwarp().",
    "async_not_waited": "A copy or product may still be running: wait for its barrier object or group before the data "
    "are used, and do not start it before its memory is released.",
    "cluster_lifetime": "A block's shared memory exists only while the block runs: call cluster.sync() before and "
    "after other blocks access it.",
    "proxy_fence": "wgmma and bulk copies may not see the stored data: add fence.proxy.async after the stores, before "
    "the barrier.",
    "early_release": "An arrival does not wait for a load: release memory after an instruction that uses the loaded "
    "data, or put fence.proxy.async between the load and the release.",
    "transaction_bytes": "The bytes of expect_tx must be those of all copies to the barrier object in that phase: "
    "compute both from the same tile.",
    "barrier_arrivals": "More threads arrive than mbarrier.init announces: let one elected lane arrive, or raise the "
    "count.",
    "tensor_map": "The map is not the one that this copy needs: check the argument, its rank and __grid_constant__.",
    "registers": "setmaxnreg moves registers between warpgroups of a block: what some gain, others must release first.",
    "barrier_divergence": "Not every thread reaches this barrier: move it out of the condition.",
    "deadlock": "Threads wait for each other forever: check the barrier ids, the thread counts and the order of waits.",
    "global_race": "Threads access the same global memory without synchronisation: use atomics, a barrier or "
    "separate data.",
    "input_write": "The kernel writes to an input buffer: check the pointer and the index.",
    "inactive_shuffle": "A lane in the mask, or a source lane, is absent: make all these lanes execute the same call.",
    "instruction_limit": "The kernel does not end: check the loop condition and the code that should change it.",
    "unfinished": "The loop may be endless or only long: check its condition, or run a smaller problem.",
    "trap": "The kernel executed a trap instruction.",
    "assert": "A device assert failed.",
}
"""Kind → the usual cause and its fix."""
CLUSTER_HINTS = {
    "shared_race": "__syncthreads() does not order blocks of a cluster: use cluster.sync() (barrier.cluster).",
    "barrier_divergence": "Every thread of a cluster must arrive once, then wait once. Aligned forms need the whole "
    "warp at the same instruction: keep both outside conditions.",
}
"""Kind → the usual cause if blocks of a cluster are involved."""
FAR_BYTES = 1 << 30
"""Distance from an allocation from which a wrapped index is more likely than one that is slightly too large."""
FAR_HINT = (
    "The distance suggests an index that wrapped in 32 bits: compute products in 64 bits (size_t), and check for "
    "differences of unsigned numbers below zero."
)
"""Usual cause of an access at least `FAR_BYTES` outside its array."""
WILD_BYTES = 1 << 38
"""Distance from every allocation that no 32-bit index of elements of up to 16 bytes reaches."""
WILD_HINT = "Check for a null pointer, and for a pointer read from memory that does not contain one."
"""Usual cause of an access at least `WILD_BYTES` from every allocation."""
NAMED_BARRIER, BACKGROUND = "named barrier", "in the background"
"""Words for barriers with a thread count, and for accesses of copies and products, in messages."""
NAMED_HINT = (
    "All bar.sync and bar.arrive of one barrier id need the same thread count, and a thread arrives once per use."
)
"""Usual cause of `barrier_divergence` at a named barrier."""
ASYNC_HINT = (
    "Nothing orders the bulk copy or wgmma with the other access: before the memory is used or reused, wait for the "
    "tile's barrier object and all of its bytes, or for the product's group."
)
"""Usual cause of a `shared_race` of a bulk copy or of a product."""
ASYNC_INSTRUCTIONS = ("cp.async.bulk", "st.async", "wgmma")
"""Instructions that access shared memory in the background."""
SAME_CLUSTER = "of the same cluster"
"""Suffix for threads of another block in the cluster, in messages."""

ERROR, WARNING = "error", "warning"
"""Levels of findings. An error makes a kernel incorrect.

A warning does not change results on current hardware, or concerns a value that is never used.
"""

UNUSED_VALUE = "The value read is never used"
"""Start of the hint for a finding whose value is never used."""
GRANULE = 4
"""Bytes: granularity of the recorded read addresses."""
MAX_READS = 1 << 20
"""Maximum number of reads per finding whose values are followed; with more reads, the finding remains an error.
"""

ENDLESS = frozenset({"deadlock", "instruction_limit"})
"""Kinds of findings which prove that a launch never ends: a wait that nothing ends, or a state that repeats."""
UNFINISHED = "unfinished"
"""Kind of the finding for a launch that was stopped at the instruction limit; a GPU may finish the launch."""
FATAL = frozenset({"out_of_bounds", "misaligned", "trap", "assert", UNFINISHED}) | ENDLESS
"""Kinds of findings after which a launch does not continue."""
FACTS = (
    "kind", "line", "source", "instruction", "block", "thread", "address", "allocation", "offset", "other_line",
    "count", "hint", "file", "other_file", "called_from", "other_called_from", "level",
)  # fmt: skip
"""Facts of a finding, in the order of ``--json``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingSite:
    """Instruction of a finding, and its place in the source."""

    at: SourceLocation = UNKNOWN_LOCATION
    """Line of the instruction; unknown if the PTX has no line information."""
    source: str = ""
    """Text of that line; empty if no source was given."""
    instruction: str = ""
    """PTX instruction."""
    other: SourceLocation = UNKNOWN_LOCATION
    """Line of the other access, if there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Access of the first occurrence of a finding."""

    block: tuple[int, int, int] = (0, 0, 0)
    """Block index."""
    thread: tuple[int, int, int] = (0, 0, 0)
    """Thread index."""
    address: int = 0
    """Accessed address; 0 without an address."""
    allocation: str = ""
    """Name of the accessed allocation or of the nearest one."""
    offset: int = 0
    """Bytes from the start of the allocation."""


def place_text(at: SourceLocation, instruction: str) -> str:
    """Return `line 12`, `line 12 of tile.cuh` in a header, or the instruction if the line is unknown."""
    return f"line {at.line}" + (f" of {at.file}" if at.file else "") if at.line else f"`{instruction}`"


NOWHERE = Access()
"""Access of a finding without an address."""
_Value = TypeVar("_Value")


class _Part(Generic[_Value]):
    """Read-only attribute of a finding that is stored in one of its records."""

    def __init__(self, path: str) -> None:
        self._get = attrgetter(path)

    def __get__(self, finding: Finding, owner: type[Finding]) -> _Value:
        value: _Value = self._get(finding)
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Finding of the sanitizer."""

    kind: str
    """One of `HINTS`."""
    hint: str
    """Details of this case, followed by the usual cause."""
    level: str = ERROR
    """`error`, or `warning` for a race within a warp and for a value that is read but never used."""
    count: int = 1
    """Number of occurrences, counted per lane."""
    site: FindingSite = FindingSite()
    access: Access = NOWHERE

    line = _Part[int]("site.at.line")
    file = _Part[str]("site.at.file")
    called_from = _Part[tuple[tuple[str, int], ...]]("site.at.called_from")
    source = _Part[str]("site.source")
    instruction = _Part[str]("site.instruction")
    other_line = _Part[int]("site.other.line")
    other_file = _Part[str]("site.other.file")
    other_called_from = _Part[tuple[tuple[str, int], ...]]("site.other.called_from")
    block = _Part[tuple[int, int, int]]("access.block")
    thread = _Part[tuple[int, int, int]]("access.thread")
    address = _Part[int]("access.address")
    allocation = _Part[str]("access.allocation")
    offset = _Part[int]("access.offset")

    @property
    def matters(self) -> bool:
        """Whether the finding makes a kernel incorrect; otherwise it is a warning."""
        return self.level == ERROR

    @property
    def place(self) -> str:
        """`line 12`, `line 12 of tile.cuh` in a header, or the instruction if the line is unknown."""
        return place_text(self.site.at, self.instruction)

    @property
    def summary(self) -> str:
        """Kind and place, such as `shared race within a warp at line 12`."""
        within = " within a warp" * (self.kind.endswith("race") and not self.matters)
        return f"{self.kind.replace('_', ' ')}{within} at {self.place}"

    def as_dict(self) -> dict[str, Any]:
        """Return the facts in order, as JSON values; facts about headers are omitted if no header is involved."""
        facts = {name: getattr(self, name) for name in FACTS}
        if not (self.file or self.other_file):
            for name in ("file", "other_file", "called_from", "other_called_from"):
                if not facts[name]:
                    del facts[name]
        return facts

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> Finding:
        """Return the finding with these facts, from `as_dict` or from its JSON."""

        def location(prefix: str) -> SourceLocation:
            calls = tuple((file, line) for file, line in facts.get(f"{prefix}called_from", ()))
            return SourceLocation(facts[f"{prefix}line"], facts.get(f"{prefix}file", ""), calls)

        site = FindingSite(
            at=location(""), source=facts["source"], instruction=facts["instruction"], other=location("other_")
        )
        access = Access(**{name: facts[name] for name in ("address", "allocation", "offset")},
                        block=tuple(facts["block"]), thread=tuple(facts["thread"]))  # fmt: skip
        own = {name: facts[name] for name in ("kind", "hint", "level", "count")}
        return cls(**own, site=site, access=access)


@dataclass(frozen=True, slots=True)
class Reads:
    """Reads by lanes of one batch that led to a finding."""

    number: int
    """The instruction."""
    lanes: Array
    """Lanes that performed the reads."""
    places: Array
    """Byte that each lane reads in its state space (in shared memory: in the block's memory)."""
    when: Array | None = None
    """Time stamp of each read; None for the current time."""


KnownReads = tuple[Array, Array, Array]
"""(lanes, times, addresses) of the reads of one instruction, comparable between batches."""
_Key = tuple[str, SourceLocation | str, SourceLocation, str]
"""Kind, location (the instruction if the line is unknown), location of the other access, allocation."""


class Collector:
    """Collector of the findings of one launch."""

    def __init__(
        self, source: str | None, headers: Mapping[str, str] | None = None, at_fatal: Callable[[], None] | None = None
    ) -> None:
        texts = {**(headers or {}), **({} if source is None else {"": source})}
        self._lines: Mapping[str, Sequence[str]] = {name: text.splitlines() for name, text in texts.items()}
        self._groups: dict[_Key, list[Any]] = {}
        self.fatal_key: _Key | None = None
        self._at_fatal = at_fatal
        self.dropped = 0
        self._reads: dict[_Key, dict[int, list[KnownReads]] | None] = {}

    def text(self, location: SourceLocation) -> str:
        """Return the text of a source line without surrounding white space."""
        lines = self._lines.get(location.file, ())
        return lines[location.line - 1].strip() if 0 < location.line <= len(lines) else ""

    def add(self, found: Finding, reads: tuple[int, KnownReads] | None = None) -> None:
        """Record occurrences of one kind at one location; store the first occurrence of the highest level in full.

        Args:
            found: the occurrences; its hint contains only the details, and its site has no source yet.
            reads: instruction and known facts of the invalid reads, if any.
        """
        kind, site, allocation = found.kind, found.site, found.access.allocation
        key = (kind, site.at if site.at.line else site.instruction, site.other, allocation)
        if found.level == ERROR:
            self._note_reads(key, reads)
        known = self._groups.get(key)
        if known is not None:
            known[1] += found.count
            if known[0].level == found.level or found.level == WARNING:
                return
        total = found.count if known is None else known[1]
        if known is None and len(self._groups) >= FINDING_LIMIT:
            self.dropped += found.count
            return
        access = replace(found.access, allocation=variable_name(allocation).rpartition("::")[2])
        site = replace(site, source=self.text(site.at))
        self._groups[key] = [replace(found, hint=_hint(found), site=site, access=access), total]
        if kind in FATAL and self.fatal_key is None:
            self.fatal_key = key
            if self._at_fatal is not None:
                self._at_fatal()

    def _note_reads(self, key: _Key, reads: tuple[int, KnownReads] | None) -> None:
        """Store the reads of a finding, unless the finding also has another cause."""
        known = self._reads.setdefault(key, {})
        if known is None:
            return
        if reads is None or sum(who.size for parts in known.values() for who, *_ in parts) > MAX_READS:
            self._reads[key] = None
        else:
            known.setdefault(reads[0], []).append(reads[1])

    def reads(self) -> list[Mapping[int, Sequence[KnownReads]] | None]:
        """Return, for each finding, a map from each load to the load's reads; None if the finding is certain."""
        return [self._reads.get(key) if found[0].level == ERROR else None for key, found in self._groups.items()]

    def acquit(self, numbers: Sequence[int]) -> None:
        """Downgrade the findings with these indices to warnings, because the values that they read were never used."""
        keys = list(self._groups)
        for number in numbers:
            finding = self._groups[keys[number]][0]
            hint = f"{UNUSED_VALUE}. {finding.hint}"
            self._groups[keys[number]][0] = replace(finding, level=WARNING, hint=hint)

    def _finish(self, key: _Key) -> Finding:
        finding: Finding = self._groups[key][0]
        return replace(finding, count=self._groups[key][1])

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings, in the order of their first occurrence."""
        return tuple(self._finish(key) for key in self._groups)

    @property
    def fatal(self) -> Finding | None:
        """The first finding that would have ended the launch on a GPU."""
        return self._finish(self.fatal_key) if self.fatal_key is not None else None


@dataclass(slots=True)
class SuspectReads:
    """Reads that belong to undecided findings, and a record of the findings whose values were used.

    Attributes:
        used: bit mask of the findings with used values.
    """

    of_load: dict[int, list[tuple[KnownReads, int]]] = field(default_factory=dict)
    """Instruction → (reads, finding as a bit)."""
    used: int = 0

    def add(self, finding: int, number: int, reads: KnownReads) -> None:
        """Add reads of a finding by one instruction."""
        self.of_load.setdefault(number, []).append((reads, 1 << finding))

    def bits(self, number: int, who: Array, when: int, places: Array | None, width: int) -> Array:
        """Return a bit mask for each reading lane: the findings to which the lane's read belongs.

        Args:
            number: the instruction.
            who: the lanes.
            when: time stamp.
            places: offset of the byte that each lane reads in the state space; None if unknown.
            width: bytes of each read.
        """
        bits = np.zeros(who.size, np.uint64)
        for (known, times, read), bit in self.of_load[number]:
            at = times == when
            if places is None:
                bits[np.isin(who, known[at])] |= np.uint64(bit)
                continue
            suspect = _at(known[at], read[at] // GRANULE)
            for place in range(0, width, GRANULE):
                bits[np.isin(_at(who, (places + place) // GRANULE), suspect)] |= np.uint64(bit)
        return bits


def _hint(found: Finding) -> str:
    """Return the details of a finding, followed by the usual cause."""
    kind, detail, access = found.kind, found.hint, found.access
    of_cluster = SAME_CLUSTER in detail or found.instruction.startswith("barrier.cluster")
    cause = CLUSTER_HINTS.get(kind, HINTS[kind]) if of_cluster else HINTS[kind]
    if kind == "shared_race" and (BACKGROUND in detail or found.instruction.startswith(ASYNC_INSTRUCTIONS)):
        cause = ASYNC_HINT
    if kind == "barrier_divergence" and NAMED_BARRIER in detail.lower():
        cause = NAMED_HINT
    if kind == "out_of_bounds" and (not access.allocation or abs(access.offset) >= FAR_BYTES):
        cause = FAR_HINT if access.allocation else WILD_HINT
    return f"{detail.removesuffix('.')}. {cause}" if detail else cause


def _at(who: Array, granule: Array) -> Array:
    """Return one number per reader and address; if two numbers collide by chance, a finding remains an error."""
    mixed: Array = who.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + granule.astype(np.uint64)
    return mixed
