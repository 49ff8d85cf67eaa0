"""Detection of races in global memory between threads of one block; uses the clocks for shared memory.

Blocks of a cluster are checked as one block, because the cluster's barrier also orders their accesses to global
memory.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from evokern.simt.arrays import Active, Array, sparse_zeros
from evokern.simt.batch import Batch
from evokern.simt.sanitizer.access_keys import NUMBER, STAMP, THREAD, in_elements, repeated
from evokern.simt.sanitizer.access_log import AccessLog, Conflicts
from evokern.simt.sanitizer.findings import ERROR, WARNING, Reads
from evokern.simt.sanitizer.thread_order import ThreadOrder

Report = Callable[[int, int, int, int, int, str, str, Reads | None], None]
"""Reports a race: instruction, first lane, number of lanes, word, other access's instruction, detail, level, reads."""


class BlockShadow:
    """Keys of each word of global memory for the blocks of one batch: writers, readers and updates within each block.

    Attributes:
        order: happens-before order.
    """

    def __init__(self, batch: Batch, order: ThreadOrder, words: int, on_race: Report) -> None:
        """Create the shadow.

        Args:
            batch: the lanes.
            order: happens-before order.
            words: number of words.
            on_race: function that reports a race.
        """
        self._batch, self.order, self._on_race = batch, order, on_race
        self.writer = sparse_zeros(words, np.uint64)
        self.lane = sparse_zeros(words, np.int32)
        """Lane of each word's last writer."""
        self._logs = {kind: AccessLog(order, words, 0) for kind in ("read", "updated atomically")}
        self._views: dict[int, Array] = {}
        self._thread = batch.cluster_thread.astype(np.uint64)
        self._written = False

    def load(self) -> None:
        """Clear the shadow for new blocks, because all earlier accesses belong to other blocks."""
        for log in self._logs.values():
            log.load(slice(0, 0))
        self._written = False

    def _view(self, count: int) -> Array:
        view = self._views.get(count)
        if view is None:
            view = self._views[count] = in_elements(self.writer, count)
        return view

    def _keys(self, active: Active, number: int, *, plain: bool = True) -> Array:
        self.order.dirty = True
        if plain and self.order.fences:
            self.order.touch(active.lanes)
        return active.pick(self._thread) + np.uint64(STAMP.pack(self.order.now) | NUMBER.pack(number))

    def read(self, active: Active, element: Array, count: int, number: int) -> None:
        """Check and record reads of elements of ``count`` words."""
        if self._written:
            self._against_writers(active, element, count, number, None, reads=True)
        self._against(active, element, count, number, "updated atomically", reads=True)
        self._logs["read"].add(active.lanes, element, count, self._keys(active, number))

    def write(self, active: Active, element: Array, count: int, number: int, changed: Array | None) -> bool:
        """Check and record writes; only lanes that change the stored value can race with another write.

        Returns:
            Whether several lanes write to one address.
        """
        if self._written:
            self._against_writers(active, element, count, number, changed)
        self._against(active, element, count, number, "read")
        self._against(active, element, count, number, "updated atomically")
        self._view(count)[element] = repeated(self._keys(active, number), count)
        if count == 1:
            self.lane[element] = active.lanes
        else:
            self.lane[element[:, None] * count + np.arange(count)] = active.lanes[:, None]
        self._written = True
        return bool((self.lane.take(element * count, mode="clip") != active.lanes).any())

    def atomic(self, active: Active, element: Array, count: int, number: int) -> None:
        """Check and record atomic and relaxed accesses, which race only with plain accesses."""
        if self._written:
            self._against_writers(active, element, count, number, None)
        self._against(active, element, count, number, "read")
        self._logs["updated atomically"].add(active.lanes, element, count, self._keys(active, number, plain=False))

    def _against_writers(
        self, active: Active, element: Array, count: int, number: int, changed: Array | None, *, reads: bool = False
    ) -> None:
        order = self.order
        seen = self._view(count).take(element, mode="clip").view(np.uint64).reshape(-1, count)
        late = seen >= (active.pick(order.floor)[:, None] if order.level is None else order.level)
        if changed is not None:
            late &= changed[:, None]
        if not late.any():
            return
        row, part = np.nonzero(late)
        lanes, words, keys = active.lanes[row], element[row] * count + part, seen[row, part]
        other = self.lane[words]
        mine = (other != lanes) & (other // order.width == lanes // order.width)
        lanes, words, keys = lanes[mine], words[mine], keys[mine]
        race = STAMP.of(keys) >= order.seen(lanes, THREAD.of(keys))
        self._report(number, Conflicts(lanes[race], words[race], keys[race]), "written", reads=reads)

    def _against(
        self, active: Active, element: Array, count: int, number: int, kind: str, *, reads: bool = False
    ) -> None:
        log = self._logs[kind]
        if log.used:
            self._report(number, log.meetings(active, element, count), kind, reads=reads)

    def _report(self, number: int, met: Conflicts, kind: str, *, reads: bool) -> None:
        if not met.lanes.size:
            return
        granularity = self._batch.program.global_granularity
        others, thread = NUMBER.of(met.keys), THREAD.of(met.keys)
        within = (thread >> 5) == (self._batch.cluster_thread[met.lanes] >> 5)
        for level, chosen in ((ERROR, ~within), (WARNING, within & ~np.isin(met.lanes, met.lanes[~within]))):
            for other in dict.fromkeys(others[chosen].tolist()):
                mine = chosen & (others == other)
                lanes = met.lanes[mine]
                party = self._batch.describe_thread(int(lanes[0]), int(thread[mine][0]), warp=level == WARNING)
                detail = f"The same word is also {kind} by {party}"
                places = met.words[mine] * granularity
                read = Reads(number, lanes, places) if reads else None
                if kind == "read":
                    width = self.order.width
                    read = Reads(other, lanes // width * width + thread[mine], places, STAMP.of(met.keys[mine]))
                count, word = int(np.unique(lanes).size), int(met.words[mine][0])
                self._on_race(number, int(lanes[0]), count, word, other, detail, level, read)
