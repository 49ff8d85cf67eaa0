"""Loops that provably never end: the machine is deterministic, so a state that comes back comes back for ever.

From a 64th of the instruction limit on, the state is kept at a moment, at twice as many instructions again, and from an
eighth on once in each eighth; it is compared whenever the same lanes are about to run the same segment again. What is
compared is everything that decides what happens next: registers, memory that can be written, who waits where and for
how long. What only findings and counters look at is left out. A program that reads a clock while it is watched, or
counts, never looks the same twice.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from evokern.ptx.segments import Segment
from evokern.simt.arrays import Active, Array
from evokern.simt.reconvergence import Reconvergence
from evokern.simt.state import MachineState

REPEATS = "the state repeats, so this loop never ends"
"""What the finding says; without it, a kernel may only be long."""
PARTS = 8
"""Parts of the limit, in each of which at least one state is kept."""
UNWATCHED = 64
"""Nothing is kept in so small a part of the limit: kernels seldom take longer than that, and most hang at once."""
STATE_BYTES = 64 << 20
"""Most bytes of a state that is kept; with more, only the limit ends a loop."""
LANE_COMPARISONS = 4096
"""Comparisons of one lane's registers in a part, which tell nearly every loop that goes on: about 20 ms."""
FIRST_ENOUGH_CHECK = 100_000
"""Warp instructions of a batch after which the caller is first asked whether it has seen enough; then at each half more
again."""
STATE_COMPARISONS = 64
"""Comparisons of the whole state in a part."""


class HangDetector:
    """Watches one batch.

    Attributes:
        schedule: lanes that wait to run, and what was issued.
        check_at: instructions issued beyond which `check` has to be called before each segment.
    """

    def __init__(self, state: MachineState, reconvergence: Reconvergence) -> None:
        self._machine, self._batch, self.schedule, self._reconvergence = (
            state,
            state.batch,
            state.schedule,
            reconvergence,
        )
        self._options = state.batch.options
        self.load()

    def load(self) -> None:
        """New blocks."""
        self._part = self._options.instruction_limit // PARTS or 1
        self._next = self._options.instruction_limit // UNWATCHED or 1
        self._lane_comparisons = self._state_comparisons = 0
        self._kept_waits: tuple[Any, ...] = ()
        self._kept_lane: list[Array] = []
        self._kept_state: list[Array] = []
        self._ask = FIRST_ENOUGH_CHECK if self._options.enough else 1 << 62
        self.check_at = min(self._next, self._ask)

    def check(self, segment: Segment, key: int, active: Active, burst: int) -> None:
        """Check the state before a segment runs; called for each one once `check_at` is passed.

        Args:
            segment: the segment.
            key: its rank at its call depth.
            active: the lanes about to run it.
            burst: segments that they may still run out of order.

        Raises:
            Stopped: the limit is passed, the state repeats, or the caller has seen enough.
        """
        issued = self.schedule.issued
        if issued > self._ask:
            self._ask = issued * 3 // 2
            if self._options.enough is not None and self._options.enough():
                self._batch.stop()
            self._set_next_check()
        limit = self._options.instruction_limit
        if issued > limit:
            self.stop_hung(
                segment, f"the kernel did not end within {limit} warp instructions: raise the limit for more"
            )
        if issued > self._next:
            self._keep(key, active, burst)
        elif self._lane_comparisons and self._repeats(key, active, burst):
            self.stop_hung(
                segment, REPEATS + (", unless a block outside this batch ends it" * self._has_other_batches(active))
            )

    def stop_hung(self, segment: Segment, detail: str) -> None:
        """End a launch that does not end by itself."""
        lane = int(self._batch.active.lanes[0])
        self._batch.report("instruction_limit", segment.base, lane, detail=detail)
        self._batch.stop()

    def _has_other_batches(self, active: Active) -> bool:
        """Say whether blocks of the launch run in another batch, or not at all."""
        launch, geometry = self._batch.launch, self._batch.geometry
        here = int(np.count_nonzero(launch == launch[active.lanes[0]])) // geometry.width
        return here < int(np.prod(geometry.grid))

    def _keep(self, key: int, active: Active, burst: int) -> None:
        self._next = self.schedule.issued + min(self.schedule.issued, self._part)
        self._kept_state = self._contents()
        self._lane_comparisons = (
            LANE_COMPARISONS if sum(array.nbytes for array in self._kept_state) <= STATE_BYTES else 0
        )
        self._state_comparisons = STATE_COMPARISONS
        if self._lane_comparisons:
            self._kept_state = [array.copy() for array in self._kept_state]
            self._kept_lane = [column.copy() for column in self._column(active)]
            self._kept_waits = self._waits(key, active, burst)
        self._set_next_check()

    def _repeats(self, key: int, active: Active, burst: int) -> bool:
        if (key, burst, active.count) != self._kept_waits[:3]:
            return False
        self._lane_comparisons -= 1
        same = False
        if all(map(np.array_equal, self._kept_lane, self._column(active))):
            self._state_comparisons -= 1
            contents = self._contents()
            same = (
                len(contents) == len(self._kept_state)
                and all(map(np.array_equal, self._kept_state, contents))
                and self._waits(key, active, burst) == self._kept_waits
            )
        self._set_next_check()
        return same

    def _set_next_check(self) -> None:
        """Stop comparing until the next part, or go on at once."""
        if not self._state_comparisons:
            self._lane_comparisons = 0
        self.check_at = 0 if self._lane_comparisons else min(self._next, self._ask, self._options.instruction_limit)

    def _column(self, active: Active) -> list[Array]:
        lane = int(active.lanes[0])
        return [rows[:, lane] for rows in self._batch.registers.bits.values()]

    def _contents(self) -> list[Array]:
        batch, state, calls = self._batch, self._machine, self._machine.calls
        arrays = [*batch.registers.bits.values(), batch.live, batch.carry(), state.shared.bytes]
        arrays += [state.local.bytes, state.params.area, *calls.returns, *calls.inside.values()]
        storage = state.memory.storage
        return arrays + [storage[b.offset : b.offset + b.size] for b in state.memory.buffers if b.writable]

    def _waits(self, key: int, active: Active, burst: int) -> tuple[Any, ...]:
        """Return who is where: running, waiting for a turn (and how long), parked, at barriers, copying."""
        schedule, reconvergence, state = self.schedule, self._reconvergence, self._machine
        clock, copies = schedule.clock, state.copies
        committed = copies.committed if isinstance(copies.committed, int) else copies.committed.tobytes()
        return (
            key,
            burst,
            active.count,
            active.mask.tobytes(),
            state.specials.reads,
            {waiting: group.mask.tobytes() for waiting, group in schedule.groups.items()},
            {waiting: clock - since for waiting, since in schedule.waiting_since.items()},
            {waiting: group.mask.tobytes() for waiting, group in reconvergence.parked.items()},
            frozenset(reconvergence.forced),
            state.barriers.state(),
            state.cluster_barrier.state(),
            state.mbarriers.state(),
            committed,
            tuple(map(id, copies.pending)),
        )
