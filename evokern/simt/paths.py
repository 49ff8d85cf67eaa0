"""Paths that launches took: rounds of each loop and sides of each branch.

A fault may show only when a loop repeats: data of the second round meets data of the first. So the sanitizer's result
is worth something for a loop only if the loop took several rounds while the sanitizer watched. A back edge is a branch
to the same or an earlier segment; the segment that it reaches is the loop's header. Each lane counts its back edges
since it entered the loop. A loop's rounds are the most of any lane, plus one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from evokern.ptx.lines import SourceLocation
from evokern.ptx.program import PtxProgram
from evokern.ptx.register_accesses import registers_accessed
from evokern.ptx.segments import Routine, Segment
from evokern.ptx.syntax import Address, Instruction, Register, Symbol
from evokern.simt.arrays import Array
from evokern.simt.batch import Batch

ROUNDS = 3
"""Rounds after which a loop counts as repeated; further rounds are not counted. The second round is the first to meet
data of an earlier round, and the third is the first to meet a second buffer again."""

Cause = Literal["launch", "constant", "data"]
"""Origin of the condition that ends a loop: the launch's arguments or grid, constants and the block's shape alone, or
values in memory."""

_GRID = ("%ctaid", "%nctaid", "%gridid", "%nsmid", "%clusterid", "%nclusterid")
_DATA = frozenset({"atom", "vote", "match", "redux", "activemask", "mbarrier", "call", "bar", "barrier", "elect",
                   "ldmatrix", "mma", "wmma", "wgmma"})  # fmt: skip
ANY_PARAMETER = -1
"""Stands for an unknown parameter of the kernel, for example one that a called function receives."""


@dataclass(frozen=True, slots=True)
class LoopRounds:
    """Rounds of a loop of the source."""

    file: str
    """User header that contains the loop; empty for the source itself."""
    line: int
    """Line of the loop's condition; 0 if unknown."""
    depth: int
    """Number of loops on the same line that contain this one."""
    rounds: int
    """Most rounds of a lane, at most `ROUNDS`; 0 if the loop never ran. One round of an unrolled loop is several of the
    source."""
    cause: Cause
    """Origin of the condition that ends the loop."""
    parameters: frozenset[int] = frozenset()
    """Indices of the kernel's parameters that decide when the loop ends."""

    def text(self, source: str) -> str:
        """Return what the loop did at most.

        Args:
            source: name of the source file.
        """
        rounds = "1 round" if self.rounds == 1 else f"{self.rounds} rounds"
        return f"the loop on line {self.line} of {self.file or source} takes at most {rounds} as compiled"

    @property
    def place(self) -> tuple[str, int, int]:
        """Identity of the loop in every program that is compiled from the source."""
        return self.file, self.line, self.depth

    def merged(self, other: LoopRounds) -> LoopRounds:
        """Return the rounds of two programs or launches together."""
        causes: set[Cause] = {self.cause, other.cause}
        cause: Cause = "launch" if "launch" in causes else "constant" if causes == {"constant"} else "data"
        rounds = max(self.rounds, other.rounds)
        return replace(self, rounds=rounds, cause=cause, parameters=self.parameters | other.parameters)


@dataclass(frozen=True, slots=True)
class Paths:
    """Paths that one or several launches took."""

    loops: Mapping[tuple[str, int, int], LoopRounds] = field(default_factory=dict)
    """Loops by their place."""
    branches: Mapping[tuple[str, int], frozenset[bool]] = field(default_factory=dict)
    """(file, line) → sides that lanes took at conditional branches there: jumped or not. Only branches that the launch
    decides are listed, and not those of loops."""

    def merged(self, other: Paths) -> Paths:
        """Return the paths of both."""
        loops = dict(self.loops)
        for place, loop in other.loops.items():
            loops[place] = loops[place].merged(loop) if place in loops else loop
        branches = dict(self.branches)
        for line, sides in other.branches.items():
            branches[line] = branches.get(line, frozenset()) | sides
        return Paths(loops, branches)


NO_PATHS = Paths()
"""Paths of no launch."""


def few_rounds(paths: Paths) -> list[LoopRounds]:
    """Return the loops that the launch ends and that ran but did not repeat often enough."""
    return [loop for loop in paths.loops.values() if loop.cause == "launch" and 0 < loop.rounds < ROUNDS]


def merged(paths: Iterable[Paths]) -> Paths:
    """Return the paths of several launches together."""
    found = NO_PATHS
    for one in paths:
        found = found.merged(one)
    return found


@dataclass(slots=True, eq=False)
class LoopCounter:
    """Counter for the rounds of one loop in a batch."""

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
            if place[1] and place not in of_loops and _origin(program, program.owners[number], guard)[0] == "launch":
                seen = {side for side, was in ((True, sides.jumped), (False, sides.fell)) if was}
                branches[place] = branches.get(place, frozenset()) | seen
        return Paths(loops, branches)


def loop_segments(program: PtxProgram) -> dict[int, list[int]]:
    """Return the loops of a program: header segment → segments with a back edge to it, ascending."""
    found: dict[int, list[int]] = {}
    for segment in program.segments:
        target = _target(program, segment)
        if target is not None and target <= segment.index:
            found.setdefault(target, []).append(segment.index)
    return found


def loops_of(program: PtxProgram) -> Iterator[tuple[LoopRounds, int]]:
    """Yield the loops of a program without their rounds, each with its header segment."""
    places: dict[int, tuple[SourceLocation, int]] = {}
    for header, latches in loop_segments(program).items():
        last = latches[-1]
        places[header] = program.lines.source_location(_last(program, program.segments[last]).location), last
    for header, (location, last) in places.items():
        around = [one for one, (where, end) in places.items() if one < header and end >= last and where == location]
        cause, parameters = _cause(program, header, last)
        yield LoopRounds(location.file, location.line, len(around), 0, cause, parameters), header


def _location(program: PtxProgram, number: int) -> SourceLocation:
    return program.lines.source_location(program.instructions[number].location)


def _last(program: PtxProgram, segment: Segment) -> Instruction:
    return program.instructions[segment.base + segment.stop - segment.start - 1]


def _target(program: PtxProgram, segment: Segment) -> int | None:
    """Return the segment that a segment's branch leads to, or None."""
    last = _last(program, segment)
    if not segment.control or last.opcode != "bra" or not isinstance(last.operands[0], Symbol):
        return None
    return program.label_segment.get((segment.routine.number, last.operands[0].name))


def _cause(program: PtxProgram, header: int, last: int) -> tuple[Cause, frozenset[int]]:
    """Return what ends a loop, and the kernel's parameters that decide it."""
    routine = program.segments[header].routine
    causes: set[Cause] = set()
    parameters: set[int] = set()
    for index in range(header, last + 1):
        segment = program.segments[index]
        final = _last(program, segment)
        target = _target(program, segment)
        if not segment.control or final.guard is None:
            continue
        leaves = final.opcode in ("ret", "exit") or (
            target is not None and (not header <= target <= last or index == last or target == header)
        )
        if leaves:
            cause, used = _origin(program, routine, final.guard)
            causes.add(cause)
            parameters |= used
    return ("launch" if "launch" in causes else "constant" if causes == {"constant"} else "data"), frozenset(parameters)


def _origin(program: PtxProgram, routine: Routine, guard: Register) -> tuple[Cause, set[int]]:
    """Return what decides a predicate: every value that any instruction of the function may put into it."""
    writers: dict[str, list[int]] = {}
    for number, owner in enumerate(program.owners):
        if owner is routine:
            for name in registers_accessed(program.instructions[number], program.operations[number])[1]:
                writers.setdefault(name, []).append(number)
    names = [variable.name for variable in routine.function.params]
    waiting, seen = [guard.name], {guard.name}
    parameters: set[int] = set()
    grid = False
    while waiting:
        for number in writers.get(waiting.pop(), ()):
            item = program.instructions[number]
            if item.opcode == "ld" and item.has("param"):
                symbol = item.operands[1].base if isinstance(item.operands[1], Address) else None
                if not isinstance(symbol, Symbol) or symbol.name not in names:
                    return "data", set()  # the result of a call
                parameters.add(names.index(symbol.name) if routine.function.is_entry else ANY_PARAMETER)
            elif item.opcode in _DATA or item.opcode.startswith("ld"):
                return "data", set()
            texts = {operand.name for operand in item.operands[1:] if isinstance(operand, Register | Symbol)}
            grid = grid or any(text.startswith(_GRID) for text in texts)
            reads = registers_accessed(item, program.operations[number])[0]
            fresh = {name for name in reads if name not in seen}
            seen |= fresh
            waiting += fresh
    return ("launch" if grid or parameters else "constant"), parameters
