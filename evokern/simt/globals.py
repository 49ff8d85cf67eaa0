"""Global memory as the lanes see it: bounds per allocation, writes to inputs, and what the shadow keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from evokern.simt.arrays import Active, Array
from evokern.simt.memory import GLOBAL_BASE, Buffer

if TYPE_CHECKING:
    from evokern.simt.machine import Machine

Describe = Callable[[int, int], tuple[str, int, str]]
"""(address, lane) → allocation, offset within it, detail for the message."""


class Site:
    """What one instruction remembers between executions: the allocation that it hit last time."""

    __slots__ = ("buffer", "high", "low")

    def __init__(self) -> None:
        self.low = 0
        self.high = -1
        self.buffer: Buffer | None = None


class GlobalSpace:
    """Checks and indices for global accesses of one batch."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.memory = machine.memory
        self.writes = 0
        self.shadow = machine.global_shadow
        self.block_key = np.zeros(machine.lanes, np.uint64)

    def load(self) -> None:
        """New blocks."""
        self.block_key[:] = (self.machine.block_id + 1).astype(np.uint64) << np.uint64(16)
        self.starts, self.sizes = self.memory.bounds()

    def view(self, width: int) -> Array:
        """Return the arena as elements of a width."""
        return self.memory.view(width)

    def locate(
        self, active: Active, address: Array, offset: int, width: int, number: int, site: Site, *, write: bool
    ) -> tuple[Active | None, Array]:
        """Check addresses and turn them into arena indices in units of the width; see `SharedSpace.locate`."""
        where = address.view(np.int64) - (GLOBAL_BASE - offset)
        if where.shape[0] != active.count:
            where = np.repeat(where, active.count)
        low, high = int(where.min()), int(where.max())
        if low >= site.low and high <= site.high - width and int(np.bitwise_or.reduce(where)) & (width - 1) == 0:
            return active, where >> (width.bit_length() - 1)
        return self._locate(active, where, low, high, width, number, site, write)

    def _locate(
        self, active: Active, where: Array, low: int, high: int, width: int, number: int, site: Site, write: bool
    ) -> tuple[Active | None, Array]:
        if int(np.bitwise_or.reduce(where)) & (width - 1):
            self.misaligned(active, where, width, number, self._describe)
        buffer = self.memory.find(low)
        if buffer is not None and high + width <= buffer.offset + buffer.size and (buffer.writable or not write):
            site.low, site.high, site.buffer = buffer.offset, buffer.offset + buffer.size, buffer
            return active, where >> (width.bit_length() - 1)
        site.low, site.high, site.buffer = 0, -1, None
        which = np.searchsorted(self.starts, where, "right") - 1
        inside = where - self.starts[which]
        bad = (which < 0) | (inside > self.sizes[which] - width)
        if bad.any():
            self.outside(active, where, bad, width, number, self._describe)
            good = ~bad
            if not good.any():
                return None, where
            active, where, which = self.machine.restrict(active, good), where[good], which[good]
        if write:
            writing, where = self._inputs(active, where, which, number)
            if writing is None:
                return None, where
            active = writing
        return active, where >> (width.bit_length() - 1)

    def _inputs(self, active: Active, where: Array, which: Array, number: int) -> tuple[Active | None, Array]:
        frozen = np.array([not item.writable for item in self.memory.buffers], np.bool_)
        bad = frozen[which]
        if bad.any():
            lane = int(active.lanes[bad][0])
            buffer = self.memory.buffers[int(which[bad][0])]
            at = int(where[bad][0])
            self.machine.report("input_write", number, lane, count=int(np.count_nonzero(bad)), address=at + GLOBAL_BASE,
                                allocation=buffer.name, offset=at - buffer.offset)  # fmt: skip
            if bad.all():
                return None, where
            return self.machine.restrict(active, ~bad), where[~bad]
        return active, where

    # ---- what the shadow keeps

    def note_read(
        self, active: Active, index: Array, width: int, number: int, site: Site, *, synchronises: bool
    ) -> None:
        """Check and record reads; a volatile or acquiring read takes part in the order of blocks instead."""
        if self.shadow is None or (site.buffer is not None and not site.buffer.writable):
            return
        if synchronises:
            self._synchronise(active, release=False, acquire=True)
        else:
            self.shadow.read(self.machine, active, index, width, number, site.buffer)

    def note_write(
        self, active: Active, index: Array, width: int, number: int, site: Site, values: Array | None = None, *,
        synchronises: bool, releases: bool = False,
    ) -> None:  # fmt: skip
        """Check and record writes; a volatile or releasing write takes part in the order of blocks."""
        self.writes += 1
        if self.shadow is None:
            return
        if releases:
            self.fence(active)
        if synchronises:
            self._synchronise(active, release=True, acquire=False)
        self.shadow.write(self.machine, active, index, width, number, values, atomic=synchronises)

    def note_atomic(self, active: Active, index: Array, width: int, number: int, site: Site, *, releases: bool) -> None:
        """Record atomic updates, which take part in the order of blocks and do not race with each other."""
        self.writes += 1
        if self.shadow is not None:
            if releases:
                self.fence(active)
            self._synchronise(active, release=True, acquire=True)
            self.shadow.write(self.machine, active, index, width, number, None, atomic=True)

    def fence(self, active: Active) -> None:
        """Record a fence."""
        if self.shadow is not None and self.shadow.ordered:
            self.shadow.fence(self.machine.launch[active.lanes], self.machine.block_id[active.lanes])

    def _synchronise(self, active: Active, *, release: bool, acquire: bool) -> None:
        if self.shadow is not None and self.shadow.ordered:
            lanes = active.lanes
            self.shadow.synchronise(
                self.machine.launch[lanes], self.machine.block_id[lanes], release=release, acquire=acquire
            )

    # ---- faults, for all spaces

    def misaligned(self, active: Active, where: Array, width: int, number: int, describe: Describe) -> None:
        """Report a misaligned access, which ends a launch at once."""
        bad = (where & (width - 1)) != 0
        lane = int(active.lanes[bad][0])
        at = int(where[bad][0])
        name, offset, _ = describe(at, lane)
        base = GLOBAL_BASE if describe == self._describe else 0
        self.machine.report(
            "misaligned",
            number,
            lane,
            count=int(np.count_nonzero(bad)),
            address=at + base,
            allocation=name,
            offset=offset,
            detail=f"The address is {at % width} past a multiple of {width} bytes",
        )
        self.machine.stop()

    def outside(self, active: Active, where: Array, bad: Array, width: int, number: int, describe: Describe) -> None:
        """Report accesses outside every allocation; they have no effect and reads give zero."""
        lane = int(active.lanes[bad][0])
        at = int(where[bad][0])
        name, offset, detail = describe(at, lane)
        base = GLOBAL_BASE if describe == self._describe else 0
        self.machine.report(
            "out_of_bounds",
            number,
            lane,
            count=int(np.count_nonzero(bad)),
            address=at + base,
            allocation=name,
            offset=offset,
            detail=f"{width} bytes at offset {offset}. {detail}",
        )

    def _describe(self, at: int, lane: int) -> tuple[str, int, str]:
        buffer = self.memory.find(at) or self.memory.nearest(at)
        if buffer is None:
            return "", at, "There are no allocations"
        return buffer.name, at - buffer.offset, f"{buffer.name} has {buffer.size} bytes"
