"""Shadow of global memory: the blocks that wrote and read each word during one launch, and which words are initialised.

Two blocks of a launch are ordered only if one releases and the other one later acquires. A release is a fence followed
by an atomic or volatile write; an acquire is an atomic or volatile read. Each block therefore stores which releases of
other blocks it has seen. Threads of one block or cluster are ordered by `evokern.simt.sanitizer.thread_order`. At a
cluster barrier, the knowledge of the cluster's blocks about other blocks is joined. Read-only allocations need no
shadow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from evokern.ptx.program import PtxProgram
from evokern.simt.arrays import Array, sparse_zeros
from evokern.simt.batch import Batch, Occurrence
from evokern.simt.memory.buffers import GLOBAL_BASE, Memory
from evokern.simt.sanitizer.access_keys import Conflicts, KeyTable, WordAccess, repeated
from evokern.simt.sanitizer.block_history import ATOMIC, BLOCK, NUMBER, TIME, BlockHistory, keys_of
from evokern.simt.sanitizer.block_shadow import BlockShadow
from evokern.simt.sanitizer.findings import Access, Reads
from evokern.simt.sanitizer.thread_order import ThreadOrder


@dataclass(slots=True, eq=False)
class GridAccess:
    """Access of lanes to words of global memory; not frozen, because one is created for each access that runs."""

    batch: Batch
    words: WordAccess
    mine: Array
    """Block of each lane, as stored in keys."""


class GlobalShadow:
    """Keys (time, block, instruction) of each word, for one launch or for several launches with separate memory."""

    def __init__(
        self, program: PtxProgram, memory: Memory, launches: int, blocks: int, cluster: Array | None = None
    ) -> None:
        """Create the shadow for a launch.

        Args:
            program: the program.
            memory: global memory with the buffers.
            launches: number of concurrent launches.
            blocks: blocks of the grid.
            cluster: linear id of the cluster of each block, by the block's linear id; None without clusters.
        """
        self.memory = memory
        self.blocks = blocks
        self.granularity = program.global_granularity
        self.ordered = program.orders_blocks
        self.size = memory.storage.size
        self.words = self.size // self.granularity
        self.writer = KeyTable(sparse_zeros(self.words, np.uint64))
        self._cluster = cluster
        # The lowest and the highest block that accessed a word may be in one cluster although a block between them is
        # in another.
        logged = self.ordered or cluster is not None
        self.reads = BlockHistory(self.words, logged=logged, ascending=cluster is None)
        self.atomics = BlockHistory(self.words, logged=logged, ascending=cluster is None)
        self.now = 1
        self.last_stamp = 0
        self.fenced = np.zeros((launches, blocks), np.int64)
        self.released = np.zeros((launches, blocks), np.int64)
        self._came = np.zeros((launches, blocks), np.int64)
        """Time at which each block arrived at its cluster's barrier; 0 if it has not arrived."""
        self._brought: dict[tuple[int, int], Array] = {}
        """(launch, cluster) → knowledge that its blocks had acquired when they arrived."""
        self._met = np.zeros((launches, blocks), np.int64)
        """Time at which each block arrived at the latest completed barrier of its cluster."""
        self._joint: dict[tuple[int, int], Array] = {}
        """(launch, cluster) → knowledge of the blocks that wait there."""
        self._covered: dict[tuple[int, int], tuple[Array, Array]] = {}
        """(launch, block) → blocks of its cluster, their arrival times at the barrier before the block's fence.

        The fence publishes everything that these blocks did before those times.
        """
        self.acquired: dict[tuple[int, int], Array] = {}

    def within_blocks(self, batch: Batch, order: ThreadOrder) -> BlockShadow:
        """Return a shadow that detects races between threads of one block, for the blocks of a batch."""
        return BlockShadow(batch, order, self.words, self._place_of)

    def read(self, access: GridAccess, *, initialised: bool) -> None:
        """Check reads for races with writes by other blocks and for uninitialised words, then record the reads."""
        words = access.words
        seen = self.writer.take(words.element, words.count)
        if seen.any():
            self._report_late(access, words.pairs(seen, self._by_others(access, seen)), "written", reads=True)
        self._against(access, self.atomics, "updated atomically", reads=True)
        if not initialised:
            self._unwritten(access, seen)
        self.reads.add(words, keys_of(access.mine, self.now, words.number))

    def write(self, access: GridAccess, changes: Callable[[], Array] | None, *, atomic: bool = False) -> Array | None:
        """Check writes for races with other blocks, and record them; rewriting the stored value is not a race.

        Args:
            access: the access.
            changes: function that returns a mask of the lanes that change the stored value; None if unknown.
            atomic: whether the access takes part in ordering blocks.

        Returns:
            That mask if it was needed.
        """
        words = access.words
        seen = self.writer.take(words.element, words.count)
        changed = None
        if seen.any():
            race = self._by_others(access, seen)
            if changes is not None:
                changed = changes()
                race &= changed[:, None]
            if atomic:
                race &= ATOMIC.alone(seen) == 0
            self._report_late(access, words.pairs(seen, race), "written")
        self._against(access, self.reads, "read")
        if not atomic:
            self._against(access, self.atomics, "updated atomically")
        own = keys_of(access.mine, self.now, words.number, atomic=atomic)
        if atomic:
            self.atomics.add(words, own)
        self.writer.view(words.count)[words.element] = repeated(own, words.count)
        return changed

    def report_collisions(self, access: GridAccess, values: Array, width: int) -> None:
        """Report threads of this batch that write different values to one address with the same instruction."""
        batch, mine, element = access.batch, access.mine, access.words.element
        number, lanes = access.words.number, access.words.active.lanes
        _, which = np.unique(element, return_inverse=True)
        last = np.zeros(element.size, np.int64)
        last[which] = np.arange(element.size)
        winner = last[which]
        raw = values.view(np.uint8).reshape(-1, width)
        differ = (raw[winner] != raw).any(1)
        other = mine[winner] != mine
        for race, same_block in ((differ & other, False), (differ & ~other, True)):
            if not race.any():
                continue
            at = int(np.flatnonzero(race)[0])
            winning = int(lanes[winner[at]])
            who = (
                f"thread {int(batch.thread[winning])} of the same block"
                if same_block
                else f"block {int(batch.block_id[winning])} of the grid"
            )
            place = self._place_of(int(element[at]) * access.words.count * self.granularity)
            detail = f"The same word is also written by {who}"
            batch.report("global_race", Occurrence.of(number, lanes[race], number), place, detail=detail)

    def _by_others(self, access: GridAccess, seen: Array) -> Array:
        """Return which of the last writers of an access's words are other blocks."""
        theirs = BLOCK.alone(seen)
        others: Array = (theirs != 0) & (theirs != access.mine[:, None])
        return others

    def _against(self, access: GridAccess, history: BlockHistory, what: str, *, reads: bool = False) -> None:
        if history.used:
            row, words, keys = history.others(access.words, access.mine)
            met = Conflicts(access.words.active.lanes[row], words, keys)
            if self.ordered and history is self.atomics and row.size:
                # The last block that updated a word after a fence has seen all earlier updates of that word.
                latest = self.writer.keys[words]
                chain = (BLOCK.alone(latest) == access.mine[row]) & (ATOMIC.alone(latest) != 0)
                met = met.where(~(chain & self._has_acquired(access.batch, met.lanes, BLOCK.of(keys) - 1)))
            self._report_late(access, met, what, reads=reads)

    def _report_late(self, access: GridAccess, met: Conflicts, what: str, *, reads: bool = False) -> None:
        """Report lanes whose access is not ordered after the given accesses of other blocks."""
        batch, number = access.batch, access.words.number
        if self._cluster is not None and met.lanes.size:
            met = met.where(self._cluster[BLOCK.of(met.keys) - 1] != self._cluster[batch.block_id[met.lanes]])
        if self.ordered and met.lanes.size:
            met = met.where(~self._known(batch, met.lanes, BLOCK.of(met.keys) - 1, TIME.of(met.keys)))
        numbers = NUMBER.of(met.keys)
        for theirs in dict.fromkeys(numbers.tolist()):
            group = met.where(numbers == theirs)
            detail = f"The same word is also {what} by block {int(BLOCK.of(group.keys[:1])[0]) - 1} of the grid"
            places = group.words * self.granularity
            batch.report(
                "global_race",
                Occurrence(number, int(group.lanes[0]), int(np.unique(group.lanes).size), theirs),
                self._place_of(int(places[0])),
                detail=detail,
                reads=Reads(number, group.lanes, places) if reads else None,
            )

    def _place_of(self, position: int, lane: int = 0) -> Access:
        buffer = self.memory.find(position)
        name, offset = (buffer.name, position - buffer.offset) if buffer else ("", position)
        return Access(address=position + GLOBAL_BASE, allocation=name, offset=offset)

    def _unwritten(self, access: GridAccess, seen: Array) -> None:
        empty = (seen == 0).any(1)
        if not empty.any():
            return
        words = access.words
        lanes = words.active.lanes[empty]
        places = words.element[empty] * words.count * self.granularity
        for buffer in self.memory.buffers:
            inside = (places >= buffer.offset) & (places < buffer.offset + buffer.size)
            if not buffer.initialised and inside.any():
                bad, where = lanes[inside], places[inside]
                at, reads = Occurrence.of(words.number, bad), Reads(words.number, bad, where)
                access.batch.report("uninitialised", at, self._place_of(int(where[0])), reads=reads)

    # ---- order between blocks

    def fence(self, launch: Array, block: Array) -> None:
        """Record a fence, with which blocks make their writes visible."""
        if self.ordered:
            self.fenced[launch, block] = self.now
            if self._cluster is not None:
                for one, two in _pairs(launch, block):
                    members = np.flatnonzero(self._cluster == self._cluster[two])
                    self._covered[one, two] = members, self._met[one, members]
            self.now += 1

    def arrive(self, launch: Array, block: Array, *, releases: bool) -> None:
        """Record blocks that arrive at their cluster's barrier; an arrival without release publishes no accesses."""
        if not self.ordered or self._cluster is None or not releases:
            return
        for one, two in _pairs(launch, block):
            key, seen = (one, int(self._cluster[two])), self.acquired.get((one, two))
            if not self._came[one, two]:  # The first thread of the block.
                self._came[one, two] = self.now
            if seen is not None:
                before = self._brought.get(key)
                self._brought[key] = seen if before is None else np.maximum(before, seen)
        self.now += 1

    def meet(self, launch: int, block: int) -> None:
        """Record that all blocks of a cluster have arrived at the cluster's barrier."""
        if not self.ordered or self._cluster is None:
            return
        members = self._cluster == self._cluster[block]
        self._met[launch, members] = np.maximum(self._met[launch, members], self._came[launch, members])
        self._came[launch, members] = 0
        key = launch, int(self._cluster[block])
        self._joint.pop(key, None)
        if key in self._brought:
            self._joint[key] = self._brought.pop(key)

    def wait(self, launch: Array, block: Array) -> None:
        """Order all accesses that precede arrivals at the cluster's barrier before the blocks that wait at it."""
        if self._cluster is None or not self._joint:
            return
        for one, two in _pairs(launch, block):
            joint, seen = self._joint.get((one, int(self._cluster[two]))), self.acquired.get((one, two))
            if joint is not None:
                self.acquired[one, two] = joint if seen is None else np.maximum(seen, joint)

    def synchronise(self, launch: Array, block: Array, *, release: bool, acquire: bool) -> None:
        """Record an atomic or volatile access, which publishes and acquires accesses before fences."""
        if not self.ordered:
            return
        if release:
            self.released[launch, block] = self.fenced[launch, block]
            for one, two in _pairs(launch, block) if self._cluster is not None else ():
                if (one, two) in self._covered:
                    members, met = self._covered[one, two]
                    self.released[one, members] = np.maximum(self.released[one, members], met)
        if acquire:
            for pair in _pairs(launch, block):
                self.acquired[pair] = self.released[pair[0]].copy()

    def _has_acquired(self, batch: Batch, lanes: Array, other: Array) -> Array:
        """Return whether the lanes' blocks have acquired anything that other blocks published."""
        return self._known(batch, lanes, other, np.ones(lanes.size, np.int64))

    def _known(self, batch: Batch, lanes: Array, other: Array, time: Array) -> Array:
        if not lanes.size:
            return np.zeros(0, np.bool_)
        pairs, which = np.unique(batch.launch[lanes] * self.blocks + batch.block_id[lanes], return_inverse=True)
        known, order = np.zeros(lanes.size, np.bool_), np.argsort(which, kind="stable")
        for pair, mine in zip(pairs.tolist(), np.split(order, np.cumsum(np.bincount(which))[:-1]), strict=True):
            seen = self.acquired.get(divmod(pair, self.blocks))
            if seen is not None:
                known[mine] = time[mine] <= seen[other[mine]]
        return known


def _pairs(launch: Array, block: Array) -> list[tuple[int, int]]:
    """Return the distinct (launch, block) pairs of the lanes."""
    return [(one, two) for one, two in np.unique(np.stack([launch, block], 1), axis=0).tolist()]
