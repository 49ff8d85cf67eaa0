"""Happens-before order between the threads of a block.

Time advances at each synchronisation: at barriers, at barrier objects and at words of memory that publish accesses. The
clocks of `evokern.simt.sanitizer.thread_clocks` store which accesses each thread has seen (vector clocks, as in
FastTrack, Flanagan and Freund, PLDI 2009). A thread publishes its accesses at a word with a release instruction, or
with a fence followed by an atomic or relaxed instruction. Threads that read the word with an atomic, relaxed or acquire
instruction see these accesses.

In a cluster, whose threads have common clocks, the barrier of a block orders only that block's lanes. Accesses
published in the scope of a block (``.cta``) are visible only in that block.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from evokern.simt.arrays import Active, Array
from evokern.simt.batch import Batch
from evokern.simt.sanitizer.thread_clocks import ThreadClocks

WARPGROUP = 128
"""Threads of a warpgroup."""


class ThreadOrder(ThreadClocks):
    """Clocks of a batch, advanced by the synchronisation of its threads.

    Attributes:
        fences: whether there was any fence.
        cluster_arrivals, cluster_waits: number of each lane's arrivals and completed waits at the cluster's barrier.
    """

    def __init__(self, batch: Batch) -> None:
        super().__init__(batch)
        self._published: dict[tuple[int, str, int], Array] = {}
        """(block, state space, address) → knowledge that readers of this address acquire, as stamps by thread."""
        self._fenced = np.zeros(batch.lanes, np.int64)
        """Stamp of each lane's last fence."""
        self._fenced_near = self._fenced if self.ranks == 1 else np.zeros(batch.lanes, np.int64)
        """Stamp of each lane's last fence, including fences in the scope of a block."""
        self._touched = np.zeros(batch.lanes, np.int64)
        """Stamp of each lane's last plain access since the first fence."""
        self._products = np.zeros(batch.lanes, np.int64)
        """Stamp up to which the products of each lane's warpgroup have ended."""
        self.fences = False
        self.cluster_arrivals, self.cluster_waits = np.zeros((2, batch.lanes), np.int64)
        self.on_copy(self._copy_touched)

    def load(self, start: int) -> None:
        """Clear the order for new blocks.

        Args:
            start: a stamp later than any access so far.
        """
        rows = self._fenced, self._fenced_near, self._touched, self._products, self.cluster_arrivals
        for row in (*rows, self.cluster_waits):
            row.fill(0)
        self.fences = False
        self._published.clear()
        super().load(start)

    def _copy_touched(self, source: int, target: int) -> None:
        self._of_block(self._touched, target)[:] = self._of_block(self._touched, source)

    # ---- barriers

    def block_barrier(self, mask: Array, everyone: bool) -> None:
        """Record that all accesses before a block's barrier happen before later accesses of the released lanes.

        Args:
            mask: lanes released.
            everyone: whether the mask contains every live lane of every block in it.
        """
        self.tick()
        if self.ranks > 1:
            self._block_of_cluster_barrier(mask, everyone)
            return
        if everyone and (mask.all() or int(np.count_nonzero(mask)) == self._batch.live_count):
            self._mark_all_seen()
            return
        active = self._ordering(mask)
        members = np.asarray(mask.reshape(self.blocks, self.warps, 32).any(2))
        if everyone:
            blocks = members.any(1)
            self.clocks[blocks] = self.now
            for number in np.flatnonzero(blocks):
                self._fine.pop(int(number), None)
        elif not self._fine and self._whole(mask):
            joint = np.where(members[:, :, None], self.clocks, 0).max(1)
            joint[members] = self.now
            self.clocks = np.where(members[:, :, None], joint[:, None, :], self.clocks)
        else:
            for block, threads in self._leading(active):
                self._raise(block, threads, self._known(block, threads))
        self._refloor()

    def _block_of_cluster_barrier(self, mask: Array, everyone: bool) -> None:
        """Order everything before a block's barrier in clusters, separately for the lanes of each block."""
        active = self._ordering(mask)
        if not self._fine and self._whole(mask):
            members = np.asarray(mask.reshape(self.blocks, self.ranks, -1, 32).any(3))
            if everyone:  # Exited warps are included.
                members = np.broadcast_to(members.any(2, keepdims=True), members.shape)
            warps = members.shape[2]
            clocks = self.clocks.reshape(self.blocks, self.ranks, warps, self.warps)
            joint = np.where(members[:, :, :, None], clocks, 0).max(2)
            for rank in range(self.ranks):
                own = joint[:, rank, rank * warps : (rank + 1) * warps]
                own[members[:, rank]] = self.now
            self.clocks = np.where(members[:, :, :, None], joint[:, :, None, :], clocks).reshape(self.clocks.shape)
        else:
            for cluster, rank, threads in self._leading_blocks(active):
                known = self._known_by_many(cluster, threads)
                if everyone:
                    known[rank * self.block_width : (rank + 1) * self.block_width] = self.now
                self._raise(cluster, threads, known)
        self._refloor()

    def _leading_blocks(self, active: Active) -> list[tuple[int, int, Array]]:
        """Return the blocks of the active lanes in leading clusters, as (cluster, rank, threads)."""
        return [
            (cluster, int(rank), threads[threads // self.block_width == rank])
            for cluster, threads in self._leading(active)
            for rank in np.unique(threads // self.block_width)
        ]

    def named_barrier(self, waiting: Array, arrived: dict[int, Array]) -> None:
        """Order all accesses before each arrival at a named barrier before the lanes that this barrier releases.

        Args:
            waiting: lanes that waited.
            arrived: block → knowledge, at their arrival, of its lanes that did not wait (from `arrival`).
        """
        self.tick()
        for cluster, rank, threads in self._leading_blocks(self._ordering(waiting)):
            known, block = self._known(cluster, threads), cluster * self.ranks + rank
            if block in arrived:
                known = np.maximum(known, arrived[block])
            self._raise(cluster, threads, known)
        self._refloor()

    def arrival(self, active: Active) -> dict[int, Array]:
        """Return the clocks of each block's active lanes at an arrival, including their own accesses."""
        self.tick()
        self.classes.leader_lanes(active, None)
        lanes = active.lanes
        return {
            int(block): self._known(int(block) // self.ranks, lanes[lanes // self.block_width == block] % self.width)
            for block in np.unique(lanes // self.block_width)
        }

    def cluster_arrival(self, active: Active, *, releases: bool) -> dict[int, Array]:
        """Return the clocks that the active lanes of each leading cluster publish when they arrive at its barrier.

        Args:
            active: the lanes.
            releases: whether they publish everything that they have seen; otherwise they publish only their accesses
                before a fence.
        """
        self.tick()
        self.cluster_arrivals[active.mask] += 1
        found: dict[int, Array] = {}
        for cluster, threads in self._leading(self._ordering(active.mask)):
            if releases:
                found[cluster] = self._known_by_many(cluster, threads)
                continue
            fenced = threads[self._of_block(self._fenced, cluster)[threads] > 0]
            lanes = cluster * self.width + fenced
            published = [self._publishes(lane, False, at_word=False) for lane in lanes.tolist()]
            parts = [known for known in published if known is not None]
            if parts:
                found[cluster] = np.max(parts, axis=0)
        return found

    def cluster_wait(self, mask: Array, known: Mapping[int, Array]) -> None:
        """Merge the clocks that were published at the cluster's barrier into the clocks of waiting lanes.

        Args:
            mask: lanes that continue after the barrier.
            known: leading cluster → published knowledge.
        """
        self.tick()
        self.cluster_waits[mask] += 1
        together = 0
        for cluster, threads in self._leading(self._ordering(mask)):
            seen = known.get(cluster)
            if seen is None:
                continue
            exists = self._of_block(self._batch.exists, cluster)
            if threads.size == np.count_nonzero(exists) and int(seen[exists].min()) >= self.now:
                group = self.classes.leader_of == cluster
                self.clocks[group] = self.now
                self._fine.pop(cluster, None)
                together += int(np.count_nonzero(group))
            else:
                self._raise(cluster, threads, seen)
        if together == self.blocks:
            self._mark_all_seen()
        else:
            self._refloor()

    def seen_by_any(self, active: Active) -> dict[int, tuple[Array, Array]]:
        """Return the merged clocks of each cluster's active lanes, as (blocks, stamps), by leading block."""
        found = {}
        for cluster, rank, threads in self._leading_blocks(self._ordering(active.mask)):
            same = np.flatnonzero(self.classes.leader_of == cluster) * self.ranks + rank
            found[cluster * self.ranks + rank] = same, self._known_by_many(cluster, threads)
        return found

    def warp_barrier(self, active: Active, members: Array | None = None) -> None:
        """Order all earlier accesses within the warps of the active lanes (bar.warp.sync).

        Args:
            active: lanes that have reached the instruction together.
            members: for each active lane, the lanes of its warp that it waits for, as bits; None for all of them.
        """
        self.tick()
        self.classes.leader_lanes(active, members)
        if members is None and self._whole(active.mask):
            at, warp = np.nonzero(active.mask.reshape(self.blocks, self.warps, 32).any(2))
            self.clocks[at, warp, warp] = self.now
            if self._fine:
                self._join_warps(active, None)
        else:
            self._join_warps(active, members)
        self._refloor()

    def warpgroups(self, active: Active) -> None:
        """Record a wait for products, which are those of whole warpgroups.

        A thread that arrives at a barrier object later also publishes the reads of the other warps of its warpgroup.
        One thread may therefore release their tiles.
        """
        self.tick()
        self._products[active.mask] = self.now

    def met(self, active: Active) -> None:
        """Record a warp-synchronous instruction, which orders the earlier accesses of its lanes."""
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

    # ---- barrier objects and words for publication

    def arrive(self, block: int, threads: Array, place: int, *, near: bool = False) -> None:
        """Merge the clocks of arriving threads, including their own accesses, into the clock of a barrier object.

        Args:
            block: the threads' block or, with clusters, their cluster.
            threads: the threads, all of one block.
            place: the object.
            near: whether only the threads' own block of the cluster may learn of their accesses.
        """
        self.tick()
        known = self._known(block, threads)
        ended = self._of_block(self._products, block)[threads]
        for thread, stamp in zip(threads[ended > 0].tolist(), ended[ended > 0].tolist(), strict=True):
            first = thread - thread % self.block_width % WARPGROUP
            known[first : first + WARPGROUP] = np.maximum(known[first : first + WARPGROUP], stamp)
        if not near:
            self._merge((block, "arrivals", place), known)
        if self.ranks > 1:
            self._merge((block, f"arrivals of block {int(threads[0]) // self.block_width}", place), known)

    def arrive_by_copy(self, lane: int, place: int, stamp: int) -> None:
        """Record that a bulk copy, which a lane issued at a time stamp, has arrived at a barrier object."""
        block, thread = divmod(lane, self.width)
        known = np.zeros(self.width, np.int64)
        known[thread & ~31 : (thread & ~31) + 32] = stamp + 1
        for suffix in self._suffixes:
            self._merge((block, f"arrivals{suffix}", place), known)

    def _merge(self, key: tuple[int, str, int], known: Array) -> None:
        before = self._published.get(key)
        self._published[key] = known if before is None else np.maximum(before, known)

    @property
    def _suffixes(self) -> tuple[str, ...]:
        """Endings of the names of what all blocks of a cluster see, and of what only one of them does."""
        return ("", *(f" of block {rank}" for rank in range(self.ranks))) if self.ranks > 1 else ("",)

    def complete(self, block: int, place: int) -> None:
        """Merge a barrier object's clock into the clocks of the threads that wait at it, after a phase has ended."""
        for suffix in self._suffixes:
            for name, later in (("earlier", "mbarrier"), ("mbarrier", "arrivals")):
                if (known := self._published.get((block, later + suffix, place))) is not None:
                    self._published[block, name + suffix, place] = known

    def wait(self, active: Active, place: Array, *, near: bool = False, earlier: bool = False) -> None:
        """Order all accesses before the end of a barrier object's last phase before the lanes that saw this end.

        Args:
            active: the lanes.
            place: address of each lane's object in its block.
            near: whether they see only what their own block of the cluster did.
            earlier: whether they saw only the end of an earlier phase.
        """
        self.tick()
        self._acquire(active, place, "earlier" if earlier else "mbarrier", near=near)

    def fence(self, active: Active, *, near: bool = False) -> None:
        """Record a fence: later instructions of the active lanes may publish the accesses made before it.

        Args:
            active: the lanes.
            near: whether the scope is only the lanes' own block of the cluster.
        """
        self.tick()
        self.classes.leader_lanes(active, None)
        self._fenced_near[active.mask] = self.now
        if not near:
            self._fenced[active.mask] = self.now
        self.fences = True

    def touch(self, lanes: Array) -> None:
        """Record plain accesses after the first fence; a fence does not publish its thread's later accesses."""
        self._touched[lanes] = self.now

    def load_at(self, active: Active, space: str, place: Array, *, near: bool = False) -> None:
        """Order all accesses that were published at a word before the lanes that read the word.

        Args:
            active: the lanes.
            space: ``shared`` or ``global``.
            place: byte within the space, one per lane.
            near: whether the scope is a block, which is smaller than the cluster.
        """
        if self._published:
            self._acquire(active, place, space, near=near)

    def store_at(self, active: Active, space: str, place: Array, *, releases: bool, near: bool = False) -> None:
        """Publish at a word the lanes' accesses before their fence or, for a release, before the instruction."""
        if not (self._published or self.fences or releases):
            return
        self.tick()
        for lane, where in zip(active.lanes.tolist(), place.tolist(), strict=True):
            for key, wide in self._keys_at(lane, space, where):
                known = None if wide and near else self._publishes(lane, releases, wide=wide)
                if known is not None:
                    self._published[key] = known
                else:
                    self._published.pop(key, None)

    def update_at(self, active: Active, space: str, place: Array, *, releases: bool, near: bool = False) -> None:
        """Apply acquire and release ordering at a word to one lane after another, as for atomic updates."""
        if not (self._published or self.fences or releases):
            return
        self.tick()
        for lane, where in zip(active.lanes.tolist(), place.tolist(), strict=True):
            for key, wide in self._keys_at(lane, space, where):
                if wide and near:
                    continue
                before, known = self._published.get(key), self._publishes(lane, releases, wide=wide)
                if before is not None:
                    self._see({key: np.array([lane % self.width])}, None)
                if known is not None:
                    self._published[key] = known if before is None else np.maximum(before, known)

    def _keys_at(self, lane: int, space: str, where: int) -> list[tuple[tuple[int, str, int], bool]]:
        """Return the keys under which a lane publishes at a word, and whether other blocks of the cluster see them."""
        cluster = lane // self.width
        keys = [((cluster, space, where), True)]
        if self.ranks > 1:
            keys.append(((cluster, f"{space} of block {lane // self.block_width % self.ranks}", where), False))
        return keys

    def _publishes(self, lane: int, releases: bool, *, wide: bool = True, at_word: bool = True) -> Array | None:
        """Return the knowledge that a lane's release publishes; None if there was no fence.

        Args:
            lane: the lane.
            releases: whether the instruction itself releases.
            wide: whether the whole cluster sees it, or only the lane's own block.
            at_word: whether the instruction updates a word, and is itself published with it.
        """
        block, thread = divmod(lane, self.width)
        fences = self._fenced if wide else self._fenced_near
        if not releases and not fences[lane]:
            return None
        known = self._known(block, np.array([thread]))
        if not releases:
            fenced = self._of_block(fences, block)
            first = int(self.classes.leader_of[block]) * self.width
            limit = np.maximum(fenced, fences[lane])
            # Without accesses after the fence, the publishing instruction is itself the last published access.
            if at_word and self._touched[first + thread] < fences[lane]:
                limit[thread] = self.now
            known = np.minimum(known, limit)
        return known

    def _acquire(self, active: Active, place: Array, space: str, *, near: bool = False) -> None:
        """Give each lane the knowledge published at the address that it reads."""
        lanes = active.lanes
        groups: dict[tuple[int, str, int], list[int]] = {}
        for lane, where in zip(lanes.tolist(), place.tolist(), strict=True):
            for key, wide in self._keys_at(lane, space, where):
                if key in self._published and not (wide and near):
                    groups.setdefault(key, []).append(lane % self.width)
        # Addresses in other blocks must be equal only in shared memory, which contains the barrier objects.
        together = active if space in ("mbarrier", "earlier") else None
        self._see({key: np.array(threads) for key, threads in groups.items()}, together)

    def _see(self, groups: dict[tuple[int, str, int], Array], together: Active | None) -> None:
        """Give published knowledge to threads, and to those of represented blocks if these behave equally."""
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

    def _join_warps(self, active: Active, members: Array | None) -> None:
        """Join the knowledge of lanes of a warp that name the same lanes."""
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
