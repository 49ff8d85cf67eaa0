"""Blocks of a batch that do the same: one stands for all of them when shared memory is checked.

Blocks mostly differ in the data they work on, not in where they put it: as long as the same threads of two blocks made
the same shared-memory accesses (relative to their block's memory) and met at the same barriers, at the same time, their
shadows are equal. So only the first block of such a class keeps a shadow, and an access costs the others one comparison
of addresses. A block that does something else takes a copy of its leader's shadow and goes on by itself: nothing is
lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from evokern.simt.arrays import Active, Array

EVERYTHING = slice(None)
"""Positions of leader lanes that leave nothing out."""


@dataclass(frozen=True, slots=True)
class LeaderLanes:
    """The lanes of an access that stand for all of its lanes."""

    active: Active
    """These lanes."""
    chosen: slice | Array
    """Their positions among the access's lanes."""

    @property
    def complete(self) -> bool:
        """Whether no lane is left out."""
        return self.chosen is EVERYTHING


class BlockClasses:
    """Which blocks have done the same so far.

    Attributes:
        any_merged: whether any block stands for another one.
        leaders: the blocks that stand for their classes, ascending.
        leader_of: per block, the one that stands for it.
    """

    def __init__(self, blocks: int, width: int, copy: Callable[[int, int], None]) -> None:
        """Begin with one class.

        Args:
            blocks: blocks of the batch.
            width: lanes of a block.
            copy: gives the second block what is known of the first.
        """
        self.blocks, self.width = blocks, width
        self._copy = copy
        self.load()

    def load(self) -> None:
        """New blocks, which have done nothing yet."""
        self.leader_of = np.zeros(self.blocks, np.int64)
        self._settle()

    def _settle(self) -> None:
        self.leaders = np.unique(self.leader_of)
        self.any_merged = self.leaders.size < self.blocks
        self._one = self.leaders.size == 1
        self._leading = np.repeat(self.leader_of == np.arange(self.blocks), self.width)
        self._first = slice(0, self.width) if self._one else np.flatnonzero(self._leading)
        everyone = Active(self._leading, self.leaders.size * self.width, self._leading.size)
        self._of_all = LeaderLanes(everyone, self._first)
        self._last: tuple[Active, LeaderLanes] | None = None

    def leader_lanes(self, active: Active, address: Array | None) -> LeaderLanes:
        """Return the lanes that stand for all lanes of an access; blocks that differ from their leader part from it.

        Args:
            active: lanes that access, or that are ordered.
            address: shared-space addresses, one per active lane, several rows of them or a single one; None where they
                are known to agree.
        """
        if not self.any_merged:
            return LeaderLanes(active, EVERYTHING)
        leaders = self._of_mask(active)
        if leaders is None or (address is not None and address.size > 1 and not self._agree(active, address)):
            self._divide(active, address)
            return self.leader_lanes(active, None)
        return leaders

    def split_all(self) -> None:
        """Let every block stand for itself from now on."""
        self._regroup(np.arange(self.blocks))

    def _of_mask(self, active: Active) -> LeaderLanes | None:
        """Return the leaders' lanes, None when the active lanes of a block are not those of its leader."""
        if active.all:
            return self._of_all
        if self._last is not None and self._last[0] is active:
            return self._last[1]
        lanes = active.mask.reshape(self.blocks, self.width)
        if not (lanes == (lanes[0] if self._one else lanes[self.leader_of])).all():
            return None
        mask = active.mask & self._leading
        chosen: slice | Array
        if self._one:
            count = active.count // self.blocks
            chosen = slice(0, count)
        else:
            chosen = np.flatnonzero(self._leading[active.lanes])
            count = chosen.size
        leaders = LeaderLanes(Active(mask, count, mask.size), chosen)
        self._last = active, leaders
        return leaders

    def _agree(self, active: Active, address: Array) -> bool:
        """Say whether addresses are those of the leaders, where the masks are."""
        if self._one and address.ndim == 1:
            rows = address.reshape(self.blocks, -1)
            return bool((rows == rows[0]).all())
        rows = self._rows(active, address)
        return bool((rows == (rows[:, :1] if self._one else rows[:, self.leader_of])).all())

    def _rows(self, active: Active, address: Array) -> Array:
        """Return addresses as [rows, blocks, lanes of a block], nought where lanes are not active."""
        if not active.all:
            row = np.zeros(self._leading.size, address.dtype)
            row[active.lanes] = address
            address = row
        return address.reshape(-1, self.blocks, self.width)

    def _divide(self, active: Active, address: Array | None) -> None:
        """Make classes of those blocks that differ from their leader, one for all that do the same."""
        masks = active.mask.reshape(self.blocks, self.width)
        rows = None if address is None or address.size == 1 else self._rows(active, address)
        found: dict[tuple[int, bytes, bytes], int] = {}
        leader = np.empty(self.blocks, np.int64)
        for block in range(self.blocks):  # a leader comes before its followers and keeps its own class
            seen = b"" if rows is None else rows[:, block].tobytes()
            leader[block] = found.setdefault((int(self.leader_of[block]), masks[block].tobytes(), seen), block)
        self._regroup(leader)

    def _regroup(self, leader: Array) -> None:
        for block in np.flatnonzero(leader != self.leader_of):
            if leader[block] == block:
                self._copy(int(self.leader_of[block]), int(block))
        self.leader_of = leader
        self._settle()
