"""Counters: what a launch issued and moved, per instruction and per source line.

Counted are warp instructions as issued, on the pipe of the PTX instruction (ptxas may turn one PTX instruction into
several or drop it), wavefronts of shared memory and 32-byte sectors of global memory.

A wavefront serves 32 words of 4 bytes, one per bank. Accesses of 8 bytes are served for half a warp at a time, those of
16 bytes and the rows of ``ldmatrix`` for a quarter; within such a group the wavefronts are the most distinct words that
any bank has to deliver (CUDA C++ Programming Guide, compute capability 5.x and later, "Shared Memory"; Nsight Compute,
"Memory Tables").
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from evokern.simt.arrays import Active, Array
from evokern.simt.instruction_set import pipe_of
from evokern.simt.matrix_shapes import matrix_name, operations_of

if TYPE_CHECKING:
    from evokern.simt.machine import Machine
    from evokern.simt.program import Program

PIPES = ("tensor", "fp32", "fp16", "fp64", "sfu", "integer", "load_store", "control")
"""Where instructions are issued."""
SECTOR = 32
"""Bytes of a sector of global memory."""
_PENDING = 1 << 20
_PATTERNS = 512


@dataclass(frozen=True, slots=True)
class Line:
    """Counters of one source line, summed over its instructions."""

    line: int
    """Line of the source, 0 for what has none."""
    file: str
    """The user's header that holds the line; empty for the source itself."""
    warp_instructions: int
    """Instructions issued for a warp."""
    thread_instructions: int
    """The same, counted per active thread."""
    pipes: dict[str, int]
    """Pipe → warp instructions."""
    shared_wavefronts: int
    """Wavefronts of shared memory."""
    ideal_wavefronts: int
    """The same without bank conflicts."""
    load_sectors: int
    """32-byte sectors that global loads ask for, counted per warp instruction."""
    ideal_load_sectors: int
    """The least for that many bytes."""
    store_sectors: int
    """The same for stores, reductions and atomics."""
    ideal_store_sectors: int
    """The least for that many bytes."""
    divergent: int
    """Warp instructions issued while live lanes of the warp were elsewhere."""


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """The order in which one batch of blocks ran its segments."""

    warps: int
    """Warps of the batch, block after block."""
    steps: tuple[tuple[int, Array | None], ...]
    """(segment, bool per warp that ran it); None for all of them."""


@dataclass(frozen=True, slots=True)
class Counters:
    """All counters of a launch, or of those of `launch_many`; arrays go by PTX instruction of the program."""

    blocks: tuple[int, ...]
    """Linear ids of the blocks that ran."""
    launches: int
    """Launches that were counted together."""
    warps_per_block: int
    """Warps of a block."""
    instructions: tuple[str, ...]
    """PTX text."""
    lines: Array
    """Source line of each instruction."""
    files: tuple[str, ...]
    """The user's header that holds the line of each instruction; empty for the source itself."""
    called_from: tuple[tuple[tuple[str, int], ...], ...]
    """(header or empty, line) of the calls through which each instruction was inlined, innermost first."""
    pipes: tuple[str, ...]
    """Pipe of each instruction."""
    warp_instructions: Array
    """Times issued for a warp."""
    thread_instructions: Array
    """The same, counted per active thread."""
    divergent: Array
    """Times issued while live lanes of the warp were elsewhere."""
    shared_wavefronts: Array
    """Wavefronts of shared memory."""
    ideal_wavefronts: Array
    """The same without bank conflicts."""
    load_sectors: Array
    """32-byte sectors of global loads and asynchronous copies, per warp instruction."""
    ideal_load_sectors: Array
    """The least for that many bytes."""
    store_sectors: Array
    """The same for stores, reductions and atomics."""
    ideal_store_sectors: Array
    """The least for that many bytes."""
    local_bytes: Array
    """Bytes of local memory, both ways."""
    barriers: int
    """Warps that arrived at barriers of their block."""
    mma: dict[str, tuple[int, float]]
    """Shape and types of a matrix instruction → (warp instructions, floating-point or integer operations)."""
    unique_load_sectors: dict[int, Array]
    """Block → the distinct sectors it loads, as sector numbers of the simulated memory (comparable between blocks)."""
    unique_store_sectors: dict[int, Array]
    """The same for stores."""
    record: tuple[BatchRecord, ...]
    """What ran when, batch after batch; `evokern.simt.timeline` walks it."""

    @property
    def total_warp_instructions(self) -> int:
        """Warp instructions of all pipes."""
        return int(self.warp_instructions.sum())

    @property
    def flops(self) -> float:
        """Operations of the matrix instructions."""
        return sum(flops for _, flops in self.mma.values())

    def conflicts(self) -> dict[int, float]:
        """Return instruction → further wavefronts of a mean execution, beyond the ones that it needs anyway."""
        further = (self.shared_wavefronts - self.ideal_wavefronts) / np.maximum(self.warp_instructions, 1)
        return {int(number): float(further[number]) for number in np.flatnonzero(further > 0)}

    def by_pipe(self) -> dict[str, int]:
        """Return pipe → warp instructions."""
        return _by_pipe(self.pipes, self.warp_instructions)

    def by_line(self) -> list[Line]:
        """Return the counters of each source line, ascending, the source's own before those of its headers."""
        result = []
        places = [(file, int(line)) for file, line in zip(self.files, self.lines, strict=True)]
        numbers = {place: number for number, place in enumerate(sorted(set(places)))}
        codes = np.array([numbers[place] for place in places], np.int64)
        for (file, line), number in numbers.items():
            mine = codes == number
            if not self.warp_instructions[mine].any():
                continue
            result.append(
                Line(
                    line,
                    file,
                    int(self.warp_instructions[mine].sum()),
                    int(self.thread_instructions[mine].sum()),
                    {
                        k: v
                        for k, v in _by_pipe(
                            [p for p, m in zip(self.pipes, mine, strict=True) if m], self.warp_instructions[mine]
                        ).items()
                        if v
                    },
                    int(self.shared_wavefronts[mine].sum()),
                    int(self.ideal_wavefronts[mine].sum()),
                    int(self.load_sectors[mine].sum()),
                    int(self.ideal_load_sectors[mine].sum()),
                    int(self.store_sectors[mine].sum()),
                    int(self.ideal_store_sectors[mine].sum()),
                    int(self.divergent[mine].sum()),
                )
            )
        return result


def _by_pipe(pipes: tuple[str, ...] | list[str], counts: Array) -> dict[str, int]:
    totals = dict.fromkeys(PIPES, 0)
    for pipe, count in zip(pipes, counts, strict=True):
        totals[pipe] += int(count)
    return totals


@dataclass(slots=True, eq=False)
class Tally:
    """What the batches of a launch add up in."""

    program: Program
    """Whose instructions are counted."""
    arrays: dict[str, Array] = field(init=False)
    """Name of a field of `Counters` → counts."""
    sectors: dict[str, list[Array]] = field(default_factory=lambda: {"load": [], "store": []})
    """Keys (block, sector) not yet made distinct."""
    pending: dict[str, int] = field(default_factory=lambda: {"load": 0, "store": 0})
    """How many."""
    patterns: dict[tuple[int, int, bytes], tuple[int, int]] = field(default_factory=dict)
    """Address pattern → wavefronts and ideal."""
    record: list[BatchRecord] = field(default_factory=list)
    """What ran when."""

    def __post_init__(self) -> None:
        size = len(self.program.instructions)
        names = (
            "warp_instructions",
            "thread_instructions",
            "divergent",
            "shared_wavefronts",
            "ideal_wavefronts",
            "load_sectors",
            "ideal_load_sectors",
            "store_sectors",
            "ideal_store_sectors",
            "local_bytes",
        )
        self.arrays = {name: np.zeros(size, np.int64) for name in names}

    def keep(self, kind: str, keys: Array) -> None:
        """Add sector keys, made distinct from time to time so that memory stays bounded."""
        self.sectors[kind].append(keys)
        self.pending[kind] += keys.size
        if self.pending[kind] > _PENDING:
            merged = np.unique(np.concatenate(self.sectors[kind]))
            self.sectors[kind] = [merged]
            self.pending[kind] = merged.size // 2

    def _by_block(self, kind: str) -> dict[int, Array]:
        if not self.sectors[kind]:
            return {}
        keys = np.unique(np.concatenate(self.sectors[kind]))
        blocks = keys >> 36
        starts = np.flatnonzero(np.r_[True, blocks[1:] != blocks[:-1]])
        return {
            int(blocks[start]): keys[start:stop] & ((1 << 36) - 1)
            for start, stop in zip(starts, [*starts[1:], keys.size], strict=True)
        }

    def counters(self, blocks: tuple[int, ...], launches: int, warps_per_block: int) -> Counters:
        """Return the frozen result."""
        program = self.program
        spots = [program.lines.spot(item.location) for item in program.instructions]
        pairs = list(zip(program.instructions, program.operations, strict=True))
        pipes = tuple(pipe_of(item, operation) for item, operation in pairs)
        issued = self.arrays["warp_instructions"]
        mma: dict[str, tuple[int, float]] = {}
        barriers = 0
        for number, (item, _) in enumerate(pairs):
            if (
                pipes[number] == "tensor"
                and item.has("mma", "sync")
                and "load" not in item.modifiers
                and "store" not in item.modifiers
            ):
                name = matrix_name(item.modifiers)
                known = mma.get(name, (0, 0.0))
                mma[name] = known[0] + int(issued[number]), known[1] + operations_of(item) * int(issued[number])
            elif item.opcode in ("bar", "barrier") and "warp" not in item.modifiers:
                barriers += int(issued[number])
        return Counters(
            blocks=blocks,
            launches=launches,
            warps_per_block=warps_per_block,
            instructions=tuple(item.text for item in program.instructions),
            lines=np.array([spot.line for spot in spots], np.int64),
            files=tuple(spot.file for spot in spots),
            called_from=tuple(spot.called_from for spot in spots),
            pipes=pipes,
            barriers=barriers,
            mma={name: value for name, value in mma.items() if value[0]},
            unique_load_sectors=self._by_block("load"),
            unique_store_sectors=self._by_block("store"),
            record=tuple(self.record),
            **self.arrays,
        )


class EventCounter:
    """Counts the events of one batch that need addresses."""

    def __init__(self, machine: Machine, tally: Tally) -> None:
        self.machine = machine
        self.tally = tally
        self.steps: list[tuple[int, Array | None]] = []

    def load(self) -> None:
        """New blocks."""
        self.steps = []

    def segment(self, number: int, active: Active) -> None:
        """Note that these lanes run a segment now."""
        self.steps.append((number, None if active.all else np.asarray(active.mask.reshape(-1, 32).any(1))))

    def finish(self) -> None:
        """Add up what the machine counted per segment; called once per batch, after its blocks ran."""
        self.tally.record.append(BatchRecord(self.machine.lanes // 32, tuple(self.steps)))
        self.add_up()

    def add_up(self) -> None:
        """Add what the machine has counted since the last time."""
        arrays = self.tally.arrays
        for bound in self.machine.bound:
            place = slice(bound.segment.base, bound.segment.base + bound.size)
            arrays["warp_instructions"][place] += bound.warps
            arrays["thread_instructions"][place] += bound.threads
            arrays["divergent"][place] += bound.partial
            bound.warps = bound.threads = bound.partial = 0

    def shared(self, number: int, active: Active, index: Array, width: int, *, copied: bool = False) -> None:
        """Count the wavefronts of a shared access.

        Args:
            number: the instruction.
            active: lanes that access.
            index: where, in units of ``width``, one per active lane.
            width: bytes a lane.
            copied: whether an asynchronous copy writes.
        """
        parts = max(width // 4, 1)
        word = index * parts if width >= 4 else index * width >> 2
        first = int(word[0])
        whole = active.count == self.machine.lanes
        shape = (word - first).astype(np.int32).tobytes() + (b"" if whole else active.mask.tobytes())
        key = (parts + 8 * copied, first & 31, shape)
        known = self.tally.patterns.get(key)
        if known is None:
            known = self._wavefronts(active, word, parts)
            if copied and parts == 4:
                known = max(known[0], _copied_wavefronts(active, word)), known[1]
            if len(self.tally.patterns) < _PATTERNS:
                self.tally.patterns[key] = known
        self.tally.arrays["shared_wavefronts"][number] += known[0]
        self.tally.arrays["ideal_wavefronts"][number] += known[1]

    def _wavefronts(self, active: Active, word: Array, parts: int) -> tuple[int, int]:
        group_lanes = 32 // parts
        group = np.repeat(active.lanes // group_lanes, parts)
        words = (word[:, None] + np.arange(parts)).reshape(-1)
        distinct = np.unique(group << 40 | words)
        group, words = distinct >> 40, distinct & ((1 << 40) - 1)
        banks, counts = np.unique(group << 5 | words & 31, return_counts=True)
        owner = banks >> 5
        starts = np.flatnonzero(np.r_[True, owner[1:] != owner[:-1]])
        return int(np.maximum.reduceat(counts, starts).sum()), int(starts.size)

    def local(self, number: int, active: Active, width: int) -> None:
        """Count the bytes of a local access, which the hardware interleaves so that lanes do not collide."""
        self.tally.arrays["local_bytes"][number] += width * active.count

    def sectors(self, number: int, active: Active, index: Array, width: int, *, write: bool) -> None:
        """Count the sectors of a global access; ``index`` in units of ``width``, one per active lane."""
        kind = "store" if write else "load"
        arrays = self.tally.arrays
        lanes = active.lanes
        sector = index * width // SECTOR
        distinct = np.unique((lanes >> 5) << 36 | sector)
        arrays[f"{kind}_sectors"][number] += distinct.size
        warps, actual = np.unique(distinct >> 36, return_counts=True)
        threads = np.bincount(lanes >> 5, minlength=int(warps[-1]) + 1)[warps]
        arrays[f"ideal_{kind}_sectors"][number] += int(np.minimum(actual, -(-threads * width // SECTOR)).sum())
        block = self.machine.block_id[(distinct >> 36) * 32]
        self.tally.keep(kind, block << 36 | distinct & ((1 << 36) - 1))


def _copied_wavefronts(active: Active, word: Array) -> int:
    """Return how often 16-byte asynchronous copies write: a line of 128 bytes at a time.

    What eight lanes copy takes one wavefront where it lies in one line; otherwise each half of them (64 bytes of the
    source) takes one for every line that it touches. On an NVIDIA H200 rows of 128 bytes that start at all multiples
    of 16 bytes take 10.5 wavefronts an instruction, which this gives, and rows at multiples of 128 bytes take 4.
    """
    line = word >> 5
    eighth = np.unique(np.stack([active.lanes >> 2, line]), axis=1)
    quarters, lines = np.unique(np.unique(np.stack([active.lanes >> 3, line]), axis=1)[0], return_counts=True)
    whole = quarters[lines == 1]
    split = ~np.isin(eighth[0] >> 1, whole)
    return int(whole.size + np.count_nonzero(split))
