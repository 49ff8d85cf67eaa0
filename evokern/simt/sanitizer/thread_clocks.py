"""Vector clocks of a block: the time stamp up to which each thread is ordered after every other thread.

There is one clock for each pair of warps, which is exact while whole warps synchronise. When only some lanes of a warp
synchronise, the block gets one clock for each pair of threads, until all its threads synchronise again. The clocks of
warps never claim that a warp has seen more than it has. The stamps up to which a thread has seen all threads are called
its knowledge. An access that passes a quick comparison with them is therefore safe; other accesses are compared exactly
(`seen`). Exited threads count as having arrived everywhere.

With clusters, the word "block" below means a cluster, because its threads share memory. Its threads are numbered
across all its blocks, and a clock covers the threads of all of them. Only code that handles ranks distinguishes its
blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from evokern.errors import UsageError
from evokern.simt.arrays import Active, Array
from evokern.simt.batch import Batch
from evokern.simt.sanitizer.access_keys import STAMP
from evokern.simt.sanitizer.block_classes import BlockClasses

_ALWAYS = 1 << 40
"""A stamp later than any access, for a thread's knowledge about itself and about lanes that are not threads."""
MOST_THREADS = 4096
"""Maximum threads of a cluster for one clock per pair of threads; the clocks then take 128 MiB."""


class ThreadClocks:
    """Clocks of all blocks in a batch.

    Attributes:
        now: current time stamp.
        dirty: whether there was any access since time advanced.
        period: number of times that all threads have seen everything.
        ranks: blocks per cluster; 1 without clusters.
        block_width: lanes per block.
        classes: blocks with equal accesses and equal order in shared memory.
        clocks: [blocks, warps, warps]; clocks[b, i, j] is the stamp up to which all lanes of warp i have seen the
            accesses of warp j.
        collective: per lane, the stamp up to which its warp has met at warp-synchronous instructions.
        floor: per lane, the stamp (as part of a key) before which it has seen everything.
        level: `floor` if it is the same for all lanes, else None.
        near_floor: per lane, the stamp before which it has seen every access to its own block's shared memory. Until a
            block of a cluster accesses another block's memory, accesses to other blocks' memory need not be considered.
        near_level: `near_floor` if it is the same for all lanes, else None.
    """

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        geometry = batch.geometry
        self.blocks, self.width, self.warps = geometry.clusters, geometry.cluster_width, geometry.cluster_width // 32
        self.ranks, self.block_width = geometry.ranks, geometry.width
        self.clocks = np.zeros((self.blocks, self.warps, self.warps), np.int64)
        self.collective = np.zeros(batch.lanes, np.int64)
        self.floor = np.zeros(batch.lanes, np.uint64)
        self.level: Any = None
        self.near_floor, self.near_level = self.floor, self.level
        self._visited = False
        """Whether any lane has accessed another block's shared memory since all lanes last had seen everything."""
        self.now, self.dirty, self.period = 1, False, 0
        self._limits: Array | None = None
        """`clocks` as stamp fields of keys, including warp-synchronous instructions; None if not up to date."""
        self._fine: dict[int, Array] = {}
        """Leading block → [threads, threads]: stamps up to which one thread has seen the accesses of another."""
        self._copies: list[Callable[[int, int], None]] = []
        self.classes = BlockClasses(self.blocks, self.width, self._copy)
        batch.stamp = lambda: self.now

    def on_copy(self, copy: Callable[[int, int], None]) -> None:
        """Register a function that is called when a block separates from its leader: (from, to)."""
        self._copies.append(copy)

    def load(self, start: int) -> None:
        """Clear the clocks for new blocks.

        Args:
            start: a stamp later than any access so far.
        """
        self.classes.load()
        self.now = max(self.now, start) + 1
        self.collective.fill(self.now)
        self._mark_all_seen()

    def _copy(self, source: int, target: int) -> None:
        if source in self._fine:
            self._fine[target] = self._fine[source].copy()
        for copy in self._copies:
            copy(source, target)

    def tick(self) -> None:
        """Advance time if there was any access since the previous call."""
        if self.dirty:
            self.now += 1
            self.dirty = False

    # ---- comparing

    def limits(self) -> Array:
        """Return `observed` as stamp fields of keys; a warp has seen all accesses with smaller keys than its limit."""
        if self._limits is None:
            self._limits = STAMP.pack_all(self.observed().astype(np.uint64))
        return self._limits

    def observed(self) -> Array:
        """Return the time stamps up to which each warp is ordered after each warp, as [blocks, warps, warps]."""
        known = self.clocks.copy()
        warp = np.arange(self.warps)
        met = self.collective.reshape(self.blocks, self.warps, 32).min(2)
        known[:, warp, warp] = np.maximum(known[:, warp, warp], met)
        return known

    def seen(self, lanes: Array, threads: Array) -> Array:
        """Return, for (lane, thread) pairs, the time stamp up to which the lane is ordered after the thread."""
        block, mine = lanes // self.width, lanes % self.width
        warp, other = mine >> 5, threads >> 5
        known = self.clocks[block, warp, other]
        known = np.where(warp == other, np.maximum(known, self.collective[lanes]), known)
        if self._fine:
            leader = self.classes.leader_of[block]
            for number, matrix in self._fine.items():
                here = leader == number
                known[here] = matrix[mine[here], threads[here]]
        stamps: Array = known
        return stamps

    # ---- knowledge

    def _ordering(self, mask: Array) -> Active:
        """Return lanes that are about to be ordered; blocks whose lanes differ separate from their leader."""
        active = Active(mask, int(np.count_nonzero(mask)), self._batch.live_count)
        self.classes.leader_lanes(active, None)
        return active

    def _leading(self, active: Active) -> list[tuple[int, Array]]:
        """Return the leading blocks of the active lanes, with the threads of each."""
        lanes = self.classes.leader_lanes(active, None).active.lanes
        return [
            (int(block), lanes[lanes // self.width == block] % self.width) for block in np.unique(lanes // self.width)
        ]

    def _whole(self, mask: Array) -> bool:
        """Return whether the mask contains all live lanes of each of its warps."""
        shaped = mask.reshape(-1, 32)
        here = shaped.any(1)
        return bool((shaped[here] == self._batch.live.reshape(-1, 32)[here]).all())

    def _of_block(self, row: Array, block: int) -> Array:
        return row[block * self.width : (block + 1) * self.width]

    def _seen_by(self, block: int, threads: Array) -> Array:
        """Return the stamps up to which each given thread has seen every thread, as [given threads, threads]."""
        matrix = self._fine.get(int(self.classes.leader_of[block]))
        if matrix is not None:
            found: Array = matrix[threads]
            return found
        rows = np.repeat(self.clocks[block, threads >> 5], 32, axis=1)
        shaped = rows.reshape(threads.size, self.warps, 32)
        at, warp = np.arange(threads.size), threads >> 5
        met = self._of_block(self.collective, block)[threads]
        shaped[at, warp] = np.maximum(shaped[at, warp], met[:, None])
        rows[at, threads] = _ALWAYS
        rows[:, ~self._of_block(self._batch.exists, block)] = _ALWAYS
        return rows

    def _known(self, block: int, threads: Array) -> Array:
        """Return the joint knowledge of some threads, including their own accesses and those of exited lanes."""
        known: Array = self._seen_by(block, threads).max(0)
        gone = self._of_block(self._batch.exists & ~self._batch.live, block)
        if gone.any():
            known[gone & np.isin(np.arange(self.width) >> 5, threads >> 5)] = self.now
        known[threads] = self.now
        return known

    def _known_by_many(self, block: int, threads: Array) -> Array:
        """Return `_known` for many threads, without a row for each of them if there is one clock per pair of warps."""
        if block in self._fine or threads.size <= 32:
            return self._known(block, threads)
        warps = np.unique(threads >> 5)
        known: Array = np.repeat(self.clocks[block, warps].max(0), 32)
        met = self._of_block(self.collective, block)
        known_of = known.reshape(self.warps, 32)
        for warp in warps:
            mine = threads[threads >> 5 == warp]
            known_of[warp] = np.maximum(known_of[warp], met[mine].max())
        exists, live = (self._of_block(row, block) for row in (self._batch.exists, self._batch.live))
        known[exists & ~live & np.isin(np.arange(self.width) >> 5, warps)] = self.now
        known[~exists] = _ALWAYS
        known[threads] = self.now
        return known

    def _raise(self, block: int, threads: Array, known: Array) -> None:
        """Give new knowledge to threads of a leading block and of the blocks that it represents."""
        matrix = self._fine.get(block)
        if matrix is None:
            if self._raise_warps(block, threads, known):
                return
            if self.width > MOST_THREADS:
                raise UsageError(
                    f"threads of a warp diverge in clusters of {self.width:,} threads, but the sanitizer can order "
                    f"at most {MOST_THREADS:,} threads: use a smaller cluster or block, or run this launch without "
                    "the sanitizer"
                )
            matrix = self._fine[block] = self._seen_by(block, np.arange(self.width))
        matrix[threads] = np.maximum(matrix[threads], known)
        live = self._of_block(self._batch.live, block)
        low = np.where(live[:, None], matrix, _ALWAYS).reshape(self.warps, 32, self.warps, 32).min((1, 3))
        group = self.classes.leader_of == block
        self.clocks[group] = np.maximum(self.clocks[group], np.minimum(low, self.now))

    def _raise_warps(self, block: int, threads: Array, known: Array) -> bool:
        """Advance the clocks of warps; return False and change nothing if they cannot represent the knowledge."""
        mine = np.zeros(self.width, np.bool_)
        mine[threads] = True
        shaped = mine.reshape(self.warps, 32)
        warps = shaped.any(1)
        exists = self._of_block(self._batch.exists, block).reshape(self.warps, 32)
        of_warps = known.reshape(self.warps, 32)
        low, high = of_warps.min(1, where=exists, initial=_ALWAYS), of_warps.max(1, where=exists, initial=0)
        if (self.clocks[block][warps] >= high).all():
            return True
        if (shaped != self._of_block(self._batch.live, block).reshape(self.warps, 32))[warps].any():
            return False
        if (low != high).any():
            return False
        group = self.classes.leader_of == block
        both = group[:, None] & warps
        self.clocks[both] = np.maximum(self.clocks[both], low)
        return True

    def visit(self) -> None:
        """Record that lanes are about to access another block's shared memory."""
        if not self._visited:
            self._visited = True
            self._refloor()

    def _refloor(self) -> None:
        floor = STAMP.pack_all(self.clocks.min(2).reshape(-1).astype(np.uint64))
        self.level = floor[0] if bool((floor == floor[0]).all()) else None
        self.floor[:] = np.repeat(floor, 32)
        self._limits = None
        self.near_floor, self.near_level = self.floor, self.level
        if self.ranks > 1 and not self._visited:
            each = self.warps // self.ranks
            ranks = np.arange(self.ranks)
            own = self.clocks.reshape(self.blocks, self.ranks, each, self.ranks, each)[:, ranks, :, ranks]
            near = STAMP.pack_all(own.min(3).transpose(1, 0, 2).reshape(-1).astype(np.uint64))
            self.near_level = near[0] if bool((near == near[0]).all()) else None
            self.near_floor = np.repeat(near, 32)

    def _mark_all_seen(self) -> None:
        """Record that all threads have seen everything."""
        self.clocks.fill(self.now)
        self._fine.clear()
        self.period += 1
        self.level = np.uint64(STAMP.pack(self.now))
        self.floor.fill(self.level)
        self.near_floor, self.near_level, self._visited = self.floor, self.level, False
        self._limits = None
