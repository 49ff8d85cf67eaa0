"""Reconvergence of a warp's lanes before shuffles, votes, matrix instructions and ``bar.warp.sync``.

Lanes that arrive before other lanes in their member mask are parked. They continue when the others have arrived or
exited. If no other lanes can run, the parked lanes continue without them, with a finding.
"""

from __future__ import annotations

import numpy as np

from evokern.ptx.segments import Segment, is_warp_barrier, member_mask
from evokern.ptx.syntax import Immediate, Register
from evokern.simt.arrays import Active, Array, ballot
from evokern.simt.batch import Batch
from evokern.simt.sanitizer.barriers import Barriers
from evokern.simt.schedule import Schedule


class Reconvergence:
    """Parked lanes of a batch."""

    def __init__(self, batch: Batch, schedule: Schedule, barriers: Barriers) -> None:
        self._batch, self._schedule, self._barriers = batch, schedule, barriers
        self.parked: dict[int, Active] = {}
        self.forced: set[int] = set()

    def load(self) -> None:
        """Discard the parked lanes for new blocks."""
        self.parked.clear()
        self.forced.clear()

    def enter(self, segment: Segment, key: int, active: Active, *, retried: bool = False) -> Active | None:
        """Return the lanes that may continue, or None if all of them have to wait."""
        if self.parked:
            known = self.parked.pop(key, None)
            if known is not None:
                active = Active(known.mask | active.mask, known.count + active.count, self._batch.live_count)
        if key in self.forced:
            self.forced.discard(key)
            return active
        if active.all or (active.full and self._batch.live_count == self._batch.thread_count):
            return active
        here = ballot(active.mask)
        need = self._missing_lanes(segment, active, here)
        live = ballot(self._batch.live)
        missing = need & live & ~here
        if not missing.any():
            gone = need & ballot(self._batch.exists & self._barriers.busy) & ~live
            if retried and gone.any():
                self._report(segment, active.mask & np.repeat(gone != 0, 32))
            return active
        waits = active.mask & np.repeat(missing != 0, 32)
        count = int(np.count_nonzero(waits))
        if not retried:
            self._barriers.busy[np.repeat(missing != 0, 32)] = False
        self.parked[key] = Active(waits, count, self._batch.live_count)
        if count == active.count:
            return None
        return Active(active.mask & ~waits, active.count - count, self._batch.live_count)

    def _missing_lanes(self, segment: Segment, active: Active, here: Array) -> Array:
        operand = member_mask(self._batch.program.instructions[segment.base])
        present = here != 0
        if isinstance(operand, Immediate):
            return np.where(present, np.uint32(int(operand.value) & 0xFFFFFFFF), np.uint32(0))
        if isinstance(operand, Register):
            kind, index, _ = segment.routine.slots[operand.name]
            row = self._batch.registers.row(kind, index, "u32")
            words: Array = np.bitwise_or.reduce(np.where(active.mask, row, np.uint32(0)).reshape(-1, 32), axis=1)
            return words
        return np.where(present, np.uint32(0xFFFFFFFF), np.uint32(0))

    def retry(self) -> bool:
        """Resume parked lanes whose missing partners have exited; return whether such lanes existed."""
        moved = False
        for key in sorted(self.parked):
            active = self.parked.pop(key)
            passed = self.enter(self._batch.program.segments[key % self._schedule.segments], key, active, retried=True)
            if passed is not None:
                self.forced.add(key)
                self._schedule.push(key, passed)
                moved = True
                if key in self.parked:
                    rest = self.parked.pop(key)
                    self._schedule.push(key, rest)
                    self.forced.discard(key)
                break
        return moved

    def force(self) -> bool:
        """Report and resume the parked lanes at the lowest code position; return whether such lanes existed."""
        if not self.parked:
            return False
        key = min(self.parked)
        active = self.parked.pop(key)
        self._report(self._batch.program.segments[key % self._schedule.segments], active.mask)
        self.forced.add(key)
        self._schedule.push(key, active)
        return True

    def _report(self, segment: Segment, mask: Array) -> None:
        number = segment.base
        instruction = self._batch.program.instructions[number]
        kind = (
            "inactive_shuffle"
            if instruction.opcode in ("shfl", "vote", "match", "redux", "elect")
            else "barrier_divergence"
        )
        what = "bar.warp.sync" if is_warp_barrier(instruction) else instruction.opcode
        self._batch.report_lanes(
            kind, number, np.flatnonzero(mask), detail=f"Other lanes in the mask never reach this {what}"
        )
