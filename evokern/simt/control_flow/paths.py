"""Paths that launches took: rounds of each loop and sides of each branch.

A fault may show only when a loop repeats: data of the second round meets data of the first. So the sanitizer's result
is worth something for a loop only if the loop took several rounds while the sanitizer watched. A back edge is a branch
to the same or an earlier segment; the segment that it reaches is the loop's header. Each lane counts its back edges
since it entered the loop. A loop's rounds are the most of any lane, plus one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from evokern.ptx.lines import SourceLocation
from evokern.ptx.program import PtxProgram
from evokern.ptx.segments import Routine, Segment
from evokern.simt.arrays import Array
from evokern.simt.batch import Batch
from evokern.simt.control_flow.loops import ROUNDS, LoopRounds, loop_segments, loops_of, origin_of


@dataclass(frozen=True, slots=True)
class Paths:
    """Paths that one or several launches took."""

    loops: Mapping[tuple[str, int, int], LoopRounds] = field(default_factory=dict)
    """Loops by their place."""
    branches: Mapping[tuple[str, int], frozenset[bool]] = field(default_factory=dict)
    """(file, line) → sides that lanes took at conditional branches there: jumped or not. Only branches that the launch
    decides are listed, and not those of loops."""

    def merged(self, *others: Paths) -> Paths:
        """Return these paths and others together."""
        loops, branches = dict(self.loops), dict(self.branches)
        for other in others:
            for place, loop in other.loops.items():
                loops[place] = loops[place].merged(loop) if place in loops else loop
            for line, sides in other.branches.items():
                branches[line] = branches.get(line, frozenset()) | sides
        return Paths(loops, branches)


NO_PATHS = Paths()
"""Paths of no launch."""


def few_rounds(paths: Paths) -> list[LoopRounds]:
    """Return the loops that the launch ends and that ran but did not repeat often enough."""
    return [loop for loop in paths.loops.values() if loop.cause == "launch" and 0 < loop.rounds < ROUNDS]


@dataclass(slots=True, eq=False)
class LoopCounter:
    """Counter for the iterations of one loop in a batch."""

    header: int
    """Segment that every round starts with."""
    last: int
    """Last segment with a back edge to the header."""
    back_edges: Array
    """Back edges of each lane since it entered the loop."""
    inner: list[LoopCounter] = field(default_factory=list)
    """Loops that a new round enters again."""
    most: int = 0
    """Largest number of back edges of a lane."""
    settled: bool = False
    """Whether this loop and all inner ones have repeated, so that nothing is left to count."""

    def repeat(self, mask: Array) -> None:
        """Count a back edge of some lanes."""
        if self.most < ROUNDS - 1:
            self.back_edges += mask
            self.most = int(self.back_edges.max())
        for loop in self.inner:
            loop.back_edges[mask] = 0
        self.settled = self.most >= ROUNDS - 1 and all(loop.settled for loop in self.inner)


@dataclass(slots=True, eq=False)
class BranchSides:
    """Sides of one conditional branch that lanes took."""

    jumped: bool = False
    """Whether a lane jumped."""
    fell: bool = False
    """Whether a lane continued behind the branch."""


class PathRecorder:
    """Recorder of the paths of one batch."""

    def __init__(self, batch: Batch) -> None:
        self._program = batch.program
        self._loops = {
            header: LoopCounter(header, latches[-1], np.zeros(batch.lanes, np.uint8))
            for header, latches in loop_segments(batch.program).items()
        }
        for loop in self._loops.values():
            loop.inner = [one for one in self._loops.values() if loop.header < one.header <= loop.last]
        self._branches: dict[int, BranchSides] = {}
        self._of_routine: dict[int, list[LoopCounter]] = {}
        for header, loop in self._loops.items():
            self._of_routine.setdefault(batch.program.segments[header].routine.number, []).append(loop)

    def load(self) -> None:
        """Prepare for new blocks; the rounds so far are kept."""
        for loop in self._loops.values():
            loop.back_edges.fill(0)

    def branch(self, number: int) -> BranchSides:
        """Return the record of a conditional branch, by its number in the program."""
        return self._branches.setdefault(number, BranchSides())

    def loop(self, segment: Segment, target: int) -> LoopCounter | None:
        """Return the counter of the loop that a branch from a segment to another one repeats, if any."""
        return self._loops.get(target) if target <= segment.index else None

    def enter(self, routine: Routine, mask: Array) -> None:
        """Prepare for lanes that call a function: they enter its loops again."""
        for loop in self._of_routine.get(routine.number, ()):
            loop.back_edges[mask] = 0

    def paths(self, ran: Iterable[int]) -> Paths:
        """Return the paths so far.

        Args:
            ran: numbers of the segments that ran.
        """
        program, executed = self._program, set(ran)
        loops: dict[tuple[str, int, int], LoopRounds] = {}
        for loop, header in loops_of(program):
            counter = self._loops[header]
            here = replace(loop, rounds=min(counter.most + 1, ROUNDS) if header in executed else 0)
            loops[here.place] = loops[here.place].merged(here) if here.place in loops else here
        of_loops = {(loop.file, loop.line) for loop in loops.values()}
        branches: dict[tuple[str, int], frozenset[bool]] = {}
        for number, sides in self._branches.items():
            guard, location = program.instructions[number].guard, _location(program, number)
            place = location.file, location.line
            assert guard is not None  # only conditional branches are recorded
            if place[1] and place not in of_loops and origin_of(program, program.owners[number], guard)[0] == "launch":
                seen = {side for side, was in ((True, sides.jumped), (False, sides.fell)) if was}
                branches[place] = branches.get(place, frozenset()) | seen
        return Paths(loops, branches)


def _location(program: PtxProgram, number: int) -> SourceLocation:
    return program.lines.source_location(program.instructions[number].location)
