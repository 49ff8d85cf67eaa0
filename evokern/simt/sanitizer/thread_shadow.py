"""Races between threads of one block or cluster: keys of each word's last writer, and logs of its other accesses.

`evokern.simt.sanitizer.shared_shadow` and `evokern.simt.sanitizer.block_shadow` apply these checks to shared and to
global memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from evokern.simt.arrays import Active, Array
from evokern.simt.batch import Batch, Occurrence
from evokern.simt.sanitizer.access_keys import IN_FLIGHT, NUMBER, STAMP, THREAD, Conflicts, KeyTable, WordAccess
from evokern.simt.sanitizer.access_log import AccessLog
from evokern.simt.sanitizer.findings import ASYNC_INSTRUCTIONS, BACKGROUND, ERROR, WARNING, Access, Reads
from evokern.simt.sanitizer.thread_order import ThreadOrder

PlaceOf = Callable[[int, int], Access]
"""(position in the memory, lane) → address, allocation, and offset within it."""


@dataclass(frozen=True, slots=True)
class Found:
    """A finding for some lanes of an access."""

    kind: str
    met: Conflicts
    """The lanes, and the other accesses; without keys if there are none."""
    detail: str = ""
    level: str = ERROR
    by: str = ""
    """The access whose read is invalid: `reader` for the current access, `other` for the other one; empty if none."""


class ThreadShadow(ABC):
    """Keys of the last writer of each word, and checks of an access with respect to earlier accesses.

    Attributes:
        order: happens-before order.
        writer: key of each word's last writer.
    """

    race: str
    """Kind of the findings for races."""
    granularity: int
    """Bytes of a word."""
    words_of_block: int
    """Words of each block; the number of all words if all blocks share them."""

    def __init__(self, batch: Batch, order: ThreadOrder, writer: Array, place_of: PlaceOf) -> None:
        """Create the shadow for a batch.

        Args:
            batch: the lanes.
            order: happens-before order.
            writer: one key per word.
            place_of: function that describes a position for findings.
        """
        self._batch, self.order, self._place_of = batch, order, place_of
        self.writer = KeyTable(writer)
        self.thread = batch.cluster_thread.astype(np.uint64)

    def _keys(self, active: Active, number: int, *, plain: bool = True) -> Array:
        """Return the keys of an access that is recorded now, one per lane."""
        self.order.dirty = True
        if plain and self.order.fences:
            self.order.touch(active.lanes)
        return active.pick(self.thread) + np.uint64(STAMP.pack(self.order.now) | NUMBER.pack(number))

    # ---- checks of an access

    @abstractmethod
    def _suspects(self, access: WordAccess, seen: Array, act: str) -> Array | None:
        """Return a mask of the writers' keys that may not be ordered before an access; None if all are."""

    def _same_memory(self, met: Conflicts) -> Conflicts:
        """Return the pairs whose earlier access is by a thread of the lane's own block or cluster."""
        return met

    def _against_writers(
        self, access: WordAccess, act: str, words_of: str, changed: Array | None = None
    ) -> list[Found]:
        """Return the findings of an access with respect to the last writers of its words.

        Args:
            access: the access.
            act: `read` or `write`.
            words_of: text about the writers for the message.
            changed: lanes that change the stored value, if only these can be in a race.
        """
        seen = self.writer.take(access.element, access.count)
        late = self._suspects(access, seen, act)
        if late is not None and changed is not None:
            late &= changed[:, None]
        if late is None or not late.any():
            return []
        met = self._same_memory(access.pairs(seen, late))
        found: list[Found] = []
        stamp = STAMP.of(met.keys)
        never, flying = stamp == STAMP.most, stamp == IN_FLIGHT
        if act != "write" and never.any():
            empty = Conflicts(met.lanes[never], met.words[never], met.keys[:0])
            found.append(Found("uninitialised", empty, by="reader"))
        if flying.any():
            detail = f"The word is {'read' if act == 'read' else 'written'} before the asynchronous copy is complete"
            found.append(Found("async_not_waited", met.where(flying), detail))
        met = met.where(~(never | flying) & (THREAD.of(met.keys) != self._batch.cluster_thread[met.lanes]))
        race = STAMP.of(met.keys) >= self.order.seen(met.lanes, THREAD.of(met.keys))
        return found + self._races(met.where(race), words_of, act)

    def _against(self, access: WordAccess, log: AccessLog, words_of: str, act: str) -> list[Found]:
        """Return the findings of an access with respect to reads or atomic updates of its words."""
        return self._races(log.meetings(access), words_of, act) if log.used else []

    def _races(self, met: Conflicts, words_of: str, act: str) -> list[Found]:
        """Return the races, grouped by the other access's instruction and by whether they are within a warp."""
        if not met.lanes.size:
            return []
        found = []
        by = "reader" if act == "read" else "other" if words_of.endswith("read by") else ""
        number, thread = NUMBER.of(met.keys), THREAD.of(met.keys)
        within = (thread >> 5) == (self._batch.cluster_thread[met.lanes] >> 5)
        for level, chosen in ((ERROR, ~within), (WARNING, within & ~np.isin(met.lanes, met.lanes[~within]))):
            for other in dict.fromkeys(number[chosen].tolist()):
                mine = chosen & (number == other)
                lane = int(met.lanes[mine][0])
                party = self._batch.describe_thread(lane, int(thread[mine][0]), warp=level == WARNING)
                instruction = self._batch.program.instructions[other].text
                for name in (name for name in ASYNC_INSTRUCTIONS if name in instruction):
                    party = f"a {name} of {party}, {BACKGROUND}"
                found.append(Found(self.race, met.where(mine), f"The same word is {words_of} {party}", level, by))
        return found

    # ---- reporting

    def report(self, kind: str, number: int, met: Conflicts, detail: str) -> None:
        """Report accesses that conflict with earlier ones."""
        self._report_all(number, [Found(kind, met, detail)])

    def _report_all(self, number: int, found: list[Found]) -> None:
        for item in found:
            met, lane = item.met, int(item.met.lanes[0])
            other = int(NUMBER.of(met.keys[:1])[0]) if met.keys.size else -1
            self._batch.report(
                item.kind,
                Occurrence(number, lane, int(np.unique(met.lanes).size), other),
                self._place_of(int(met.words[0]) * self.granularity, lane),
                detail=item.detail,
                level=item.level,
                reads=self._reads(number, item),
            )

    def _reads(self, number: int, item: Found) -> Reads | None:
        """Return the invalid reads of a finding, if any."""
        met, width = item.met, self.order.width
        places = met.words % self.words_of_block * self.granularity
        if item.by == "reader":
            return Reads(number, met.lanes, places)
        if item.by == "other":
            other = int(NUMBER.of(met.keys[:1])[0])
            return Reads(other, met.lanes // width * width + THREAD.of(met.keys), places, STAMP.of(met.keys))
        return None
