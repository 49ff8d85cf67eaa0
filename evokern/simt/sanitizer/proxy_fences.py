"""Check that `fence.proxy.async` follows each write to shared memory that the asynchronous proxy reads or overwrites.

`wgmma` and bulk copies access shared memory through a different proxy than loads and stores (PTX ISA 9.0, section
9.7.15.4). Between a store (or a completed cp.async) and such an access, a thread that has seen the write must issue the
fence. Usually the writer issues it, before the barrier after which the data are used. A reader may also issue it after
the barrier.
"""

from __future__ import annotations

import numpy as np

from evokern.simt.arrays import Active, Array
from evokern.simt.batch import Batch
from evokern.simt.sanitizer.access_keys import IN_FLIGHT, NUMBER, STAMP, THREAD
from evokern.simt.sanitizer.block_classes import EVERYTHING, LeaderLanes
from evokern.simt.sanitizer.early_releases import EarlyReleases
from evokern.simt.sanitizer.shared_shadow import SharedShadow


class ProxyFences:
    """Time stamps of the fences, for comparison with the stamps of writes in the shadow of shared memory."""

    def __init__(self, batch: Batch, shadow: SharedShadow | None) -> None:
        self._shadow, self._batch, self._width = shadow, batch, batch.geometry.cluster_width
        warps = self._width // 32
        self.own = np.zeros(batch.lanes, np.int64)
        """Stamp per lane: writes of the lane before this stamp are fenced."""
        self.seen = np.zeros((batch.geometry.clusters, warps), np.int64)
        """Stamp per warp: writes of the warp before this stamp were fenced by a thread that had seen them."""
        self.by_engine: set[int] = set()
        """Instructions whose writes are of the asynchronous proxy itself."""
        self.early_releases = EarlyReleases(batch, shadow)

    def load(self) -> None:
        """Reset the state for new blocks."""
        self.own.fill(0)
        self.seen.fill(0)
        self.early_releases.load()

    def fence(self, active: Active) -> None:
        """Record a fence of the active lanes."""
        shadow = self._shadow
        if shadow is None:
            return
        order = shadow.order
        order.tick()
        order.classes.leader_lanes(active, None)
        self.own[active.mask] = order.now
        blocks, warps = self.seen.shape
        fencing = np.asarray(active.mask.reshape(blocks, warps, 32).any(2))
        np.maximum(self.seen, np.where(fencing[:, :, None], order.observed(), 0).max(1), out=self.seen)
        self.early_releases.fence(active)

    def covers(self, lane: int, stamp: int) -> bool:
        """Return whether a fence follows what a lane wrote at a time stamp."""
        cluster, thread = divmod(lane, self._width)
        return bool(max(self.own[lane], self.seen[cluster, thread >> 5]) > stamp)

    def check(self, active: Active, index: Array, width: int, number: int, leaders: LeaderLanes) -> None:
        """Report words that the asynchronous proxy reads although no fence follows their last write.

        Args:
            active: lanes that read.
            index: index of each active lane, in units of ``width``.
            width: bytes of an access.
            number: the instruction.
            leaders: lanes that represent all lanes.
        """
        shadow = self._shadow
        if shadow is None:
            return
        few = leaders.active
        access, keys = shadow.writers(leaders, index, width)
        stamp, thread = STAMP.of(keys), THREAD.of(keys)
        block = (few.lanes // self._width)[:, None]
        late = (stamp >= self.own[block * self._width + thread]) & (stamp > 0) & (stamp < IN_FLIGHT)
        if not late.any():
            return
        late &= stamp >= self.seen[block, thread >> 5]
        if self.by_engine:
            late &= ~np.isin(NUMBER.of(keys), list(self.by_engine))
        if not late.any():
            return
        if not leaders.complete:
            shadow.order.classes.split_all()
            self.check(active, index, width, number, LeaderLanes(active, EVERYTHING))
            return
        met = access.pairs(keys, late)
        detail = f"The word was written by {self._batch.describe_thread(int(met.lanes[0]), int(thread[late][0]))}"
        shadow.report("proxy_fence", number, met, detail)
