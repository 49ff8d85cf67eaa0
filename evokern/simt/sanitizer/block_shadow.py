"""Detection of races in global memory between threads of one block; uses the clocks for shared memory.

Blocks of a cluster are checked as one block, because the cluster's barrier also orders their accesses to global
memory.
"""

from __future__ import annotations

import numpy as np

from evokern.simt.arrays import Array, sparse_zeros
from evokern.simt.batch import Batch
from evokern.simt.sanitizer.access_keys import Conflicts, WordAccess, repeated
from evokern.simt.sanitizer.access_log import AccessLog
from evokern.simt.sanitizer.thread_order import ThreadOrder
from evokern.simt.sanitizer.thread_shadow import PlaceOf, ThreadShadow


class BlockShadow(ThreadShadow):
    """Keys of each word of global memory for the blocks of one batch: writers, readers and updates within each block.

    Attributes:
        lane: lane of each word's last writer.
        reads: the reads of each word.
        atomics: atomic updates of each word, and relaxed accesses.
    """

    race = "global_race"

    def __init__(self, batch: Batch, order: ThreadOrder, words: int, place_of: PlaceOf) -> None:
        """Create the shadow for a batch; see `ThreadShadow`.

        Args:
            batch: the lanes.
            order: happens-before order.
            words: number of words.
            place_of: function that describes a position for findings.
        """
        super().__init__(batch, order, sparse_zeros(words, np.uint64), place_of)
        self.granularity, self.words_of_block = batch.program.global_granularity, words
        self.lane = sparse_zeros(words, np.int32)
        self.reads, self.atomics = AccessLog(order, words, 0), AccessLog(order, words, 0)
        self._written = False

    def load(self) -> None:
        """Clear the shadow for new blocks, because all earlier accesses belong to other blocks."""
        self.reads.load(slice(0, 0))
        self.atomics.load(slice(0, 0))
        self._written = False

    def read(self, access: WordAccess) -> None:
        """Check and record reads."""
        found = self._against_writers(access, "read", "also written by") if self._written else []
        found += self._against(access, self.atomics, "also updated atomically by", "read")
        self._report_all(access.number, found)
        self._log(self.reads, access)

    def write(self, access: WordAccess, changed: Array | None) -> bool:
        """Check and record writes; only lanes that change the stored value can race with another write.

        Returns:
            Whether several lanes write to one address.
        """
        found = self._against_writers(access, "write", "also written by", changed) if self._written else []
        found += self._against(access, self.reads, "also read by", "write")
        found += self._against(access, self.atomics, "also updated atomically by", "write")
        self._report_all(access.number, found)
        active, element, count = access.active, access.element, access.count
        self.writer.view(count)[element] = repeated(self._keys(active, access.number), count)
        if count == 1:
            self.lane[element] = active.lanes
        else:
            self.lane[access.words] = active.lanes[:, None]
        self._written = True
        return bool((self.lane.take(element * count, mode="clip") != active.lanes).any())

    def atomic(self, access: WordAccess) -> None:
        """Check and record atomic and relaxed accesses, which race only with plain accesses."""
        found = self._against_writers(access, "write", "also written by") if self._written else []
        self._report_all(access.number, found + self._against(access, self.reads, "also read by", "write"))
        self._log(self.atomics, access, plain=False)

    def _log(self, log: AccessLog, access: WordAccess, *, plain: bool = True) -> None:
        keys = self._keys(access.active, access.number, plain=plain)
        log.add(access.active.lanes, access.element, access.count, keys)

    def _suspects(self, access: WordAccess, seen: Array, act: str) -> Array:
        order = self.order
        late: Array = seen >= (access.active.pick(order.floor)[:, None] if order.level is None else order.level)
        return late

    def _same_memory(self, met: Conflicts) -> Conflicts:
        width = self.order.width
        return met.where(self.lane[met.words] // width == met.lanes // width)
