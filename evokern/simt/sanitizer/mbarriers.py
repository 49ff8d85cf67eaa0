"""Mbarriers, barrier objects in shared memory: ``mbarrier`` (PTX ISA 9.7.13.15).

An object counts arrivals; when as many have come as it expects, and all announced bytes have arrived, its phase ends
and the next begins. The objects are kept apart from shared memory, by address; what the 8 bytes hold is opaque to
programs anyway.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evokern.simt.arrays import Active, Array
from evokern.simt.batch import Batch
from evokern.simt.memory.shared_memory import SharedSpace


@dataclass(slots=True)
class _Mbarrier:
    """State of one barrier object."""

    expected: int
    """Arrivals that end a phase."""
    pending: int
    """Arrivals still to come in this phase."""
    phase: int = 0
    """Phases that have ended."""
    bytes: int = 0
    """Announced bytes still to come."""

    def settle(self) -> None:
        if self.pending <= 0 and self.bytes <= 0:
            self.phase += 1
            self.pending = self.expected
            self.bytes = 0


class Mbarriers:
    """All mbarriers of a batch."""

    def __init__(self, batch: Batch, shared: SharedSpace) -> None:
        self._batch, self._shared = batch, shared
        self._mbarriers: dict[int, _Mbarrier] = {}

    def load(self) -> None:
        """New blocks."""
        self._mbarriers.clear()

    def state(self) -> dict[int, tuple[int, ...]]:
        """Return every object's state by its place, for comparison."""
        return {place: (one.expected, one.pending, one.phase, one.bytes) for place, one in self._mbarriers.items()}

    def _locate(self, active: Active, address: Array, offset: int, number: int) -> tuple[Active | None, Array]:
        sound, index, leaders = self._shared.locate(active, address, offset, 8, number)
        if sound is not None and self._shared.shadow is not None:
            self._shared.shadow.settle(index, 8, leaders)
        return sound, index

    def init(self, active: Active, address: Array, offset: int, number: int, counts: Array) -> None:
        """Begin phase 0, one object per lane."""
        sound, index = self._locate(active, address, offset, number)
        if sound is not None:
            for place, count in zip(index, np.broadcast_to(counts, index.shape), strict=True):
                self._mbarriers[int(place)] = _Mbarrier(int(count), int(count))

    def _of(self, place: int, lane: int, number: int) -> _Mbarrier:
        known = self._mbarriers.get(place)
        if known is None:
            address, name, offset = self._shared.place_of(place * 8, lane)
            self._batch.report("uninitialised", number, lane, address=address, allocation=name, offset=offset,
                           detail="This barrier object was never initialised")  # fmt: skip
            known = self._mbarriers[place] = _Mbarrier(1, 1)
        return known

    def arrive(
        self,
        active: Active,
        address: Array,
        offset: int,
        number: int,
        counts: Array,
        *,
        expect: Array | None = None,
        drop: bool = False,
    ) -> Array:
        """Arrive, lane after lane; returns the tokens of the phases arrived at."""
        tokens = np.zeros(active.count, np.uint64)
        sound, index = self._locate(active, address, offset, number)
        if sound is None:
            return tokens
        counts = np.broadcast_to(counts, (active.count,))
        for at, (place, lane) in enumerate(zip(index, sound.lanes, strict=True)):
            barrier = self._of(int(place), int(lane), number)
            tokens[at] = barrier.phase
            if expect is not None:
                barrier.bytes += int(expect[min(at, expect.size - 1)])
            if drop:
                barrier.expected -= 1
            barrier.pending -= int(counts[at])
            barrier.settle()
        return tokens

    def expect(self, active: Active, address: Array, offset: int, number: int, amount: Array) -> None:
        """Announce bytes (or, with a negative amount, their arrival)."""
        sound, index = self._locate(active, address, offset, number)
        if sound is None:
            return
        for place, lane, size in zip(index, sound.lanes, np.broadcast_to(amount, index.shape), strict=True):
            barrier = self._of(int(place), int(lane), number)
            barrier.bytes += int(size)
            barrier.settle()

    def done(self, active: Active, address: Array, offset: int, number: int, token: Array, *, parity: bool) -> Array:
        """Say per lane whether a phase has ended: that of a token, or the latest of a parity."""
        result = np.zeros(active.count, np.bool_)
        sound, index = self._locate(active, address, offset, number)
        if sound is None:
            return result
        token = np.broadcast_to(token, (active.count,))
        for at, (place, lane) in enumerate(zip(index, sound.lanes, strict=True)):
            phase = self._of(int(place), int(lane), number).phase
            result[at] = (phase & 1) != (int(token[at]) & 1) if parity else phase > int(token[at])
        shadow = self._shared.shadow
        if shadow is not None and result.any():
            shadow.acquire(self._batch.restrict(sound, result))
        return result
