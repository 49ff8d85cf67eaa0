"""Access of lanes to global memory: bounds of allocations, writes to inputs, and calls to the shadow memory."""

from __future__ import annotations

import numpy as np

from evokern.simt.arrays import Active, Array, lowest_bits
from evokern.simt.batch import Batch, Occurrence
from evokern.simt.memory.buffers import GLOBAL_BASE, Buffer, Memory
from evokern.simt.memory.faults import misaligned, outside
from evokern.simt.sanitizer.access_keys import WordAccess
from evokern.simt.sanitizer.block_history import BLOCK
from evokern.simt.sanitizer.findings import Access
from evokern.simt.sanitizer.global_shadow import GlobalShadow, GridAccess
from evokern.simt.sanitizer.thread_order import ThreadOrder


class AccessSite:
    """Access of an instruction to global memory, and a cache: the allocation that each launch accessed last."""

    __slots__ = ("buffers", "known", "load", "low", "number", "read_only", "smallest_size", "width")

    def __init__(self, number: int, width: int) -> None:
        self.number = number
        """The instruction."""
        self.width = width
        """Bytes of the access."""
        self.load = -1
        """Value of `GlobalSpace.loads` for which the cache is valid."""
        self.known: Array = np.zeros(0, np.int64)
        """Launch → index of its cached allocation; −1 before the first access."""
        self.low: Array = np.zeros(0, np.int64)
        """Start of the allocation that each lane accesses."""
        self.smallest_size = -1
        """Size of the smallest cached allocation, bytes."""
        self.read_only = False
        """Whether all cached allocations are read-only."""
        self.buffers: tuple[Buffer, ...] = ()
        """The cached allocations; empty if one access of a launch touched several allocations."""

    def reset(self) -> None:
        """Clear the cache; the next access then checks each lane."""
        self.load, self.smallest_size, self.read_only, self.buffers = -1, -1, False, ()

    @property
    def initialised(self) -> bool:
        """Whether all cached allocations were initialised before the launch."""
        return bool(self.buffers) and all(buffer.initialised for buffer in self.buffers)


class GlobalSpace:
    """Global memory accesses of one batch, with their checks and their storage indices."""

    def __init__(self, batch: Batch, memory: Memory, shadow: GlobalShadow | None, order: ThreadOrder | None) -> None:
        self._batch, self._order = batch, order
        self.memory = memory
        self.writes = 0
        self.shadow = shadow
        self.within = shadow.within_blocks(batch, order) if shadow is not None and order is not None else None
        self.block_key = np.zeros(batch.lanes, np.uint64)
        self.loads = 0

    def load(self) -> None:
        """Prepare for new blocks."""
        self.loads += 1
        self.block_key[:] = BLOCK.pack_all((self._batch.block_id + 1).astype(np.uint64))
        self.starts, self.sizes = self.memory.bounds()
        if self.within is not None:
            self.within.load()

    def last_stamp(self) -> int:
        """Return a stamp that no access to global memory in this or an earlier batch has."""
        if self.shadow is None:
            return 0
        if self._order is not None:
            self.shadow.last_stamp = max(self.shadow.last_stamp, self._order.now)
        return self.shadow.last_stamp

    def view(self, width: int) -> Array:
        """View the storage as elements of the given width in bytes."""
        return self.memory.view(width)

    def locate(
        self, active: Active, address: Array, offset: int, site: AccessSite, *, write: bool
    ) -> tuple[Active | None, Array]:
        """Check addresses and convert them to storage indices in units of the width; see `SharedSpace.locate`."""
        width = site.width
        where = address.view(np.int64) - (GLOBAL_BASE - offset)
        if where.shape[0] != active.count:
            where = np.repeat(where, active.count)
        if site.load == self.loads and lowest_bits(where) & (width - 1) == 0:
            # The distance of an address below its allocation wraps to a huge number, so one comparison checks both
            # ends.
            distance = (where - active.pick(site.low)).view(np.uint64)
            if int(distance.max()) <= site.smallest_size - width:
                return active, where >> (width.bit_length() - 1)
        return self._locate(active, where, site, write=write)

    def _locate(self, active: Active, where: Array, site: AccessSite, *, write: bool) -> tuple[Active | None, Array]:
        width, number = site.width, site.number
        if lowest_bits(where) & (width - 1):
            good = (where & (width - 1)) == 0
            misaligned(self._batch, active.lanes[~good], where[~good], width, number, self._describe)
            site.reset()
            if not good.any():
                return None, where
            active, where = self._batch.restrict(active, good), where[good]
        which = np.searchsorted(self.starts, where, "right") - 1
        inside = where - self.starts[which]
        bad = (which < 0) | (inside > self.sizes[which] - width)
        if bad.any():
            site.reset()
            outside(self._batch, active.lanes[bad], where[bad], width, number, self._describe)
            good = ~bad
            if not good.any():
                return None, where
            active, where, which = self._batch.restrict(active, good), where[good], which[good]
        else:
            self._remember(active, which, site, write=write)
        if write and not site.buffers:
            writing, where = self._inputs(active, where, which, number)
            if writing is None:
                return None, where
            active = writing
        return active, where >> (width.bit_length() - 1)

    def _remember(self, active: Active, which: Array, site: AccessSite, *, write: bool) -> None:
        """Cache the allocations of an access, unless a launch accesses several of them or may not write to one."""
        launches = active.pick(self._batch.launch)
        known = np.full(self._batch.geometry.launches, -1) if site.load != self.loads else site.known
        hit = known.copy()
        hit[launches] = which
        buffers = tuple(self.memory.buffers[number] for number in hit[hit >= 0])
        if not (hit[launches] == which).all() or (write and not all(buffer.writable for buffer in buffers)):
            site.reset()
            return
        site.load, site.known, site.buffers = self.loads, hit, buffers
        site.low = np.where(hit < 0, 1 << 62, self.starts[hit])[self._batch.launch]
        site.smallest_size = min(buffer.size for buffer in buffers)
        site.read_only = not any(buffer.writable for buffer in buffers)

    def _inputs(self, active: Active, where: Array, which: Array, number: int) -> tuple[Active | None, Array]:
        frozen = np.array([not item.writable for item in self.memory.buffers], np.bool_)
        bad = frozen[which]
        if bad.any():
            access, _ = self._describe(int(where[bad][0]))
            self._batch.report("input_write", Occurrence.of(number, active.lanes[bad]), access)
            if bad.all():
                return None, where
            return self._batch.restrict(active, ~bad), where[~bad]
        return active, where

    # ---- shadow memory

    def _access(self, active: Active, index: Array, site: AccessSite, shadow: GlobalShadow) -> GridAccess:
        words = WordAccess.at(active, index, site.width, site.number, shadow.granularity)
        return GridAccess(self._batch, words, active.pick(self.block_key))

    def note_read(self, active: Active, index: Array, site: AccessSite, *, synchronises: bool) -> None:
        """Check and record reads; volatile and acquire reads instead take part in ordering blocks."""
        if self.memory.recorder is not None:
            self.memory.recorder.read(index, site.width)
        if self.shadow is None or site.read_only:
            return
        if synchronises:
            self._synchronise(active, release=False, acquire=True)
            if self._order is not None and self.shadow.ordered:
                self._order.load_at(active, "global", index * site.width)
            return
        access = self._access(active, index, site, self.shadow)
        self.shadow.read(access, initialised=site.initialised)
        if self.within is not None:
            self.within.read(access.words)

    def note_write(
        self, active: Active, index: Array, site: AccessSite, values: Array, *, synchronises: bool, releases: bool
    ) -> None:
        """Check and record writes; volatile and release writes take part in ordering blocks."""
        width = site.width
        self.writes += 1
        if self.memory.recorder is not None:
            self.memory.recorder.write(index, width, self._batch.block_id[active.lanes])
        if self.shadow is None:
            return
        if releases:
            self.fence(active)
        if synchronises:
            self._synchronise(active, release=True, acquire=False)

        def changes() -> Array:
            now = self.memory.view(width).take(index, mode="clip")
            changed: Array = (now.view(np.uint8) != values.view(np.uint8)).reshape(-1, width).any(1)
            return changed

        access = self._access(active, index, site, self.shadow)
        changed = self.shadow.write(access, changes, atomic=synchronises)
        if self.within is None:
            return
        if not synchronises:
            if self.within.write(access.words, changed):
                self.shadow.report_collisions(access, values, width)
            return
        self.within.atomic(access.words)
        if self._order is not None and self.shadow.ordered:
            self._order.store_at(active, "global", index * width, releases=releases)

    def note_atomic(self, active: Active, index: Array, site: AccessSite, *, releases: bool) -> None:
        """Record atomic updates, which take part in ordering blocks and do not race with each other."""
        self.writes += 1
        if self.memory.recorder is not None:
            self.memory.recorder.read(index, site.width)
            self.memory.recorder.write(index, site.width, self._batch.block_id[active.lanes])
        if self.shadow is None:
            return
        if releases:
            self.fence(active)
        self._synchronise(active, release=True, acquire=True)
        access = self._access(active, index, site, self.shadow)
        self.shadow.write(access, None, atomic=True)
        if self.within is not None:
            self.within.atomic(access.words)
            if self._order is not None and self.shadow.ordered:
                self._order.update_at(active, "global", index * site.width, releases=releases)

    def fence(self, active: Active) -> None:
        """Record a fence."""
        if self.shadow is not None and self.shadow.ordered:
            self.shadow.fence(self._batch.launch[active.lanes], self._batch.block_id[active.lanes])

    def _synchronise(self, active: Active, *, release: bool, acquire: bool) -> None:
        if self.shadow is not None and self.shadow.ordered:
            lanes = active.lanes
            self.shadow.synchronise(
                self._batch.launch[lanes], self._batch.block_id[lanes], release=release, acquire=acquire
            )

    def _describe(self, at: int, lane: int = 0) -> tuple[Access, str]:
        buffer = self.memory.find(at) or self.memory.nearest(at)
        if buffer is None:
            return Access(address=at + GLOBAL_BASE, offset=at), "No memory is allocated"
        access = Access(address=at + GLOBAL_BASE, allocation=buffer.name, offset=at - buffer.offset)
        return access, f"{buffer.name} has {buffer.size} bytes"
