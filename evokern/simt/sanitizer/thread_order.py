"""What happens before what, between the threads of a block.

Time advances at each synchronisation. For each pair of warps a clock says up to which stamp the first has seen what the
second did (vector clocks, as in FastTrack, Flanagan and Freund, PLDI 2009). That is exact as long as whole warps meet;
where only some lanes of a warp do, the block gets a clock for each pair of threads, until all its threads meet again.
Threads that have left count as whoever arrives everywhere. What clocks of warps say is never more than what is known,
so that a quick comparison with them clears an access, and what it does not clear is compared exactly (`seen`).

Words of memory order threads too: what a thread publishes there, by an instruction that releases, or by an atomic or
relaxed one after its fence, is seen by whoever reads it there with an atomic, relaxed or acquiring instruction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from evokern.simt.arrays import Active, Array
from evokern.simt.batch import Batch
from evokern.simt.sanitizer.access_keys import STAMP
from evokern.simt.sanitizer.block_classes import BlockClasses

_ALWAYS = np.int64(1) << 40
"""A stamp that no access ever has: what a thread knows of itself, and of lanes that are no threads."""


class ThreadOrder:
    """Clocks of all blocks of a batch.

    Attributes:
        now: current time stamp.
        dirty: whether anything was accessed since time advanced.
        period: how often everybody has seen everything.
        classes: which blocks have done the same, in shared memory and in order.
        clocks: [blocks, warps, warps]; clocks[b, i, j] is the stamp up to which all lanes of warp i have seen what those
            of warp j did.
        collective: per lane, the stamp up to which its warp has met at warp-synchronous instructions.
        floor: per lane, the stamp (as part of a key) before which it has seen everything.
        level: `floor`, where it is the same for all lanes, else None.
    """

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        geometry = batch.geometry
        self.blocks, self.width, self.warps = geometry.blocks, geometry.width, geometry.width // 32
        self.clocks = np.zeros((self.blocks, self.warps, self.warps), np.int64)
        self.collective = np.zeros(batch.lanes, np.int64)
        self.floor = np.zeros(batch.lanes, np.uint64)
        self.level: Any = None
        self.now, self.dirty, self.period = 1, False, 0
        self._limits: Array | None = None
        """`clocks` as parts of keys, warp-synchronous instructions included; None when it has to be made anew."""
        self._fine: dict[int, Array] = {}
        """Leading block → [threads, threads]: up to which stamp one has seen what another did."""
        self._published: dict[tuple[int, str, int], Array] = {}
        """(block, state space, place) → what one sees who reads there, stamps by thread."""
        self._fenced = np.zeros(batch.lanes, np.int64)
        """Per lane, the stamp of its last fence."""
        self.fences = False
        """Whether anybody fenced."""
        self._touched = np.zeros(batch.lanes, np.int64)
        """Per lane, the stamp of its last plain access since anybody fenced."""
        self._copies: list[Callable[[int, int], None]] = []
        self.classes = BlockClasses(self.blocks, self.width, self._copy)
        batch.stamp = lambda: self.now

    def on_copy(self, copy: Callable[[int, int], None]) -> None:
        """Have somebody told when a block parts from the one that stood for it: (from, to)."""
        self._copies.append(copy)

    def load(self, start: int) -> None:
        """Forget everything: new blocks.

        Args:
            start: a stamp that no access so far has reached.
        """
        self.classes.load()
        self.now = max(self.now, start) + 1
        self.collective.fill(self.now)
        self._fenced.fill(0)
        self._touched.fill(0)
        self.fences = False
        self._published.clear()
        self._level_out()

    def _copy(self, source: int, target: int) -> None:
        if source in self._fine:
            self._fine[target] = self._fine[source].copy()
        self._of_block(self._touched, target)[:] = self._of_block(self._touched, source)
        for copy in self._copies:
            copy(source, target)

    # ---- comparing

    def limits(self) -> Array:
        """Return [blocks * warps * warps]: least keys that a warp has not seen of another, with one above the diagonal."""
        if self._limits is None:
            self._limits = STAMP.pack_all(self.observed().astype(np.uint64))
        return self._limits

    def observed(self) -> Array:
        """Return [blocks, warps, warps]: the stamp up to which each warp has seen what each did, itself included."""
        known = self.clocks.copy()
        warp = np.arange(self.warps)
        met = self.collective.reshape(self.blocks, self.warps, 32).min(2)
        known[:, warp, warp] = np.maximum(known[:, warp, warp], met)
        return known

    def seen(self, lanes: Array, threads: Array) -> Array:
        """Return, for each lane and a thread of its block, the stamp up to which the lane has seen what that did."""
        block, mine = lanes // self.width, lanes % self.width
        warp, other = mine >> 5, threads >> 5
        known = self.clocks[block, warp, other]
        known = np.where(warp == other, np.maximum(known, self.collective[lanes]), known)
        if self._fine:
            leader = self.classes.leader_of[block]
            for number, matrix in self._fine.items():
                here = leader == number
                known[here] = matrix[mine[here], threads[here]]
        return known

    # ---- barriers

    def tick(self) -> None:
        """Advance time, when anything was accessed since the last time."""
        if self.dirty:
            self.now += 1
            self.dirty = False

    def block_barrier(self, mask: Array, everyone: bool) -> None:
        """Order everything before for the lanes of a released barrier, all of which waited.

        Args:
            mask: lanes released.
            everyone: true when every live lane of every block in the mask is among them.
        """
        self.tick()
        if everyone and (mask.all() or int(np.count_nonzero(mask)) == self._batch.live_count):
            self._level_out()
            return
        active = self._ordering(mask)
        members = np.asarray(mask.reshape(self.blocks, self.warps, 32).any(2))
        if everyone:
            blocks = members.any(1)
            self.clocks[blocks] = self.now
            for block in np.flatnonzero(blocks):
                self._fine.pop(int(block), None)
        elif not self._fine and self._whole(mask):
            joint = np.where(members[:, :, None], self.clocks, 0).max(1)
            joint[members] = self.now
            self.clocks = np.where(members[:, :, None], joint[:, None, :], self.clocks)
        else:
            for block, threads in self._leading(active):
                self._raise(block, threads, self._known(block, threads))
        self._refloor()

    def named_barrier(self, waiting: Array, arrived: dict[int, Array]) -> None:
        """Order for the waiting lanes of a released barrier what had happened before each lane's arrival.

        Args:
            waiting: lanes that waited.
            arrived: block → what its lanes that did not wait had seen when they arrived, as `arrival` gave it.
        """
        self.tick()
        for block, threads in self._leading(self._ordering(waiting)):
            known = self._known(block, threads)
            if block in arrived:
                known = np.maximum(known, arrived[block])
            self._raise(block, threads, known)
        self._refloor()

    def arrival(self, active: Active) -> dict[int, Array]:
        """Return what the active lanes of each block have seen, themselves included, as they arrive somewhere."""
        self.tick()
        self.classes.leader_lanes(active, None)
        lanes = active.lanes
        return {
            int(block): self._known(int(block), lanes[lanes // self.width == block] % self.width)
            for block in np.unique(lanes // self.width)
        }

    def warp_barrier(self, active: Active, members: Array | None = None) -> None:
        """Order everything before within the warps of the active lanes (bar.warp.sync).

        Args:
            active: lanes that have met.
            members: per active lane, the lanes of its warp that it waits for as bits; None for all of them.
        """
        self.tick()
        self.classes.leader_lanes(active, members)
        if members is None and self._whole(active.mask):
            block, warp = np.nonzero(active.mask.reshape(self.blocks, self.warps, 32).any(2))
            self.clocks[block, warp, warp] = self.now
            if self._fine:
                self._join_warps(active, None)
        else:
            self._join_warps(active, members)
        self._refloor()

    def met(self, active: Active) -> None:
        """Note a warp-synchronous instruction: its lanes have met, which orders what they did before."""
        self.tick()
        if active.all:
            self.collective.fill(self.now)
            if self._fine:
                self._join_warps(active, None)
        else:
            self.classes.leader_lanes(active, None)
            whole = active.full or self._whole(active.mask)
            if whole:
                self.collective[np.repeat(active.mask.reshape(-1, 32).any(1), 32)] = self.now
            if self._fine or not whole:
                self._join_warps(active, None)
                self._refloor()
        self._limits = None

    # ---- barrier objects and words that publish

    def arrive(self, block: int, threads: Array, place: int) -> None:
        """Add what threads have seen, themselves included, to what is known at a barrier object."""
        self.tick()
        known = self._known(block, threads)
        key = (block, "arrivals", place)
        before = self._published.get(key)
        self._published[key] = known if before is None else np.maximum(before, known)

    def complete(self, block: int, place: int) -> None:
        """Let those who wait at a barrier object see what is known there: a phase has ended."""
        known = self._published.get((block, "arrivals", place))
        if known is not None:
            self._published[block, "mbarrier", place] = known

    def wait(self, active: Active, place: Array) -> None:
        """Order what was known at a barrier object when its last phase ended for lanes that saw it end.

        Args:
            active: the lanes.
            place: where each of them waits, within its block.
        """
        self.tick()
        self._acquire(active, place, "mbarrier")

    def fence(self, active: Active) -> None:
        """Note a fence: what the active lanes did so far may be published by what they do next."""
        self.tick()
        self.classes.leader_lanes(active, None)
        self._fenced[active.mask] = self.now
        self.fences = True

    def touch(self, lanes: Array) -> None:
        """Note plain accesses, once anybody has fenced: those behind a thread's fence are not published with it."""
        self._touched[lanes] = self.now

    def load_at(self, active: Active, space: str, place: Array) -> None:
        """Order what was published at a word for lanes that read it there.

        Args:
            active: the lanes.
            space: ``shared`` or ``global``.
            place: byte within the space, one per lane.
        """
        if self._published:
            self._acquire(active, place, space)

    def store_at(self, active: Active, space: str, place: Array, *, releases: bool) -> None:
        """Publish at a word what lanes did before their fence, or before the instruction where it releases itself."""
        if not (self._published or self.fences or releases):
            return
        self.tick()
        for lane, where in zip(active.lanes.tolist(), place.tolist(), strict=True):
            key = (lane // self.width, space, where)
            known = self._publishes(lane, releases)
            if known is not None:
                self._published[key] = known
            else:
                self._published.pop(key, None)

    def update_at(self, active: Active, space: str, place: Array, *, releases: bool) -> None:
        """Do both, lane after lane, as an atomic update of a word does; what was published there stays."""
        if not (self._published or self.fences or releases):
            return
        self.tick()
        for lane, where in zip(active.lanes.tolist(), place.tolist(), strict=True):
            key = (lane // self.width, space, where)
            before, known = self._published.get(key), self._publishes(lane, releases)
            if before is not None:
                self._see({key: np.array([lane % self.width])}, None)
            if known is not None:
                self._published[key] = known if before is None else np.maximum(before, known)

    def _publishes(self, lane: int, releases: bool) -> Array | None:
        """Return what a lane's release makes known, None where nothing was fenced."""
        block, thread = divmod(lane, self.width)
        if not releases and not self._fenced[lane]:
            return None
        known = self._known(block, np.array([thread]))
        if not releases:
            fenced = self._of_block(self._fenced, block)
            first = int(self.classes.leader_of[block]) * self.width
            limit = np.maximum(fenced, self._fenced[lane])
            # Where nothing came behind the fence, the instruction that publishes is itself the last thing published.
            if self._touched[first + thread] < self._fenced[lane]:
                limit[thread] = self.now
            known = np.minimum(known, limit)
        return known

    def _acquire(self, active: Active, place: Array, space: str) -> None:
        """Let each lane see what was published where it reads."""
        lanes = active.lanes
        groups: dict[tuple[int, str, int], list[int]] = {}
        for lane, where in zip(lanes.tolist(), place.tolist(), strict=True):
            key = (lane // self.width, space, where)
            if key in self._published:
                groups.setdefault(key, []).append(lane % self.width)
        # Addresses of other blocks need agree in shared memory alone, where barrier objects are.
        together = active if space == "mbarrier" else None
        self._see({key: np.array(threads) for key, threads in groups.items()}, together)

    def _see(self, groups: dict[tuple[int, str, int], Array], together: Active | None) -> None:
        """Let threads see what was published; together with their blocks' followers, where these do the same."""
        new = {
            key: threads
            for key, threads in groups.items()
            if (self._seen_by(key[0], threads) < self._published[key]).any()
        }
        if not new:
            return
        if together is None:
            self.classes.split_all()
        else:
            self.classes.leader_lanes(together, None)
        for key, threads in new.items():
            if self.classes.leader_of[key[0]] == key[0]:
                self._raise(key[0], threads, self._published[key])
        self._refloor()

    # ---- clocks

    def _ordering(self, mask: Array) -> Active:
        """Return lanes that are about to be ordered; blocks of which others are part from their leader."""
        active = Active(mask, int(np.count_nonzero(mask)), self._batch.live_count)
        self.classes.leader_lanes(active, None)
        return active

    def _leading(self, active: Active) -> list[tuple[int, Array]]:
        """Return the leading blocks among those of the active lanes, with the threads of each."""
        lanes = self.classes.leader_lanes(active, None).active.lanes
        return [
            (int(block), lanes[lanes // self.width == block] % self.width) for block in np.unique(lanes // self.width)
        ]

    def _whole(self, mask: Array) -> bool:
        """Say whether each warp with lanes in the mask has all its live lanes there."""
        shaped = mask.reshape(-1, 32)
        here = shaped.any(1)
        return bool((shaped[here] == self._batch.live.reshape(-1, 32)[here]).all())

    def _of_block(self, row: Array, block: int) -> Array:
        return row[block * self.width : (block + 1) * self.width]

    def _seen_by(self, block: int, threads: Array) -> Array:
        """Return [threads given, threads]: what each has seen of all, of itself always everything."""
        matrix = self._fine.get(int(self.classes.leader_of[block]))
        if matrix is not None:
            found: Array = matrix[threads]
            return found
        rows = np.repeat(self.clocks[block, threads >> 5], 32, axis=1)
        shaped = rows.reshape(threads.size, self.warps, 32)
        at, warp = np.arange(threads.size), threads >> 5
        met = self._of_block(self.collective, block)[threads]
        shaped[at, warp] = np.maximum(shaped[at, warp], met[:, None])
        rows[at, threads] = _ALWAYS
        rows[:, ~self._of_block(self._batch.exists, block)] = _ALWAYS
        return rows

    def _known(self, block: int, threads: Array) -> Array:
        """Return by thread what some of them have seen together: their own work, and that of warp mates who have left."""
        known: Array = self._seen_by(block, threads).max(0)
        gone = self._of_block(self._batch.exists & ~self._batch.live, block)
        if gone.any():
            known[gone & np.isin(np.arange(self.width) >> 5, threads >> 5)] = self.now
        known[threads] = self.now
        return known

    def _raise(self, block: int, threads: Array, known: Array) -> None:
        """Let threads of a leading block, and of those it stands for, see what is known."""
        matrix = self._fine.get(block)
        if matrix is None:
            if self._raise_warps(block, threads, known):
                return
            matrix = self._fine[block] = self._seen_by(block, np.arange(self.width))
        matrix[threads] = np.maximum(matrix[threads], known)
        live = self._of_block(self._batch.live, block)
        low = np.where(live[:, None], matrix, _ALWAYS).reshape(self.warps, 32, self.warps, 32).min((1, 3))
        group = self.classes.leader_of == block
        self.clocks[group] = np.maximum(self.clocks[group], np.minimum(low, self.now))

    def _raise_warps(self, block: int, threads: Array, known: Array) -> bool:
        """Do so in the clocks of warps; False, with nothing changed, where they cannot say it."""
        mine = np.zeros(self.width, np.bool_)
        mine[threads] = True
        shaped = mine.reshape(self.warps, 32)
        warps = shaped.any(1)
        exists = self._of_block(self._batch.exists, block).reshape(self.warps, 32)
        of_warps = known.reshape(self.warps, 32)
        low, high = of_warps.min(1, where=exists, initial=_ALWAYS), of_warps.max(1, where=exists, initial=0)
        if (self.clocks[block][warps] >= high).all():
            return True
        if (shaped != self._of_block(self._batch.live, block).reshape(self.warps, 32))[warps].any():
            return False
        if (low != high).any():
            return False
        group = self.classes.leader_of == block
        both = group[:, None] & warps
        self.clocks[both] = np.maximum(self.clocks[both], low)
        return True

    def _join_warps(self, active: Active, members: Array | None) -> None:
        """Let lanes of a warp see what they have seen together; of each warp those that name the same lanes."""
        every = np.zeros(active.mask.size, np.int64)
        if members is not None:
            every[active.lanes] = members
        for block, threads in self._leading(active):
            if members is None and block not in self._fine and self._whole_block(block, threads):
                continue
            named = (threads >> 5) << 32 | every[block * self.width + threads]
            for group in np.unique(named):
                some = threads[named == group]
                self._raise(block, some, self._known(block, some))

    def _whole_block(self, block: int, threads: Array) -> bool:
        mask = np.zeros(self._batch.lanes, np.bool_)
        mask[block * self.width + threads] = True
        return self._whole(mask)

    def _refloor(self) -> None:
        floor = STAMP.pack_all(self.clocks.min(2).reshape(-1).astype(np.uint64))
        self.level = floor[0] if bool((floor == floor[0]).all()) else None
        self.floor[:] = np.repeat(floor, 32)
        self._limits = None

    def _level_out(self) -> None:
        """Everybody has seen everything."""
        self.clocks.fill(self.now)
        self._fine.clear()
        self.period += 1
        self.level = np.uint64(STAMP.pack(self.now))
        self.floor.fill(self.level)
        self._limits = None
