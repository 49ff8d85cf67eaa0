"""Pending products of warpgroups: `wgmma.mma_async` instructions from issue to wait.

The machine computes a product when it is issued. At that time it checks the reads from shared memory like any other
read. It checks them again when the group is waited for: a write in between is a finding, and later writers must be
ordered after the wait. All four warps of a warpgroup read each word of B. Two warps represent all four: each word is
checked for two of them, so races with a warp's own writes are not missed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evokern.simt.arrays import Active, Array
from evokern.simt.batch import Batch, Occurrence
from evokern.simt.matrix.descriptors import PIECE
from evokern.simt.matrix.wgmma import WARPS
from evokern.simt.memory.shared_memory import SharedSpace
from evokern.simt.sanitizer.proxy_fences import ProxyFences
from evokern.simt.sanitizer.wgmma_hazards import WgmmaHazards


@dataclass(slots=True, eq=False)
class _Product:
    """Pending product of one wgmma instruction."""

    active: Active
    """Lanes that have not waited yet."""
    reads: tuple[tuple[Array, bool], ...]
    """Pieces of shared memory that it reads, one per lane, in units of a piece; whether they are the previous row's."""
    group: Array
    """Group of each lane."""
    number: int
    """Instruction."""
    since: int
    """Time stamp of the issue; a later write before the wait is a finding."""


class WarpgroupProducts:
    """Products whose group is still pending, and the number of groups that each lane has committed."""

    def __init__(self, batch: Batch, shared: SharedSpace, proxy_fences: ProxyFences) -> None:
        self._batch, self._shared, self._proxy_fences = batch, shared, proxy_fences
        self.pending: list[_Product] = []
        self.committed = np.zeros(batch.lanes, np.int64)
        self.issued = np.zeros(batch.lanes // 32, np.int64)
        self.last = -1
        self.hazards = WgmmaHazards(batch)

    def load(self) -> None:
        """Reset the state for new blocks."""
        self.pending.clear()
        self.committed.fill(0)
        self.issued.fill(0)
        self.last = -1
        self.hazards.load()

    def issue(self, active: Active, own: Sequence[Array], common: Sequence[Array], number: int, unit: int) -> None:
        """Check and record the reads of a product.

        Args:
            active: the lanes that issue it.
            own: addresses of pieces in the block's shared memory, bytes, one per active lane in each.
            common: addresses of pieces that all lanes of a unit read.
            number: the instruction.
            unit: number of lanes of a warp or warpgroup, which are adjacent in the rows of addresses.
        """
        self.last = number
        if active.all:
            self.issued += 1
        else:
            self.issued[np.unique(active.lanes >> 5)] += 1
        shadow = self._shared.shadow
        reads: list[tuple[Array, bool]] = []
        for place, address in enumerate((*own, *common)):
            if self._shared.ranks > 1:  # A descriptor has 18 address bits, in the block's own memory.
                address = address + active.pick(self._shared.window)
            sound, index, leaders = self._shared.locate(active, address, 0, PIECE, number)
            if sound is not active or shadow is None:
                continue  # Accesses outside shared memory were reported, which ends the launch.
            shadow.read(active, index, PIECE, number, leaders)
            self._proxy_fences.check(active, index, PIECE, number, leaders)
            reads.append((index, False))
            if place >= len(own) and unit == 32 * WARPS:
                turned = np.roll(index.reshape(-1, unit), unit // 2, axis=1).reshape(-1)
                shadow.read(active, turned, PIECE, number, shadow.order.classes.leader_lanes(active, None))
                reads.append((turned, True))
        if shadow is not None:
            shadow.order.met(active)
            group = self.committed[active.lanes]
            self.hazards.issue(number, active, group)
            self.pending.append(_Product(active, tuple(reads), group, number, shadow.order.now))

    def commit(self, active: Active) -> None:
        """Close the current group of the active lanes."""
        self.committed[active.mask] += 1

    def wait(self, active: Active, most: int) -> None:
        """Complete all groups of the active lanes except the ``most`` latest."""
        if not self.pending:
            return
        limit = np.where(active.mask, self.committed - most, -1)
        self.hazards.finished = np.maximum(self.hazards.finished, limit)
        limit = self._of_warpgroups(limit)
        kept = []
        for product in self.pending:
            ready = product.group < limit[product.active.lanes]
            if ready.all():
                self._finish(product)
            elif ready.any():
                self._finish(self._some(product, ready))
                kept.append(self._some(product, ~ready))
            else:
                kept.append(product)
        if len(kept) < len(self.pending) and self._shared.order is not None:
            self._shared.order.warpgroups(active)
        self.pending = kept

    def _of_warpgroups(self, limit: Array) -> Array:
        """Return, for each lane, the most groups that a lane of its warpgroup has waited for.

        All warps of a warpgroup compute a product together, so its reads end for all of them at once.
        """
        width = self._batch.geometry.width
        whole = width // (32 * WARPS) * 32 * WARPS
        groups = limit.reshape(-1, width)[:, :whole].reshape(-1, 32 * WARPS)
        found = limit.copy()
        found.reshape(-1, width)[:, :whole] = np.repeat(groups.max(1), 32 * WARPS).reshape(-1, whole)
        return found

    def _some(self, product: _Product, which: Array) -> _Product:
        active = self._batch.restrict(product.active, which)
        reads = tuple((index[which], again) for index, again in product.reads)
        return _Product(active, reads, product.group[which], product.number, product.since)

    def _finish(self, product: _Product) -> None:
        shadow = self._shared.shadow
        assert shadow is not None
        for index, again in product.reads:
            if again:
                shadow.note_read(product.active, index, PIECE, product.number)
            else:
                shadow.read_until_now(product.active, index, PIECE, product.number, product.since)

    def finish(self) -> None:
        """Report warpgroups whose warps did not issue the same products; call this when the blocks end."""
        self.pending.clear()
        if self.last < 0:
            return
        warps = self._batch.geometry.width // 32
        of_blocks = np.zeros((self._batch.geometry.blocks, -(-warps // WARPS) * WARPS), np.int64)
        of_blocks[:, :warps] = self.issued.reshape(-1, warps)
        groups = of_blocks.reshape(self._batch.geometry.blocks, -1, WARPS)
        uneven = groups.min(2) != groups.max(2)
        if uneven.any():
            block, group = (int(places[0]) for places in np.nonzero(uneven))
            warp = int(groups[block, group].argmax()) + group * WARPS
            lane = (block * warps + warp) * 32
            detail = "The four warps of the warpgroup do not issue the same number of wgmma instructions"
            self._batch.report("barrier_divergence", Occurrence(self.last, lane), detail=detail)
