"""Lanes of one batch of blocks: their indices, registers and active masks, and texts for findings.

The machine and all modules that observe lanes use this class.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from evokern.ptx.lines import UNKNOWN_LOCATION, SourceLocation
from evokern.ptx.program import PtxProgram
from evokern.simt.arrays import Active, Array
from evokern.simt.registers import RegisterFile
from evokern.simt.sanitizer.findings import (
    ERROR,
    NOWHERE,
    SAME_CLUSTER,
    Access,
    Collector,
    Finding,
    FindingSite,
    KnownReads,
    Reads,
)
from evokern.simt.settings import Geometry, Options


@dataclass(frozen=True, slots=True)
class Occurrence:
    """Lanes that have a finding at an instruction."""

    number: int
    """The instruction; negative if none."""
    lane: int
    """The first lane."""
    count: int = 1
    """Number of lanes."""
    other: int = -1
    """Instruction of the other access; negative if none."""

    @classmethod
    def of(cls, number: int, lanes: Array, other: int = -1) -> Occurrence:
        """Return the occurrence for an instruction and its distinct lanes."""
        return cls(number, int(lanes[0]), int(lanes.size), other)


class LaunchStopped(Exception):  # noqa: N818 - not an error: a finding ended the launch
    """Early end of a launch: trap, misaligned access or instruction limit."""


class WaitsOutside(LaunchStopped):
    """Early end of a batch that hung, although blocks of the launch outside the batch could end its wait."""


class Batch:
    """Lanes of several blocks, ordered by block and warp, 32 lanes per warp.

    Attributes:
        program: the program.
        geometry: grid, block, and blocks of the batch.
        options: options of the launch.
        lanes: number of lanes.
        registers: register rows of the lanes.
        block_slot: index of each lane's block in the batch.
        thread: linear thread index of each lane in its block.
        cluster_thread: linear thread index of each lane in its cluster.
        launch: launch of each lane.
        block_id: linear block id of each lane in its grid.
        exists: lanes that are threads; the others pad a block's last warp.
        everyone: number of threads.
        live: lanes that have not exited the kernel.
        live_count: number of live lanes.
        active: lanes that execute now.
        stamp: current logical time.
        printed: launch → (lane, text) of device printf, in order.
    """

    def __init__(
        self, program: PtxProgram, geometry: Geometry, options: Options, collectors: Sequence[Collector]
    ) -> None:
        """Create the lanes of a batch.

        Args:
            program: the program.
            geometry: grid, block, and blocks of the batch.
            options: options of the launch.
            collectors: collector of each launch's findings.
        """
        self.program = program
        self.geometry = geometry
        self.options = options
        self.lanes = geometry.blocks * geometry.width
        self.registers = RegisterFile(program.rows, self.lanes)
        self.block_slot = np.repeat(np.arange(geometry.blocks), geometry.width)
        self.thread = np.tile(np.arange(geometry.width), geometry.blocks)
        self.cluster_thread = np.tile(np.arange(geometry.cluster_width), geometry.clusters)
        self.launch = np.zeros(self.lanes, np.int64)
        self.block_id = np.zeros(self.lanes, np.int64)
        self.exists = np.tile(np.arange(geometry.width) < geometry.threads, geometry.blocks)
        self.live = self.exists.copy()
        self.live_count = self.thread_count = int(np.count_nonzero(self.live))
        self.active = Active(self.live, self.live_count, self.live_count)
        self.stamp: Callable[[], int] = lambda: 0
        self.printed: dict[int, list[tuple[int, str]]] = {}
        self._collectors = collectors
        self._carry: Array | None = None

    def load(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Replace the blocks of this batch by new blocks.

        Args:
            pairs: (launch, linear block id) for each block of the geometry.
        """
        width = self.geometry.width
        self.launch[:] = np.repeat([launch for launch, _ in pairs], width)
        self.block_id[:] = np.repeat([block for _, block in pairs], width)
        self.live[:] = self.exists
        self.live_count = self.thread_count
        self.registers.load(self.program.constant_rows)

    def restrict(self, active: Active, good: Array) -> Active:
        """Return the active lanes that satisfy a condition; the condition has one value per active lane."""
        mask = np.zeros(self.lanes, np.bool_)
        mask[active.lanes[good]] = True
        return Active(mask, int(np.count_nonzero(good)), self.live_count)

    def carry(self) -> Array:
        """Return the carry flag (PTX ISA 9.7.2), a hidden predicate register."""
        if self._carry is None:
            self._carry = np.zeros(self.lanes, np.bool_)
        return self._carry

    def leave(self, mask: Array, count: int) -> None:
        """Remove the lanes that have returned from the kernel."""
        self.live[mask] = False
        self.live_count -= count

    def stop(self) -> None:
        """Report a finding with the reason, then end the launch early."""
        raise LaunchStopped

    # ---- findings

    def coordinates(self, lane: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """Return the block index and the thread index of a lane."""
        grid, block = self.geometry.grid, self.geometry.block
        at, thread = int(self.block_id[lane]), int(self.thread[lane])
        return (
            (at % grid[0], at // grid[0] % grid[1], at // (grid[0] * grid[1])),
            (thread % block[0], thread // block[0] % block[1], thread // (block[0] * block[1])),
        )

    def describe_thread(self, lane: int, thread: int, *, warp: bool = False) -> str:
        """Describe another thread of the same cluster, for a finding.

        Args:
            lane: the lane that has the finding.
            thread: index of the other thread in the cluster.
            warp: whether both are in one warp.
        """
        width, cluster_width = self.geometry.width, self.geometry.cluster_width
        other = lane // cluster_width * cluster_width + thread
        if other // width == lane // width:
            return f"thread {thread % width} of the same {'warp' if warp else 'block'}"
        return f"thread {thread % width} of block {self.coordinates(other)[0]} {SAME_CLUSTER}"

    def source_location(self, number: int) -> SourceLocation:
        """Return the source location of an instruction of the program."""
        return (
            self.program.lines.source_location(self.program.instructions[number].location)
            if number >= 0
            else UNKNOWN_LOCATION
        )

    def report(
        self,
        kind: str,
        at: Occurrence,
        access: Access = NOWHERE,
        *,
        detail: str = "",
        level: str = ERROR,
        reads: Reads | None = None,
    ) -> None:
        """Record a finding of lanes at an instruction.

        Args:
            kind: kind of the finding.
            at: the instruction and the lanes.
            access: address that the first lane accesses, and its allocation.
            detail: text about this case.
            level: `error` or `warning`.
            reads: the invalid reads, if any.
        """
        block, thread = self.coordinates(at.lane)
        site = FindingSite(
            at=self.source_location(at.number),
            instruction=self.program.instructions[at.number].text if at.number >= 0 else "",
            other=self.source_location(at.other),
        )
        access = replace(access, block=block, thread=thread)
        found = Finding(kind=kind, hint=detail, level=level, count=at.count, site=site, access=access)
        self._collectors[int(self.launch[at.lane])].add(found, self._reads(reads))

    def _reads(self, reads: Reads | None) -> tuple[int, KnownReads] | None:
        if reads is None:
            return None
        when = np.full(reads.lanes.size, self.stamp()) if reads.when is None else reads.when
        return reads.number, (self.global_lane_ids(reads.lanes), when, reads.places)

    def global_lane_ids(self, lanes: Array) -> Array:
        """Return ids for lanes that are unique across all batches of the launches."""
        blocks = int(np.prod(self.geometry.grid))
        named: Array = (self.launch[lanes] * blocks + self.block_id[lanes]) * 1024 + self.thread[lanes]
        return named

    def report_lanes(self, kind: str, number: int, lanes: Array, *, detail: str = "", other: int = -1) -> None:
        """Record a finding of several lanes, without an address."""
        if lanes.size:
            self.report(kind, Occurrence.of(number, lanes, other), detail=detail)
