"""Where the lanes of a warp meet: before shuffles, votes, matrix instructions and ``bar.warp.sync``.

Lanes that arrive while others named in their member mask are elsewhere are parked. They go on when the others arrive,
or have left the kernel; when nothing else can run any more, they go on without them, with a finding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from evokern.simt.arrays import Active, Array, ballot
from evokern.simt.segments import is_warp_barrier, member_mask
from evokern.simt.syntax import Immediate, Register

if TYPE_CHECKING:
    from evokern.simt.machine import Machine
    from evokern.simt.settings import Bound


class Gates:
    """The parked lanes of a batch."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.parked: dict[int, Active] = {}
        self.forced: set[int] = set()

    def load(self) -> None:
        """New blocks."""
        self.parked.clear()
        self.forced.clear()

    def enter(self, bound: Bound, key: int, active: Active, *, retried: bool = False) -> Active | None:
        """Return the lanes that may go on, None when all of them have to wait."""
        machine = self.machine
        if self.parked:
            known = self.parked.pop(key, None)
            if known is not None:
                active = Active(known.mask | active.mask, known.count + active.count, machine.live_count)
        if key in self.forced:
            self.forced.discard(key)
            return active
        if active.all or (active.full and machine.live_count == machine.everyone):
            return active
        here = ballot(active.mask)
        need = self._need(bound, active, here)
        live = ballot(machine.live)
        missing = need & live & ~here
        if not missing.any():
            gone = need & ballot(machine.exists & machine.barriers.busy) & ~live
            if retried and gone.any():
                self._tell(bound, active.mask & np.repeat(gone != 0, 32))
            return active
        waits = active.mask & np.repeat(missing != 0, 32)
        count = int(np.count_nonzero(waits))
        if not retried:
            machine.barriers.busy[np.repeat(missing != 0, 32)] = False
        self.parked[key] = Active(waits, count, machine.live_count)
        if count == active.count:
            return None
        return Active(active.mask & ~waits, active.count - count, machine.live_count)

    def _need(self, bound: Bound, active: Active, here: Array) -> Array:
        machine = self.machine
        operand = member_mask(machine.program.instructions[bound.segment.base])
        present = here != 0
        if isinstance(operand, Immediate):
            return np.where(present, np.uint32(int(operand.value) & 0xFFFFFFFF), np.uint32(0))
        if isinstance(operand, Register):
            kind, index, _ = bound.segment.unit.slots[operand.name]
            row = machine.registers.row(kind, index, "u32")
            words: Array = np.bitwise_or.reduce(np.where(active.mask, row, np.uint32(0)).reshape(-1, 32), axis=1)
            return words
        return np.where(present, np.uint32(0xFFFFFFFF), np.uint32(0))

    def retry(self) -> bool:
        """Let parked lanes go on whose missing partners have left; say whether there were any."""
        machine = self.machine
        moved = False
        for key in sorted(self.parked):
            active = self.parked.pop(key)
            passed = self.enter(machine.bound[key % machine.count], key, active, retried=True)
            if passed is not None:
                self.forced.add(key)
                machine.push(key, passed)
                moved = True
                if key in self.parked:
                    rest = self.parked.pop(key)
                    machine.push(key, rest)
                    self.forced.discard(key)
                break
        return moved

    def force(self) -> bool:
        """Let the lowest parked lanes go on without their partners, and report it; say whether there were any."""
        if not self.parked:
            return False
        machine = self.machine
        key = min(self.parked)
        active = self.parked.pop(key)
        self._tell(machine.bound[key % machine.count], active.mask)
        self.forced.add(key)
        machine.push(key, active)
        return True

    def _tell(self, bound: Bound, mask: Array) -> None:
        machine = self.machine
        number = bound.segment.base
        instruction = machine.program.instructions[number]
        kind = (
            "inactive_shuffle"
            if instruction.opcode in ("shfl", "vote", "match", "redux", "elect")
            else "barrier_divergence"
        )
        what = "bar.warp.sync" if is_warp_barrier(instruction) else instruction.opcode
        machine.report_lanes(
            kind, number, np.flatnonzero(mask), detail=f"Other lanes named in the mask never reach this {what}"
        )
