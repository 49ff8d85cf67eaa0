"""Time of one block on an SM, from latencies, waits and the pipes that its warps share.

The machine records, in order, which warps ran which segment. This module simulates the record with one clock per warp
(`evokern.simt.time_model.clocks`).

Once a segment that does not wait for other warps has been simulated several times with the same predecessor, it takes
its mean time. Loops converge after a few iterations. The first instructions of a kernel, which load, do not affect the
mean of later segments.

`evokern.simt.time_model.prediction` combines the result with the work of the whole chip.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from evokern.ptx.operands import registers_of
from evokern.ptx.program import PtxProgram
from evokern.ptx.register_accesses import is_product
from evokern.ptx.segments import Segment
from evokern.ptx.syntax import Address, Immediate, Instruction
from evokern.simt.arrays import Array
from evokern.simt.counters import BarrierWait, BatchRecord
from evokern.simt.time_model.clocks import CLUSTER, UNGROUPED, BatchShape, Clocks, MeanTimes, SegmentPlan, Step
from evokern.simt.time_model.latencies import Latencies, cost_of
from evokern.simt.time_model.pipes import PipeUse
from evokern.simt.time_model.stalls import Stalls

MAX_STEPS = 40_000
"""Simulated instructions after which every known segment takes its mean time, even with barriers and copies."""
SETTLED = 8
"""Number of simulations of a segment, with the same predecessor, before its mean time is used."""
POLL_STEPS = 4
"""Maximum instructions of a loop that only polls a barrier object; failed rounds of it take no time of their own."""
_WAITS = frozenset({"wait", "bulk_wait", "product_wait"})
_MEETING = _WAITS | {"barrier", "async", "commit", "bulk", "bulk_commit", "fence", "product", "product_commit"}
"""Kinds of instructions whose clocks affect other warps or later segments."""


@dataclass(frozen=True)
class BlockTimes:
    """Result of the simulation, in SM clocks, per simulated block."""

    blocks: tuple[float, ...]
    """Time of each block, from its start to the end of its last warp."""
    waits: Mapping[str, float]
    """Mean clocks that a warp waited, by cause (`clocks.CAUSES`)."""
    stalls: Mapping[int, float] = field(default_factory=dict)
    """Instruction number → mean clocks that a warp waited there, without waits for pipes; empty unless requested."""


class Timeline:
    """Simulation of one launch from its recorded run."""

    def __init__(
        self, program: PtxProgram, latencies: Latencies, extra: Mapping[int, float], l2_latency: float, use: PipeUse
    ) -> None:
        """Prepare the simulation.

        Args:
            program: the program that ran.
            latencies: latencies of the chip.
            extra: instruction number → additional clocks (bank conflicts, uncoalesced sectors).
            l2_latency: latency of global memory for this workload, clocks (L2 or DRAM).
            use: use of pipes by the instructions.
        """
        self.program, self.latencies, self.extra, self.l2_latency = program, latencies, extra, l2_latency
        self.use = use
        self._rows: dict[tuple[int, str], int] = {}
        self._plans: dict[int, SegmentPlan] = {}

    def walk(self, record: BatchRecord, warps_per_block: int, *, ranks: int = 1, stalls: bool = False) -> BlockTimes:
        """Simulate the record of one batch.

        Args:
            record: execution order.
            warps_per_block: warps of a block.
            ranks: blocks of a cluster, adjacent in the record.
            stalls: record the instructions at which warps wait.
        """
        noted = Stalls(record.warps) if stalls else None
        for index in {segment for segment, _ in record.steps}:
            self._plan(self.program.segments[index])
        multiplies = any(is_product(item) for item in self.program.instructions)
        shape = BatchShape(len(self._rows) + 1, record.warps, warps_per_block, ranks, multiplies)
        state = Clocks(shape, self.latencies, self.l2_latency, self.use, noted)
        mean_times: dict[tuple[int, int], MeanTimes] = {}
        done, before = 0, -1
        awaited = {wait.event: wait.copied for wait in record.waits}
        waits_at: dict[int, list[BarrierWait]] = {}
        for wait in record.waits:
            waits_at.setdefault(wait.step, []).append(wait)
        events: dict[int, Array] = {}
        for number, (segment, mask) in enumerate(record.steps):
            if number in record.spins and len(self._plans[segment].steps) <= POLL_STEPS:
                continue
            for wait in waits_at.get(number, ()):
                if wait.event in events:
                    state.wait_for(wait.warps, events[wait.event])
            plan = self._plans[segment]
            known = mean_times.setdefault((before, segment), MeanTimes())
            before = segment
            if known.simulations and done > MAX_STEPS:
                state.skip(plan, mask, known, whole=True)
            elif known.simulations >= SETTLED and plan.alone:
                state.skip(plan, mask, known, whole=False)
            else:
                state.run(plan, mask, known)
                done += len(plan.steps)
            if number in awaited:
                events[number] = state.arrived(mask, plan.reach, copied=awaited[number])
        ends = state.clock.reshape(-1, warps_per_block).max(1)
        waits = {cause: float(clocks.mean()) for cause, clocks in state.waits.items()}
        return BlockTimes(tuple(float(end) for end in ends), waits, {} if noted is None else noted.of_mean_warp)

    def _plan(self, segment: Segment) -> None:
        if segment.index in self._plans:
            return
        instructions = segment.routine.function.instructions[segment.start : segment.stop]
        found = [self._step(segment, instruction, segment.base + at) for at, instruction in enumerate(instructions)]
        steps = tuple(step for step in found if step is not None)
        written = dict.fromkeys(row for step in steps for row in step.results)
        demand = None
        if self.use.demands is not None:
            demand = self.use.demands.in_line[:, segment.base : segment.base + len(found)].sum(1)
        self._plans[segment.index] = SegmentPlan(
            steps,
            all(step.kind not in _MEETING for step in steps),
            np.array([*written], np.int64),
            demand if demand is not None and demand.any() else None,
            sum(step.copies for step in steps if step.kind == "bulk"),
            self.latencies.cluster_arrival if any(map(_reaches_others, instructions)) else 0.0,
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
        if cost.kind == "bulk_wait" and not instruction.has("read"):
            latency = self.l2_latency
        if cost.kind in _WAITS or cost.kind == "barrier":
            keep = UNGROUPED if instruction.has("wait_all") else int(literal)
            if cost.kind == "barrier" and instruction.has("cluster"):
                keep = CLUSTER
        latency += self.extra.get(number, 0.0)
        copies = float(self.use.demands.copies[number]) if self.use.demands is not None else 0.0
        reads, writes = tuple(dict.fromkeys(rows[0])), tuple(rows[1])
        return Step(
            kind=cost.kind, latency=latency, sources=reads, results=writes, keep=keep,
            hold=self.use.holds.get(number), copies=copies, number=number,
        )  # fmt: skip

    def _row(self, segment: Segment, name: str) -> int:
        return self._rows.setdefault((segment.routine.number, name), len(self._rows))


def _reaches_others(instruction: Instruction) -> bool:
    """Return whether an instruction arrives at a barrier object of another block."""
    return instruction.opcode == "mbarrier" and instruction.has("shared::cluster")
