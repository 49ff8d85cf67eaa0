"""Counters of events that depend on addresses, for one batch and as sums over a launch.

A wavefront serves 32 words of 4 bytes, one per bank. Accesses of 8 bytes are served for half a warp at a time. Accesses
of 16 bytes and the rows of ``ldmatrix`` are served for a quarter of a warp at a time. Within such a group, the number
of wavefronts is the largest number of distinct words in one bank. Sources: CUDA C++ Programming Guide, compute
capability 5.x and later, "Shared Memory"; Nsight Compute, "Memory Tables".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from evokern.ptx.instruction_set import pipe_of
from evokern.ptx.matrix_shapes import matrix_name, operations_of
from evokern.ptx.program import PtxProgram
from evokern.simt.arrays import Active, Array
from evokern.simt.batch import Batch
from evokern.simt.counters import SECTOR, BarrierWait, BatchRecord, Counters
from evokern.simt.settings import Bound

_PENDING = 1 << 20
_PATTERNS = 512
_COUNTED = (
    "warp_instructions", "thread_instructions", "divergent", "shared_wavefronts", "ideal_wavefronts", "load_sectors",
    "ideal_load_sectors", "store_sectors", "ideal_store_sectors", "multicast_sectors", "local_bytes",
    "cluster_accesses", "sleep_ns",
)  # fmt: skip
"""Fields of `Counters` with one count per instruction."""


@dataclass(slots=True, eq=False)
class Tally:
    """Counters summed over the batches of a launch."""

    program: PtxProgram
    """Program whose instructions are counted."""
    ranks: int = 1
    """Blocks of a cluster."""
    arrays: dict[str, Array] = field(init=False)
    """Name of a field of `Counters` → counts."""
    sectors: dict[str, list[Array]] = field(default_factory=lambda: {"load": [], "store": []})
    """Keys (block, sector) that are not deduplicated yet."""
    pending: dict[str, int] = field(default_factory=lambda: {"load": 0, "store": 0})
    """Number of keys that are not deduplicated yet."""
    patterns: dict[tuple[int, int, bytes], tuple[int, int]] = field(default_factory=dict)
    """Address pattern → wavefronts, with and without bank conflicts."""
    record: list[BatchRecord] = field(default_factory=list)
    """Execution order of each batch."""

    def __post_init__(self) -> None:
        size = len(self.program.instructions)
        self.arrays = {name: np.zeros(size, np.int64) for name in _COUNTED}

    def keep(self, kind: str, keys: Array) -> None:
        """Add sector keys, which are deduplicated periodically to limit memory."""
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
        """Return the sums as immutable `Counters`."""
        program = self.program
        locations = [program.lines.source_location(item.location) for item in program.instructions]
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
            elif item.opcode in ("bar", "barrier") and not item.has("warp", "cluster"):
                barriers += int(issued[number])
        return Counters(
            blocks=blocks,
            launches=launches,
            warps_per_block=warps_per_block,
            ranks=self.ranks,
            instructions=tuple(item.text for item in program.instructions),
            lines=np.array([location.line for location in locations], np.int64),
            files=tuple(location.file for location in locations),
            called_from=tuple(location.called_from for location in locations),
            pipes=pipes,
            barriers=barriers,
            mma={name: value for name, value in mma.items() if value[0]},
            unique_load_sectors=self._by_block("load"),
            unique_store_sectors=self._by_block("store"),
            record=tuple(self.record),
            **self.arrays,
        )


class EventCounter:
    """Counter for the events of one batch that depend on addresses."""

    def __init__(self, batch: Batch, tally: Tally, bound: Sequence[Bound]) -> None:
        """Start counting from zero.

        Args:
            batch: the lanes.
            tally: sums to which the events are added.
            bound: bound segments of the program, which count their executions.
        """
        self._batch, self._bound = batch, bound
        self.tally = tally
        self.steps: list[tuple[int, Array | None]] = []
        self.waits: list[BarrierWait] = []
        self.spins: set[int] = set()

    def load(self) -> None:
        """Prepare to count for new blocks."""
        self.steps, self.waits, self.spins = [], [], set()

    @property
    def step(self) -> int:
        """Index of the current step."""
        return len(self.steps) - 1

    def waited(self, lanes: Array, event: int, *, copied: bool) -> None:
        """Record that lanes saw the end of a phase whose last arrival or copy was issued in an earlier step."""
        self.waits.append(BarrierWait(self.step, np.unique(lanes >> 5), event, copied))

    def segment(self, number: int, active: Active) -> None:
        """Record that these lanes now run a segment."""
        self.steps.append((number, None if active.all else np.asarray(active.mask.reshape(-1, 32).any(1))))

    def finish(self) -> None:
        """Add the machine's counts per segment; call this once per batch, after its blocks have run."""
        self.tally.record.append(
            BatchRecord(self._batch.lanes // 32, tuple(self.steps), tuple(self.waits), frozenset(self.spins))
        )
        self.add_up()

    def add_up(self) -> None:
        """Add the machine's counts since the previous call."""
        arrays = self.tally.arrays
        for bound in self._bound:
            place = slice(bound.segment.base, bound.segment.base + bound.size)
            arrays["warp_instructions"][place] += bound.warps
            arrays["thread_instructions"][place] += bound.threads
            arrays["divergent"][place] += bound.partial
            bound.warps = bound.threads = bound.partial = 0

    def shared(self, number: int, active: Active, index: Array, width: int, *, copied: bool = False) -> None:
        """Count the wavefronts of an access to shared memory.

        Args:
            number: the instruction.
            active: lanes that access.
            index: index of each active lane, in units of ``width``.
            width: bytes per lane.
            copied: whether the access is the write of an asynchronous copy.
        """
        parts = max(width // 4, 1)
        word = index * parts if width >= 4 else index * width >> 2
        first = int(word[0])
        whole = active.count == self._batch.lanes
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
        """Count the bytes of an access to local memory; lanes never conflict, because local memory is interleaved."""
        self.tally.arrays["local_bytes"][number] += width * active.count

    def cluster(self, number: int, accesses: int) -> None:
        """Count accesses to another block's shared memory, per thread."""
        self.tally.arrays["cluster_accesses"][number] += accesses

    def multicast(self, number: int, loaded: int, receivers: Array) -> None:
        """Count the sectors that a multicast brings to further blocks.

        Args:
            number: the instruction.
            loaded: its load sectors before.
            receivers: blocks that get the copy of each lane.
        """
        arrays = self.tally.arrays
        fresh = arrays["load_sectors"][number] - loaded
        arrays["multicast_sectors"][number] += round(fresh * (float(receivers.mean()) - 1))

    def sleep(self, number: int, total_ns: int) -> None:
        """Count the sleep of some warps, summed over these warps."""
        self.tally.arrays["sleep_ns"][number] += total_ns

    def sectors(self, number: int, active: Active, index: Array, width: int, *, write: bool) -> None:
        """Count the sectors of a global access; ``index`` has one value per active lane, in units of ``width``."""
        kind = "store" if write else "load"
        arrays = self.tally.arrays
        lanes = active.lanes
        sector = index * width // SECTOR
        distinct = np.unique((lanes >> 5) << 36 | sector)
        arrays[f"{kind}_sectors"][number] += distinct.size
        warps, actual = np.unique(distinct >> 36, return_counts=True)
        threads = np.bincount(lanes >> 5, minlength=int(warps[-1]) + 1)[warps]
        arrays[f"ideal_{kind}_sectors"][number] += int(np.minimum(actual, -(-threads * width // SECTOR)).sum())
        block = self._batch.block_id[(distinct >> 36) * 32]
        self.tally.keep(kind, block << 36 | distinct & ((1 << 36) - 1))


def _copied_wavefronts(active: Active, word: Array) -> int:
    """Return the number of wavefronts that 16-byte asynchronous copies write; each writes to one 128-byte line.

    The data of eight lanes take one wavefront if they go to one line. Otherwise each half of them (64 bytes of the
    source) takes one wavefront for every line that it touches. This matches an NVIDIA H200: 128-byte rows at all
    multiples of 16 bytes take 10.5 wavefronts per instruction, and rows at multiples of 128 bytes take 4.
    """
    line = word >> 5
    eighth = np.unique(np.stack([active.lanes >> 2, line]), axis=1)
    quarters, lines = np.unique(np.unique(np.stack([active.lanes >> 3, line]), axis=1)[0], return_counts=True)
    whole = quarters[lines == 1]
    split = ~np.isin(eighth[0] >> 1, whole)
    return int(whole.size + np.count_nonzero(split))
