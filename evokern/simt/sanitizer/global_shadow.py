"""Shadow of global memory: the blocks that wrote and read each word during one launch, and which words are initialised.

Two blocks of a launch are ordered only if one releases and the other one later acquires. A release is a fence followed
by an atomic or volatile write; an acquire is an atomic or volatile read. Each block therefore stores which releases of
other blocks it has seen. Threads of one block or cluster are ordered by `evokern.simt.sanitizer.thread_order`. At a
cluster barrier, the knowledge of the cluster's blocks about other blocks is joined. Read-only allocations need no
shadow.
"""

from __future__ import annotations

import numpy as np

from evokern.ptx.program import PtxProgram
from evokern.simt.arrays import Active, Array, sparse_zeros
from evokern.simt.batch import Batch
from evokern.simt.memory.buffers import GLOBAL_BASE, Memory
from evokern.simt.sanitizer.access_keys import in_elements, repeated
from evokern.simt.sanitizer.block_history import ATOMIC, BLOCK, NUMBER, TIME, BlockHistory, keys_of
from evokern.simt.sanitizer.block_shadow import BlockShadow
from evokern.simt.sanitizer.findings import ERROR, Reads
from evokern.simt.sanitizer.thread_order import ThreadOrder


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
        self.writer = sparse_zeros(self.words, np.uint64)
        self._cluster = cluster
        # The lowest and the highest block that accessed a word may be in one cluster although a block between them is
        # in another.
        logged = self.ordered or cluster is not None
        self.reads = BlockHistory(self.words, logged=logged, ascending=cluster is None)
        self.atomics = BlockHistory(self.words, logged=logged, ascending=cluster is None)
        self._views: dict[int, Array] = {}
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

        def report(
            number: int, lane: int, count: int, word: int, other: int, detail: str, level: str,
            reads: Reads | None,
        ) -> None:  # fmt: skip
            self._report(batch, number, lane, count, word, other, detail, level, reads)

        return BlockShadow(batch, order, self.words, report)

    def _view(self, width: int) -> tuple[Array, int]:
        count = max(width // self.granularity, 1)
        view = self._views.get(count)
        if view is None:
            view = self._views[count] = in_elements(self.writer, count)
        return view, count

    def element(self, index: Array, width: int) -> tuple[Array, int]:
        """Return element indices from indices in units of the access width, and the number of words per element."""
        count = max(width // self.granularity, 1)
        return (index if width >= self.granularity else index * width // self.granularity), count

    def read(
        self, batch: Batch, active: Active, mine: Array, index: Array, width: int, number: int, *, initialised: bool
    ) -> None:
        """Check reads for races with writes by other blocks and for uninitialised words, then record the reads."""
        element, _ = self.element(index, width)
        view, count = self._view(width)
        seen = view.take(element, mode="clip").view(np.uint64).reshape(-1, count)
        if seen.any():
            self._against_writers(batch, active, seen, mine, element, count, number, atomic=False, reads=True)
        self._against(batch, active, self.atomics, mine, element, count, number, "updated atomically", reads=True)
        if not initialised:
            self._unwritten(batch, active, seen, element, count, number)
        self.reads.add(element, count, keys_of(_each(mine, element), self.now, number))

    def write(
        self, batch: Batch, active: Active, mine: Array, index: Array, width: int, number: int, values: Array | None,
        *, atomic: bool = False,
    ) -> Array | None:  # fmt: skip
        """Check writes for races with other blocks, and record them; rewriting the stored value is not a race.

        Returns:
            A mask of the lanes that change the stored value; None if unknown.
        """
        element, _ = self.element(index, width)
        view, count = self._view(width)
        seen = view.take(element, mode="clip").view(np.uint64).reshape(-1, count)
        changed = None
        if seen.any():
            if values is not None:
                now = self.memory.view(width).take(index, mode="clip")
                changed = (now.view(np.uint8) != values.view(np.uint8)).reshape(-1, width).any(1)
            self._against_writers(batch, active, seen, mine, element, count, number, changed=changed, atomic=atomic)
        self._against(batch, active, self.reads, mine, element, count, number, "read")
        if not atomic:
            self._against(batch, active, self.atomics, mine, element, count, number, "updated atomically")
        own = keys_of(_each(mine, element), self.now, number, atomic=atomic)
        if atomic:
            self.atomics.add(element, count, own)
        view[element] = repeated(own, count)
        return changed

    def report_collisions(
        self, batch: Batch, active: Active, mine: Array, index: Array, width: int, number: int, values: Array
    ) -> None:
        """Report threads of this batch that write different values to one address with the same instruction."""
        element, count = self.element(index, width)
        _, which = np.unique(element, return_inverse=True)
        last = np.zeros(element.size, np.int64)
        last[which] = np.arange(element.size)
        winner = last[which]
        raw = values.view(np.uint8).reshape(-1, width)
        differ = (raw[winner] != raw).any(1)
        other = mine[winner] != mine if mine.shape[0] > 1 else np.zeros(element.size, np.bool_)
        for race, same_block in ((differ & other, False), (differ & ~other, True)):
            if not race.any():
                continue
            at = int(np.flatnonzero(race)[0])
            lane = int(active.lanes[at])
            winning = int(active.lanes[winner[at]])
            who = (
                f"thread {int(batch.thread[winning])} of the same block"
                if same_block
                else f"block {int(batch.block_id[winning])} of the grid"
            )
            word = int(element[at]) * count
            detail = f"The same word is also written by {who}"
            self._report(batch, number, lane, int(np.count_nonzero(race)), word, number, detail)

    def _against_writers(
        self, batch: Batch, active: Active, seen: Array, mine: Array, element: Array, count: int, number: int, *,
        changed: Array | None = None, atomic: bool, reads: bool = False,
    ) -> None:  # fmt: skip
        theirs = BLOCK.alone(seen)
        race = (theirs != 0) & (theirs != mine[:, None])
        if changed is not None:
            race &= changed[:, None]
        if atomic:
            race &= ATOMIC.alone(seen) == 0
        if race.any():
            row, part = np.nonzero(race)
            words = element[row] * count + part
            self._races(batch, active.lanes[row], words, seen[row, part], number, "written", reads=reads)

    def _against(
        self, batch: Batch, active: Active, history: BlockHistory, mine: Array, element: Array, count: int, number: int,
        what: str, *, reads: bool = False,
    ) -> None:  # fmt: skip
        if history.used:
            row, words, keys = history.others(element, count, _each(mine, element))
            if self.ordered and history is self.atomics and row.size:
                # The last block that updated a word after a fence has seen all earlier updates of that word.
                latest = self.writer[words]
                chain = (BLOCK.alone(latest) == _each(mine, element)[row]) & (ATOMIC.alone(latest) != 0)
                late = ~(chain & self._has_acquired(batch, active.lanes[row], BLOCK.of(keys) - 1))
                row, words, keys = row[late], words[late], keys[late]
            if row.size:
                self._races(batch, active.lanes[row], words, keys, number, what, reads=reads)

    def _races(
        self, batch: Batch, lanes: Array, words: Array, keys: Array, number: int, what: str, *, reads: bool
    ) -> None:
        """Report accesses by lanes that are not ordered after the accesses of other blocks."""
        other = BLOCK.of(keys) - 1
        if self._cluster is not None:
            apart = self._cluster[other] != self._cluster[batch.block_id[lanes]]
            lanes, words, keys, other = lanes[apart], words[apart], keys[apart], other[apart]
        if self.ordered:
            late = ~self._known(batch, lanes, other, TIME.of(keys))
            lanes, words, keys, other = lanes[late], words[late], keys[late], other[late]
        numbers = NUMBER.of(keys)
        for theirs in dict.fromkeys(numbers.tolist()):
            group = numbers == theirs
            detail = f"The same word is also {what} by block {int(other[group][0])} of the grid"
            count = int(np.unique(lanes[group]).size)
            read = Reads(number, lanes[group], words[group] * self.granularity) if reads else None
            self._report(batch, number, int(lanes[group][0]), count, int(words[group][0]), theirs, detail, reads=read)

    def _report(
        self, batch: Batch, number: int, lane: int, count: int, word: int, other: int, detail: str, level: str = ERROR,
        reads: Reads | None = None,
    ) -> None:  # fmt: skip
        at = word * self.granularity
        buffer = self.memory.find(at)
        name, offset = (buffer.name, at - buffer.offset) if buffer else ("", at)
        batch.report(
            "global_race", number, lane, count=count, address=at + GLOBAL_BASE, allocation=name, offset=offset,
            other=other, detail=detail, level=level, reads=reads,
        )  # fmt: skip

    def _unwritten(self, batch: Batch, active: Active, seen: Array, element: Array, count: int, number: int) -> None:
        empty = (seen == 0).any(1)
        if not empty.any():
            return
        lanes = active.lanes[empty]
        places = element[empty] * count * self.granularity
        for buffer in self.memory.buffers:
            if not buffer.initialised:
                inside = (places >= buffer.offset) & (places < buffer.offset + buffer.size)
                if inside.any():
                    at = int(places[inside][0])
                    batch.report(
                        "uninitialised",
                        number,
                        int(lanes[inside][0]),
                        count=int(np.count_nonzero(inside)),
                        address=at + GLOBAL_BASE,
                        allocation=buffer.name,
                        offset=at - buffer.offset,
                        reads=Reads(number, lanes[inside], places[inside]),
                    )

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


def _each(mine: Array, element: Array) -> Array:
    """Return the block of each lane, expanding a single common value."""
    return mine if mine.shape[0] == element.shape[0] else np.repeat(mine, element.shape[0])
