"""Barrier objects in shared memory: ``mbarrier`` (PTX ISA 9.7.13.15).

An object counts arrivals. When the expected arrivals and all announced bytes are complete, its phase ends and the next
one starts. The simulator stores the objects by address, outside shared memory, because their 8 bytes are opaque to
programs. A bulk copy counts as complete once a thread finds the phase unfinished, and then brings its bytes.
"""

from __future__ import annotations

import numpy as np

from evokern.simt.arrays import Active, Array
from evokern.simt.batch import Batch, Occurrence
from evokern.simt.clusters.layout import RANK_BITS
from evokern.simt.event_counter import EventCounter
from evokern.simt.memory.bulk_copies import BulkCopies
from evokern.simt.memory.mbarrier_state import Mbarrier, MbarrierCall, ended_phases
from evokern.simt.sanitizer.findings import ERROR, WARNING
from evokern.simt.sanitizer.proxy_fences import ProxyFences
from evokern.simt.sanitizer.thread_order import ThreadOrder


class Mbarriers:
    """All mbarriers of a batch."""

    def __init__(
        self,
        batch: Batch,
        copies: BulkCopies,
        proxy_fences: ProxyFences,
        order: ThreadOrder | None,
        events: EventCounter | None,
    ) -> None:
        self._batch, self._shared, self._copies = batch, copies.shared, copies
        self._order, self._proxy_fences, self._events = order, proxy_fences, events
        self._mbarriers: dict[int, Mbarrier] = {}
        self._places: Array | None = None
        """All objects in order; None after a change."""
        self._awaited = np.full((3, batch.lanes), -1, np.int64)
        """Object (-1 for none), phase or parity, and instruction of each lane's latest wait that failed."""
        self._calls: dict[int, MbarrierCall] = {}
        self._passed: dict[int, Array] = {}
        """Object → for each thread of its cluster, the phases that had ended at its latest wait for a parity."""
        self._repeated: dict[int, tuple[int, int]] = {}
        """Object → instruction and lane of a wait for a parity that ended although no phase had ended since."""

    def load(self) -> None:
        """Reset the state for new blocks."""
        self._mbarriers.clear()
        self._places = None
        self._awaited[0] = -1
        self._passed.clear()
        self._repeated.clear()

    def state(self) -> dict[int, tuple[int, ...]]:
        """Return the state of every object by address, for comparison."""
        return {place: (one.expected, one.pending, one.phase, one.bytes) for place, one in self._mbarriers.items()}

    def locate(self, active: Active, address: Array, call: MbarrierCall) -> tuple[Active | None, Array]:
        """Return the lanes with a valid address of an object, and the objects; see `SharedSpace.locate`."""
        shared = self._shared
        if not active.count:
            return None, address
        sound, index, leaders = shared.locate(active, address, call.offset, 8, call.number, cluster=call.cluster)
        if sound is not None and shared.shadow is not None:
            shared.shadow.settle(index, 8, leaders)
        return sound, index

    def same_block(self, active: Active, data: Array, objects: Array, number: int) -> bool:
        """Report data for another block of the cluster than the barrier object that counts them; return whether none.

        Args:
            active: the lanes.
            data: address of each lane's data.
            objects: address of each lane's barrier object.
            number: the instruction.
        """
        apart = data >> RANK_BITS != objects >> RANK_BITS
        if apart.any():
            ranks = (int(address[apart][0]) >> RANK_BITS for address in (data, objects))
            detail = "The data go to the block of rank {}, but their barrier object is in that of rank {}".format(
                *ranks
            )
            self._batch.report("transaction_bytes", Occurrence.of(number, active.lanes[apart]), detail=detail)
        return not apart.any()

    def overwritten(self, lane: int, index: Array, width: int, number: int) -> bool:
        """Report a copy of a lane to these indices, in units of a width in bytes, if it overwrites a barrier object."""
        if self._places is None:
            self._places = np.array(sorted(self._mbarriers), np.int64)
        ends = np.array([int(index.min()), int(index.max()) + 1]) * width // 8
        places = self._places[slice(*np.searchsorted(self._places, ends))]
        if places.size:
            places = places[np.isin(places * 8 // width, index)]
        if places.size:
            detail = "The copy overwrites a barrier object, because its tile is too large or their memory overlaps"
            self._report("out_of_bounds", number, lane, int(places[0]), detail)
        return bool(places.size)

    def init(self, active: Active, address: Array, call: MbarrierCall, counts: Array | None) -> None:
        """Initialise one object per lane and start its phase 0; without counts, end the life of the objects."""
        sound, index = self.locate(active, address, call)
        if sound is None:
            return
        order, stamp, self._places = self._order, 0, None
        if order is not None:
            stamp, order.dirty = order.now, True
        for at, (place, lane) in enumerate(zip(index.tolist(), sound.lanes.tolist(), strict=True)):
            if order is not None and place in self._mbarriers:
                self._check_unused(self._mbarriers[place], lane, place, call.number)
            if counts is None:
                self._mbarriers.pop(place, None)
            else:
                count = int(counts[min(at, counts.size - 1)])
                if (known := self._mbarriers.get(place)) is not None and self._unordered(known, np.array([lane])).size:
                    detail = f"Its initialisation by {self._owner(known, lane)} is not ordered with this one"
                    self._report("shared_race", call.number, lane, place, detail)
                self._mbarriers[place] = self._new(count, lane, stamp)

    def _check_unused(self, known: Mbarrier, lane: int, place: int, number: int) -> None:
        """Report the end of an object that threads of other warps have used without order before it."""
        assert self._order is not None
        used = np.flatnonzero(known.used)
        used = used[used >> 5 != lane % known.used.size >> 5]
        late = used[self._order.seen(np.full(used.size, lane), used) <= known.used[used]]
        if late.size:
            user = self._batch.describe_thread(lane, int(late[0]))
            self._report("shared_race", number, lane, place, f"The barrier object may still be in use by {user}")

    def _new(self, count: int, lane: int, stamp: int = 0) -> Mbarrier:
        used = np.zeros(self._batch.geometry.cluster_width, np.int64)
        return Mbarrier(expected=count, pending=count, lane=lane, stamp=stamp, used=used)

    def publish(self, active: Active) -> None:
        """Publish to the cluster the objects that the active lanes have initialised (``fence.mbarrier_init``)."""
        for one in self._mbarriers.values():
            if active.mask[one.lane] and one.published < 0:
                one.published = 0 if self._order is None else int(self._order.cluster_arrivals[one.lane])

    def _of(self, place: int, lanes: Array, number: int) -> Mbarrier:
        known = self._mbarriers.get(place)
        if known is None:
            detail = "This barrier object was never initialised, or is no longer valid"
            self._report("uninitialised", number, int(lanes[0]), place, detail)
            known, self._places = self._new(1, int(lanes[0])), None
            self._mbarriers[place] = known
        elif self._order is not None and not known.used[lanes % known.used.size].all():
            early = self._unordered(known, lanes)
            if known.published >= 0:  # The lanes of the same warp follow each other.
                early = early[(self._order.cluster_waits[early] <= known.published) & (early >> 5 != known.lane >> 5)]
            if early.size and not known.reported:
                apart = bool((early >> 5 != known.lane >> 5).any())
                detail = f"Its initialisation by {self._owner(known, int(early[0]))} may come later"
                self._report("shared_race", number, int(early[-1]), place, detail, ERROR if apart else WARNING)
                known.reported = apart
        if self._order is not None:
            known.used[lanes % known.used.size], self._order.dirty = self._order.now, True
        return known

    def _unordered(self, known: Mbarrier, lanes: Array) -> Array:
        """Return the lanes that are not ordered after the initialisation of an object by another lane."""
        if self._order is None:
            return lanes[:0]
        seen = self._order.seen(lanes, np.full(lanes.size, known.lane % self._order.width))
        found: Array = lanes[(seen <= known.stamp) & (lanes != known.lane)]
        return found

    def _owner(self, known: Mbarrier, lane: int) -> str:
        """Describe the thread that initialised an object, for another lane's finding."""
        return self._batch.describe_thread(lane, known.lane % self._batch.geometry.cluster_width)

    def _report(self, kind: str, number: int, lane: int, place: int, detail: str, level: str = ERROR) -> None:
        access = self._shared.place_of(place * 8)
        self._batch.report(kind, Occurrence(number, lane), access, detail=detail, level=level)

    # ---- arrivals

    def arrive(
        self, active: Active, address: Array, call: MbarrierCall, counts: Array, expect: Array | None = None
    ) -> Array:
        """Record the arrivals of lanes, one after another; return the tokens of the phases."""
        tokens = np.zeros(active.count, np.uint64)
        sound, index = self.locate(active, address, call)
        if sound is None:
            return tokens
        counts = np.broadcast_to(counts, (active.count,))
        arrived: dict[int, list[int]] = {}
        ended: set[tuple[int, int]] = set()
        for at, (place, lane) in enumerate(zip(index.tolist(), sound.lanes.tolist(), strict=True)):
            barrier = self._of(place, sound.lanes[at : at + 1], call.number)
            if barrier.pending < int(counts[at]):
                self._land(place, barrier)
            self._check_count(barrier, int(counts[at]), call.number, (lane, place), (place, lane >> 5) in ended)
            tokens[at] = barrier.phase
            if not call.relaxed:
                arrived.setdefault(place, []).append(lane)
            if expect is not None:
                barrier.announce(call.number, int(expect[min(at, expect.size - 1)]))
            if call.drop:
                barrier.expected -= 1
            barrier.pending -= int(counts[at])
            if barrier.settle(self._step):
                ended.add((place, lane >> 5))
                self._complete(place, lane, arrived.pop(place, []), near=call.near)
        for place, lanes in arrived.items():
            self._publish(place, lanes, near=call.near)
        return tokens

    def _check_count(self, barrier: Mbarrier, count: int, number: int, at: tuple[int, int], again: bool) -> None:
        """Report an arrival that the phase does not expect."""
        lane, place = at
        arrivals = f"{barrier.expected} arrival{'s' * (barrier.expected != 1)} per phase"
        if again:
            detail = f"Lanes of one warp end several phases with one instruction: the object expects {arrivals}"
            self._report("barrier_arrivals", number, lane, place, detail)
        elif count > barrier.pending:
            detail = f"{count} more than the {barrier.pending} arrivals that are missing; the object expects {arrivals}"
            self._report("barrier_arrivals", number, lane, place, detail)

    def _publish(self, place: int, lanes: list[int], *, near: bool) -> None:
        """Add the knowledge of lanes to that of an object, block after block."""
        if self._order is None:
            return
        width, each = self._order.width, self._order.block_width
        for block in dict.fromkeys(lane // each for lane in lanes):
            mine = np.array([lane for lane in lanes if lane // each == block])
            self._order.arrive(int(mine[0]) // width, mine % width, place, near=near)

    def _complete(self, place: int, lane: int, lanes: list[int], *, near: bool = False) -> None:
        """Give waiting threads the knowledge that the phase had when it ended, including its last arrivals."""
        self._publish(place, lanes, near=near)
        if self._order is not None:
            self._order.complete(lane // self._order.width, place)

    def expect(self, active: Active, address: Array, call: MbarrierCall, amount: Array) -> None:
        """Announce bytes or, with a negative amount, record the arrival of bytes."""
        sound, index = self.locate(active, address, call)
        if sound is None:
            return
        for place, lane, size in zip(index, sound.lanes, np.broadcast_to(amount, index.shape), strict=True):
            barrier = self._of(int(place), np.array([lane]), call.number)
            barrier.announce(call.number, int(size))
            if barrier.settle(self._step):
                self._complete(int(place), int(lane), [])

    def expects_copy(self, lane: int, place: int, number: int) -> None:
        """Check the object at which a copy of a lane will arrive."""
        barrier = self._of(place, np.array([lane]), number)
        if (
            self._order is not None
            and barrier.published < 0
            and not self._proxy_fences.covers(barrier.lane, barrier.stamp)
        ):
            detail = (
                "No fence.mbarrier_init or fence.proxy.async follows the initialisation of the copy's barrier object"
            )
            self._report("proxy_fence", number, lane, place, detail, WARNING)
            barrier.published = 0

    def _land(self, place: int, barrier: Mbarrier) -> None:
        """Complete the copies that arrive at an object."""
        for one in self._copies.arriving.pop(place, ()):
            self._copies.land(one)
            size = one.index.size * one.width
            barrier.announce(one.number, -size)
            barrier.brought = one.number, barrier.brought[1] + size, one.tile
            if self._order is not None:
                self._order.arrive_by_copy(one.lane, place, one.stamp)
            if barrier.settle(one.step, copied=True):
                self._complete(place, one.lane, [])

    # ---- waits

    def done(self, active: Active, address: Array, call: MbarrierCall, token: Array) -> Array:
        """Return, per lane, whether a phase has ended: a token's phase, or the latest phase with a given parity."""
        result = np.zeros(active.count, np.bool_)
        sound, index = self.locate(active, address, call)
        if sound is None:
            return result
        token = np.broadcast_to(token, (active.count,))
        for place in np.unique(index).tolist():
            mine = np.flatnonzero(index == place)
            lanes = sound.lanes[mine]
            barrier = self._of(place, lanes, call.number)
            ended = ended_phases(barrier, call, token[mine])
            if not ended.all() and self._copies.arriving.get(place):
                self._land(place, barrier)
                ended |= ended_phases(barrier, call, token[mine])
            result[mine] = ended
            self._note(place, lanes, (ended, token[mine]), call)
        if self._events is not None:
            self._record(self._events, sound.lanes, index, result)
        if self._order is not None and not call.relaxed and result.any():
            older = np.zeros(active.count, np.bool_)
            if not call.parity:
                last = np.array([self._mbarriers[place].phase - 1 for place in index.tolist()])
                older = result & (token.astype(np.int64) < last)
            for some, earlier in ((result & ~older, False), (older, True)):
                if some.any():
                    part = self._batch.restrict(sound, some)
                    self._order.wait(part, index[some], near=call.near, earlier=earlier)
        return result

    def _note(self, place: int, lanes: Array, found: tuple[Array, Array], call: MbarrierCall) -> None:
        """Store which lanes still wait for which phases or parities, and waits for a phase that was seen before."""
        ended, token = found
        self._awaited[0, lanes], self._awaited[1, lanes] = np.where(ended, -1, place), token
        self._awaited[2, lanes] = call.number
        self._calls[call.number] = call
        if not call.parity or not ended.any():
            return
        width = self._batch.geometry.cluster_width
        passed = self._passed.setdefault(place, np.full(width, -1, np.int32))
        phase, within = self._mbarriers[place].phase, lanes[ended] % width
        if place not in self._repeated and (again := passed[within] == phase).any():
            self._repeated[place] = call.number, int(lanes[ended][again][0])
        passed[within] = phase

    def _record(self, events: EventCounter, lanes: Array, index: Array, ended: Array) -> None:
        """Record which arrivals a wait has seen, for the time model."""
        if not ended.any():
            events.spins.add(events.step)
        for place in np.unique(index[ended]).tolist():
            event, copied = self._mbarriers[place].ended
            if event >= 0:
                events.waited(lanes[ended & (index == place)], event, copied=copied)

    @property
    def _step(self) -> int:
        return -1 if self._events is None else self._events.step

    def report_stuck(self, lane: int) -> bool:
        """Report lanes that wait forever for the end of a phase, and why, if a lane is among them; return whether."""
        if self._awaited[0, lane] < 0:
            return False
        lanes = np.flatnonzero((self._awaited[0] >= 0) & self._batch.live)
        found: dict[tuple[int, ...], list[int]] = {}
        for lane in lanes[np.isin(self._awaited[0, lanes], list(self._mbarriers))].tolist():
            found.setdefault(tuple(self._awaited[:, lane].tolist()), []).append(lane)
        for place, (number, lane) in self._repeated.items() if found else ():
            detail = "This wait awaits a phase that the thread has already seen: the parity must change with each phase"
            self._report("deadlock", number, lane, place, detail)
        groups = sorted(found.items(), key=self._likely_cause)
        for group in groups:
            (place, token, number), waiting = group
            barrier, call = self._mbarriers[place], self._calls[number]
            if self._likely_cause(group) < 3 or self._likely_cause(groups[0]) > 2:  # A stuck thread may issue a copy.
                self._report_bytes(place, barrier)
            awaited = f"the end of a phase of parity {token & 1}" if call.parity else f"the end of phase {token}"
            missing = f"{barrier.pending} of {barrier.expected} arrivals are missing in phase {barrier.phase}"
            if (missed := self._missed(place, waiting[0], number)) > 1:
                missing = f"{missed} phases have ended since its latest wait: threads arrive more often than it waits, "
                missing += f"or the count {barrier.expected} of mbarrier.init is too small"
            elif barrier.pending <= 0:
                missing = f"all threads have arrived in phase {barrier.phase} and {abs(barrier.bytes)} bytes are " + (
                    "missing" if barrier.bytes > 0 else "too many"
                )
            elif barrier.pending == barrier.expected and not barrier.bytes:
                missing = f"no thread arrives in phase {barrier.phase}, of parity {barrier.phase & 1}"
                missing += f"; a wait for parity {token & 1 ^ 1} would end" if call.parity and barrier.phase else ""
            who = f"{len(waiting)} thread{'s wait' if len(waiting) > 1 else ' waits'}"
            detail = f"{who} for {awaited} of a barrier object, but {missing}"
            access = self._shared.place_of(place * 8)
            self._batch.report("deadlock", Occurrence(number, waiting[0], len(waiting)), access, detail=detail)
        return bool(found)

    def _missed(self, place: int, lane: int, number: int) -> int:
        """Return how many phases have ended since a lane that waits for a parity has last seen one; 0 for a token."""
        passed = self._passed.get(place)
        seen = 0 if passed is None else max(int(passed[lane % passed.size]), 0)
        return self._mbarriers[place].phase - seen if self._calls[number].parity else 0

    def _likely_cause(self, group: tuple[tuple[int, ...], list[int]]) -> int:
        """Return a small number for waiting lanes whose barrier object shows why they wait."""
        (place, _, number), (lane, *_) = group
        barrier = self._mbarriers[place]
        if self._missed(place, lane, number) > 1:
            return 0
        if barrier.pending <= 0:
            return 1 if barrier.brought[1] else 3
        return 2 if barrier.pending < barrier.expected else 4

    def _report_bytes(self, place: int, barrier: Mbarrier) -> None:
        """Report an object whose copies bring other bytes than were announced."""
        if barrier.bytes == 0 or barrier.pending > 0 > -barrier.bytes or self._copies.arriving.get(place):
            return
        (announcing, announced), (copying, brought, tile) = barrier.announced, barrier.brought
        tile = f"; {tile}" if tile else ""
        detail = f"{announced} bytes are announced for phase {barrier.phase}, but copies bring {brought} bytes{tile}"
        number = announcing if announcing >= 0 and barrier.bytes > 0 else copying
        self._report("transaction_bytes", number, barrier.lane, place, detail)

    def finish(self) -> None:
        """Report what is left at barrier objects when the blocks end."""
        if self._order is not None:
            for place, barrier in self._mbarriers.items():
                self._report_bytes(place, barrier)
        self._copies.finish()
