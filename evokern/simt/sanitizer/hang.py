"""Detection of endless loops: because the machine is deterministic, a repeated state proves an endless loop.

The detector stores the state for the first time after 1/64 of the instruction limit. It replaces the stored state each
time the number of instructions has doubled and, from 1/8 of the limit on, once per eighth. It compares the current
state with the stored one whenever the same lanes are about to run the same segment again. The state contains everything
that determines how execution continues: registers, writable memory, and the position and waiting time of all lanes. It
does not contain data for findings and counters. The state never repeats in a program that reads a clock or counts
iterations.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from evokern.ptx.segments import Segment
from evokern.simt.arrays import Active, Array
from evokern.simt.batch import Occurrence, WaitsOutside
from evokern.simt.reconvergence import Reconvergence
from evokern.simt.sanitizer.findings import ERROR, UNFINISHED, WARNING
from evokern.simt.state import MachineState

REPEATS = "the state repeats, so this loop never ends"
"""Detail of the finding for an endless loop."""
OUTSIDE = ", unless a block outside this batch ends it"
"""End of that detail if other blocks of the launch have not finished; the loop may then wait for one of them."""
PARTS = 8
"""Number of parts into which the limit is divided; at least one state is stored in each part."""
FIRST_CHECK_FRACTION = 64
"""No state is stored in the first 1/64 of the limit, because most kernels end or hang before it."""
STATE_BYTES = 64 << 20
"""Maximum bytes of a stored state; if the state is larger, only the instruction limit ends a loop."""
LANE_COMPARISONS = 4096
"""Maximum comparisons of one lane's registers per part (about 20 ms), enough for nearly every endless loop."""
FIRST_ENOUGH_CHECK = 100_000
"""Warp instructions of a batch before the first call to `enough`; the interval then grows by half each time."""
STATE_COMPARISONS = 64
"""Maximum comparisons of the whole state per part."""
_OWN_SPACES = ("shared", "local", "param", "const")
_GLOBAL_READS = frozenset({"ld", "ldu", "atom", "cp", "multimem"})


class HangDetector:
    """Detector of endless loops for one batch.

    Attributes:
        schedule: lanes that wait to run, and the number of issued instructions.
        check_at: number of issued instructions after which `check` must be called before each segment.
    """

    def __init__(self, state: MachineState, reconvergence: Reconvergence) -> None:
        self._machine, self._batch, self._reconvergence = state, state.batch, reconvergence
        self.schedule = state.schedule
        self._options = state.batch.options
        self.load()

    def load(self) -> None:
        """Reset the detector for new blocks."""
        self._part = self._options.instruction_limit // PARTS or 1
        self._next = self._options.instruction_limit // FIRST_CHECK_FRACTION or 1
        self._lane_comparisons = self._state_comparisons = 0
        self._reads_global = False
        self._kept_waits: tuple[Any, ...] = ()
        self._kept_lane: list[Array] = []
        self._kept_state: list[Array] = []
        self._ask = FIRST_ENOUGH_CHECK if self._options.stop else 1 << 62
        self.check_at = min(self._next, self._ask)

    def check(self, segment: Segment, key: int, active: Active, burst: int) -> None:
        """Check the state before a segment runs; call it before each segment once `check_at` is exceeded.

        Args:
            segment: the segment.
            key: rank of the segment at its call depth.
            active: the lanes about to run it.
            burst: number of segments that these lanes may still run out of order.

        Raises:
            Stopped: the limit is exceeded, the state repeats, or the caller has seen enough.
        """
        issued = self.schedule.issued
        if self._lane_comparisons and not self._reads_global:
            self._reads_global = _reads_global(segment)
        if issued > self._ask:
            self._ask = issued * 3 // 2
            if self._options.stop is not None and self._options.stop():
                self._batch.stop()
            self._set_next_check()
        limit = self._options.instruction_limit
        if issued > limit:
            self.stop_hung(segment, f"the kernel did not end within {limit:,} warp instructions", certain=False)
        if issued > self._next:
            self._keep(key, active, burst)
        elif self._lane_comparisons and self._repeats(key, active, burst):
            waits = self._reads_global and self._has_other_batches(active)
            if not waits and self._machine.mbarriers.report_stuck(int(active.lanes[0])):
                self._machine.barriers.report_stuck(counted=True)
                self._batch.stop()
            self.stop_hung(segment, REPEATS + OUTSIDE * waits, certain=not waits)

    def stop_hung(self, segment: Segment, detail: str, *, certain: bool) -> None:
        """Stop a launch that never ends or, if not `certain`, a launch that may be only long."""
        lane = int(self._batch.active.lanes[0])
        kind, level = ("instruction_limit", ERROR) if certain else (UNFINISHED, WARNING)
        self._batch.report(kind, Occurrence(segment.base, lane), detail=detail, level=level)
        if OUTSIDE in detail and segment.polls:
            raise WaitsOutside
        self._batch.stop()

    def _has_other_batches(self, active: Active) -> bool:
        """Return whether some blocks of the launch run in another batch or do not run at all."""
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
        self._reads_global = False
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
        """Stop comparing until the next part, or continue at once."""
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
        """Return the position of all lanes: running, waiting (and for how long), parked, at barriers, copying."""
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
            state.bulk.state(),
        )


def _reads_global(segment: Segment) -> bool:
    """Return whether a segment reads memory that blocks outside the batch can write."""
    instructions = segment.routine.function.instructions[segment.start : segment.stop]
    return any(
        item.opcode in _GLOBAL_READS and not any(word.startswith(_OWN_SPACES) for word in item.modifiers)
        for item in instructions
    )
