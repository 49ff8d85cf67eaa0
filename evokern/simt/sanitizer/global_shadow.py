"""The shadow of global memory: which block wrote and read each word during one launch, and reads of the unwritten.

Blocks of a launch have no order, except where one releases (a fence, then an atomic or volatile write) and another
acquires (an atomic or volatile read after it). Each block therefore keeps what it has seen of the others' releases.
Allocations that the kernel may not write need no shadow.
"""

from __future__ import annotations

import numpy as np

from evokern.ptx.program import PtxProgram
from evokern.simt.arrays import RAW, Active, Array
from evokern.simt.batch import Batch
from evokern.simt.memory.buffers import GLOBAL_BASE, Memory
from evokern.simt.sanitizer.bit_fields import BitField

TIME = BitField(40, 24)
"""When an access happened: fences so far."""
BLOCK = BitField(16, 24)
"""Linear id of its block, plus one: nought for words that nobody accessed."""
ATOMIC = BitField(15, 1)
"""Whether it takes part in the order of blocks."""
NUMBER = BitField(0, 15)
"""Its instruction."""


class GlobalShadow:
    """Keys per word for one launch (or several with memory of their own): time, block, instruction."""

    def __init__(self, program: PtxProgram, memory: Memory, launches: int, blocks: int) -> None:
        self.memory = memory
        self.blocks = blocks
        self.granularity = program.global_granularity
        self.ordered = program.orders_blocks
        self.size = memory.storage.size
        words = self.size // self.granularity
        self.writer = np.zeros(words, np.uint64)
        self.readers = (np.zeros(words, np.uint64), np.zeros(words, np.uint64))
        self._views: dict[tuple[int, int], Array] = {}
        self.turn = 0
        self.reads = False
        self.now = 1
        self.fenced = np.zeros((launches, blocks), np.int64)
        self.released = np.zeros((launches, blocks), np.int64)
        self.acquired: dict[tuple[int, int], Array] = {}

    def _view(self, which: int, width: int) -> tuple[Array, int]:
        count = max(width // self.granularity, 1)
        view = self._views.get((which, count))
        if view is None:
            array = (self.writer, *self.readers)[which]
            size = 8 * count
            view = (
                array if count == 1 else array[: array.size // count * count].view(RAW.get(size, np.dtype(f"V{size}")))
            )
            self._views[which, count] = view
        return view, count

    def read(
        self, batch: Batch, active: Active, mine: Array, index: Array, width: int, number: int, *, initialised: bool
    ) -> None:
        """Check reads against writes of other blocks, and against there being none; record them."""
        element = index if width >= self.granularity else index * width // self.granularity
        view, count = self._view(0, width)
        seen = view.take(element, mode="clip").view(np.uint64).reshape(-1, count)
        if seen.any():
            self._compare(batch, active, seen, mine, element, count, number, "written")
        if not initialised:
            self._unwritten(batch, active, seen, element, count, number)
        keys = self._keys(mine, number, count)
        self.reads = True
        self.turn ^= 1
        self._view(1 + self.turn, width)[0][element] = keys

    def write(
        self,
        batch: Batch,
        active: Active,
        mine: Array,
        index: Array,
        width: int,
        number: int,
        values: Array | None,
        *,
        atomic: bool = False,
    ) -> None:
        """Check writes against accesses of other blocks; record them. Writing what is there already is no race."""
        element = index if width >= self.granularity else index * width // self.granularity
        for which in (0, 1, 2) if self.reads else (0,):
            view, count = self._view(which, width)
            seen = view.take(element, mode="clip").view(np.uint64).reshape(-1, count)
            if seen.any():
                same = None
                if values is not None and which == 0:
                    now = self.memory.view(width).take(index, mode="clip")
                    same = (now.view(np.uint8) == values.view(np.uint8)).reshape(-1, width).all(1)
                self._compare(batch, active, seen, mine, element, count, number, "written" if which == 0 else "read",
                              exempt=same, atomic=atomic)  # fmt: skip
        view, count = self._view(0, width)
        keys = self._keys(mine, number, count, atomic=atomic)
        view[element] = keys
        if (
            not atomic
            and values is not None
            and (view.take(element, mode="clip").view(np.uint64) != keys.view(np.uint64)).any()
        ):
            self._collide(batch, active, element, mine, values, width, number, count)

    def _collide(
        self,
        batch: Batch,
        active: Active,
        element: Array,
        mine: Array,
        values: Array,
        width: int,
        number: int,
        count: int,
    ) -> None:
        """Report blocks that write different values to one place with the same instruction of this batch."""
        _, which = np.unique(element, return_inverse=True)
        last = np.zeros(element.size, np.int64)
        last[which] = np.arange(element.size)
        winner = last[which]
        raw = values.view(np.uint8).reshape(-1, width)
        race = (mine[winner] != mine) & (raw[winner] != raw).any(1)
        if race.any():
            lane = int(np.flatnonzero(race)[0])
            at = int(element[lane]) * count * self.granularity
            buffer = self.memory.find(at)
            other = int(BLOCK.of(mine[winner[lane : lane + 1]])[0]) - 1
            batch.report(
                "global_race",
                number,
                int(active.lanes[lane]),
                count=int(np.count_nonzero(race)),
                address=at + GLOBAL_BASE,
                allocation=buffer.name if buffer else "",
                offset=at - buffer.offset if buffer else at,
                other=number,
                detail=f"The word is also written by block {other} of the grid",
            )

    def _keys(self, mine: Array, number: int, count: int, *, atomic: bool = False) -> Array:
        tag = NUMBER.pack(number & NUMBER.most) | ATOMIC.pack(atomic)
        key = mine + np.uint64(TIME.pack(self.now) | tag)
        return key if count == 1 else np.repeat(key, count).view(RAW.get(8 * count, np.dtype(f"V{8 * count}")))

    def _compare(
        self,
        batch: Batch,
        active: Active,
        seen: Array,
        mine: Array,
        element: Array,
        count: int,
        number: int,
        what: str,
        *,
        exempt: Array | None = None,
        atomic: bool = False,
    ) -> None:
        theirs = BLOCK.alone(seen)
        race = (theirs != 0) & (theirs != mine[:, None])
        if exempt is not None:
            race &= ~exempt[:, None]
        if atomic:
            race &= ATOMIC.alone(seen) == 0
        if not race.any():
            return
        row, part = np.nonzero(race)
        keys = seen[row, part]
        other = BLOCK.of(keys) - 1
        lanes = active.lanes[row]
        if self.ordered:
            open_ = ~self._known(batch, lanes, other, TIME.of(keys))
            row, part, keys, other, lanes = row[open_], part[open_], keys[open_], other[open_], lanes[open_]
            if not row.size:
                return
        numbers = NUMBER.of(keys)
        first = int(numbers[0])
        group = numbers == first
        at = (int(element[row[0]]) * count + int(part[0])) * self.granularity
        buffer = self.memory.find(at)
        batch.report(
            "global_race",
            number,
            int(lanes[0]),
            count=int(np.unique(lanes[group]).size),
            address=at + GLOBAL_BASE,
            allocation=buffer.name if buffer else "",
            offset=at - buffer.offset if buffer else at,
            other=first,
            detail=f"The word is also {what} by block {int(other[0])} of the grid",
        )

    def _unwritten(self, batch: Batch, active: Active, seen: Array, element: Array, count: int, number: int) -> None:
        empty = (seen == 0).any(1)
        if not empty.any():
            return
        lanes = active.lanes[empty]
        places = element[empty] * count * self.granularity
        for buffer in self.memory.buffers:
            if not buffer.initialised:
                inside = (places >= buffer.offset) & (places < buffer.offset + buffer.size)
                if inside.any():
                    at = int(places[inside][0])
                    batch.report(
                        "uninitialised",
                        number,
                        int(lanes[inside][0]),
                        count=int(np.count_nonzero(inside)),
                        address=at + GLOBAL_BASE,
                        allocation=buffer.name,
                        offset=at - buffer.offset,
                    )

    # ---- order between blocks

    def fence(self, launch: Array, block: Array) -> None:
        """Note that blocks made their writes visible."""
        if self.ordered:
            self.fenced[launch, block] = self.now
            self.now += 1

    def synchronise(self, launch: Array, block: Array, *, release: bool, acquire: bool) -> None:
        """Note an atomic or volatile access: it publishes what was fenced before, and sees what others published."""
        if not self.ordered:
            return
        if release:
            self.released[launch, block] = self.fenced[launch, block]
        if acquire:
            for pair in {(int(one), int(two)) for one, two in zip(launch, block, strict=True)}:
                self.acquired[pair] = self.released[pair[0]].copy()

    def _known(self, batch: Batch, lanes: Array, other: Array, time: Array) -> Array:
        known = np.zeros(lanes.size, np.bool_)
        launches, blocks = batch.launch[lanes], batch.block_id[lanes]
        for pair in {(int(one), int(two)) for one, two in zip(launches, blocks, strict=True)}:
            seen = self.acquired.get(pair)
            if seen is not None:
                mine = (launches == pair[0]) & (blocks == pair[1])
                known[mine] = time[mine] <= seen[other[mine]]
        return known
