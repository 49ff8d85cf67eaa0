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
from dataclasses import dataclass

import numpy as np

from evokern.simt.arrays import Active, Array
from evokern.simt.batch import Batch
from evokern.simt.sanitizer.access_keys import (
    IN_FLIGHT,
    NEVER_WRITTEN,
    NOT_READABLE,
    NUMBER,
    STAMP,
    THREAD,
    in_elements,
    repeated,
)
from evokern.simt.sanitizer.access_log import AccessLog, Conflicts
from evokern.simt.sanitizer.block_classes import EVERYTHING, LeaderLanes
from evokern.simt.sanitizer.findings import ERROR, WARNING, Reads
from evokern.simt.sanitizer.thread_order import ThreadOrder

_WARP = np.uint64(5)
"""Bits of a thread's index below those of its warp."""

PlaceOf = Callable[[int, int], tuple[int, str, int]]
"""(position in the memory of all blocks, lane) → address in its block, variable, distance from the variable's start."""


@dataclass(frozen=True, slots=True)
class _Found:
    """A finding for some lanes of an access."""

    kind: str
    lanes: Array
    words: Array
    keys: Array
    """Keys of the other accesses; empty if there are none."""
    detail: str = ""
    level: str = ERROR
    by: str = ""
    """The access whose read is invalid: `reader` for the current access, `other` for the other one; empty if none."""


class SharedShadow:
    """Keys of each word of shared memory.

    Attributes:
        order: happens-before order.
        writer: key of each word's last writer.
        reads: the reads of each word.
        atomics: atomic updates of each word, and stores by relaxed or release instructions.
        strong_reads: reads by relaxed or acquire instructions.
        overwritten: writes that later writes overwrote without being ordered after them, so the last writer's key does
            not represent them.
    """

    def __init__(self, batch: Batch, order: ThreadOrder, size: int, place_of: PlaceOf) -> None:
        """Create the shadow for a batch.

        Args:
            batch: the lanes.
            order: happens-before order.
            size: bytes of shared memory of all blocks.
            place_of: function that names the variable at a position.
        """
        self._batch, self._place_of, self.order = batch, place_of, order
        self.granularity = batch.program.shared_granularity
        self.words = size // self.granularity
        self.blocks = order.blocks
        # Only the ranges of leading blocks are ever used.
        self.writer = np.empty(self.words, np.uint64)
        self.reads = AccessLog(order, self.words, self.words // self.blocks)
        self.atomics = AccessLog(order, self.words, self.words // self.blocks)
        self.strong_reads = AccessLog(order, self.words, self.words // self.blocks)
        self.overwritten = AccessLog(order, self.words, self.words // self.blocks)
        self._logs = (self.reads, self.atomics, self.strong_reads, self.overwritten)
        self._views: dict[int, Array] = {}
        self.thread = batch.cluster_thread.astype(np.uint64)
        order.on_copy(self._copy)

    def load(self) -> None:
        """Clear the shadow for new blocks."""
        first = self._stretch(0)
        self.writer[first] = NEVER_WRITTEN
        for log in self._logs:
            log.load(first)

    def _stretch(self, block: int) -> slice:
        size = self.words // self.blocks
        return slice(block * size, (block + 1) * size)

    def _copy(self, source: int, target: int) -> None:
        one, two = self._stretch(source), self._stretch(target)
        self.writer[two] = self.writer[one]
        for log in self._logs:
            log.copy(one, two, (target - source) * self.order.width)

    def _view(self, width: int) -> tuple[Array, int]:
        """View the writers' keys as elements that cover one access; also return the number of keys per element."""
        count = max(width // self.granularity, 1)
        view = self._views.get(count)
        if view is None:
            view = self._views[count] = in_elements(self.writer, count)
        return view, count

    def _element(self, index: Array, width: int) -> Array:
        """Convert an index in units of the access width to an index in units of the keys that cover an access."""
        return index if width >= self.granularity else index * width // self.granularity

    def _keys(self, active: Active, number: int, *, plain: bool = True) -> Array:
        """Return the keys of an access, one per lane."""
        if plain and self.order.fences:
            self.order.touch(active.lanes)
        return active.pick(self.thread) + np.uint64(STAMP.pack(self.order.now) | NUMBER.pack(number))

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
        few = leaders.active
        element = self._element(index[leaders.chosen], width)
        found = self._against_writers(few, element, width, "read")
        if self.atomics.used or self.overwritten.used:
            found += self._against(few, element, width, self.atomics, "updated atomically by", "read")
        if found:
            if not leaders.complete:
                self.order.classes.split_all()
                self.read(active, index, width, number, LeaderLanes(active, EVERYTHING))
                return
            self._report_all(number, found)
        self._remember(few, element, width, number)

    def note_read(self, active: Active, index: Array, width: int, number: int) -> None:
        """Record reads that have already been checked."""
        leaders = self.order.classes.leader_lanes(active, None)
        self._remember(leaders.active, self._element(index[leaders.chosen], width), width, number)

    def _remember(self, few: Active, element: Array, width: int, number: int) -> None:
        self.order.dirty = True
        self.reads.add(few.lanes, element, max(width // self.granularity, 1), self._keys(few, number))

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
        element = self._element(index[:, leaders.chosen], width)
        view, count = self._view(width)
        seen = view.take(element, mode="clip")
        seen = seen.view(np.uint64).reshape(element.shape[0], -1, count)
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
        few = leaders.active
        element = self._element(index[leaders.chosen], width)
        found = self._against_writers(few, element, width, "write")
        found += self._against(few, element, width, self.reads, "read by", "write")
        found += self._against(few, element, width, self.atomics, "updated atomically by", "write")
        found += self._against(few, element, width, self.strong_reads, "read by", "write")
        if found:
            if not leaders.complete:
                self.order.classes.split_all()
                return self.write(active, index, width, number, LeaderLanes(active, EVERYTHING), stamp=stamp)
            self._report_all(number, found)
            self._keep_overwritten(found)
        self.order.dirty = True
        view, count = self._view(width)
        keys = repeated(self._keys(few, number), count)
        raw = keys.view(np.uint64)
        if stamp is not None:
            STAMP.set(raw, stamp)
        view[element] = keys
        return bool((view.take(element, mode="clip").view(np.uint64) != raw).any())

    def synchronising_access(
        self, active: Active, index: Array, width: int, number: int, leaders: LeaderLanes, *, reads: bool, writes: bool
    ) -> None:
        """Check and record atomic, relaxed, acquire or release accesses, which race only with plain accesses.

        Args:
            active: lanes that access.
            index: index of each active lane, in units of ``width``.
            width: bytes of an access.
            number: the instruction.
            leaders: lanes that represent all lanes.
            reads: whether the access reads.
            writes: whether the access writes.
        """
        few = leaders.active
        element = self._element(index[leaders.chosen], width)
        found = self._against_writers(few, element, width, "read" if reads else "write")
        if writes:
            found += self._against(few, element, width, self.reads, "read by", "write")
        if found:
            if not leaders.complete:
                self.order.classes.split_all()
                everybody = LeaderLanes(active, EVERYTHING)
                self.synchronising_access(active, index, width, number, everybody, reads=reads, writes=writes)
                return
            self._report_all(number, found)
        self.order.dirty = True
        view, count = self._view(width)
        if writes:  # From now on, the word is initialised, but has no plain writer.
            keys = view.take(element, mode="clip").view(np.uint64).reshape(-1, count)
            if (keys >= NEVER_WRITTEN).any():
                words = (element[:, None] * count + np.arange(count))[keys >= NEVER_WRITTEN]
                self.writer[words] = 0
        log = self.atomics if writes else self.strong_reads
        log.add(few.lanes, element, count, self._keys(few, number, plain=False))

    def writers(self, index: Array, width: int) -> tuple[Array, Array]:
        """Return the keys of the last writers of the accessed words, and the words, both as [accesses, keys]."""
        view, count = self._view(width)
        element = self._element(index, width)
        keys = view.take(element, mode="clip").view(np.uint64).reshape(-1, count)
        return keys, element[:, None] * count + np.arange(count)

    def read_until_now(self, active: Active, index: Array, width: int, number: int, since: int) -> None:
        """Check and record reads that last from stamp ``since`` until now; a write in this period is a finding."""
        leaders = self.order.classes.leader_lanes(active, None)
        keys, words = self.writers(index[leaders.chosen], width)
        late = (keys >= np.uint64(STAMP.pack(since))) & (keys < NEVER_WRITTEN)
        if late.any():
            if not leaders.complete:
                self.order.classes.split_all()
                self.read_until_now(active, index, width, number, since)
                return
            lanes = np.repeat(leaders.active.lanes[:, None], late.shape[1], 1)[late]
            detail = "The data that it reads are overwritten before the wait for its group"
            self.report("async_not_waited", number, lanes, words[late], keys[late], detail)
        self._remember(leaders.active, self._element(index[leaders.chosen], width), width, number)

    def land(self, active: Active, index: Array, width: int, number: int) -> None:
        """Record that asynchronous writes are complete; from now on, they count as ordinary writes by their threads."""
        leaders = self.order.classes.leader_lanes(active, None)
        view, count = self._view(width)
        view[self._element(index[leaders.chosen], width)] = repeated(self._keys(leaders.active, number), count)
        self.order.dirty = True

    def settle(self, index: Array, width: int, leaders: LeaderLanes) -> None:
        """Mark words as written long ago; used for objects that define their own order, such as barriers."""
        view, count = self._view(width)
        index = index[leaders.chosen]
        view[self._element(index, width)] = np.zeros(index.size * count, np.uint64).view(view.dtype)

    # ---- checks of an access

    def _against_writers(self, few: Active, element: Array, width: int, act: str) -> list[_Found]:
        """Return the findings of an access with respect to the last writers of its words."""
        order = self.order
        view, count = self._view(width)
        seen = view.take(element, mode="clip").view(np.uint64).reshape(-1, count)
        if bool((seen < (few.pick(order.near_floor)[:, None] if order.near_level is None else order.near_level)).all()):
            return []
        words_of = "written by" if act == "read" else "also written by"
        hidden = self._of_log(few, element, count, self.overwritten, words_of, act) if self.overwritten.used else []
        one = count > 1 and bool((seen == seen[:, :1]).all())  # All keys belong to one access.
        if self._ordered(few, seen[:, :1] if one else seen, act):
            return hidden
        return self._examine(few, seen, element, count, act, words_of) + hidden

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

    def _examine(self, few: Active, seen: Array, element: Array, count: int, act: str, words_of: str) -> list[_Found]:
        """Return the findings of an access to words with these writers' keys."""
        found: list[_Found] = []
        suspect, part = np.nonzero(seen >= self.order.floor[few.lanes][:, None])
        keys, lane, word = seen[suspect, part], few.lanes[suspect], element[suspect] * count + part
        stamp = STAMP.of(keys)
        never, flying = stamp == STAMP.most, stamp == IN_FLIGHT
        if act != "write" and never.any():
            found.append(_Found("uninitialised", lane[never], word[never], keys[:0], by="reader"))
        if flying.any():
            detail = f"The word is {'read' if act == 'read' else 'written'} before the asynchronous copy is complete"
            found.append(_Found("async_not_waited", lane[flying], word[flying], keys[flying], detail))
        usual = ~(never | flying)
        keys, lane, word = keys[usual], lane[usual], word[usual]
        thread = THREAD.of(keys)
        race = (thread != self._batch.cluster_thread[lane]) & (STAMP.of(keys) >= self.order.seen(lane, thread))
        return found + self._races(Conflicts(lane[race], word[race], keys[race]), words_of, act)

    def _against(
        self, few: Active, element: Array, width: int, log: AccessLog, words_of: str, act: str
    ) -> list[_Found]:
        """Return the findings of an access with respect to reads or atomic updates of its words."""
        return self._of_log(few, element, max(width // self.granularity, 1), log, words_of, act) if log.used else []

    def _of_log(self, few: Active, element: Array, count: int, log: AccessLog, words_of: str, act: str) -> list[_Found]:
        return self._races(log.meetings(few, element, count), words_of, act)

    def _races(self, met: Conflicts, words_of: str, act: str) -> list[_Found]:
        """Return the races, grouped by the other access's instruction and by whether they are within a warp."""
        if not met.lanes.size:
            return []
        found = []
        by = "reader" if act == "read" else "other" if words_of == "read by" else ""
        number, thread = NUMBER.of(met.keys), THREAD.of(met.keys)
        within = (thread >> 5) == (self._batch.cluster_thread[met.lanes] >> 5)
        for level, chosen in ((ERROR, ~within), (WARNING, within & ~np.isin(met.lanes, met.lanes[~within]))):
            for other in dict.fromkeys(number[chosen].tolist()):
                mine = chosen & (number == other)
                party = self._batch.describe_thread(
                    int(met.lanes[mine][0]), int(thread[mine][0]), warp=level == WARNING
                )
                detail = f"The same word is {words_of} {party}"
                found.append(_Found("shared_race", met.lanes[mine], met.words[mine], met.keys[mine], detail, level, by))
        return found

    def _keep_overwritten(self, found: list[_Found]) -> None:
        """Store writes that are about to be overwritten by writes that are not ordered after them."""
        for item in found:
            if item.kind == "shared_race" and "written by" in item.detail:
                lanes = item.lanes // self.order.width * self.order.width + THREAD.of(item.keys)
                self.overwritten.add(lanes, item.words, 1, item.keys)

    # ---- reporting

    def report(self, kind: str, number: int, lanes: Array, words: Array, keys: Array, detail: str) -> None:
        """Report the accesses that conflict with the given keys."""
        self._report_all(number, [_Found(kind, lanes, words, keys, detail)])

    def _report_all(self, number: int, found: list[_Found]) -> None:
        for item in found:
            lane = int(item.lanes[0])
            address, name, offset = self._place_of(int(item.words[0]) * self.granularity, lane)
            other = int(NUMBER.of(item.keys[:1])[0]) if item.keys.size else -1
            self._batch.report(
                item.kind, number, lane, count=int(np.unique(item.lanes).size), address=address, allocation=name,
                offset=offset, other=other, detail=item.detail, level=item.level, reads=self._reads(number, item),
            )  # fmt: skip

    def _reads(self, number: int, item: _Found) -> Reads | None:
        """Return the invalid reads of a finding, if any."""
        places = item.words % (self.words // self._batch.geometry.blocks) * self.granularity
        if item.by == "reader":
            return Reads(number, item.lanes, places)
        if item.by == "other":
            width = self.order.width
            other = int(NUMBER.of(item.keys[:1])[0])
            return Reads(other, item.lanes // width * width + THREAD.of(item.keys), places, STAMP.of(item.keys))
        return None
