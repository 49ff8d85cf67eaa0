"""Check that a block of a cluster is running whenever another block accesses its shared memory.

A block's shared memory exists from its start to its end. A thread knows that another block has started after a cluster
barrier, or after it has seen an access of that block. A block may exit only after all accesses by other blocks to its
memory (CUDA Programming Guide, "Distributed Shared Memory"). Each of these accesses must therefore be ordered before
the exit of at least one of the block's threads. Both conditions depend on the happens-before order, not on the timing
of one run.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from evokern.simt.arrays import Active, Array
from evokern.simt.batch import Batch, Occurrence
from evokern.simt.sanitizer.findings import Access
from evokern.simt.sanitizer.thread_order import ThreadOrder

KIND = "cluster_lifetime"
"""Kind of the findings."""


class ClusterLifetime:
    """Record of accesses to other blocks' shared memory, and of the accesses that exited threads had observed.

    For each block and each thread of its cluster, only the latest access is stored. A thread that has seen the latest
    access has also seen the earlier ones.
    """

    def __init__(self, batch: Batch, order: ThreadOrder, access_at: Callable[[int], Access]) -> None:
        """Create an empty record for the clusters of a batch.

        Args:
            batch: the lanes.
            order: happens-before order.
            access_at: offset in a block's memory → address with its variable, for findings.
        """
        self._batch, self._order, self._access_at = batch, order, access_at
        shape = batch.geometry.blocks, order.width
        self._latest = np.zeros(shape, np.int64)
        """Stamp of each thread's latest access to each block's memory."""
        self._number = np.zeros(shape, np.int64)
        """Instruction of each latest access."""
        self._place = np.zeros(shape, np.int64)
        """Offset of each latest access in the block's memory."""
        self._seen = np.zeros(shape, np.int64)
        """Latest stamp of each thread in the cluster that a block's exited threads had seen."""
        self._met = np.zeros(batch.lanes, np.bool_)
        """Lanes that have waited at a cluster barrier."""
        self._began = 0
        self._used = False

    def load(self) -> None:
        """Reset the records for new blocks."""
        self._began, self._used = self._order.now, False
        self._order.dirty = True  # All later publications have a later stamp.
        self._met.fill(False)
        for row in (self._latest, self._seen):
            row.fill(0)

    def met(self, mask: Array) -> None:
        """Record lanes that waited for all threads of their cluster, which shows that all its blocks have started."""
        self._met |= mask

    def access(self, active: Active, block: Array, place: Array, number: int) -> None:
        """Check and record accesses to the shared memory of other blocks.

        Args:
            active: lanes that access.
            block: index, in the batch, of the block that each lane accesses.
            place: offset in the block's memory.
            number: the instruction.
        """
        batch, lanes = self._batch, active.lanes
        self._order.visit()
        there: Array = np.asarray(batch.live.reshape(-1, batch.geometry.width).any(1))[block]
        early = np.flatnonzero(~self._met[lanes])
        if early.size:
            early = early[~self._has_seen(lanes[early], block[early])]
        for wrong, what in (
            (np.flatnonzero(~there), "has already exited"),
            (early, "may not have started: no cluster barrier comes before the access"),
        ):
            if wrong.size:
                at = int(wrong[0])
                self._report(Occurrence(number, int(lanes[at]), wrong.size), int(block[at]), int(place[at]), what)
        lanes, block, place = lanes[there], block[there], place[there]
        mine = batch.cluster_thread[lanes]
        self._latest[block, mine] = self._order.now
        self._number[block, mine] = number
        self._place[block, mine] = place
        self._used = True
        self._order.dirty = True  # An arrival at a barrier object, itself such an access, publishes it.

    def _has_seen(self, lanes: Array, block: Array) -> Array:
        """Return whether lanes have seen any access of these blocks' threads since the start."""
        width, ranks = self._order.block_width, self._order.ranks
        known = np.zeros(lanes.size, np.bool_)
        for one in np.unique(block):
            asked = np.flatnonzero(block == one)
            threads = int(one) % ranks * width + np.arange(width)
            threads = threads[self._batch.exists[int(one) * width : (int(one) + 1) * width]]
            stamps = self._order.seen(np.repeat(lanes[asked], threads.size), np.tile(threads, asked.size))
            known[asked] = stamps.reshape(asked.size, -1).max(1) > self._began
        return known

    def leave(self, active: Active) -> None:
        """Remove lanes that have exited the kernel; call this method after these lanes no longer count as live."""
        if not self._used:  # Accesses by other blocks from now on are later than everything that these lanes have seen.
            return
        width = self._order.block_width
        for blocks, seen in self._order.seen_by_any(active).values():
            self._seen[blocks] = np.maximum(self._seen[blocks], seen)
        gone = ~np.asarray(self._batch.live.reshape(-1, width).any(1))
        late = gone[:, None] & (self._latest > 0) & (self._latest >= self._seen)
        for block in np.flatnonzero(late.any(1)).tolist():
            threads = np.flatnonzero(late[block])
            for number in np.unique(self._number[block, threads]).tolist():
                mine = threads[self._number[block, threads] == number]
                lane = block * width // self._order.width * self._order.width + int(mine[0])
                what = "may have exited already: no cluster barrier separates the access from the end of that block"
                self._report(Occurrence(number, lane, mine.size), block, int(self._place[block, mine[0]]), what)
            self._latest[block] = 0

    def _report(self, lanes: Occurrence, block: int, place: int, what: str) -> None:
        at = self._batch.coordinates(block * self._order.block_width)[0]
        detail = f"The access is to shared memory of block {at}, which {what}"
        self._batch.report(KIND, lanes, self._access_at(place), detail=detail)
