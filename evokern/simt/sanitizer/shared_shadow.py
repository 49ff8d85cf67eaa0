"""The shadow of shared memory: who wrote and who read each word last, and whether a barrier lies between.

Every word (of the program's smallest access width, at most 4 bytes) has a 64-bit key of its last writer and of two of
its last readers: time stamp, instruction, thread. Time advances at each synchronisation. An access is safe when all
keys it meets are older than what its warp is known to have synchronised with, one comparison for whole rows; only what
fails it is looked at more closely, with one clock per pair of warps (a vector clock, as in FastTrack, Flanagan and
Freund, PLDI 2009). Words that nobody wrote, and words that an asynchronous copy is about to write, carry stamps from
the far future and fail the same comparison, so that one check serves all kinds. Blocks that have done the same so far
share the shadow of one of them (`evokern.simt.sanitizer.block_classes`) until something is found.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from evokern.simt.arrays import RAW, Active, Array
from evokern.simt.batch import Batch
from evokern.simt.sanitizer.bit_fields import BitField
from evokern.simt.sanitizer.block_classes import EVERYTHING, BlockClasses, LeaderLanes

STAMP = BitField(32, 32)
"""When an access happened."""
ATOMIC = BitField(31, 1)
"""Whether it was an atomic update."""
NUMBER = BitField(10, 21)
"""Its instruction."""
THREAD = BitField(0, 10)
"""Its thread within the block."""
NEVER = np.uint64(STAMP.pack(STAMP.most))
"""Least key of words that nobody wrote."""
IN_FLIGHT = STAMP.most - 1
"""Stamp of words that an asynchronous copy is about to write."""
_FAR = np.uint64(STAMP.pack(IN_FLIGHT))
"""Least key of words that nobody wrote, or that an asynchronous copy is about to write."""
_WARP = np.uint64(5)
"""Bits of a thread's index below its warp's."""


PlaceOf = Callable[[int, int], tuple[int, str, int]]
"""(position in all blocks' memory, lane) → address within its block, variable, distance from its start."""
Found = tuple[str, int, Array, Array, int, str]
"""Kind, instruction, lanes, words, the other party's instruction (or -1), detail."""


class SharedShadow:
    """Keys per word, clocks per pair of warps.

    Attributes:
        now: current time stamp.
        block_classes: which blocks share a shadow.
        clocks: [blocks, warps, warps]; clocks[b, i, j] is the stamp up to which warp i has seen what warp j did.
        floor: per lane, the stamp (as part of a key) before which it has seen everything.
    """

    def __init__(self, batch: Batch, size: int, place_of: PlaceOf) -> None:
        """Watch the shared memory of a batch.

        Args:
            batch: the lanes.
            size: bytes of shared memory of all blocks.
            place_of: names what lies at a position.
        """
        self._batch, self._place_of = batch, place_of
        geometry = batch.geometry
        self.granularity = batch.program.shared_granularity
        self.words = size // self.granularity
        self.warps = geometry.width // 32
        self.blocks = geometry.blocks
        # Only the stretches of leading blocks are ever filled and read.
        self.writer = np.empty(self.words, np.uint64)
        self.readers = (np.empty(self.words, np.uint64), np.empty(self.words, np.uint64))
        self._views: dict[tuple[int, int], Array] = {}
        self.thread = batch.thread.astype(np.uint64)
        self.clocks = np.zeros((self.blocks, self.warps, self.warps), np.int64)
        self.floor = np.zeros(batch.lanes, np.uint64)
        self._level: Any = None
        """`floor`, where it is the same for all lanes."""
        self._limits: Array | None = None
        """`clocks` as parts of keys, warp-synchronous instructions included; None when it has to be made anew."""
        self.collective = np.zeros(batch.lanes, np.int64)
        self.turn = 0
        self.now = 1
        self.dirty = False
        self.block_classes = BlockClasses(self.blocks, geometry.width, self._copy)

    def load(self) -> None:
        """Forget everything: new blocks."""
        self.block_classes.load()
        first = self._stretch(0)
        self.writer[first] = NEVER
        for reader in self.readers:
            reader[first] = 0
        self.now = 1
        self.clocks.fill(1)
        self._level_out()
        self.collective.fill(1)
        self.dirty = False

    def _stretch(self, block: int) -> slice:
        size = self.words // self.blocks
        return slice(block * size, (block + 1) * size)

    def _copy(self, source: int, target: int) -> None:
        for keys in (self.writer, *self.readers):
            keys[self._stretch(target)] = keys[self._stretch(source)]

    def _view(self, which: int, width: int) -> tuple[Array, int]:
        """Return an array of keys as elements that cover one access, and how many keys each holds."""
        count = max(width // self.granularity, 1)
        view = self._views.get((which, count))
        if view is None:
            array = (self.writer, *self.readers)[which]
            view = array if count == 1 else array[: array.size // count * count].view(_wide(count))
            self._views[which, count] = view
        return view, count

    def _element(self, index: Array, width: int) -> Array:
        """Turn an index in units of the access width into one in units of the keys that cover it."""
        return index if width >= self.granularity else index * width // self.granularity

    def keys(self, active: Active, number: int, count: int) -> Array:
        """Return the keys that an access leaves behind, one element per lane."""
        key = active.pick(self.thread) + np.uint64(STAMP.pack(self.now) | NUMBER.pack(number))
        return key if count == 1 else np.repeat(key, count).view(_wide(count))

    def _unsafe(self, part: Active, view: Array, element: Array, count: int, *, writes: bool) -> Array | None:
        """Return the keys that an access meets, [lanes, keys], unless all are older than what the lanes have seen."""
        seen = view.take(element, mode="clip").view(np.uint64).reshape(-1, count)
        if bool((seen < (part.pick(self.floor)[:, None] if self._level is None else self._level)).all()):
            return None
        if count > 1 and bool((seen == seen[:, :1]).all()):  # written by one access
            seen = seen[:, :1]
        return None if self._ordered(part, seen, writes) else seen

    def observed(self) -> Array:
        """Return [blocks, warps, warps]: the stamp up to which each warp has seen what each did, itself included."""
        known = self.clocks.copy()
        warp = np.arange(self.warps)
        met = self.collective.reshape(self.blocks, self.warps, 32).min(2)
        known[:, warp, warp] = np.maximum(known[:, warp, warp], met)
        return known

    def _ordered(self, part: Active, seen: Array, writes: bool) -> bool:
        """Say whether each key is the lane's own or older than what its warp has seen of the warp that left it."""
        if self._limits is None:
            self._limits = STAMP.pack_all(self.observed().astype(np.uint64))
        lanes = part.lanes
        thread = THREAD.alone(seen)
        place = (lanes >> 5)[:, None] * self.warps + (thread >> _WARP).view(np.int64)
        late = seen >= self._limits.take(place)
        if not late.any():
            return True
        late &= thread != self.thread[lanes][:, None]
        late |= seen >= _FAR
        if writes:
            late &= seen != NEVER
        return not late.any()

    def read(self, active: Active, index: Array, width: int, number: int, leaders: LeaderLanes) -> None:
        """Check and record reads.

        Args:
            active: lanes that read.
            index: where, in units of ``width``, one per active lane.
            width: bytes of an access.
            number: the instruction.
            leaders: the lanes that stand for all, as `SharedSpace.locate` gives them.
        """
        few = leaders.active
        element = self._element(index[leaders.chosen], width)
        view, count = self._view(0, width)
        seen = self._unsafe(few, view, element, count, writes=False)
        if seen is not None and (found := self._examine(few, seen, element, count, number, "read")):
            if not leaders.complete:
                self.block_classes.split_all()
                self.read(active, index, width, number, LeaderLanes(active, EVERYTHING))
                return
            self._report_all(found)
        self._remember(few, element, width, number)

    def note_read(self, active: Active, index: Array, width: int, number: int) -> None:
        """Record reads that others have checked."""
        leaders = self.block_classes.leader_lanes(active, None)
        self._remember(leaders.active, self._element(index[leaders.chosen], width), width, number)

    def _remember(self, few: Active, element: Array, width: int, number: int) -> None:
        self.dirty = True
        self.turn ^= 1
        target, count = self._view(1 + self.turn, width)
        keys = self.keys(few, number, count)
        if self.turn:
            target[element[::-1]] = keys[::-1]
        else:
            target[element] = keys

    def read_group(self, index: Array, width: int, tags: Array, leaders: LeaderLanes) -> bool:
        """Check and record reads of several instructions by all lanes; False, with nothing recorded, unless all safe.

        Args:
            index: [instructions, lanes], in units of the width.
            width: bytes of an access.
            tags: [instructions, 1], the instructions where the keys have them.
            leaders: the lanes that stand for all.
        """
        element = self._element(index[:, leaders.chosen], width)
        view, count = self._view(0, width)
        seen = view.take(element, mode="clip")
        seen = seen.view(np.uint64).reshape(element.shape[0], -1, count)
        if not (seen < (leaders.active.pick(self.floor)[:, None] if self._level is None else self._level)).all():
            return False
        self.dirty = True
        keys = leaders.active.pick(self.thread) + (np.uint64(STAMP.pack(self.now)) + tags)
        if count > 1:
            keys = np.repeat(keys, count, axis=1).view(view.dtype)
        self.turn ^= 1
        target = self._view(1 + self.turn, width)[0]
        if self.turn:
            target[element[:, ::-1]] = keys[:, ::-1]
        else:
            target[element] = keys
        return True

    def write(
        self, active: Active, index: Array, width: int, number: int, leaders: LeaderLanes, *, stamp: int | None = None
    ) -> bool:
        """Check and record writes; with ``stamp=IN_FLIGHT`` the words stay untouchable until `land`.

        Returns:
            Whether several lanes write to one place.
        """
        few = leaders.active
        element = self._element(index[leaders.chosen], width)
        if self._refuses(few, element, width, number, leaders, ("write", "write after read", "write after read")):
            return self.write(active, index, width, number, LeaderLanes(active, EVERYTHING), stamp=stamp)
        self.dirty = True
        view, count = self._view(0, width)
        keys = self.keys(few, number, count)
        raw = keys.view(np.uint64)
        if stamp is not None:
            STAMP.set(raw, stamp)
        view[element] = keys
        return bool((view.take(element, mode="clip").view(np.uint64) != raw).any())

    def atomic(self, active: Active, index: Array, width: int, number: int, leaders: LeaderLanes) -> None:
        """Check and record atomic updates, which never race with each other."""
        few = leaders.active
        element = self._element(index[leaders.chosen], width)
        if self._refuses(few, element, width, number, leaders, ("atomic", "write after read", "write after read")):
            self.atomic(active, index, width, number, LeaderLanes(active, EVERYTHING))
            return
        self.dirty = True
        view, count = self._view(0, width)
        keys = self.keys(few, number, count)
        keys.view(np.uint64)[...] |= ATOMIC.mask
        view[element] = keys

    def _refuses(
        self, few: Active, element: Array, width: int, number: int, leaders: LeaderLanes, acts: tuple[str, str, str]
    ) -> bool:
        """Check an access against the last writer and readers; True when it is to be made again by all blocks."""
        for which, act in enumerate(acts):
            view, count = self._view(which, width)
            seen = self._unsafe(few, view, element, count, writes=act != "atomic")
            if seen is not None and (found := self._examine(few, seen, element, count, number, act)):
                if not leaders.complete:
                    self.block_classes.split_all()
                    return True
                self._report_all(found)
        return False

    def writers(self, index: Array, width: int) -> tuple[Array, Array]:
        """Return the keys of the last writers of what accesses cover, and the words, both [accesses, keys]."""
        view, count = self._view(0, width)
        element = self._element(index, width)
        keys = view.take(element, mode="clip").view(np.uint64).reshape(-1, count)
        return keys, element[:, None] * count + np.arange(count)

    def read_until_now(self, active: Active, index: Array, width: int, number: int, since: int) -> None:
        """Check and record reads that began at the stamp ``since`` and end now: nobody may have written in between."""
        leaders = self.block_classes.leader_lanes(active, None)
        keys, words = self.writers(index[leaders.chosen], width)
        late = (keys >= np.uint64(STAMP.pack(since))) & (keys < NEVER)
        if late.any():
            if not leaders.complete:
                self.block_classes.split_all()
                self.read_until_now(active, index, width, number, since)
                return
            lanes = np.repeat(leaders.active.lanes[:, None], late.shape[1], 1)[late]
            detail = "What it reads is overwritten before its group was waited for"
            self.report("async_not_waited", number, lanes, words[late], keys[late], detail)
        self._remember(leaders.active, self._element(index[leaders.chosen], width), width, number)

    def land(self, active: Active, index: Array, width: int, number: int) -> None:
        """Record that asynchronous writes have arrived: from now on they are ordinary writes of their threads."""
        leaders = self.block_classes.leader_lanes(active, None)
        view, count = self._view(0, width)
        view[self._element(index[leaders.chosen], width)] = self.keys(leaders.active, number, count)
        self.dirty = True

    def settle(self, index: Array, width: int, leaders: LeaderLanes) -> None:
        """Mark words as written long ago: objects such as barriers, which have an order of their own."""
        view, count = self._view(0, width)
        index = index[leaders.chosen]
        view[self._element(index, width)] = np.zeros(index.size * count, np.uint64).view(view.dtype)

    # ---- order

    def tick(self) -> None:
        """Advance time, when anything was accessed since the last time."""
        if self.dirty:
            self.now += 1
            self.dirty = False

    def block_barrier(self, mask: Array, everyone: bool) -> None:
        """Order everything before for the lanes of a released barrier.

        Args:
            mask: lanes released.
            everyone: true when every live lane of every block in the mask is among them.
        """
        self.tick()
        if everyone and mask.all():
            self.clocks.fill(self.now)
            self._level_out()
            return
        self.block_classes.leader_lanes(Active(mask, int(np.count_nonzero(mask)), mask.size), None)
        members = np.asarray(mask.reshape(self.blocks, self.warps, 32).any(2))
        if everyone:
            self.clocks[members] = self.now
        else:
            joint = np.where(members[:, :, None], self.clocks, 0).max(1)
            joint[members] = self.now
            self.clocks = np.where(members[:, :, None], joint[:, None, :], self.clocks)
        self._refloor()

    def warp_barrier(self, active: Active) -> None:
        """Order everything before within the warps of the active lanes (bar.warp.sync)."""
        self.tick()
        self.block_classes.leader_lanes(active, None)
        block, warp = np.nonzero(active.mask.reshape(self.blocks, self.warps, 32).any(2))
        self.clocks[block, warp, warp] = self.now
        self._refloor()

    def met(self, active: Active) -> None:
        """Note a warp-synchronous instruction: its lanes have met, which orders what they did before."""
        if self.dirty:
            self.tick()
        if active.all:
            self.collective.fill(self.now)
        else:
            self.block_classes.leader_lanes(active, None)
            self.collective[active.mask] = self.now
        self._limits = None

    def acquire(self, active: Active) -> None:
        """Order everything before for the warps of the active lanes: they saw a barrier object complete."""
        self.tick()
        self.block_classes.leader_lanes(active, None)
        self.clocks[active.mask.reshape(self.blocks, self.warps, 32).any(2)] = self.now
        self._refloor()

    def _refloor(self) -> None:
        floor = STAMP.pack_all(self.clocks.min(2).reshape(-1).astype(np.uint64))
        self._level = floor[0] if bool((floor == floor[0]).all()) else None
        self.floor[:] = np.repeat(floor, 32)
        self._limits = None

    def _level_out(self) -> None:
        self._level = np.uint64(STAMP.pack(self.now))
        self.floor.fill(self._level)
        self._limits = None

    # ---- what the quick check did not clear

    def _examine(self, active: Active, seen: Array, element: Array, count: int, number: int, act: str) -> list[Found]:
        """Return what is wrong with an access that meets these keys."""
        found: list[Found] = []
        lanes = active.lanes
        suspect, part = np.nonzero(seen >= self.floor[lanes][:, None])
        keys = seen[suspect, part]
        lane = lanes[suspect]
        word = element[suspect] * count + part
        stamp = STAMP.of(keys)
        never = stamp == STAMP.most
        flying = stamp == IN_FLIGHT
        if act in ("read", "atomic") and never.any():
            found.append(("uninitialised", number, lane[never], word[never], -1, ""))
        if flying.any():
            other = int(NUMBER.of(keys[flying])[0])
            verb = "read" if act == "read" else "written"
            detail = f"It is {verb} before the copy has landed"
            found.append(("async_not_waited", number, lane[flying], word[flying], other, detail))
        usual = ~(never | flying)
        if not usual.any():
            return found
        keys, lane, word, stamp = keys[usual], lane[usual], word[usual], stamp[usual]
        thread = THREAD.of(keys)
        mine = self._batch.thread[lane]
        width = self._batch.geometry.width
        block = lane // width
        my_warp, their_warp = mine // 32, thread // 32
        seen_up_to = self.clocks[block, my_warp, their_warp]
        same_warp = my_warp == their_warp
        seen_up_to = np.where(same_warp, np.maximum(seen_up_to, self.collective[lane]), seen_up_to)
        race = (thread != mine) & (stamp >= seen_up_to)
        if act == "atomic":
            race &= ATOMIC.of(keys) == 0
        if race.any():
            numbers = NUMBER.of(keys)
            other = int(numbers[race][0])
            race &= numbers == other
            words = {
                "read": "written by",
                "write": "also written by",
                "write after read": "read by",
                "atomic": "also written by",
            }
            detail = f"The word is {words[act]} thread {int(thread[race][0])} of the same block"
            found.append(("shared_race", number, lane[race], word[race], other, detail))
        return found

    def report(self, kind: str, number: int, lanes: Array, words: Array, keys: Array, detail: str) -> None:
        """Report accesses that meet these keys."""
        other = int(NUMBER.of(keys[:1])[0])
        self._report_all([(kind, number, lanes, words, other, detail)])

    def _report_all(self, found: list[Found]) -> None:
        for kind, number, lanes, words, other, detail in found:
            lane = int(lanes[0])
            address, name, offset = self._place_of(int(words[0]) * self.granularity, lane)
            self._batch.report(
                kind, number, lane, count=int(np.unique(lanes).size), address=address, allocation=name, offset=offset,
                other=other, detail=detail,
            )  # fmt: skip


def _wide(count: int) -> np.dtype[np.void]:
    size = 8 * count
    return RAW.get(size, np.dtype(f"V{size}")) if size > 8 else np.dtype(f"V{size}")
