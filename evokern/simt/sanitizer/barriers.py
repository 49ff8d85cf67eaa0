"""The sixteen barriers of a block, with or without thread counts (PTX ISA 9.7.13.1).

A barrier without a count waits for all live threads of the block. A barrier with a count waits for that many threads,
rounded to whole warps. Threads may also arrive without waiting.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from evokern.simt.arrays import Active, Array
from evokern.simt.batch import Batch, Occurrence
from evokern.simt.sanitizer.findings import NAMED_BARRIER
from evokern.simt.sanitizer.thread_order import ThreadOrder
from evokern.simt.schedule import Schedule


@dataclass(frozen=True, slots=True, eq=False)
class BarrierCall:
    """A barrier instruction."""

    number: int
    """The instruction."""
    identity: Array
    """Barrier id of each lane, or one for all."""
    wanted: Array | None
    """Number of threads of each lane, or one for all; None for all threads of the block."""
    waits: bool
    """Whether the lanes wait; otherwise they only arrive."""
    reduction: Any
    """Kind, predicate row, whether it is negated, and result row; None without a reduction."""
    plain: bool
    """Whether it is barrier 0 of the whole block, with a wait and without a reduction."""


class _Barrier:
    """State of one barrier id in all blocks of the batch."""

    def __init__(self, lanes: int) -> None:
        self.waiting = np.zeros(lanes, np.bool_)
        self.arrived = np.zeros(lanes, np.bool_)
        self.follow = np.zeros(lanes, np.int64)
        self.number = np.zeros(lanes, np.int64)
        self.wanted = np.zeros(lanes, np.int64)
        self.present = np.zeros(lanes, np.bool_)
        self.reductions: dict[int, Any] = {}
        self.passed: dict[int, Array] = {}
        """Block → knowledge of its lanes that arrived without waiting."""


class Barriers:
    """Barriers of all blocks in a batch."""

    def __init__(self, batch: Batch, schedule: Schedule, order: ThreadOrder | None) -> None:
        self._batch, self._schedule, self._order = batch, schedule, order
        self._ids: dict[int, _Barrier] = {}
        self.busy = np.zeros(batch.lanes, np.bool_)

    def load(self) -> None:
        """Reset the state for new blocks."""
        self._ids.clear()

    def state(self) -> dict[int, tuple[bytes, ...]]:
        """Return the state that determines which lanes continue, by barrier id, for comparison."""
        return {
            identity: tuple(row.tobytes() for row in (one.waiting, one.arrived, one.follow, one.wanted))
            for identity, one in self._ids.items()
        }

    @property
    def pending(self) -> bool:
        """Whether any lane is waiting."""
        return bool(self._ids)

    def note_work(self, active: Active) -> None:
        """Record lanes that run past a barrier at which other lanes already wait."""
        self.busy |= active.mask

    def arrive(self, active: Active, *, call: BarrierCall, follow: int) -> int:
        """Handle arriving lanes; return the next segment if all of them continue immediately, otherwise −1."""
        if call.plain and active.full and not self._ids:
            if self._order is not None:
                self._order.block_barrier(active.mask, True)
            return follow
        key = self._schedule.base + follow
        identity = call.identity
        for which in np.unique(active.pick(identity)):
            part = active if identity.shape[0] == 1 else self._batch.restrict(active, identity[active.lanes] == which)
            barrier = self._ids.setdefault(int(which), _Barrier(self._batch.lanes))
            lanes = part.lanes
            self._first(barrier, lanes)
            wanted = np.broadcast_to(0 if call.wanted is None else part.pick(call.wanted), lanes.shape)
            self._check_arrivals(int(which), barrier, lanes, wanted, call.number)
            barrier.arrived[lanes] = True
            barrier.number[lanes] = call.number
            barrier.wanted[lanes] = wanted
            if call.waits:
                barrier.waiting[lanes] = True
                barrier.follow[lanes] = key
            elif self._order is not None:
                for block, known in self._order.arrival(part).items():
                    before = barrier.passed.get(block)
                    barrier.passed[block] = known if before is None else np.maximum(before, known)
            if call.reduction is not None:
                barrier.reductions[call.number] = call.reduction
            self._release(int(which), barrier)
            if not call.waits:
                self._schedule.push(key, part)
        return -1

    def _first(self, barrier: _Barrier, lanes: Array) -> None:
        """On the first arrival in a block, record the lanes that have not exited and could still arrive."""
        width = self._batch.geometry.width
        blocks = np.unique(lanes // width)
        fresh = blocks[~barrier.arrived.reshape(-1, width)[blocks].any(1)]
        barrier.present.reshape(-1, width)[fresh] = self._batch.live.reshape(-1, width)[fresh]
        self.busy.reshape(-1, width)[fresh] = False

    def _check_arrivals(self, identity: int, barrier: _Barrier, lanes: Array, wanted: Array, number: int) -> None:
        """Report arrivals with another thread count than earlier ones in the block, and arrivals of the same thread."""
        width, padded = self._batch.geometry.width, np.where(wanted > 0, wanted, self._batch.geometry.width)
        again = barrier.arrived[lanes]
        if again.any():
            detail = f"Threads arrive twice at {NAMED_BARRIER} {identity} before it is complete"
            lane = int(lanes[again][0])
            at = Occurrence(number, lane, int(np.count_nonzero(again)), int(barrier.number[lane]))
            self._batch.report("barrier_divergence", at, detail=detail)
        before = barrier.arrived.reshape(-1, width)
        known = np.where(barrier.wanted > 0, barrier.wanted, width).reshape(-1, width).max(1, where=before, initial=0)
        of_block = known[lanes // width]
        differ = (of_block > 0) & (of_block != padded)
        if differ.any():
            lane = int(lanes[differ][0])
            earlier = lane // width * width + int(np.flatnonzero(before[lane // width])[0])
            detail = f"{NAMED_BARRIER.capitalize()} {identity} is for {int(padded[differ][0])} threads here, but for "
            detail += f"{int(of_block[differ][0])} at the other access"
            at = Occurrence(number, lane, int(np.count_nonzero(differ)), int(barrier.number[earlier]))
            self._batch.report("barrier_divergence", at, detail=detail)

    def recheck(self) -> None:
        """Check the barriers again after lanes have exited, because barriers without a count may now be complete."""
        for identity in list(self._ids):
            if identity in self._ids:
                self._release(identity, self._ids[identity])

    def release_partial(self) -> bool:
        """Count warps with only some lanes at a barrier, once no lane can run; return whether a barrier ended."""
        waiting = {identity: int(np.count_nonzero(one.arrived)) for identity, one in self._ids.items()}
        for identity in waiting:
            self._release(identity, self._ids[identity], partial=True)
        return waiting != {identity: int(np.count_nonzero(one.arrived)) for identity, one in self._ids.items()}

    def _release(self, identity: int, barrier: _Barrier, *, partial: bool = False) -> None:
        blocks, width = self._batch.geometry.blocks, self._batch.geometry.width
        arrived = barrier.arrived.reshape(blocks, width)
        wanted = barrier.wanted.reshape(blocks, width).max(1, where=arrived, initial=0)
        threads = np.count_nonzero(arrived, axis=1)
        warps = barrier.arrived.reshape(blocks, -1, 32)
        missing = (self._batch.live.reshape(warps.shape) & ~warps).any(2)  # These lanes, on another path, may follow.
        whole = partial | ~missing
        counted = 32 * np.count_nonzero(warps.any(2) & whole, axis=1)
        live = np.count_nonzero(self._batch.live.reshape(blocks, width), axis=1)
        done = (threads > 0) & np.where(wanted > 0, counted >= wanted, threads >= live)
        if not done.any():
            return
        lanes = np.repeat(done, width)
        released = lanes & barrier.arrived
        self._check_warps(barrier, released)
        self._check_missing(barrier, lanes & np.repeat(wanted == 0, width), released)
        if barrier.reductions:
            self._reduce(barrier, released, blocks, width)
        resumed = lanes & barrier.waiting
        if self._order is not None:
            passed = {block: barrier.passed.pop(block) for block in list(barrier.passed) if done[block]}
            if passed:
                self._order.named_barrier(resumed, passed)
            else:
                self._order.block_barrier(released, bool((threads[done] >= live[done]).all()))
        barrier.arrived &= ~lanes
        barrier.waiting &= ~lanes
        barrier.wanted[lanes] = 0
        for key in np.unique(barrier.follow[resumed]):
            mask = resumed & (barrier.follow == key)
            self._schedule.push(int(key), Active(mask, int(np.count_nonzero(mask)), self._batch.live_count))
        if not barrier.arrived.any():
            del self._ids[identity]

    def _check_missing(self, barrier: _Barrier, lanes: Array, released: Array) -> None:
        """Report threads that skipped a barrier of the whole block; threads without work may return early."""
        missed = barrier.present & ~released & self.busy & lanes
        if missed.any():
            blocks = np.flatnonzero(missed.reshape(self._batch.geometry.blocks, -1).any(1))
            width = self._batch.geometry.width
            waiting = np.flatnonzero(released[blocks[0] * width : (blocks[0] + 1) * width]) + blocks[0] * width
            lane = int(waiting[0])
            detail = f"{int(np.count_nonzero(missed))} threads exit without arriving at this barrier"
            at = Occurrence(int(barrier.number[lane]), lane, int(np.count_nonzero(released)))
            self._batch.report("barrier_divergence", at, detail=detail)

    def _check_warps(self, barrier: _Barrier, released: Array) -> None:
        """Report warps whose lanes arrived at an aligned barrier at different instructions, which is not allowed."""
        numbers = barrier.number.reshape(-1, 32)
        mask = released.reshape(-1, 32)
        low = numbers.min(1, where=mask, initial=1 << 40)
        high = numbers.max(1, where=mask, initial=-1)
        split = (high > low) & mask.any(1)
        if split.any():
            warp = int(np.flatnonzero(split)[0])
            lane = warp * 32 + int(np.flatnonzero(mask[warp] & (numbers[warp] == low[warp]))[0])
            at = Occurrence(int(low[warp]), lane, int(np.count_nonzero(split)), int(high[warp]))
            detail = "Lanes of one warp wait at different barrier instructions"
            self._batch.report("barrier_divergence", at, detail=detail)

    def _reduce(self, barrier: _Barrier, released: Array, blocks: int, width: int) -> None:
        """Give every thread of a released block the reduction over the block's predicates (``bar.red``)."""
        values = np.zeros(released.size, np.bool_)
        for number, (_, row, negated, _) in barrier.reductions.items():
            mine = released & (barrier.number == number)
            values[mine] = ~row[mine] if negated else row[mine]
        for number, (kind, _, _, out) in barrier.reductions.items():
            shaped, member = values.reshape(blocks, width), released.reshape(blocks, width)
            if kind == "popc":
                result = np.count_nonzero(shaped & member, axis=1).astype(np.uint32)
            elif kind == "and":
                result = (shaped | ~member).all(1)
            else:
                result = (shaped & member).any(1)
            mine = released & (barrier.number == number)
            out[mine] = np.repeat(result, width)[mine]

    def report_stuck(self, *, counted: bool = False) -> bool:
        """Report lanes that wait forever, perhaps only those at barriers with a count; return whether there are any."""
        stuck = False
        width = self._batch.geometry.width
        for identity, barrier in self._ids.items():
            lanes = np.flatnonzero(barrier.waiting)
            if not lanes.size or (counted and not barrier.wanted[lanes[0]]):
                continue
            stuck = True
            first = int(lanes[0])
            block = first // width
            mine = lanes[lanes // width == block]
            number = int(barrier.number[first])
            others = [
                (int(other.number[lane]))
                for key, other in self._ids.items()
                for lane in np.flatnonzero(other.waiting)[:1]
                if key != identity
            ]
            elsewhere = int(np.count_nonzero(self._batch.live[block * width : (block + 1) * width])) - mine.size
            wanted = int(barrier.wanted[first])
            kind = "deadlock" if wanted or identity else "barrier_divergence"
            need = f"{wanted} threads are required" if wanted else "all threads of the block are required"
            detail = f"{mine.size} threads wait at barrier {identity} and {elsewhere} threads elsewhere, but {need}"
            self._batch.report_lanes(kind, number, lanes, detail=detail, other=others[0] if others else -1)
        return stuck
