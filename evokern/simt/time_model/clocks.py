"""Clocks of all warps in the warp schedule simulation: the waits of each warp, and their effect on other warps.

An instruction issues when its operands are ready, and its results are ready a latency later. A barrier releases warps
after the last arrival. A wait for asynchronous copies ends when their data would arrive. Within a segment, instructions
may issue in any order that their operands allow, because the assembler reorders them. Segments run in order.

A segment ends only when the pipes of the SM have had time for its work in addition to that of other warps
(`contention`). Copies and products of warpgroups use the pipes in the background; all other instructions use them in
order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from evokern.simt.arrays import Array
from evokern.simt.time_model.contention import Pipes
from evokern.simt.time_model.latencies import Latencies
from evokern.simt.time_model.pipes import L2, NAMES, TENSOR, Hold, PipeUse
from evokern.simt.time_model.stalls import MeanStalls, Stalls

CAUSES = ("barrier", "async_copy", "memory", "pipes")
"""Causes of waits; `memory` covers operands, including products of a warpgroup."""
_ORDERED = frozenset({
    "shared", "global", "local", "store", "async", "wait", "commit", "bulk", "bulk_wait", "bulk_commit", "fence",
    "barrier",
})  # fmt: skip
"""Kinds that issue only after the previous fence or wait."""
_PRODUCTS = frozenset({"product", "product_commit", "product_wait"})
GROUPS = 64
"""Number of groups of asynchronous copies or products stored per warp; no wait refers to more."""
UNGROUPED = -1
"""Group count for ``cp.async.wait_all``, which also waits for copies outside any group."""
BARRIERS = 16
"""Barriers of a block."""
CLUSTER = BARRIERS
"""Number that stands for the barrier of a cluster, which warps of several blocks share."""
WARPGROUP = 4
"""Warps per warpgroup."""
SIMULTANEOUS = 32
"""Clocks within which warps that arrive at the same instructions are served together."""
_MEMORY = CAUSES.index("memory")


@dataclass(frozen=True, kw_only=True)
class Step:
    """Instruction data that the simulation needs."""

    kind: str
    """Kind, from `latencies.Cost`."""
    latency: float
    """Clocks until its results are ready, including conflicts."""
    sources: tuple[int, ...]
    """Rows of registers that it reads."""
    results: tuple[int, ...]
    """Rows of registers that it writes."""
    keep: int
    """For waits: number of groups that may stay in flight; for `barrier`: its number."""
    hold: Hold | None
    """Pipe that the warp cannot use again for some time."""
    copies: float
    """For `async` and `bulk`: clocks for which the copy occupies the port to L2; 0 without contention."""
    number: int = -1
    """Number of the instruction in its program."""


@dataclass(frozen=True)
class SegmentPlan:
    """Segment data that the simulation needs."""

    steps: tuple[Step, ...]
    """Its instructions."""
    alone: bool
    """True if it does not wait for other warps, and neither starts copies nor waits for them."""
    results: Array
    """Rows of registers that it writes."""
    demand: Array | None
    """Clocks for which a warp occupies each pipe of the SM, in order; None if it uses no pipe or without contention."""
    copies: float = 0.0
    """Clocks for which a warp's bulk copies occupy the port to L2 in the background."""
    reach: float = 0.0
    """Additional clocks until other blocks of the cluster see its arrivals at barrier objects."""


@dataclass(slots=True, eq=False)
class MeanTimes:
    """Mean time of a segment after a given predecessor, over the simulations so far."""

    simulations: int = 0
    """Number of simulations."""
    whole: float = 0.0
    """Clocks of an average warp, including waits for pipes and for the preceding barrier, summed over simulations."""
    inner: float = 0.0
    """`whole` without these two kinds of waits."""
    waits: Array = field(default_factory=lambda: np.zeros(len(CAUSES)))
    """Clocks that an average warp waited, by cause, summed over simulations."""
    late: Array = field(default_factory=lambda: np.zeros((0, 1)))
    """Clocks of an average warp from the segment's end until each result is ready (last simulation), one row each."""
    stalls: MeanStalls = field(default_factory=MeanStalls)
    """Waits by instruction, if requested."""


@dataclass(frozen=True)
class BatchShape:
    """Size of a simulated batch."""

    rows: int
    """Number of register rows."""
    warps: int
    """Warps of the batch."""
    warps_per_block: int
    """Warps per block."""
    ranks: int
    """Blocks of a cluster, adjacent in the batch."""
    multiplies: bool
    """Whether there are products of warpgroups."""


class Clocks:
    """Clocks of all warps of a batch."""

    def __init__(
        self, shape: BatchShape, latencies: Latencies, copy_latency: float, use: PipeUse, stalls: Stalls | None = None
    ) -> None:
        """Start all warps at the same time.

        Args:
            shape: registers and warps of the batch.
            latencies: latencies of the chip.
            copy_latency: clocks until an asynchronous copy without contention has arrived.
            use: use of pipes by the instructions.
            stalls: records the instructions at which warps wait; None if not requested.
        """
        rows, warps, blocks = shape.rows, shape.warps, shape.warps // shape.warps_per_block
        self.stalls, self.ranks = stalls, shape.ranks
        self.ready = np.zeros((rows, warps))
        # Products of a warpgroup may use each other's unfinished accumulators; other instructions wait until these
        # times.
        self.early = np.zeros((rows, warps)) if shape.multiplies else None
        self.clock = np.zeros(warps)
        self.ordered = np.zeros(warps)
        self.arrival = np.zeros((BARRIERS + 1, blocks))
        self.passing = np.full(warps, -1)
        self.copies, self.products, self.bulk = Groups(warps), Groups(warps), Groups(warps)
        self.pending, self.sent = np.zeros(warps), np.zeros(warps)
        self.copy_demand, self.copy_demand_at = np.zeros(warps), np.full(warps, np.inf)
        self.products_done = np.zeros(warps)
        self.block = np.repeat(np.arange(blocks), shape.warps_per_block)
        self.landed = np.zeros(blocks)
        self.latencies, self.copy_latency, self.products_wait = latencies, copy_latency, use.products_wait
        self.bulk_latency = latencies.copy_l2 if copy_latency <= latencies.l2 else latencies.copy_dram
        self.sms = None if use.demands is None else [Pipes(len(NAMES)) for _ in range(blocks)]
        self.contention_factor = 1.0 if use.demands is None else use.demands.contention_factor
        self.busy: dict[str, Array] = {}
        self._waits = np.zeros((len(CAUSES), warps))
        self.waits = dict(zip(CAUSES, self._waits, strict=True))

    def wait_for(self, warps: Array, event: Array) -> None:
        """Let warps wait until an event of their blocks, given the clock of the event in each block."""
        late = np.maximum(event[self.block[warps]] - self.clock[warps], 0.0)
        self.clock[warps] += late
        self.ordered[warps] += late
        self.waits["async_copy"][warps] += late

    def arrived(self, mask: Array | None, reach: float, *, copied: bool) -> Array:
        """Return when what the warps in a mask have just issued arrives at barrier objects, for each block.

        Another block of the cluster may arrive or copy, so all blocks of a cluster see the last arrival among them.

        Args:
            mask: the warps; None for all.
            reach: additional clocks of an arrival at another block.
            copied: whether bulk copies arrive, instead of the warps.
        """
        if copied:
            found = self.landed + self.bulk_latency
        else:
            found = np.zeros(self.landed.size)
            warps = np.arange(self.clock.size) if mask is None else np.flatnonzero(mask)
            np.maximum.at(found, self.block[warps], self.clock[warps] + reach)
        return np.repeat(found.reshape(-1, self.ranks).max(1), self.ranks)

    def _issue_bulk(self, at: Array | slice, when: Array, clocks: float) -> None:
        """Queue bulk copies of warps at the port to L2 of their SM.

        Args:
            at: the warps.
            when: clock at which each of them issues its copies.
            clocks: clocks for which the copies of one warp occupy the port.
        """
        warps = np.arange(self.clock.size)[at]
        for block in np.unique(self.block[warps]):
            here = self.block[warps] == block
            done = float(when[here].max())
            if self.sms is not None:
                done = self.sms[block].queue(L2, done, clocks * int(here.sum()))
            self.landed[block] = max(self.landed[block], done)
            self.sent[warps[here]] = self.landed[block]

    def run(self, plan: SegmentPlan, mask: Array | None, known: MeanTimes) -> None:
        """Simulate one segment for the warps in a mask (None for all), and record the duration of the segment."""
        at: Array | slice = slice(None) if mask is None or mask.all() else np.flatnonzero(mask)
        came, waited = float(self.clock[at].mean()), self._waits[:, at].mean(1)
        self._pass_barrier(at)
        start = self.clock[at].copy()
        self._steps(plan, at, start)
        end = self.clock[at].copy()
        known.simulations += 1
        known.inner += float((end - start).mean())
        late = self.ready[plan.results] if isinstance(at, slice) else self.ready[plan.results[:, None], at]
        known.late = (late - end).mean(1)[:, None]
        self._contend(plan, at, start)
        known.whole += float(self.clock[at].mean()) - came
        known.waits += self._waits[:, at].mean(1) - waited
        if self.stalls is not None:
            self.stalls.add_simulated(known.stalls, start.size)

    def skip(self, plan: SegmentPlan, mask: Array | None, known: MeanTimes, *, whole: bool) -> None:
        """Advance warps by a segment's mean time; with ``whole``, the time includes waits for barriers and pipes."""
        at: Array | slice = slice(None) if mask is None or mask.all() else np.flatnonzero(mask)
        if not whole:
            self._pass_barrier(at)
        start = self.clock[at].copy()
        if plan.copies:
            self._issue_bulk(at, start, plan.copies)
        self.clock[at] += (known.whole if whole else known.inner) / known.simulations
        of_causes = slice(None) if whole else slice(_MEMORY, _MEMORY + 1)
        self._waits[of_causes, at] += (known.waits[of_causes] / known.simulations)[:, None]
        if self.stalls is not None:
            self.stalls.add_skipped(known.stalls, start.size, known.simulations, whole=whole)
        ready = self.clock[at] + known.late
        for rows in (self.ready, self.early):
            if rows is not None:
                rows[plan.results if isinstance(at, slice) else (plan.results[:, None], at)] = ready
        if not whole:
            self._contend(plan, at, start)

    def _contend(self, plan: SegmentPlan, at: Array | slice, start: Array) -> None:
        """Delay warps that ran a segment until the pipes have had time for it."""
        if self.sms is None or plan.demand is None:
            return
        for block, warps, begin in self._simultaneous(at, start):
            end = float(self.clock[warps].max())
            late = self.sms[block].share(begin, end, plan.demand * len(warps)) - end
            if late > 0:
                self.clock[warps] += late
                self.ordered[warps] += late
                self.waits["pipes"][warps] += late
                for rows in (self.ready, self.early):
                    if rows is not None:
                        rows[plan.results[:, None], warps] += late
                meeting = warps[self.passing[warps] >= 0]
                meets = self._place_of(self.passing[meeting], self.block[meeting])
                np.maximum.at(self.arrival, (self.passing[meeting], meets), self.clock[meeting] - 1.0)

    def _simultaneous(self, at: Array | slice, start: Array) -> Iterator[tuple[int, Array, float]]:
        """Yield the warps that arrived at about the same time, by block, and the first arrival among them."""
        warps = np.arange(self.clock.size)[at]
        order = np.lexsort((start, self.block[warps]))
        slots = self.block[warps[order]], start[order] // SIMULTANEOUS
        cuts = np.flatnonzero(np.diff(slots[0]) | (np.diff(slots[1]) != 0)) + 1
        for part in np.split(order, cuts):
            yield int(self.block[warps[part[0]]]), warps[part], float(start[part].min())

    def _steps(self, plan: SegmentPlan, at: Array | slice, start: Array) -> None:
        """Issue the instructions of a segment."""
        last, issued = start.copy(), 0.0
        waited = np.zeros(start.size)
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
            if step.kind in _ORDERED:
                when = np.maximum(when, ordered)
            if step.kind in _PRODUCTS:
                when = self._product(step, at, when)
                ordered = np.maximum(ordered, when) if step.kind == "product_wait" else ordered
                if self.stalls is not None:
                    self.stalls.add_delay(step.number, np.maximum(when - np.maximum(last, start + issued - 1.0), 0.0))
                last = np.maximum(last, when)
                continue
            for source in step.sources:
                when = np.maximum(when, ready[source][at])
            if step.hold is not None:
                until = self.busy.setdefault(step.hold.pipe, np.zeros(self.clock.size))
                when = np.maximum(when, until[at])
                until[at] = when + step.hold.clocks
            if step.kind == "wait":
                if step.keep == UNGROUPED:
                    self._close(at)
                until = self.copies.done(at, max(step.keep, 0))
                waited += np.maximum(until - when, 0.0)
                when = ordered = np.maximum(when, until)
            elif step.kind == "async":
                self.pending[at] = np.maximum(self.pending[at], when + step.latency)
                if step.copies:
                    self.copy_demand[at] += step.copies
                    self.copy_demand_at[at] = np.minimum(self.copy_demand_at[at], when)
            elif step.kind == "commit":
                self._close(at)
            elif step.kind == "bulk":
                self._issue_bulk(at, when, step.copies)
            elif step.kind == "bulk_commit":
                self.bulk.commit(at, self.sent)
            elif step.kind == "bulk_wait":
                until = self.bulk.done(at, step.keep)
                until = np.where(until > 0, until + step.latency, 0.0)
                waited += np.maximum(until - when, 0.0)
                when = ordered = np.maximum(when, until)
            elif step.kind == "sleep":
                when = ordered = np.maximum(when, last) + step.latency
                start, issued = when.copy(), 0.0
            elif step.kind == "fence":
                ordered = when + step.latency
            elif step.kind == "barrier":
                self._arrive(at, step.keep, np.maximum(when, last))
                if self.stalls is not None:
                    self.stalls.arrived(step.number, at)
            for result in step.results:
                ready[result, at] = when + step.latency
                if self.early is not None:
                    self.early[result, at] = when + step.latency
            if self.stalls is not None:
                self.stalls.add_delay(step.number, np.maximum(when - np.maximum(last, start + issued - 1.0), 0.0))
            last = np.maximum(last, when)
        self.waits["async_copy"][at] += waited
        memory = np.maximum(last - start - issued - waited, 0.0)
        self.waits["memory"][at] += memory
        if self.stalls is not None:
            self.stalls.segment(float((waited + memory).sum()))
        self.clock[at] = last + 1.0
        self.ordered[at] = ordered

    def _close(self, at: Array | slice) -> None:
        """Close a group with the copies that warps issued since their previous group."""
        if self.sms is not None:
            self._transfer(at, self.sms)
        self.copies.commit(at, self.pending)

    def _transfer(self, at: Array | slice, sms: list[Pipes]) -> None:
        """Transfer the issued copies of warps through the L2 ports of their SMs."""
        demanding = np.arange(self.clock.size)[at]
        demanding = demanding[self.copy_demand[demanding] > 0]
        if not demanding.size:
            return
        for block, warps, start in self._simultaneous(demanding, self.copy_demand_at[demanding]):
            done = sms[block].queue(L2, start, float(self.copy_demand[warps].sum())) + self.copy_latency
            self.pending[warps] = np.maximum(self.pending[warps], done)
        self.copy_demand[demanding], self.copy_demand_at[demanding] = 0.0, np.inf

    def _pass_barrier(self, at: Array | slice) -> None:
        number = self.passing[at]
        if not (number >= 0).any():
            return
        block = self._place_of(number, self.block[at])
        latency = np.where(number == CLUSTER, self.latencies.cluster_barrier, self.latencies.barrier)
        opened = np.where(number >= 0, self.arrival[np.maximum(number, 0), block] + latency, 0.0)
        waited = np.maximum(opened - self.clock[at], 0.0)
        self.waits["barrier"][at] += waited
        if self.stalls is not None:
            self.stalls.met(at, waited)
        self.clock[at] = np.maximum(self.clock[at], opened)
        self.passing[at] = -1

    def _arrive(self, at: Array | slice, number: int, when: Array) -> None:
        if number != CLUSTER:
            number %= BARRIERS
        np.maximum.at(self.arrival[number], self._place_of(np.array(number), self.block[at]), when)
        self.passing[at] = number

    def _place_of(self, number: Array, block: Array) -> Array:
        """Return the indices that store arrivals at barriers; for a cluster's barrier, those of its first block."""
        if self.ranks == 1:
            return block
        return np.where(number == CLUSTER, block // self.ranks * self.ranks, block)

    def _product(self, step: Step, at: Array | slice, when: Array) -> Array:
        """Start products of a warpgroup, close their group or wait for them; return when the warp continues."""
        if step.kind == "product":
            assert self.early is not None
            for source in step.sources:
                when = np.maximum(when, self.early[source][at])
            until = self.busy.setdefault("tensor", np.zeros(self.clock.size))
            begin = np.maximum(when, until[at])
            until[at] = begin + (step.hold.clocks if step.hold else 0.0)
            if self.sms is not None and step.hold is not None:
                # For each warp the share of a quarter of the pipe equals the share of the whole pipe for four warps.
                for block, warps, start in self._simultaneous(at, begin):
                    clocks = step.hold.clocks * self.contention_factor * len(warps) / WARPGROUP
                    until[warps] = np.maximum(until[warps], self.sms[block].queue(TENSOR, start, clocks))
            self.products_done[at] = until[at] + self.latencies.product
            for result in step.results:
                self.ready[result, at] = self.products_done[at]
            if self.products_wait:  # Other instructions between the products may continue.
                until[at] = self.products_done[at]
        elif step.kind == "product_commit":
            self.products.commit(at, self.products_done)
        else:
            when = np.maximum(when, self.products.done(at, step.keep))
        return when


class Groups:
    """Times at which the groups of a warp's asynchronous work end."""

    def __init__(self, warps: int) -> None:
        self.end = np.zeros((GROUPS, warps))
        self.count = np.zeros(warps, np.int64)
        self.warps = np.arange(warps)

    def commit(self, at: Array | slice, pending: Array) -> None:
        """Close a group of work that ends at these clocks."""
        warps = self.warps[at]
        slot = self.count[warps] % GROUPS
        before = self.end[(slot - 1) % GROUPS, warps]
        self.end[slot, warps] = np.maximum(before, pending[warps])
        self.count[warps] += 1

    def done(self, at: Array | slice, keep: int) -> Array:
        """Return the clock at which all groups except the latest groups end."""
        warps = self.warps[at]
        last = self.count[warps] - keep - 1
        return np.where(last >= 0, self.end[last % GROUPS, warps], 0.0)
