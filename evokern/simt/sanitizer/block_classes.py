"""Classes of blocks in a batch that behave identically; shared memory is checked for one block of each class.

Blocks usually differ in their data, but not in where they store it in shared memory. Two blocks have equal shadows as
long as the same threads made the same accesses and synchronised at the same barriers. Addresses are compared relative
to the block's memory. Therefore only the first block of a class keeps a shadow; for the other blocks, an access costs
only one comparison of addresses. A block that behaves differently copies its leader's shadow and continues alone,
without loss of information.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from evokern.simt.arrays import Active, Array

EVERYTHING = slice(None)
"""Positions of all leader lanes."""


@dataclass(frozen=True, slots=True)
class LeaderLanes:
    """Lanes that represent all lanes of an access."""

    active: Active
    """The representing lanes."""
    chosen: slice | Array
    """Positions of the representing lanes among the access's lanes."""

    @property
    def complete(self) -> bool:
        """Whether every lane represents itself."""
        return self.chosen is EVERYTHING


class BlockClasses:
    """Classes of blocks that have behaved identically so far.

    Attributes:
        any_merged: whether any block represents another one.
        leaders: the blocks that represent their classes, ascending.
        leader_of: leader of each block.
    """

    def __init__(self, blocks: int, width: int, copy: Callable[[int, int], None]) -> None:
        """Start with one class.

        Args:
            blocks: number of blocks in the batch.
            width: lanes per block.
            copy: function that copies the shadow of a block (first argument) to another (second argument).
        """
        self.blocks, self.width = blocks, width
        self._copy = copy
        self.load()

    def load(self) -> None:
        """Put new blocks into one class."""
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
        """Return the lanes that represent all lanes of an access; separate the blocks that differ from their leader.

        Args:
            active: lanes that access, or that are ordered.
            address: shared-space addresses, one per active lane, several rows of them or a single one; None if they are
                known to be equal.
        """
        if not self.any_merged:
            return LeaderLanes(active, EVERYTHING)
        leaders = self._of_mask(active)
        if leaders is None or (address is not None and address.size > 1 and not self._agree(active, address)):
            self._divide(active, address)
            return self.leader_lanes(active, None)
        return leaders

    def split_all(self) -> None:
        """Make every block represent itself from now on."""
        self._regroup(np.arange(self.blocks))

    def _of_mask(self, active: Active) -> LeaderLanes | None:
        """Return the leaders' lanes; None if a block's active lanes differ from those of its leader."""
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
        """Return whether addresses equal those of the leaders, given equal masks."""
        if self._one and address.ndim == 1:
            rows = address.reshape(self.blocks, -1)
            return bool((rows == rows[0]).all())
        rows = self._rows(active, address)
        return bool((rows == (rows[:, :1] if self._one else rows[:, self.leader_of])).all())

    def _rows(self, active: Active, address: Array) -> Array:
        """Return addresses as [rows, blocks, lanes of a block], zero for inactive lanes."""
        if not active.all:
            row = np.zeros(self._leading.size, address.dtype)
            row[active.lanes] = address
            address = row
        return address.reshape(-1, self.blocks, self.width)

    def _divide(self, active: Active, address: Array | None) -> None:
        """Move blocks that differ from their leader to new classes, one per behaviour."""
        masks = active.mask.reshape(self.blocks, self.width)
        rows = None if address is None or address.size == 1 else self._rows(active, address)
        found: dict[tuple[int, bytes, bytes], int] = {}
        leader = np.empty(self.blocks, np.int64)
        for block in range(self.blocks):  # A leader precedes its followers and keeps its own class.
            seen = b"" if rows is None else rows[:, block].tobytes()
            leader[block] = found.setdefault((int(self.leader_of[block]), masks[block].tobytes(), seen), block)
        self._regroup(leader)

    def _regroup(self, leader: Array) -> None:
        for block in np.flatnonzero(leader != self.leader_of):
            if leader[block] == block:
                self._copy(int(self.leader_of[block]), int(block))
        self.leader_of = leader
        self._settle()
