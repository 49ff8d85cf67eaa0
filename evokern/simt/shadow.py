"""The shadow of shared memory: who wrote and who read each word last, and whether a barrier lies between.

Every word (of the program's smallest access width, at most 4 bytes) has a 64-bit key of its last writer and of two of
its last readers: time stamp, instruction, thread. Time advances at each synchronisation. An access is safe when all
keys it meets are older than what its warp is known to have synchronised with, one comparison for whole rows; only what
fails it is looked at more closely, with one clock per pair of warps (a vector clock, as in FastTrack, Flanagan and
Freund, PLDI 2009). Words that nobody wrote, and words that an asynchronous copy is about to write, carry stamps from
the far future and fail the same comparison, so that one check serves all kinds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from evokern.simt.arrays import RAW, Active, Array

if TYPE_CHECKING:
    from evokern.simt.machine import Machine

STAMP = 32
"""Bits below the time stamp: 22 for the instruction, 10 for the thread."""
NEVER = np.uint64(0xFFFFFFFF << STAMP)
IN_FLIGHT = 0xFFFFFFFE
ATOMIC = np.uint64(1 << 31)
_LOW = np.uint64(0xFFFFFFFF)
_THREAD = np.uint64(0x3FF)


class SharedShadow:
    """Keys per word, clocks per pair of warps.

    Attributes:
        now: current time stamp.
        clocks: [blocks, warps, warps]; clocks[b, i, j] is the stamp up to which warp i has seen what warp j did.
    """

    def __init__(self, machine: Machine, size: int) -> None:
        self.machine = machine
        geometry = machine.geometry
        self.grain = machine.program.shared_grain
        self.words = size // self.grain
        self.warps = geometry.width // 32
        self.blocks = geometry.blocks
        self.writer = np.full(self.words, NEVER, np.uint64)
        self.readers = (np.zeros(self.words, np.uint64), np.zeros(self.words, np.uint64))
        self._views: dict[tuple[int, int], Array] = {}
        self.thread = machine.thread.astype(np.uint64)
        self.key = self.thread + np.uint64(1 << STAMP)
        self.warp_of_lane = np.repeat(np.arange(self.blocks * self.warps), 32)
        self.clocks = np.zeros((self.blocks, self.warps, self.warps), np.int64)
        self.floor = np.zeros(machine.lanes, np.uint64)
        self.collective = np.zeros(machine.lanes, np.int64)
        self.turn = 0
        self.now = 1
        self.dirty = False

    def load(self) -> None:
        """Forget everything: new blocks."""
        self.writer.fill(NEVER)
        for reader in self.readers:
            reader.fill(0)
        self.now = 1
        self.key[:] = self.thread + np.uint64(1 << STAMP)
        self.clocks.fill(1)
        self.floor.fill(1 << STAMP)
        self.collective.fill(1)
        self.dirty = False

    def _view(self, which: int, width: int) -> tuple[Array, int]:
        """Return an array of keys as elements that cover one access, and how many keys each holds."""
        count = max(width // self.grain, 1)
        view = self._views.get((which, count))
        if view is None:
            array = (self.writer, *self.readers)[which]
            view = array if count == 1 else array[: array.size // count * count].view(_wide(count))
            self._views[which, count] = view
        return view, count

    def _element(self, index: Array, width: int) -> Array:
        """Turn an index in units of the access width into one in units of the keys that cover it."""
        return index if width >= self.grain else index * width // self.grain

    def keys(self, active: Active, number: int, count: int) -> Array:
        """Return the keys that an access leaves behind, one element per lane."""
        key = active.pick(self.key) + np.uint64(number << 10)
        return key if count == 1 else np.repeat(key, count).view(_wide(count))

    def read(self, active: Active, index: Array, width: int, number: int, *, note: bool = True) -> None:
        """Check and record reads: ``index`` in units of ``width`` bytes, one per active lane."""
        view, count = self._view(0, width)
        element = self._element(index, width)
        seen = view.take(element, mode="clip")
        floor = active.pick(self.floor)
        if count == 1:
            safe = bool((seen < floor).all())
        else:
            seen = seen.view(np.uint64).reshape(-1, count)
            safe = bool((seen < floor[:, None]).all())
        if not safe:
            self._look(active, seen.reshape(-1, count), element, count, number, "read")
        if note:
            self.dirty = True
            keys = self.keys(active, number, count)
            self.turn ^= 1
            target = self._view(1 + self.turn, width)[0]
            if self.turn:
                target[element[::-1]] = keys[::-1]
            else:
                target[element] = keys

    def read_together(self, index: Array, width: int, tags: Array) -> bool:
        """Check and record reads of several instructions by all lanes; False, with nothing recorded, unless all safe.

        Args:
            index: [instructions, lanes], in units of the width.
            width: bytes of an access.
            tags: [instructions, 1], what the keys say about the instruction.
        """
        element = self._element(index, width)
        view, count = self._view(0, width)
        seen = view.take(element, mode="clip")
        floor = self.floor
        if count > 1:
            seen = seen.view(np.uint64).reshape(element.shape[0], -1, count)
            floor = floor[:, None]
        if not (seen < floor).all():
            return False
        self.dirty = True
        keys = self.key + tags
        if count > 1:
            keys = np.repeat(keys, count, axis=1).view(view.dtype)
        self.turn ^= 1
        target = self._view(1 + self.turn, width)[0]
        if self.turn:
            target[element[:, ::-1]] = keys[:, ::-1]
        else:
            target[element] = keys
        return True

    def write(self, active: Active, index: Array, width: int, number: int, *, stamp: int | None = None) -> None:
        """Check and record writes; with ``stamp=IN_FLIGHT`` the words stay untouchable until `land`."""
        element = self._element(index, width)
        floor = active.pick(self.floor)
        for which in (0, 1, 2):
            view, count = self._view(which, width)
            seen = view.take(element, mode="clip")
            if count > 1:
                seen = seen.view(np.uint64).reshape(-1, count)
                safe = bool((seen < floor[:, None]).all())
            else:
                safe = bool((seen < floor).all())
            if not safe:
                self._look(
                    active,
                    seen.reshape(-1, count),
                    element,
                    count,
                    number,
                    "write" if which == 0 else "write after read",
                )
        self.dirty = True
        keys = self.keys(active, number, count)
        if stamp is not None:
            parts = keys.view(np.uint64)
            parts &= _LOW
            parts |= np.uint64(stamp << STAMP)
        self._view(0, width)[0][element] = keys

    def atomic(self, active: Active, index: Array, width: int, number: int) -> None:
        """Check and record atomic updates, which never race with each other."""
        element = self._element(index, width)
        floor = active.pick(self.floor)
        for which in (0, 1, 2):
            view, count = self._view(which, width)
            seen = view.take(element, mode="clip").view(np.uint64).reshape(-1, count)
            if not (seen < floor[:, None]).all():
                self._look(active, seen, element, count, number, "atomic" if which == 0 else "write after read")
        self.dirty = True
        keys = self.keys(active, number, count)
        parts = keys.view(np.uint64)
        parts |= ATOMIC
        self._view(0, width)[0][element] = keys

    def land(self, active: Active, index: Array, width: int, number: int) -> None:
        """Record that asynchronous writes have arrived: from now on they are ordinary writes of their threads."""
        view, count = self._view(0, width)
        view[self._element(index, width)] = self.keys(active, number, count)
        self.dirty = True

    def settle(self, index: Array, width: int) -> None:
        """Mark words as written long ago: objects such as barriers, which have an order of their own."""
        view, count = self._view(0, width)
        view[self._element(index, width)] = np.zeros(index.size * count, np.uint64).view(view.dtype)

    # ---- order

    def tick(self) -> None:
        """Advance time, when anything was accessed since the last time."""
        if self.dirty:
            self.now += 1
            self.key += np.uint64(1 << STAMP)
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
            self.floor.fill(self.now << STAMP)
            return
        members = mask.reshape(self.blocks, self.warps, 32).any(2)
        patterns, which = np.unique(members, axis=0, return_inverse=True)
        which = which.reshape(-1)
        for number, pattern in enumerate(patterns):
            warps = np.flatnonzero(pattern)
            if warps.size:
                blocks = np.flatnonzero(which == number)
                joint = self.clocks[blocks][:, warps].max(1)
                joint[:, warps] = self.now
                if everyone:
                    joint[:] = self.now
                self.clocks[np.ix_(blocks, warps)] = joint[:, None, :]
        self._refloor()

    def warp_barrier(self, active: Active) -> None:
        """Order everything before within the warps of the active lanes (bar.warp.sync)."""
        self.tick()
        warps = np.unique(self.warp_of_lane[active.lanes])
        block, warp = warps // self.warps, warps % self.warps
        self.clocks[block, warp, warp] = self.now
        self._refloor()

    def met(self, active: Active) -> None:
        """Note a warp-synchronous instruction: its lanes have met, which orders what they did before."""
        if self.dirty:
            self.tick()
        if active.all:
            self.collective.fill(self.now)
        else:
            self.collective[active.mask] = self.now

    def acquire(self, active: Active) -> None:
        """Order everything before for the warps of the active lanes: they saw a barrier object complete."""
        self.tick()
        warps = np.unique(self.warp_of_lane[active.lanes])
        self.clocks[warps // self.warps, warps % self.warps] = self.now
        self._refloor()

    def _refloor(self) -> None:
        floor = self.clocks.min(2).reshape(-1).astype(np.uint64) << np.uint64(STAMP)
        self.floor[:] = np.repeat(floor, 32)

    # ---- what the quick check did not clear

    def _look(self, active: Active, seen: Array, element: Array, count: int, number: int, act: str) -> None:
        if count > 1 and bool((seen == seen[:, :1]).all()):  # written by one access
            seen = seen[:, :1]
        lanes = active.lanes
        suspect, part = np.nonzero(seen >= self.floor[lanes][:, None])
        keys = seen[suspect, part]
        lane = lanes[suspect]
        word = element[suspect] * count + part
        stamp = (keys >> np.uint64(STAMP)).astype(np.int64)
        never = stamp == 0xFFFFFFFF
        flying = stamp == IN_FLIGHT
        if act in ("read", "atomic") and never.any():
            self._tell("uninitialised", number, lane[never], word[never], -1, "")
        if flying.any():
            other = int((keys[flying][0] & _LOW) >> np.uint64(10)) & 0x1FFFFF
            verb = "read" if act == "read" else "written"
            self._tell(
                "async_not_waited",
                number,
                lane[flying],
                word[flying],
                other,
                f"It is {verb} before the copy has landed",
            )
        usual = ~(never | flying)
        if not usual.any():
            return
        keys, lane, word, stamp = keys[usual], lane[usual], word[usual], stamp[usual]
        low = keys & _LOW
        thread = (low & _THREAD).astype(np.int64)
        mine = self.machine.thread[lane]
        width = self.machine.geometry.width
        block = lane // width
        my_warp, their_warp = mine // 32, thread // 32
        seen_up_to = self.clocks[block, my_warp, their_warp]
        same_warp = my_warp == their_warp
        seen_up_to = np.where(same_warp, np.maximum(seen_up_to, self.collective[lane]), seen_up_to)
        race = (thread != mine) & (stamp >= seen_up_to)
        if act == "atomic":
            race &= (low & ATOMIC) == 0
        if race.any():
            other = int((low[race][0] >> np.uint64(10)) & np.uint64(0x1FFFFF))
            theirs = (low[race][0] >> np.uint64(10)) & np.uint64(0x1FFFFF)
            same = ((low >> np.uint64(10)) & np.uint64(0x1FFFFF)) == theirs
            race &= same
            words = {
                "read": "written by",
                "write": "also written by",
                "write after read": "read by",
                "atomic": "also written by",
            }
            self._tell("shared_race", number, lane[race], word[race], other,
                       f"The word is {words[act]} thread {int(thread[race][0])} of the same block")  # fmt: skip

    def _tell(self, kind: str, number: int, lanes: Array, words: Array, other: int, detail: str) -> None:
        machine = self.machine
        lane = int(lanes[0])
        address = int(words[0]) * self.grain - machine.shared.base_of(lane)
        name, offset = machine.shared.name_of(address)
        machine.report(
            kind,
            number,
            lane,
            count=int(np.unique(lanes).size),
            address=address,
            allocation=name,
            offset=offset,
            other=other,
            detail=detail,
        )


def _wide(count: int) -> np.dtype[np.void]:
    size = 8 * count
    return RAW.get(size, np.dtype(f"V{size}")) if size > 8 else np.dtype(f"V{size}")
