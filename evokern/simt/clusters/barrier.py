"""Barrier of a cluster: ``barrier.cluster.arrive`` and ``barrier.cluster.wait`` (PTX ISA 9.0, "barrier.cluster").

A thread arrives, continues, and later waits until all live threads of its cluster have arrived. An arrival with the
default semantics releases: waiting threads see everything that the arriving thread did before. With ``.relaxed``, they
see only what it did before its last fence.
"""

from __future__ import annotations

import numpy as np

from evokern.simt.arrays import Active, Array
from evokern.simt.batch import Batch, Occurrence
from evokern.simt.clusters.lifetime import ClusterLifetime
from evokern.simt.sanitizer.global_shadow import GlobalShadow
from evokern.simt.sanitizer.thread_order import ThreadOrder
from evokern.simt.schedule import Schedule


class ClusterBarrier:
    """Barriers of all clusters in a batch.

    Attributes:
        pending: whether some threads have arrived and others have not.
    """

    def __init__(
        self,
        batch: Batch,
        schedule: Schedule,
        order: ThreadOrder | None,
        lifetime: ClusterLifetime | None,
        global_shadow: GlobalShadow | None,
    ) -> None:
        """Create the barriers of a batch's clusters.

        Args:
            batch: the lanes.
            schedule: scheduler of the lanes that continue.
            order: happens-before order; None without checks.
            lifetime: object that is notified of lanes that have waited; None without checks or without clusters.
            global_shadow: object that is notified of blocks at the barrier; None without checks.
        """
        self._batch, self._schedule, self._order = batch, schedule, order
        self._lifetime, self._global_shadow = lifetime, global_shadow
        self._arrived = np.zeros(batch.lanes, np.bool_)
        """Lanes that have arrived in the current phase."""
        self._passes = np.zeros(batch.lanes, np.bool_)
        """Lanes whose phase has ended, but which have not waited yet."""
        self._waiting = np.zeros(batch.lanes, np.bool_)
        self._follow = np.zeros(batch.lanes, np.int64)
        self._number = np.zeros(batch.lanes, np.int64)
        """Instruction at which each lane arrived or, once it waits, at which it waits."""
        self._present = np.zeros(batch.lanes, np.bool_)
        """Lanes that were live when the first lane of their warp arrived at an aligned barrier."""
        self._moved = np.zeros(batch.lanes, np.bool_)
        """Lanes that have executed any instruction since then."""
        self._arrived_at = np.full(batch.lanes, -1)
        """Instruction of each lane's latest arrival."""
        self._waited_at = np.full(batch.lanes, -1)
        """Instruction at which each lane waited after that arrival; -1 before the wait."""
        self._aligned: set[int] = set()
        """Instructions with the `.aligned` modifier."""
        self.pending = False
        self._arriving: dict[int, Array] = {}
        """Leading cluster → knowledge that the arrivals of the current phase publish, stamps by thread."""
        self._ended: dict[int, Array] = {}
        """Leading cluster → published knowledge of the previous phase."""
        if order is not None:
            order.on_copy(self._copy)

    def load(self) -> None:
        """Reset the barriers for new blocks."""
        for row in (self._arrived, self._passes, self._waiting, self._present, self._moved):
            row.fill(False)
        self._waited_at.fill(-1)
        self.pending = False
        self._arriving.clear()
        self._ended.clear()

    def _copy(self, source: int, target: int) -> None:
        for known in (self._arriving, self._ended):
            if source in known:
                known[target] = known[source].copy()

    def note_work(self, active: Active) -> None:
        """Record the lanes that execute instructions after other lanes have arrived."""
        self._moved |= active.mask

    def state(self) -> tuple[bytes, ...]:
        """Return the state that determines which lanes continue, for comparison with an earlier state."""
        return tuple(row.tobytes() for row in (self._arrived, self._passes, self._waiting, self._follow))

    def arrive(self, active: Active, *, number: int, follow: int, releases: bool, aligned: bool) -> int:
        """Handle arriving lanes, which continue immediately; return their next segment."""
        twice = active.mask & (self._arrived | self._passes)
        if twice.any():
            self._batch.report_lanes(
                "barrier_divergence", number, np.flatnonzero(twice),
                detail="Threads arrive at the cluster's barrier twice without waiting in between",
            )  # fmt: skip
            part = self._batch.restrict(active, ~twice[active.lanes])
            if not part.count:
                return follow
        else:
            part = active
        self._record_position(part.mask, self._arrived, self._arrived_at, number, aligned=aligned)
        # The reset covers whole warps: late or exited lanes of these warps waited in an earlier phase.
        self._waited_at[np.repeat(part.mask.reshape(-1, 32).any(1), 32)] = -1
        if aligned:
            warps = np.repeat(part.mask.reshape(-1, 32).any(1) & ~self._arrived.reshape(-1, 32).any(1), 32)
            self._present[warps] = self._batch.live[warps]
            self._moved[warps] = False
        self._arrived |= part.mask
        self.pending = True
        self._number[part.lanes] = number
        if self._global_shadow is not None:
            lanes = part.lanes
            self._global_shadow.arrive(self._batch.launch[lanes], self._batch.block_id[lanes], releases=releases)
        if self._order is not None:
            for cluster, known in self._order.cluster_arrival(part, releases=releases).items():
                before = self._arriving.get(cluster)
                self._arriving[cluster] = known if before is None else np.maximum(before, known)
        self.recheck()
        return follow

    def _record_position(self, mask: Array, before: Array, at: Array, number: int, *, aligned: bool) -> None:
        """Record arrivals or waits; report warps whose lanes are at different instructions if one of these is aligned.

        Args:
            mask: lanes that are now at the instruction.
            before: lanes that were already at an instruction in the same phase.
            at: instruction of each of these earlier lanes.
            number: the instruction.
            aligned: whether the instruction is aligned.
        """
        if aligned:
            self._aligned.add(number)
        elsewhere = before & ~mask & (at != number)
        at[mask] = number
        if not elsewhere.any():
            return
        if not aligned:
            elsewhere &= np.isin(at, list(self._aligned))
        warps = mask.reshape(-1, 32).any(1) & elsewhere.reshape(-1, 32).any(1)
        if warps.any():
            self._batch.report_lanes(
                "barrier_divergence", number, np.flatnonzero(mask & np.repeat(warps, 32)),
                detail="Other threads of the same warps are at a different instruction of the cluster's barrier",
            )  # fmt: skip

    def wait(self, active: Active, *, number: int, follow: int, aligned: bool) -> int:
        """Handle waiting lanes; return the next segment if all of them continue immediately, otherwise −1."""
        lost = active.mask & ~(self._arrived | self._passes)
        if lost.any():
            self._batch.report_lanes(
                "barrier_divergence", number, np.flatnonzero(lost),
                detail="Threads wait at the cluster's barrier although they have not arrived",
            )  # fmt: skip
        self._record_position(active.mask, self._waited_at >= 0, self._waited_at, number, aligned=aligned)
        through = active.mask & self._passes
        if through.any():
            self._release(through)
        held = active.mask & self._arrived
        if not held.any():
            return follow
        key = self._schedule.base + follow
        self._waiting |= held
        self._follow[held] = key
        self._number[held] = number
        rest = active.mask & ~held
        if rest.any():
            self._schedule.push(key, Active(rest, int(np.count_nonzero(rest)), self._batch.live_count))
        return -1

    def _release(self, mask: Array) -> None:
        """Let lanes continue, because their phase has ended."""
        self._passes &= ~mask
        if self._lifetime is not None:
            self._lifetime.met(mask)
        if self._global_shadow is not None:
            self._global_shadow.wait(self._batch.launch[mask], self._batch.block_id[mask])
        if self._order is not None:
            self._order.cluster_wait(mask, self._ended)

    def recheck(self) -> None:
        """End each phase in which all threads have arrived; call this method after arrivals and exits."""
        if not self.pending:
            return
        width, live = self._batch.geometry.cluster_width, self._batch.live
        arrived = self._arrived.reshape(-1, width)
        done = np.asarray(arrived.any(1) & ~(live & ~self._arrived).reshape(-1, width).any(1))
        if not done.any():
            return
        if self._order is not None and (done != done[self._order.classes.leader_of]).any():
            self._order.classes.split_all()
        ended = np.repeat(done, width) & self._arrived
        self._check_warps(ended)
        self._arrived &= ~ended
        self.pending = bool(self._arrived.any())
        self._passes |= ended
        for cluster in np.flatnonzero(done).tolist():
            self._ended.pop(cluster, None)
            if cluster in self._arriving:
                self._ended[cluster] = self._arriving.pop(cluster)
            if self._global_shadow is not None:
                first = cluster * width
                self._global_shadow.meet(int(self._batch.launch[first]), int(self._batch.block_id[first]))
        resumed = ended & self._waiting
        self._waiting &= ~resumed
        if not resumed.any():
            return
        self._release(resumed)
        for key in np.unique(self._follow[resumed]):
            mask = resumed & (self._follow == key)
            self._schedule.push(int(key), Active(mask, int(np.count_nonzero(mask)), self._batch.live_count))

    def _check_warps(self, ended: Array) -> None:
        """Report lanes that exited without executing an aligned barrier, which the whole warp must execute."""
        missed = np.repeat(ended.reshape(-1, 32).any(1), 32) & self._present & ~ended & self._moved & ~self._batch.live
        if missed.any():
            warp = int(np.flatnonzero(missed)[0]) // 32
            lane = warp * 32 + int(np.flatnonzero(ended[warp * 32 : warp * 32 + 32])[0])
            detail = f"{int(np.count_nonzero(missed))} threads of the same warps exit without arriving"
            at = Occurrence(int(self._number[lane]), lane, int(np.count_nonzero(ended)))
            self._batch.report("barrier_divergence", at, detail=detail)
        self._present &= ~ended

    def report_stuck(self) -> None:
        """Report lanes that wait forever."""
        lanes = np.flatnonzero(self._waiting)
        if not lanes.size:
            return
        width = self._batch.geometry.cluster_width
        cluster = int(lanes[0]) // width
        mine = slice(cluster * width, (cluster + 1) * width)
        missing = int(np.count_nonzero(self._batch.live[mine] & ~self._arrived[mine]))
        waiting = int(np.count_nonzero(self._waiting[mine]))
        detail = f"{waiting} threads wait at their cluster's barrier, but {missing} threads of the cluster never arrive"
        self._batch.report_lanes("deadlock", int(self._number[lanes[0]]), lanes, detail=detail)
