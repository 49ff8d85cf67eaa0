"""Asynchronous copies from global to shared memory (PTX ISA 9.7.9.25).

The simulator reads the source of a copy when the copy is issued. It stores the data when the thread waits for the
copy's group: earlier, a program must not rely on them. In between, the shadow marks the destination as in flight, so
any access to it is a finding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evokern.simt.arrays import Active, Array
from evokern.simt.batch import Batch
from evokern.simt.memory.global_space import GlobalSpace
from evokern.simt.memory.shared_memory import SharedSpace
from evokern.simt.sanitizer.access_keys import IN_FLIGHT
from evokern.simt.sanitizer.block_classes import LeaderLanes


@dataclass(slots=True, eq=False)
class _Copy:
    """Pending copies of one instruction."""

    active: Active
    """Lanes that have not waited yet."""
    lanes: Array
    """Indices of these lanes."""
    index: Array
    """Destination, in units of the width."""
    data: Array
    """Elements to store."""
    width: int
    """Width of an element in bytes."""
    group: Array | int
    """Group of the copy: one number per lane, or one for all lanes."""
    number: int
    """Instruction."""
    source: Array | None
    """Indices of the source elements, for copies with a writable source."""
    writes: int
    """Number of global stores before the copy was issued."""


class AsyncCopies:
    """Pending copies, and the number of groups that each lane has committed."""

    def __init__(self, batch: Batch, shared: SharedSpace, global_: GlobalSpace) -> None:
        self._batch, self._shared, self._global = batch, shared, global_
        self.pending: list[_Copy] = []
        self.committed: Array | int = 0

    def load(self) -> None:
        """Reset the state for new blocks."""
        self.pending.clear()
        self.committed = 0

    def issue(
        self,
        active: Active,
        index: Array,
        data: Array,
        width: int,
        number: int,
        source: Array | None,
        leaders: LeaderLanes,
    ) -> None:
        """Record a copy: destination indices and data, one per active lane (``leaders``: see `SharedSpace.locate`)."""
        group = self.committed if isinstance(self.committed, int) else self.committed[active.lanes]
        if self._shared.shadow is not None:
            self._shared.shadow.write(active, index, width, number, leaders, stamp=IN_FLIGHT)
        self.pending.append(_Copy(active, active.lanes, index, data, width, group, number, source, self._global.writes))

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
        kept: list[_Copy] = []
        limit: Array | int = 1 << 60 if most is None else self.committed - most
        rows: Array | None = None
        for copy in self.pending:
            if active.full and isinstance(limit, int) and isinstance(copy.group, int):
                if copy.group < limit:
                    self._land(copy, None)
                else:
                    kept.append(copy)
                continue
            if rows is None:
                rows = np.full(self._batch.lanes, -1, np.int64)
                rows[active.lanes] = limit if isinstance(limit, int) else limit[active.lanes]
            ready = copy.group < rows[copy.lanes]
            if ready.all():
                self._land(copy, None)
            elif not ready.any():
                kept.append(copy)
            else:
                self._land(copy, ready)
                rest = ~ready
                kept.append(
                    _Copy(
                        self._batch.restrict(copy.active, rest),
                        copy.lanes[rest],
                        copy.index[rest],
                        copy.data[rest],
                        copy.width,
                        copy.group if isinstance(copy.group, int) else copy.group[rest],
                        copy.number,
                        None if copy.source is None else copy.source[rest],
                        copy.writes,
                    )
                )
        self.pending = kept

    def _land(self, copy: _Copy, ready: Array | None) -> None:
        active, index, data, source = copy.active, copy.index, copy.data, copy.source
        if ready is not None:
            active = self._batch.restrict(active, ready)
            index, data = index[ready], data[ready]
            source = None if source is None else source[ready]
        self._shared.view(copy.width)[index] = data
        if self._shared.shadow is not None:
            self._shared.shadow.land(active, index, copy.width, copy.number)
        if source is not None and self._global.writes != copy.writes and self._batch.options.sanitize:
            now = self._global.view(copy.width).take(source, mode="clip")
            changed = (now.view(np.uint8) != data.view(np.uint8)).reshape(-1, copy.width).any(1)
            detail = "The copy's source was overwritten before the wait for the copy"
            self._batch.report_lanes("async_not_waited", copy.number, active.lanes[changed], detail=detail)

    def finish(self) -> None:
        """Complete all copies when the blocks end."""
        for copy in self.pending:
            self._shared.view(copy.width)[copy.index] = copy.data
        self.pending.clear()
