"""Shadow of shared memory: the writers and readers of each word, and whether a barrier separates them.

Every word (of the program's smallest access width, at most 4 bytes) has a 64-bit key that identifies its last writer:
time stamp, instruction, thread. `evokern.simt.sanitizer.access_log` stores reads and atomic updates, because a word can
have several of them. An access is safe if all keys of its words are older than the last synchronisation of its warp.
This takes one comparison for whole rows; only accesses that fail it are examined more closely
(`evokern.simt.sanitizer.thread_order`).

Words that were never written, and words that an asynchronous copy has yet to write, have stamps in the far future.
They fail the same comparison, so one check covers all kinds. Blocks with the same history share one shadow
(`evokern.simt.sanitizer.block_classes`) until there is a finding. A cluster is treated as one block with the memory of
all its blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from evokern.simt.arrays import Active, Array
from evokern.simt.batch import Batch
from evokern.simt.sanitizer.access_keys import NEVER_WRITTEN, NOT_READABLE, NUMBER, STAMP, THREAD, WordAccess, repeated
from evokern.simt.sanitizer.access_log import AccessLog
from evokern.simt.sanitizer.block_classes import EVERYTHING, LeaderLanes
from evokern.simt.sanitizer.thread_order import ThreadOrder
from evokern.simt.sanitizer.thread_shadow import Found, PlaceOf, ThreadShadow

_WARP = np.uint64(5)
"""Bits of a thread's index below those of its warp."""


_CHECKS = {
    "read": (("atomics", "updated atomically by"),),
    "write": (("reads", "read by"), ("atomics", "updated atomically by"), ("strong_reads", "read by")),
    "strong read": (),
    "strong write": (("reads", "read by"),),
    "strong update": (("reads", "read by"),),
}
"""Kind of access → logs of the accesses that it can race with (and with the last writers), and their texts."""


class SharedShadow(ThreadShadow):
    """Keys of each word of shared memory.

    Attributes:
        reads: the reads of each word.
        atomics: atomic updates of each word, and stores by relaxed or release instructions.
        strong_reads: reads by relaxed or acquire instructions.
        overwritten: writes that later writes overwrote without being ordered after them, so the last writer's key does
            not represent them.
        followed: instructions whose reads are also passed to ``follow``.
    """

    race = "shared_race"

    def __init__(self, batch: Batch, order: ThreadOrder, size: int, place_of: PlaceOf) -> None:
        """Create the shadow for a batch; see `ThreadShadow`.

        Args:
            batch: the lanes.
            order: happens-before order.
            size: bytes of shared memory of all blocks.
            place_of: function that describes a position for findings.
        """
        self.granularity = batch.program.shared_granularity
        words = size // self.granularity
        self.words_of_block = words // batch.geometry.blocks
        self._of_cluster = words // order.blocks
        """Words of each cluster."""
        super().__init__(batch, order, np.empty(words, np.uint64), place_of)  # Only ranges of leading blocks are used.
        self._logs = tuple(AccessLog(order, words, self._of_cluster) for _ in range(4))
        self.reads, self.atomics, self.strong_reads, self.overwritten = self._logs
        order.on_copy(self._copy)
        self.followed: frozenset[int] = frozenset()
        self.follow: Callable[[WordAccess], None] = lambda access: None

    def load(self) -> None:
        """Clear the shadow for new blocks."""
        first = self._stretch(0)
        self.writer.keys[first] = NEVER_WRITTEN
        for log in self._logs:
            log.load(first)

    def _stretch(self, block: int) -> slice:
        return slice(block * self._of_cluster, (block + 1) * self._of_cluster)

    def _copy(self, source: int, target: int) -> None:
        one, two = self._stretch(source), self._stretch(target)
        self.writer.keys[two] = self.writer.keys[one]
        for log in self._logs:
            log.copy(one, two, (target - source) * self.order.width)

    def _access(self, leaders: LeaderLanes, index: Array, width: int, number: int) -> WordAccess:
        """Return the access of the leading lanes, given the indices of all lanes in units of the width."""
        return WordAccess.at(leaders.active, index[leaders.chosen], width, number, self.granularity)

    # ---- accesses

    def read(self, active: Active, index: Array, width: int, number: int, leaders: LeaderLanes) -> None:
        """Check and record reads.

        Args:
            active: lanes that read.
            index: index of each active lane, in units of ``width``.
            width: bytes of an access.
            number: the instruction.
            leaders: lanes that represent all lanes, from `SharedSpace.locate`.
        """
        access = self._checked(active, index, width, number, leaders, "read")
        self._remember(access)
        if number in self.followed:
            self.follow(access)

    def note_read(self, active: Active, index: Array, width: int, number: int) -> None:
        """Record reads that have already been checked."""
        leaders = self.order.classes.leader_lanes(active, None)
        self._remember(self._access(leaders, index, width, number))

    def _remember(self, access: WordAccess) -> None:
        self.reads.add(access.active.lanes, access.element, access.count, self._keys(access.active, access.number))

    def read_group(self, index: Array, width: int, tags: Array, leaders: LeaderLanes) -> bool:
        """Check the reads of all lanes by several instructions; record them if all are safe, otherwise return False.

        Args:
            index: [instructions, lanes], in units of the width.
            width: bytes of an access.
            tags: [instructions, 1], the instruction fields of the keys.
            leaders: lanes that represent all lanes.
        """
        order, few = self.order, leaders.active
        if self.atomics.used or self.overwritten.used:
            return False
        access = WordAccess.at(few, index[:, leaders.chosen], width, 0, self.granularity)
        element, count = access.element, access.count
        seen = self.writer.take(element, count).reshape(element.shape[0], -1, count)
        if not (seen < (few.pick(order.near_floor)[:, None] if order.near_level is None else order.near_level)).all():
            return False
        order.dirty = True
        if order.fences:
            order.touch(few.lanes)
        self.reads.add(few.lanes, element, count, few.pick(self.thread) + (np.uint64(STAMP.pack(order.now)) + tags))
        return True

    def write(
        self, active: Active, index: Array, width: int, number: int, leaders: LeaderLanes, *, stamp: int | None = None
    ) -> bool:
        """Check and record writes; with ``stamp=IN_FLIGHT``, report any access to the words before `land` is called.

        Returns:
            Whether several lanes write to one address.
        """
        access = self._checked(active, index, width, number, leaders, "write")
        view = self.writer.view(access.count)
        keys = repeated(self._keys(access.active, number), access.count)
        raw = keys.view(np.uint64)
        if stamp is not None:
            STAMP.set(raw, stamp)
        view[access.element] = keys
        return bool((view.take(access.element, mode="clip").view(np.uint64) != raw).any())

    def synchronising_access(
        self, active: Active, index: Array, width: int, number: int, leaders: LeaderLanes, act: str
    ) -> None:
        """Check and record atomic, relaxed, acquire or release accesses, which race only with plain accesses.

        Args:
            active: lanes that access.
            index: index of each active lane, in units of ``width``.
            width: bytes of an access.
            number: the instruction.
            leaders: lanes that represent all lanes.
            act: `read`, `write` or `update`.
        """
        access = self._checked(active, index, width, number, leaders, f"strong {act}")
        if act != "read":  # From now on, the word is initialised, but has no plain writer.
            empty = self.writer.take(access.element, access.count) >= NEVER_WRITTEN
            if empty.any():
                self.writer.keys[access.words[empty]] = 0
        log = self.strong_reads if act == "read" else self.atomics
        keys = self._keys(access.active, number, plain=False)
        log.add(access.active.lanes, access.element, access.count, keys)

    def writers(self, leaders: LeaderLanes, index: Array, width: int) -> tuple[WordAccess, Array]:
        """Return the access of the leading lanes, and the keys of its words' last writers, one row per lane."""
        access = self._access(leaders, index, width, 0)
        return access, self.writer.take(access.element, access.count)

    def read_until_now(
        self, active: Active, index: Array, width: int, number: int, since: int, leaders: LeaderLanes | None = None
    ) -> None:
        """Check and record reads that last from stamp ``since`` until now; a write in this period is a finding."""
        leaders = leaders or self.order.classes.leader_lanes(active, None)
        access, keys = self.writers(leaders, index, width)
        late = (keys >= np.uint64(STAMP.pack(since))) & (keys < NEVER_WRITTEN)
        if late.any():
            if not leaders.complete:
                self.order.classes.split_all()
                self.read_until_now(active, index, width, number, since)
                return
            detail = "The data that it reads are overwritten before the wait for its group"
            self.report("async_not_waited", number, access.pairs(keys, late), detail)
        self._remember(replace(access, number=number))

    def land(self, active: Active, index: Array, width: int, number: int) -> None:
        """Record that asynchronous writes are complete; from now on, they count as ordinary writes by their threads."""
        access = self._access(self.order.classes.leader_lanes(active, None), index, width, number)
        self.writer.view(access.count)[access.element] = repeated(self._keys(access.active, number), access.count)

    def land_bulk(self, lane: int, index: Array, width: int, number: int, stamp: int) -> None:
        """Record that a bulk copy, which a lane issued at a time stamp, has written these words."""
        key = STAMP.pack(stamp) | NUMBER.pack(number) | int(self.thread[lane])
        self.writer.keys[WordAccess.at(self._batch.active, index, width, number, self.granularity).words] = key

    def settle(self, index: Array, width: int, leaders: LeaderLanes) -> None:
        """Mark words as written long ago; used for objects that define their own order, such as barriers."""
        self.writer.keys[self._access(leaders, index, width, 0).words] = 0

    # ---- checks of an access

    def _checked(
        self, active: Active, index: Array, width: int, number: int, leaders: LeaderLanes, act: str
    ) -> WordAccess:
        """Report the findings of an access; after the first one, each lane represents itself.

        Args:
            active: lanes that access.
            index: index of each active lane, in units of ``width``.
            width: bytes of an access.
            number: the instruction.
            leaders: lanes that represent all lanes.
            act: a key of `_CHECKS`.

        Returns:
            The access of the lanes that represent all lanes now.
        """
        access = self._access(leaders, index, width, number)
        found = self._findings(access, act)
        if found:
            if not leaders.complete:
                self.order.classes.split_all()
                access = self._access(LeaderLanes(active, EVERYTHING), index, width, number)
                found = self._findings(access, act)
            self._report_all(number, found)
            if act == "write":
                self._keep_overwritten(found)
        return access

    def _findings(self, access: WordAccess, act: str) -> list[Found]:
        writes = act in ("write", "strong write")
        words_of = "also written by" if writes else "written by"
        found = self._against_writers(access, "write" if writes else "read", words_of)
        found += self._against(access, self.overwritten, words_of, "write" if writes else "read")
        for name, of_log in _CHECKS[act]:
            found += self._against(access, getattr(self, name), of_log, "read" if act == "read" else "write")
        return found

    def _suspects(self, access: WordAccess, seen: Array, act: str) -> Array | None:
        order, few = self.order, access.active
        if bool((seen < (few.pick(order.near_floor)[:, None] if order.near_level is None else order.near_level)).all()):
            return None
        one = access.count > 1 and bool((seen == seen[:, :1]).all())  # All keys belong to one access.
        if self._ordered(few, seen[:, :1] if one else seen, act):
            return None
        late: Array = seen >= order.floor[few.lanes][:, None]
        return late

    def _ordered(self, few: Active, seen: Array, act: str) -> bool:
        """Return whether each key is the lane's own, or older than the last synchronisation with the key's warp."""
        lanes = few.lanes
        thread = THREAD.alone(seen)
        place = (lanes >> 5)[:, None] * self.order.warps + (thread >> _WARP).view(np.int64)
        late = seen >= self.order.limits().take(place, mode="clip")
        if not late.any():
            return True
        late &= thread != self.thread[lanes][:, None]
        late |= seen >= NOT_READABLE
        if act == "write":
            late &= seen != NEVER_WRITTEN
        return not late.any()

    def _keep_overwritten(self, found: list[Found]) -> None:
        """Store writes that are about to be overwritten by writes that are not ordered after them."""
        for item in found:
            if item.kind == self.race and "written by" in item.detail:
                lanes = item.met.lanes // self.order.width * self.order.width + THREAD.of(item.met.keys)
                self.overwritten.add(lanes, item.met.words, 1, item.met.keys)
