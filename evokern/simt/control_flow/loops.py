"""Loops of a program: their headers, and what decides when they end.

A back edge is a branch to the same or an earlier segment that every path to the branch passes; this segment is the
loop's header. The compiler moves slow paths to the end of a function; their branches back close no loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from evokern.ptx.lines import SourceLocation
from evokern.ptx.program import PtxProgram
from evokern.ptx.register_accesses import registers_accessed
from evokern.ptx.segments import Routine, Segment
from evokern.ptx.syntax import Address, Instruction, Register, Symbol

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


@lru_cache(maxsize=16)
def loop_segments(program: PtxProgram) -> dict[int, list[int]]:
    """Return the loops of a program: header segment → segments with a back edge to it, ascending."""
    edges = {segment.index: _successors(program, segment) for segment in program.segments}
    backward = [
        (segment.index, target)
        for segment in program.segments
        if (target := _target(program, segment)) is not None and target <= segment.index
    ]
    proper = []
    for branch, target in backward:
        first = program.segments[branch].routine.first_segment
        if branch not in _reached(edges, first, without=target):
            proper.append((branch, target))
    rest = {index: [one for one in after if (index, one) not in proper] for index, after in edges.items()}
    found: dict[int, list[int]] = {}
    for branch, target in backward:
        if (branch, target) in proper or branch in _reached(rest, target):
            found.setdefault(target, []).append(branch)
    return found


def _successors(program: PtxProgram, segment: Segment) -> list[int]:
    """Return the segments that may follow; all of the function after a branch through a table."""
    last = _last(program, segment)
    after = segment.index + 1
    following = [after] if after < len(program.segments) and program.segments[after].routine is segment.routine else []
    if not segment.control:
        return following
    if last.opcode in ("ret", "exit", "trap"):
        return following if last.guard is not None else []
    if last.opcode == "brx":
        return [one.index for one in program.segments if one.routine is segment.routine]
    if last.opcode != "bra":
        return following
    target = _target(program, segment)
    return [*(following if last.guard is not None else []), *([] if target is None else [target])]


def read_unwritten(program: PtxProgram) -> dict[str, int]:
    """Return the kernel's registers that a path reads before it writes them, each with an instruction that reads it."""
    segments = [segment for segment in program.segments if segment.routine is program.routines[0]]
    exposed = {segment.index: dict[str, int]() for segment in segments}
    written = {segment.index: set[str]() for segment in segments}
    for segment in segments:
        for number in range(segment.base, segment.base + segment.stop - segment.start):
            reads, writes = registers_accessed(program.instructions[number], program.operations[number])
            for name in set(reads) - written[segment.index]:
                exposed[segment.index].setdefault(name, number)
            written[segment.index].update(writes)
    changed = True
    while changed:
        changed = False
        for segment in reversed(segments):
            mine = exposed[segment.index]
            for after in _successors(program, segment):
                for name in exposed[after].keys() - mine.keys() - written[segment.index]:
                    mine[name], changed = exposed[after][name], True
    return {name: number for name, number in exposed[segments[0].index].items() if name in program.routines[0].slots}


def _reached(edges: Mapping[int, Sequence[int]], start: int, without: int = -1) -> set[int]:
    """Return the segments that a path from `start` reaches without passing another segment."""
    found: set[int] = set()
    waiting = [] if start == without else [start]
    while waiting:
        index = waiting.pop()
        if index not in found:
            found.add(index)
            waiting += [one for one in edges[index] if one != without]
    return found


@lru_cache(maxsize=16)
def loops_of(program: PtxProgram) -> tuple[tuple[LoopRounds, int], ...]:
    """Return the loops of a program without their rounds, each with its header segment."""
    places: dict[int, tuple[SourceLocation, int]] = {}
    for header, latches in loop_segments(program).items():
        last = latches[-1]
        places[header] = program.lines.source_location(_last(program, program.segments[last]).location), last
    found = []
    for header, (location, last) in places.items():
        around = [one for one, (where, end) in places.items() if one < header and end >= last and where == location]
        cause, parameters = _cause(program, header, last)
        found.append((LoopRounds(location.file, location.line, len(around), 0, cause, parameters), header))
    return tuple(found)


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
            cause, used = origin_of(program, routine, final.guard)
            causes.add(cause)
            parameters |= used
    return ("launch" if "launch" in causes else "constant" if causes == {"constant"} else "data"), frozenset(parameters)


@lru_cache(maxsize=16)
def _writers(program: PtxProgram, routine: Routine) -> Mapping[str, list[int]]:
    """Return the instructions of a function that write each register."""
    writers: dict[str, list[int]] = {}
    for number, owner in enumerate(program.owners):
        if owner is routine:
            for name in registers_accessed(program.instructions[number], program.operations[number])[1]:
                writers.setdefault(name, []).append(number)
    return writers


@lru_cache(maxsize=256)
def origin_of(program: PtxProgram, routine: Routine, guard: Register) -> tuple[Cause, frozenset[int]]:
    """Return what decides a predicate: every value that any instruction of the function may put into it."""
    writers = _writers(program, routine)
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
                    return "data", frozenset()  # the result of a call
                parameters.add(names.index(symbol.name) if routine.function.is_entry else ANY_PARAMETER)
            elif item.opcode in _DATA or item.opcode.startswith("ld"):
                return "data", frozenset()
            texts = {operand.name for operand in item.operands[1:] if isinstance(operand, Register | Symbol)}
            grid = grid or any(text.startswith(_GRID) for text in texts)
            reads = registers_accessed(item, program.operations[number])[0]
            fresh = {name for name in reads if name not in seen}
            seen |= fresh
            waiting += fresh
    return ("launch" if grid or parameters else "constant"), frozenset(parameters)
