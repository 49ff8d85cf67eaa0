"""How long one block would take alone on an SM: the latency that nothing hides.

The machine records which warps ran which segment, in order. This pass walks that record with a clock per warp: an
instruction issues when its operands are ready, results are ready a latency later, a barrier lets nobody pass before the
last arrival, and a wait for asynchronous copies ends when their data would have come. Within a segment instructions may
issue in any order that their operands allow, since the assembler reorders there; segments follow one another in order.

A segment that waits for no other warp and has been walked a few times after the same one takes its mean from then on:
loops settle after a few turns, and the first instructions of a kernel, which load, say nothing about those that follow.

The result is a lower bound on a block's time from latencies alone. `evokern.simt.timemodel` sets it against throughput.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from evokern.simt.arrays import Array
from evokern.simt.counters import BatchRecord
from evokern.simt.in_flight import is_product
from evokern.simt.latencies import Latencies, cost_of
from evokern.simt.operands import registers_of
from evokern.simt.pipes import Hold
from evokern.simt.program import Program, Segment
from evokern.simt.syntax import Address, Immediate, Instruction

MOST_STEPS = 40_000
"""Instructions walked before every segment that was seen takes its mean, those with barriers and copies too."""
SETTLED = 8
"""Walks of a segment after the same one before its mean stands for it."""
_MEETING = frozenset({"barrier", "async", "commit", "wait", "fence", "product", "product_commit", "product_wait"})
"""Kinds of steps whose clocks other warps or later segments look at."""
_PRODUCTS = frozenset({"product", "product_commit", "product_wait"})
GROUPS = 64
"""Groups of asynchronous copies or products remembered per warp; waits never name more."""


@dataclass(frozen=True)
class Step:
    """One instruction as the walk needs it."""

    kind: str
    """Kind of `latencies.Cost`."""
    latency: float
    """Clocks to its results, conflicts included."""
    sources: tuple[int, ...]
    """Rows of registers it reads."""
    results: tuple[int, ...]
    """Rows of registers it writes."""
    keep: int
    """`wait`, `product_wait`: groups that may stay in flight; `barrier`: its number."""
    hold: Hold | None
    """The pipe that its warp cannot use again for a while."""


@dataclass(frozen=True)
class Plan:
    """One segment as the walk needs it."""

    steps: tuple[Step, ...]
    """Its instructions."""
    alone: bool
    """True when it neither waits for other warps nor starts or awaits copies."""
    results: Array
    """Rows of registers that it writes."""


@dataclass(frozen=True)
class Walk:
    """What the walk found, per block walked; all in SM clocks."""

    blocks: tuple[float, ...]
    """Time of each block alone, from start to its last warp's end."""
    waits: Mapping[str, float]
    """Mean clocks a warp spent waiting, by cause: `barrier`, `async_copy`, `memory`."""


@dataclass(slots=True, eq=False)
class _Typical:
    """How long a segment took after a certain one, as far as it was walked."""

    walks: int = 0
    """How often."""
    whole: float = 0.0
    """Clocks of a mean warp, the wait at a barrier before it included; summed over walks."""
    inner: float = 0.0
    """The same without that wait."""
    memory: float = 0.0
    """Clocks of it spent waiting for operands."""
    late: Array = field(default_factory=lambda: np.zeros((0, 1)))
    """Clocks from the segment's end until each of its results is ready, one row each, mean warp, last walk."""


class Timeline:
    """Walks the record of one launch."""

    def __init__(
        self,
        program: Program,
        latencies: Latencies,
        extra: Mapping[int, float],
        l2_latency: float,
        holds: Mapping[int, Hold],
    ) -> None:
        """Prepare the walk.

        Args:
            program: the program that ran.
            latencies: the chip's latencies.
            extra: instruction number → further clocks (bank conflicts, uncoalesced sectors).
            l2_latency: latency of global memory for this workload, clocks (L2 or DRAM).
            holds: instruction number → the pipe it holds, and for how long.
        """
        self.program, self.latencies, self.extra, self.l2_latency = program, latencies, extra, l2_latency
        self.holds = holds
        self._rows: dict[tuple[int, str], int] = {}
        self._plans: dict[int, Plan] = {}

    def walk(self, record: BatchRecord, warps_per_block: int) -> Walk:
        """Walk the record of one batch.

        Args:
            record: what ran when.
            warps_per_block: warps of a block.
        """
        for index in {segment for segment, _ in record.steps}:
            self._plan(self.program.segments[index])
        multiplies = any(is_product(item) for item in self.program.instructions)
        state = _State(len(self._rows) + 1, record.warps, warps_per_block, self.latencies.barrier, multiplies)
        typical: dict[tuple[int, int], _Typical] = {}
        done, before = 0, -1
        for segment, mask in record.steps:
            plan = self._plans[segment]
            known = typical.setdefault((before, segment), _Typical())
            before = segment
            if known.walks and done > MOST_STEPS:
                state.skip(plan, mask, known, whole=True)
            elif known.walks >= SETTLED and plan.alone:
                state.skip(plan, mask, known, whole=False)
            else:
                state.run(plan, mask, known)
                done += len(plan.steps)
        ends = state.clock.reshape(-1, warps_per_block).max(1)
        waits = {cause: float(clocks.mean()) for cause, clocks in state.waits.items()}
        return Walk(tuple(float(end) for end in ends), waits)

    def _plan(self, segment: Segment) -> None:
        if segment.index in self._plans:
            return
        instructions = segment.unit.function.instructions[segment.start : segment.stop]
        found = [self._step(segment, instruction, segment.base + at) for at, instruction in enumerate(instructions)]
        steps = tuple(step for step in found if step is not None)
        written = dict.fromkeys(row for step in steps for row in step.results)
        self._plans[segment.index] = Plan(
            steps, all(step.kind not in _MEETING for step in steps), np.array([*written], np.int64)
        )

    def _step(self, segment: Segment, instruction: Instruction, number: int) -> Step | None:
        cost = cost_of(instruction, self.latencies)
        operation = self.program.operations[number]
        operands = instruction.operands
        results = [o for o in operands[: operation.results] if not isinstance(o, Address)]
        written = [name for operand in results for name in registers_of(operand)]
        read = [
            name for operand in operands if not any(operand is r for r in results) for name in registers_of(operand)
        ]
        if instruction.guard is not None:
            read.append(instruction.guard.name)
        if cost.kind == "product":
            read = read + written
        rows = [self._row(segment, name) for name in read], [self._row(segment, name) for name in written]
        latency = self.l2_latency if cost.kind in ("global", "async") else cost.latency
        keep = 0
        literal = next((operand.value for operand in operands if isinstance(operand, Immediate)), 0)
        if cost.kind in ("wait", "barrier", "product_wait"):
            keep = int(literal) if not instruction.has("wait_all") else 0
        latency += self.extra.get(number, 0.0)
        return Step(cost.kind, latency, tuple(dict.fromkeys(rows[0])), tuple(rows[1]), keep, self.holds.get(number))

    def _row(self, segment: Segment, name: str) -> int:
        return self._rows.setdefault((segment.unit.number, name), len(self._rows))


class _State:
    """Clocks of every warp."""

    def __init__(self, rows: int, warps: int, warps_per_block: int, barrier: float, multiplies: bool) -> None:
        self.ready = np.zeros((rows, warps))
        # Products of a warpgroup take over sums of one another that are not there yet: when the others would be.
        self.early = np.zeros((rows, warps)) if multiplies else None
        self.clock = np.zeros(warps)
        self.ordered = np.zeros(warps)
        self.arrival = np.zeros((16, warps // warps_per_block))
        self.passing = np.full(warps, -1)
        self.copies, self.products = _Groups(warps), _Groups(warps)
        self.pending = np.zeros(warps)
        self.products_done = np.zeros(warps)
        self.block = np.repeat(np.arange(warps // warps_per_block), warps_per_block)
        self.barrier = barrier
        self.busy: dict[str, Array] = {}
        self.waits = {cause: np.zeros(warps) for cause in ("barrier", "async_copy", "memory")}

    def run(self, plan: Plan, mask: Array | None, known: _Typical) -> None:
        """Let the warps of a mask (None for all) run one segment, and note what it took."""
        at: Array | slice = slice(None) if mask is None or mask.all() else np.flatnonzero(mask)
        came = float(self.clock[at].mean())
        self._pass_barrier(at)
        start = self.clock[at].copy()
        waited = self._steps(plan, at, start)
        end = self.clock[at]
        known.walks += 1
        known.whole += float(end.mean()) - came
        known.inner += float((end - start).mean())
        known.memory += float(waited.mean())
        late = self.ready[plan.results] if isinstance(at, slice) else self.ready[plan.results[:, None], at]
        known.late = (late - end).mean(1)[:, None]

    def skip(self, plan: Plan, mask: Array | None, known: _Typical, *, whole: bool) -> None:
        """Let them run a segment that took its mean; ``whole`` where waits at barriers are part of it."""
        at: Array | slice = slice(None) if mask is None or mask.all() else np.flatnonzero(mask)
        if not whole:
            self._pass_barrier(at)
        self.clock[at] += (known.whole if whole else known.inner) / known.walks
        self.waits["memory"][at] += known.memory / known.walks
        ready = self.clock[at] + known.late
        for rows in (self.ready, self.early):
            if rows is not None:
                rows[plan.results if isinstance(at, slice) else (plan.results[:, None], at)] = ready

    def _steps(self, plan: Plan, at: Array | slice, start: Array) -> Array:
        """Issue a segment's instructions; return the clocks each warp waited for operands."""
        last, issued = start.copy(), 0.0
        ordered = np.maximum(self.ordered[at], start)
        ready = self.ready
        for step in plan.steps:
            if step.kind == "free":
                when = start if not step.sources else ready[step.sources[0]][at]
                for source in step.sources[1:]:
                    when = np.maximum(when, ready[source][at])
                for result in step.results:
                    ready[result, at] = when
                    if self.early is not None and step.sources:
                        self.early[result, at] = self.early[step.sources[0]][at]
                continue
            when = start + issued
            issued += 1.0
            if step.kind in ("shared", "global", "local", "store", "async", "wait", "commit", "fence", "barrier"):
                when = np.maximum(when, ordered)
            if step.kind in _PRODUCTS:
                when = self._product(step, at, when)
                ordered = np.maximum(ordered, when) if step.kind == "product_wait" else ordered
                last = np.maximum(last, when)
                continue
            for source in step.sources:
                when = np.maximum(when, ready[source][at])
            if step.hold is not None:
                until = self.busy.setdefault(step.hold.pipe, np.zeros(self.clock.size))
                when = np.maximum(when, until[at])
                until[at] = when + step.hold.clocks
            if step.kind == "wait":
                until = self.copies.done(at, step.keep)
                self.waits["async_copy"][at] += np.maximum(until - when, 0.0)
                when = ordered = np.maximum(when, until)
            elif step.kind == "async":
                self.pending[at] = np.maximum(self.pending[at], when + step.latency)
            elif step.kind == "commit":
                self.copies.commit(at, self.pending)
            elif step.kind == "fence":
                ordered = when + step.latency
            elif step.kind == "barrier":
                self._arrive(at, step.keep, np.maximum(when, last))
            for result in step.results:
                ready[result, at] = when + step.latency
                if self.early is not None:
                    self.early[result, at] = when + step.latency
            last = np.maximum(last, when)
        waited = np.maximum(last - start - issued, 0.0)
        self.waits["memory"][at] += waited
        self.clock[at] = last + 1.0
        self.ordered[at] = ordered
        return waited

    def _pass_barrier(self, at: Array | slice) -> None:
        number = self.passing[at]
        if not (number >= 0).any():
            return
        block = self.block[at]
        opened = np.where(number >= 0, self.arrival[np.maximum(number, 0), block] + self.barrier, 0.0)
        self.waits["barrier"][at] += np.maximum(opened - self.clock[at], 0.0)
        self.clock[at] = np.maximum(self.clock[at], opened)
        self.passing[at] = -1

    def _arrive(self, at: Array | slice, number: int, when: Array) -> None:
        number %= 16
        np.maximum.at(self.arrival[number], self.block[at], when)
        self.passing[at] = number

    def _product(self, step: Step, at: Array | slice, when: Array) -> Array:
        """Start, close or await products of a warpgroup; return when the warp goes on."""
        if step.kind == "product":
            assert self.early is not None
            for source in step.sources:
                when = np.maximum(when, self.early[source][at])
            until = self.busy.setdefault("tensor", np.zeros(self.clock.size))
            until[at] = np.maximum(when, until[at]) + (step.hold.clocks if step.hold else 0.0)
            self.products_done[at] = until[at]
            for result in step.results:
                self.ready[result, at] = until[at]
        elif step.kind == "product_commit":
            self.products.commit(at, self.products_done)
        else:
            when = np.maximum(when, self.products.done(at, step.keep))
        return when


class _Groups:
    """When the groups of a warp's asynchronous work end."""

    def __init__(self, warps: int) -> None:
        self.end = np.zeros((GROUPS, warps))
        self.count = np.zeros(warps, np.int64)
        self.warps = np.arange(warps)

    def commit(self, at: Array | slice, pending: Array) -> None:
        """Close a group of what ends at these clocks."""
        warps = self.warps[at]
        slot = self.count[warps] % GROUPS
        before = self.end[(slot - 1) % GROUPS, warps]
        self.end[slot, warps] = np.maximum(before, pending[warps])
        self.count[warps] += 1

    def done(self, at: Array | slice, keep: int) -> Array:
        """Return when all but the latest groups have ended."""
        warps = self.warps[at]
        last = self.count[warps] - keep - 1
        return np.where(last >= 0, self.end[last % GROUPS, warps], 0.0)
