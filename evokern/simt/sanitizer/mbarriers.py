"""Barrier objects in shared memory: ``mbarrier`` (PTX ISA 9.7.13.15).

An object counts arrivals. When the expected arrivals and all announced bytes are complete, its phase ends and the next
one starts. The simulator stores the objects by address, outside shared memory, because their 8 bytes are opaque to
programs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evokern.simt.arrays import Active, Array
from evokern.simt.batch import Batch, Occurrence
from evokern.simt.memory.shared_memory import SharedSpace
from evokern.simt.sanitizer.thread_order import ThreadOrder


@dataclass(frozen=True, slots=True)
class MbarrierCall:
    """An instruction that uses barrier objects."""

    number: int
    """The instruction."""
    offset: int
    """Bytes to add to addresses."""
    relaxed: bool = False
    """Whether it neither publishes nor acquires accesses."""
    drop: bool = False
    """Whether later phases expect one arrival less."""
    parity: bool = False
    """Whether it waits for a parity instead of a token's phase."""


@dataclass(slots=True)
class _Mbarrier:
    """State of one barrier object."""

    expected: int
    """Number of arrivals that end a phase."""
    pending: int
    """Arrivals still missing in this phase."""
    phase: int = 0
    """Number of phases that have ended."""
    bytes: int = 0
    """Announced bytes still missing."""

    def settle(self) -> bool:
        """End the phase if no arrival and no bytes are missing; return whether the phase ended."""
        if self.pending > 0 or self.bytes > 0:
            return False
        self.phase += 1
        self.pending = self.expected
        self.bytes = 0
        return True


class Mbarriers:
    """All mbarriers of a batch."""

    def __init__(self, batch: Batch, shared: SharedSpace, order: ThreadOrder | None) -> None:
        self._batch, self._shared, self._order = batch, shared, order
        self._mbarriers: dict[int, _Mbarrier] = {}

    def load(self) -> None:
        """Reset the state for new blocks."""
        self._mbarriers.clear()

    def state(self) -> dict[int, tuple[int, ...]]:
        """Return the state of every object by address, for comparison."""
        return {place: (one.expected, one.pending, one.phase, one.bytes) for place, one in self._mbarriers.items()}

    def _locate(self, active: Active, address: Array, call: MbarrierCall) -> tuple[Active | None, Array]:
        sound, index, leaders = self._shared.locate(active, address, call.offset, 8, call.number)
        if sound is not None and self._shared.shadow is not None:
            self._shared.shadow.settle(index, 8, leaders)
        return sound, index

    def init(self, active: Active, address: Array, call: MbarrierCall, counts: Array) -> None:
        """Initialise one object per lane and start its phase 0."""
        sound, index = self._locate(active, address, call)
        if sound is not None:
            for place, count in zip(index, np.broadcast_to(counts, index.shape), strict=True):
                self._mbarriers[int(place)] = _Mbarrier(int(count), int(count))

    def _of(self, place: int, lane: int, number: int) -> _Mbarrier:
        known = self._mbarriers.get(place)
        if known is None:
            access = self._shared.place_of(place * 8)
            detail = "This barrier object was never initialised"
            self._batch.report("uninitialised", Occurrence(number, lane), access, detail=detail)
            known = self._mbarriers[place] = _Mbarrier(1, 1)
        return known

    def arrive(
        self, active: Active, address: Array, call: MbarrierCall, counts: Array, expect: Array | None = None
    ) -> Array:
        """Record the arrivals of lanes, one after another; return the tokens of the phases."""
        tokens = np.zeros(active.count, np.uint64)
        sound, index = self._locate(active, address, call)
        if sound is None:
            return tokens
        counts = np.broadcast_to(counts, (active.count,))
        arrived: dict[int, list[int]] = {}
        for at, (place, lane) in enumerate(zip(index, sound.lanes, strict=True)):
            barrier = self._of(int(place), int(lane), call.number)
            tokens[at] = barrier.phase
            if not call.relaxed:
                arrived.setdefault(int(place), []).append(int(lane))
            if expect is not None:
                barrier.bytes += int(expect[min(at, expect.size - 1)])
            if call.drop:
                barrier.expected -= 1
            barrier.pending -= int(counts[at])
            if barrier.settle():
                self._complete(int(place), int(lane), arrived.pop(int(place), []))
        for place, lanes in arrived.items():
            self._publish(place, lanes)
        return tokens

    def _publish(self, place: int, lanes: list[int]) -> None:
        """Add the knowledge of one block's lanes to that of an object."""
        if self._order is not None and lanes:
            width = self._order.width
            self._order.arrive(lanes[0] // width, np.array(lanes) % width, place)

    def _complete(self, place: int, lane: int, lanes: list[int]) -> None:
        """Give waiting threads the knowledge that the phase had when it ended, including its last arrivals."""
        self._publish(place, lanes)
        if self._order is not None:
            self._order.complete(lane // self._order.width, place)

    def expect(self, active: Active, address: Array, call: MbarrierCall, amount: Array) -> None:
        """Announce bytes or, with a negative amount, record the arrival of bytes."""
        sound, index = self._locate(active, address, call)
        if sound is None:
            return
        for place, lane, size in zip(index, sound.lanes, np.broadcast_to(amount, index.shape), strict=True):
            barrier = self._of(int(place), int(lane), call.number)
            barrier.bytes += int(size)
            if barrier.settle():
                self._complete(int(place), int(lane), [])

    def done(self, active: Active, address: Array, call: MbarrierCall, token: Array) -> Array:
        """Return, per lane, whether a phase has ended: a token's phase, or the latest phase with a given parity."""
        result = np.zeros(active.count, np.bool_)
        sound, index = self._locate(active, address, call)
        if sound is None:
            return result
        token = np.broadcast_to(token, (active.count,))
        for at, (place, lane) in enumerate(zip(index, sound.lanes, strict=True)):
            phase = self._of(int(place), int(lane), call.number).phase
            result[at] = (phase & 1) != (int(token[at]) & 1) if call.parity else phase > int(token[at])
        if self._order is not None and not call.relaxed and result.any():
            self._order.wait(self._batch.restrict(sound, result), index[result])
        return result
