"""Pending products of warpgroups (`wgmma.mma_async` from issue to wait), and the registers of warpgroups.

The machine computes a product when it is issued. At that time it checks the reads from shared memory like any other
read. It checks them again when the group is waited for: a write in between is a finding, and later writers must be
ordered after the wait. All four warps of a warpgroup read each word of B. Two warps represent all four: each word is
checked for two of them, so races with a warp's own writes are not missed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from evokern.simt.arrays import Active, Array
from evokern.simt.batch import Batch, Occurrence
from evokern.simt.matrix.descriptors import PIECE
from evokern.simt.matrix.wgmma import WARPS
from evokern.simt.memory.shared_memory import SharedSpace
from evokern.simt.sanitizer.proxy_fences import ProxyFences
from evokern.simt.sanitizer.wgmma_hazards import WgmmaHazards

SM_REGISTERS = 65_536
"""Registers of an SM (CUDA Programming Guide, "Technical Specifications per Compute Capability", 9.0)."""
REGISTER_UNIT = 8
"""Registers per thread are allocated in units of 8."""


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
        kept, finished = [], False
        for product in self.pending:
            ready = product.group < limit[product.active.lanes]
            finished |= bool(ready.any())
            if ready.all():
                self._finish(product)
            elif ready.any():
                self._finish(self._some(product, ready))
                kept.append(self._some(product, ~ready))
            else:
                kept.append(product)
        if finished and self._shared.order is not None:
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


class RegisterCounts:
    """Registers per thread of each warp in a batch, which ``setmaxnreg`` moves between warpgroups (PTX ISA 9.7.19.5).

    A block owns the registers that its launch allocates. A warpgroup that releases registers makes them available to
    those that request more. A request waits until there are enough, so requests for more than the block has never end.
    """

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._start = _at_launch(batch)
        self._counts = np.zeros(batch.lanes // 32, np.int64)
        self._number = -1

    def load(self) -> None:
        """Reset the counts for new blocks."""
        self._counts.fill(self._start)
        self._number = -1

    def change(self, active: Active, wanted: int, number: int, *, more: bool) -> None:
        """Record that warps release registers or request more."""
        if not self._batch.options.sanitize or not active.count or not self._start:
            return  # Without a limit at launch, the assembler ignores the instruction and says so.
        warps = np.unique(active.lanes >> 5)
        wrong = warps[self._counts[warps] > wanted if more else self._counts[warps] < wanted]
        if wrong.size:
            has, act = int(self._counts[wrong[0]]), "raises" if more else "lowers"
            detail = f"setmaxnreg {act} the registers per thread to {wanted}, but the warp has {has}"
            self._batch.report("registers", Occurrence(number, int(wrong[0]) * 32, 32 * wrong.size), detail=detail)
        self._counts[warps] = wanted
        if more or self._number < 0:
            self._number = number

    def finish(self) -> None:
        """Report blocks whose warps hold more registers than the launch allocates, and divided warpgroups."""
        if self._number < 0:
            return
        each = self._batch.geometry.width // 32
        of_blocks = self._counts.reshape(-1, each)
        over = np.flatnonzero(of_blocks.sum(1) > self._start * each)
        whole = of_blocks[:, : each // WARPS * WARPS].reshape(of_blocks.shape[0], -1, WARPS)
        split = np.flatnonzero((whole.min(2) != whole.max(2)).any(1))
        has = f"the launch allocates {self._start} for each of {each} warps"
        for blocks, what in (
            (over, f"Warps hold {'{:,}'} registers, but {has}: {self._start * each * 32:,}"),
            (split, "The four warps of a warpgroup do not execute the same setmaxnreg"),
        ):
            if blocks.size:
                total = int(of_blocks[blocks[0]].sum()) * 32
                at = Occurrence(self._number, int(blocks[0]) * each * 32, blocks.size)
                self._batch.report("registers", at, detail=what.format(total))


def _at_launch(batch: Batch) -> int:
    """Return the registers per thread that a launch allocates; 0 if the kernel sets no limit."""
    directives = batch.program.entry.directives
    if limit := directives.get("maxnreg"):
        return -(-limit[0] // REGISTER_UNIT) * REGISTER_UNIT
    threads = directives.get("reqntid") or directives.get("maxntid")
    blocks = directives.get("minnctapersm")
    if not threads or not blocks:
        return 0
    warps = -(-prod(threads) // 32)
    return min(SM_REGISTERS // (32 * warps * blocks[0]) // REGISTER_UNIT * REGISTER_UNIT, 256)
