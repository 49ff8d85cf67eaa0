"""From an instruction and a lane to a finding: coordinates, source line, the launch it belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from evokern.simt.arrays import Array
from evokern.simt.lines import NOWHERE, Spot

if TYPE_CHECKING:
    from evokern.simt.findings import Collector
    from evokern.simt.program import Program
    from evokern.simt.settings import Geometry


class Reporter:
    """What the machine knows about its lanes, turned into findings.

    Attributes:
        program: whose instructions are numbered.
        geometry: grid and block.
        collectors: one per launch.
        launch: launch of each lane.
        block_id: linear block id of each lane.
        thread: linear thread index of each lane.
    """

    program: Program
    geometry: Geometry
    collectors: Sequence[Collector]
    launch: Array
    block_id: Array
    thread: Array

    def coordinates(self, lane: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """Return (block, thread) indices of a lane."""
        grid, block = self.geometry.grid, self.geometry.block
        at, thread = int(self.block_id[lane]), int(self.thread[lane])
        return (
            (at % grid[0], at // grid[0] % grid[1], at // (grid[0] * grid[1])),
            (thread % block[0], thread // block[0] % block[1], thread // (block[0] * block[1])),
        )

    def spot_of(self, number: int) -> Spot:
        """Return the source line of an instruction of the program, with its file."""
        return self.program.lines.spot(self.program.instructions[number].location) if number >= 0 else NOWHERE

    def report(
        self,
        kind: str,
        number: int,
        lane: int,
        *,
        count: int = 1,
        address: int = 0,
        allocation: str = "",
        offset: int = 0,
        other: int = -1,
        detail: str = "",
    ) -> None:
        """Record a finding at an instruction, for a lane; ``other`` is the other party's instruction."""
        block, thread = self.coordinates(lane)
        text = self.program.instructions[number].text if number >= 0 else ""
        self.collectors[int(self.launch[lane])].add(
            kind, self.spot_of(number), text, block=block, thread=thread, address=address, allocation=allocation,
            offset=offset, other=self.spot_of(other), count=count, detail=detail,
        )  # fmt: skip

    def report_lanes(self, kind: str, number: int, lanes: Array, *, detail: str = "", other: int = -1) -> None:
        """Record a finding for several lanes without addresses."""
        if lanes.size:
            self.report(kind, number, int(lanes[0]), count=int(lanes.size), detail=detail, other=other)
