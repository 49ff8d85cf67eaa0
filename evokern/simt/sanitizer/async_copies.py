"""Asynchronous copies from global to shared memory (PTX ISA 9.7.9.25).

The simulator reads the source of a copy when the copy is issued. It stores the data when the thread waits for the
copy's group: earlier, a program must not rely on them. In between, the shadow marks the destination as in flight, so
any access to it is a finding.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from evokern.simt.arrays import Active, Array
from evokern.simt.batch import Batch
from evokern.simt.memory.global_space import GlobalSpace
from evokern.simt.memory.shared_memory import SharedSpace
from evokern.simt.sanitizer.access_keys import IN_FLIGHT
from evokern.simt.sanitizer.block_classes import LeaderLanes


@dataclass(frozen=True, slots=True, eq=False)
class AsyncCopy:
    """Copies of one instruction."""

    active: Active
    """Lanes that copy and have not waited yet."""
    index: Array
    """Destination of each lane, in units of the width."""
    data: Array
    """Elements to store."""
    source: Array | None
    """Indices of the source elements, for copies with a writable source."""
    width: int
    """Width of an element in bytes."""
    number: int
    """Instruction."""

    def part(self, batch: Batch, chosen: Array) -> AsyncCopy:
        """Return the copies of some of the lanes."""
        source = None if self.source is None else self.source[chosen]
        active = batch.restrict(self.active, chosen)
        return replace(self, active=active, index=self.index[chosen], data=self.data[chosen], source=source)


@dataclass(frozen=True, slots=True, eq=False)
class _Pending:
    """Copies that have been issued."""

    copy: AsyncCopy
    group: Array | int
    """Group of the copies: one number per lane, or one for all lanes."""
    writes: int
    """Number of global stores before the copies were issued."""


class AsyncCopies:
    """Pending copies, and the number of groups that each lane has committed."""

    def __init__(self, batch: Batch, shared: SharedSpace, global_: GlobalSpace) -> None:
        self._batch, self._shared, self._global = batch, shared, global_
        self.pending: list[_Pending] = []
        self.committed: Array | int = 0

    def load(self) -> None:
        """Reset the state for new blocks."""
        self.pending.clear()
        self.committed = 0

    def issue(self, copy: AsyncCopy, leaders: LeaderLanes) -> None:
        """Record copies; for the leaders, see `SharedSpace.locate`."""
        group = self.committed if isinstance(self.committed, int) else self.committed[copy.active.lanes]
        if self._shared.shadow is not None:
            self._shared.shadow.write(copy.active, copy.index, copy.width, copy.number, leaders, stamp=IN_FLIGHT)
        self.pending.append(_Pending(copy, group, self._global.writes))

    def commit(self, active: Active) -> None:
        """Close the current group of the active lanes."""
        if isinstance(self.committed, int):
            if active.full:
                self.committed += 1
                return
            self.committed = np.full(self._batch.lanes, self.committed, np.int64)
        self.committed[active.mask] += 1

    def wait(self, active: Active, most: int | None) -> None:
        """Complete all copies except those in the ``most`` latest groups; None completes all, even uncommitted ones."""
        if not self.pending:
            return
        kept: list[_Pending] = []
        limit: Array | int = 1 << 60 if most is None else self.committed - most
        rows: Array | None = None
        for one in self.pending:
            if active.full and isinstance(limit, int) and isinstance(one.group, int):
                if one.group < limit:
                    self._land(one.copy, one.writes)
                else:
                    kept.append(one)
                continue
            if rows is None:
                rows = np.full(self._batch.lanes, -1, np.int64)
                rows[active.lanes] = limit if isinstance(limit, int) else limit[active.lanes]
            ready = one.group < rows[one.copy.active.lanes]
            if ready.all():
                self._land(one.copy, one.writes)
            elif not ready.any():
                kept.append(one)
            else:
                self._land(one.copy.part(self._batch, ready), one.writes)
                group = one.group if isinstance(one.group, int) else one.group[~ready]
                kept.append(_Pending(one.copy.part(self._batch, ~ready), group, one.writes))
        self.pending = kept

    def _land(self, copy: AsyncCopy, writes: int) -> None:
        self._shared.view(copy.width)[copy.index] = copy.data
        if self._shared.shadow is not None:
            self._shared.shadow.land(copy.active, copy.index, copy.width, copy.number)
        if copy.source is not None and self._global.writes != writes and self._batch.options.sanitize:
            now = self._global.view(copy.width).take(copy.source, mode="clip")
            changed = (now.view(np.uint8) != copy.data.view(np.uint8)).reshape(-1, copy.width).any(1)
            detail = "The copy's source was overwritten before the wait for the copy"
            self._batch.report_lanes("async_not_waited", copy.number, copy.active.lanes[changed], detail=detail)

    def finish(self) -> None:
        """Complete all copies when the blocks end."""
        for one in self.pending:
            self._shared.view(one.copy.width)[one.copy.index] = one.copy.data
        self.pending.clear()
