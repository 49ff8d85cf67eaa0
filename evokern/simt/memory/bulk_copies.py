"""Bulk copies between global memory and shared memory (PTX ISA 9.7.9.25.4), from their issue to their end.

The machine reads the source of a copy when it is issued. Data that end at a barrier object (mbarrier) arrive when a
thread finds the object's phase unfinished: the earliest time at which a program may rely on them. Until then, the
shadow marks the destination as in flight. A copy to global memory takes effect at once, but reads shared memory until
its group has been waited for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from evokern.simt.arrays import RAW, Active, Array, Repeated
from evokern.simt.batch import Batch, Occurrence
from evokern.simt.event_counter import EventCounter
from evokern.simt.memory.global_space import AccessSite, GlobalSpace
from evokern.simt.memory.shared_memory import SharedSpace
from evokern.simt.memory.tensor_tiles import CHUNK, Pieces
from evokern.simt.sanitizer.access_keys import IN_FLIGHT, WordAccess
from evokern.simt.sanitizer.block_classes import EVERYTHING, LeaderLanes
from evokern.simt.sanitizer.proxy_fences import ProxyFences
from evokern.simt.sanitizer.shared_shadow import SharedShadow


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Arrival:
    """Data of one lane on their way to shared memory."""

    lane: int
    """The lane that issued the copy."""
    index: Array
    """Destination, in units of the width."""
    data: Array
    """Elements to store."""
    number: int
    """The instruction."""
    stamp: int
    """Time stamp of the issue."""
    width: int = CHUNK
    """Bytes of an element."""
    step: int = -1
    """Step of the record in which it was issued."""
    tile: str = ""
    """The tile, for messages about its size."""
    words: Array | None = None
    """Words of the shadow for exact arithmetic, [elements, words]."""


@dataclass(frozen=True, slots=True, eq=False)
class _Outgoing:
    """Copy of one lane to global memory, which may still read shared memory."""

    lane: int
    index: Array
    group: int
    number: int
    since: int


class BulkCopies:
    """Bulk copies of a batch.

    Attributes:
        arriving: barrier object → data whose arrival it counts.
        shared: shared memory.
    """

    def __init__(self, batch: Batch, shared: SharedSpace, global_: GlobalSpace, proxy_fences: ProxyFences) -> None:
        self._batch, self.shared, self._global, self._proxy_fences = batch, shared, global_, proxy_fences
        self.arriving: dict[int, list[Arrival]] = {}
        self._outgoing: list[_Outgoing] = []
        self.mirror: tuple[Callable[[], Array], Array] | None = None
        """Words of the shadow for exact arithmetic, of global and of shared memory: one per two bytes."""
        self.committed = np.zeros(batch.lanes, np.int64)

    def load(self) -> None:
        """Reset the state for new blocks."""
        self.arriving.clear()
        self._outgoing.clear()
        self.committed.fill(0)

    def state(self) -> tuple[object, ...]:
        """Return the copies in flight, for comparison with an earlier state."""
        arriving = tuple((place, tuple(map(id, items))) for place, items in self.arriving.items() if items)
        return arriving, tuple(map(id, self._outgoing)), self.committed.tobytes()

    # ---- global memory

    def fetch(
        self, active: Active, pieces: Pieces, number: int, events: EventCounter | None
    ) -> tuple[Array, Array | None]:
        """Return the chunks that lanes copy from global memory, and their words in the mirror."""
        half = pieces.width // 2
        words = None if self.mirror is None or not half else np.zeros((pieces.memory.size, half), np.uint64)
        data = np.full(pieces.memory.size, np.frombuffer(pieces.blank, RAW[pieces.width])[0])
        here = np.flatnonzero(pieces.inside)
        if here.size:
            site = AccessSite(number, pieces.width)
            lanes = Repeated(active, pieces.owner[here])
            sound, index = self._global.locate(lanes, pieces.memory[here].view(np.uint64), 0, site, write=False)
            if sound is lanes:  # Otherwise the fault was reported, and the copy brings zeros.
                self._global.note_read(lanes, index, site, synchronises=False)
                if events is not None:
                    events.sectors(number, lanes, index, pieces.width, write=False)
                data[here] = self._global.view(pieces.width).take(index, mode="clip")
                if words is not None and self.mirror is not None:
                    words[here] = self.mirror[0]()[index[:, None] * half + np.arange(half)]
        return data.view(RAW[CHUNK]), None if words is None else words.reshape(-1, CHUNK // 2)

    def deliver(self, active: Active, pieces: Pieces, source: Array, number: int, events: EventCounter | None) -> None:
        """Write the chunks with these indices in shared memory to global memory, except the parts outside a tensor."""
        here, half = np.flatnonzero(pieces.inside), pieces.width // 2
        values = self.shared.view(CHUNK).take(source, mode="clip").view(RAW[pieces.width])[here]
        site, lanes = AccessSite(number, pieces.width), Repeated(active, pieces.owner[here])
        if not here.size:
            return
        sound, index = self._global.locate(lanes, pieces.memory[here].view(np.uint64), 0, site, write=True)
        if sound is not lanes:
            return
        self._global.note_write(lanes, index, site, values, synchronises=False, releases=False)
        if events is not None:
            events.sectors(number, lanes, index, pieces.width, write=True)
        self._global.view(pieces.width)[index] = values
        if self.mirror is not None and half:
            words = self.mirror[1][source[:, None] * (CHUNK // 2) + np.arange(CHUNK // 2)].reshape(-1, half)
            self.mirror[0]()[index[:, None] * half + np.arange(half)] = words[here]

    # ---- shared memory

    def place(
        self, active: Active, address: Array, extents: Array, number: int, *, cluster: bool = False
    ) -> tuple[Active | None, Array]:
        """Return the lanes whose whole tile is in shared memory, and the index of its first chunk for each of them.

        Args:
            active: the lanes.
            address: address of each lane's tile.
            extents: bytes from its start to the end of its last chunk.
            number: the instruction.
            cluster: whether the tile may be in another block of the cluster.
        """
        self.shared.leader_lanes(active, extents)
        last = address + (extents - CHUNK).astype(address.dtype)
        sound, index, _ = self.shared.locate(active, address, 0, CHUNK, number, cluster=cluster)
        end, _, _ = self.shared.locate(active, last, 0, CHUNK, number, cluster=cluster)
        return (active, index) if sound is active and end is active else (None, index)

    def issue(self, arrival: Arrival, place: int) -> None:
        """Record data on their way; a read or write of their destination before they arrive is a finding."""
        self.arriving.setdefault(place, []).append(arrival)
        self._proxy_fences.by_engine.add(arrival.number)
        shadow, lanes = self._leading(arrival.lane, arrival.index.size)
        if shadow is not None:
            access = WordAccess.at(lanes.active, arrival.index, arrival.width, arrival.number, shadow.granularity)
            self._proxy_fences.early_releases.overwrite(arrival.lane, access)
            self._proxy_fences.check(lanes.active, arrival.index, arrival.width, arrival.number, lanes)
            shadow.write(lanes.active, arrival.index, arrival.width, arrival.number, lanes, stamp=IN_FLIGHT)

    def land(self, arrival: Arrival) -> None:
        """Store data that have arrived."""
        self.shared.view(arrival.width)[arrival.index] = arrival.data
        if self.mirror is not None and arrival.width >= 2:
            half = arrival.width // 2
            at = arrival.index[:, None] * half + np.arange(half)
            self.mirror[1][at] = 0 if arrival.words is None else arrival.words
        shadow, _ = self._leading(arrival.lane, 1)
        if shadow is not None:
            shadow.land_bulk(arrival.lane, arrival.index, arrival.width, arrival.number, arrival.stamp)

    def now(self) -> int:
        """Return a time stamp that no access has yet, for the copies of one instruction."""
        order = self.shared.order
        if order is None:
            return 0
        order.tick()
        return order.now

    def issued(self) -> None:
        """Advance the time after the copies of one instruction."""
        if self.shared.order is not None:
            self.shared.order.dirty = True
            self.shared.order.tick()

    def read(self, lane: int, index: Array, number: int) -> None:
        """Check the chunks that a copy of one lane reads, until its group has been waited for."""
        order = self.shared.order
        self._outgoing.append(
            _Outgoing(lane, index, int(self.committed[lane]), number, order.now if order is not None else 0)
        )
        shadow, lanes = self._leading(lane, index.size)
        if shadow is not None:
            shadow.read(lanes.active, index, CHUNK, number, lanes)
            self._proxy_fences.check(lanes.active, index, CHUNK, number, lanes)

    # ---- groups

    def commit(self, active: Active) -> None:
        """Close the current group of the active lanes."""
        self.committed[active.mask] += 1

    def wait(self, active: Active, most: int) -> None:
        """Complete the copies to global memory of all groups of the active lanes except the ``most`` latest."""
        kept = []
        for one in self._outgoing:
            if not active.mask[one.lane] or one.group >= self.committed[one.lane] - most:
                kept.append(one)
                continue
            shadow, lanes = self._leading(one.lane, one.index.size)
            if shadow is not None:
                shadow.read_until_now(lanes.active, one.index, CHUNK, one.number, one.since, lanes)
        self._outgoing = kept

    def finish(self) -> None:
        """Report copies that nobody has waited for when the blocks end."""
        late = {
            one.number: (one.lane, "reads shared memory, but its block ends before a wait for its group")
            for one in self._outgoing
        } | {
            one.number: (one.lane, "writes shared memory, but no thread waits for it at its barrier object")
            for items in self.arriving.values()
            for one in items
        }
        if self._batch.options.sanitize:
            for number, (lane, what) in late.items():
                self._batch.report("async_not_waited", Occurrence(number, lane), detail=f"The copy {what}")
        self.load()

    def _leading(self, lane: int, count: int) -> tuple[SharedShadow | None, LeaderLanes]:
        """Return the shadow of shared memory if it has the lane's cluster, and the lane once per element."""
        shadow = self.shared.shadow
        mask = np.zeros(self._batch.lanes, np.bool_)
        mask[lane] = True
        lanes = Repeated(Active(mask, 1, self._batch.live_count), np.zeros(count, np.int64))
        if (
            shadow is not None
            and shadow.order.classes.leader_of[lane // shadow.order.width] != lane // shadow.order.width
        ):
            shadow = None
        return shadow, LeaderLanes(lanes, EVERYTHING)
