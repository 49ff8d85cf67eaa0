"""Run a kernel on the simulator with guessed arguments, to find the extent of its buffers from its accesses.

Buffers are much larger than necessary, everything is writable, and results are not checked. If a run ends early because
of an out-of-bounds access or a hang, the guess was wrong.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from evokern import simt
from evokern.compile.elf import symbol_of
from evokern.compile.records import CompileFailure, needs_later_architecture
from evokern.declaration.kernel import DTYPE_BYTES, Launch
from evokern.declaration.render import Rendered
from evokern.device.sim.program import SimulatedProgram, compile_simulated
from evokern.errors import SourceError, UsageError
from evokern.hardware.profiles import Profile
from evokern.scaffold.plan import DraftArgument, Plan, generated_headers, whole
from evokern.simt import UNFINISHED, Footprint, recording

INSTRUCTIONS = 5_000_000
"""Instruction limit of one run in warp instructions, a few seconds; a correct guess needs fewer."""
LATER_ONLY = "drafts support at most"
"""Part of the error for a kernel that compiles only for a later architecture."""
ALL_INSTRUCTIONS = 60_000_000
"""Cost of all runs after which only necessary ones follow, in warp instructions: about ten seconds."""
SANITIZED = 9
"""Cost of an instruction under the sanitizer."""
BYTES = 512
"""Size of buffers whose allocation costs as much as an instruction."""
MOST_THREADS = 1 << 20
"""Maximum number of threads in one run; larger guessed grids give no more information."""
FEW_THREADS = 1 << 18
"""Maximum number of threads when many grids are tried; the correct grid has few blocks."""
MOST_ROOM = 32 << 20
"""Maximum size of a buffer of unknown size in bytes."""
MOST_STATED = 512 << 20
"""Maximum size of a buffer of known size in bytes."""
CONSTANT = 99
"""Position of `__constant__` arrays, for the seed of their contents."""
LEAST_ROOM = 1 << 16
"""Minimum size of a buffer in bytes."""
LEAST = 200_000
"""Warp instructions that even the shortest run counts for: compiling and starting it takes as long."""
FILLED = 1 << 20
"""Number of random elements in a buffer, which repeat after that."""


@dataclass(frozen=True)
class Touch:
    """Accesses of one run to a buffer, in elements."""

    read: int
    """Index after the last element read."""
    written: int
    """Index after the last element written."""
    distinct: int
    """Number of elements written."""
    in_place: bool
    """Whether an element was read before it was written."""
    first: int = 0
    """Index of the first accessed element."""

    @property
    def extent(self) -> int:
        """Index after the last accessed element."""
        return max(self.read, self.written)


@dataclass(frozen=True)
class Run:
    """Result of one run."""

    touches: Mapping[str, Touch]
    """Buffer → its accesses."""
    why: str = ""
    """Reason why the run ended early; empty if it did not."""
    finding: simt.Finding | None = None
    """Finding that ended the run, or the first finding of a sanitized run."""
    contents: Mapping[str, Any] | None = None
    """Buffer contents after the run as bytes, if requested."""
    written: Mapping[str, Any] = field(default_factory=dict)
    """Buffer → mask of the written elements, if the contents were requested."""
    changed: Mapping[str, bytes] = field(default_factory=dict)
    """Module variable that the run changed → its initial bytes."""
    too_large: bool = False
    """Whether the launch has too many threads, or takes too many instructions."""
    instructions: int = 0
    """Warp instructions that ran."""
    exact: Mapping[str, int] = field(default_factory=dict)
    """Buffer → its number of elements, if it was given."""

    @property
    def ok(self) -> bool:
        """Whether every thread completed."""
        return not self.why

    @property
    def fault(self) -> str:
        """Finding of the sanitizer in words; empty without one."""
        return f"{self.finding.kind.replace('_', ' ')} at kernel.cu:{self.finding.line}" if self.finding else ""


class Prober:
    """Compiler and runner of a drafted source, for the first chip that has the required features.

    Args:
        source: device code.
        chips: chips to try, earlier ones first.
    """

    def __init__(self, source: str, chips: Sequence[Profile]) -> None:
        self.source = source
        self.chips = chips
        self._programs: dict[tuple[tuple[str, ...], str], SimulatedProgram | str] = {}
        self._executed = 0

    @property
    def exhausted(self) -> bool:
        """Whether the runs together cost so much that only necessary ones should follow."""
        return self._executed > ALL_INSTRUCTIONS

    def program(self, entry: str, options: tuple[str, ...]) -> SimulatedProgram | str:
        """Return the compiled program, or the compiler's error."""
        key = options, entry
        if key not in self._programs:
            headers = generated_headers(options)
            self._programs[key] = self._compiled(Rendered(self.source, "kernel.cu", headers, options, (entry,)))
        return self._programs[key]

    def _compiled(self, rendered: Rendered) -> SimulatedProgram | str:
        while True:
            try:
                made = compile_simulated(rendered, self.chips[0])
            except SourceError as error:
                return str(error)
            if not isinstance(made, CompileFailure):
                return made
            if not needs_later_architecture(made.message):
                return made.message
            if len(self.chips) == 1:
                return f"{made.message}; {LATER_ONLY} {self.chips[0].architecture}"
            self.chips = self.chips[1:]  # other configurations need the same feature

    def run(
        self,
        plan: Plan,
        problem: Mapping[str, int],
        *,
        config: Mapping[str, Any] | None = None,
        limit: int = 4,
        capacity: int = 0,
        exact: Mapping[str, int] | None = None,
        keep: bool = False,
        sanitize: bool = False,
        most_threads: int = MOST_THREADS,
        blocks: int | Sequence[int] | None = None,
    ) -> Run:
        """Run one launch.

        Args:
            plan: launch; its grid and block must be known.
            problem: field → value.
            config: gene → value; None for the defaults.
            limit: upper limit of random integers.
            capacity: elements to allocate per buffer; 0 to derive the number from the problem.
            exact: exact number of elements of each buffer, if known; an access beyond it ends the run.
            keep: whether to return the contents of the buffers.
            sanitize: whether a sanitizer finding fails the run.
            most_threads: maximum number of threads; larger launches are not run.
            blocks: linear ids of the blocks to run, or the approximate number of blocks to sample from a launch of any
                size; None for all.
        """
        config = plan.defaults if config is None else config
        limit = plan.index_limit(limit, problem)
        try:
            grid, block = plan.extents(plan.whole_grid, config, problem), plan.extents(plan.block, config, problem)
            cluster = plan.extents(plan.cluster, config, problem) if plan.cluster else None
            shared = plan.value(plan.shared, config, problem)
            entry, options = plan.entry_of(config, problem), plan.defines(config, problem)
        except (ZeroDivisionError, TypeError, AttributeError, ValueError) as error:
            return Run({}, f"the launch cannot be computed: {error}")
        threads = prod(block)
        if min(*grid, *block) < 1 or threads > 1024:
            return Run({}, f"a grid of {grid} blocks of {block} threads is not possible")
        count = prod(grid) if blocks is None else 0 if isinstance(blocks, int) else len(blocks)
        if count * threads > most_threads:
            why = f"a grid of {grid} blocks of {block} threads is too large for the simulator"
            return Run({}, why, too_large=True)
        program = self.program(entry, options)
        if isinstance(program, str):
            return Run({}, program)
        memory = simt.Memory()
        given: dict[str, Any] = {}
        elements = capacity or _room(plan, problem)
        for position, argument in enumerate(plan.arguments):
            if argument.is_tensor:
                most = exact[argument.name] if exact else elements
                room = MOST_STATED if exact else MOST_ROOM
                room = most * DTYPE_BYTES[argument.dtype] if isinstance(blocks, int) else room
                given[argument.name] = memory.allocate(
                    argument.name, contents_of(argument, most, limit, position, room)
                )
            else:
                given[argument.name] = _scalar(argument.dtype, plan.number(argument, config, problem))
        names = tuple(argument.name for argument in plan.arguments)
        for constant in plan.constants:
            size = _room_of(program, constant.name)
            data = contents_of(constant, max(1, size // DTYPE_BYTES[constant.dtype]), limit, CONSTANT)
            given[constant.name] = memory.allocate(constant.name, data, space="const")
        launch = Launch(entry, grid, block, names, shared, cluster=cluster)
        try:
            with recording(memory, Footprint(memory)) as footprint:
                most = INSTRUCTIONS // 10 if self.exhausted else INSTRUCTIONS
                result = program.launch(
                    launch, given, memory, instruction_limit=most, sanitize=sanitize, until_fatal=True,
                    blocks=program.sample_blocks(launch, blocks) if isinstance(blocks, int) else blocks,
                )  # fmt: skip
            cost = result.warp_instructions * (SANITIZED if sanitize else 1)
            self._executed += max(LEAST, cost + sum(one.size for one in memory.buffers) // BYTES)
        except (SourceError, UsageError) as error:
            return Run({}, str(error))
        finding = next(iter(result.findings if sanitize else ()), None) if result.completed else result.fatal
        if finding and finding.kind == UNFINISHED:
            finding = None
        why = "" if result.completed else "it did not end"
        if finding:
            why = f"{finding.kind} in kernel.cu:{finding.line}"
        buffers = {argument.name: given[argument.name] for argument in plan.arguments if argument.is_tensor}
        touches = {
            argument.name: _touch(footprint, buffers[argument.name], DTYPE_BYTES[argument.dtype], argument.lanes)
            for argument in plan.arguments
            if argument.is_tensor
        }
        placed = {name: buffer for arrays in memory.module_data.values() for name, buffer in arrays.items()}
        for constant in plan.constants:
            symbol = symbol_of(constant.name, placed)
            width = DTYPE_BYTES[constant.dtype]
            touches[constant.name] = _touch(footprint, placed[symbol], width) if symbol else _UNTOUCHED
        changed = {name: program.initial(name) for name in program.changed(memory)}
        large = result.over_limit or (not result.completed and finding is None)
        contents = {name: buffer.read() for name, buffer in buffers.items()} if keep else None
        dtypes = {argument.name: argument.dtype for argument in plan.arguments}
        wrote = {n: footprint.of(b, DTYPE_BYTES[dtypes[n]])[1] for n, b in buffers.items()} if keep else {}
        return Run(touches, why, finding, contents, wrote, changed, large, result.warp_instructions, exact or {})


_UNTOUCHED = Touch(0, 0, 0, False)


def _room_of(program: SimulatedProgram, name: str) -> int:
    """Return the size of a `__constant__` array in bytes; 0 if the compiled code lacks it."""
    symbol = symbol_of(name, program.module.variables)
    return program.module.variables[symbol].size if symbol else 0


def _room(plan: Plan, problem: Mapping[str, int]) -> int:
    """Return more elements than any product of up to four of the problem's fields, and than a square or cube."""
    largest = sorted(problem.values(), reverse=True)[:4]
    cube = (largest[0] + 8) ** len(plan.grid) if largest else 0
    return max(LEAST_ROOM // 4, 4 * prod(value + 8 for value in largest), 4 * cube)


def contents_of(argument: DraftArgument, elements: int, limit: int, seed: int, most: int = MOST_ROOM) -> Any:
    """Return a buffer's contents before a run: normal numbers, or integers below the limit.

    Args:
        argument: the buffer.
        elements: number of elements.
        limit: upper limit of random integers.
        seed: position of the argument, or `CONSTANT`.
        most: maximum size in bytes.
    """
    elements = max(1, min(elements, most // DTYPE_BYTES[argument.dtype]))
    return np.resize(_drawn(argument.dtype, limit, seed)[:elements], elements)


def numpy_type(dtype: str) -> str:
    """Return NumPy's type of a buffer's elements, or of their bits if NumPy lacks the type."""
    if whole(dtype):
        return f"{'i' if dtype[0] == 'i' else 'u'}{DTYPE_BYTES[dtype]}"
    return {"f64": "f8", "f32": "f4", "f16": "f2", "bf16": "u2"}.get(dtype, "u1")


@functools.lru_cache(maxsize=32)  # hundreds of runs of a search for a grid use the same contents
def _drawn(dtype: str, limit: int, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    if whole(dtype):
        # The largest integer comes early, so that small problems read it too.
        return (limit - 1 - np.arange(FILLED) * 7 % limit).astype(numpy_type(dtype))
    if dtype == "bf16":
        return (rng.standard_normal(FILLED).astype("f4").view("u4") >> 16).astype("u2")
    if dtype in ("f64", "f32", "f16"):
        return rng.standard_normal(FILLED).astype(numpy_type(dtype))
    return rng.integers(0, 0x40, FILLED).astype("u1")  # small positive numbers of both 8-bit formats


def _scalar(dtype: str, value: float) -> Any:
    if dtype == "bf16":
        return (np.array([value], "f4").view("u4") >> 16).astype("u2")[0]
    return np.dtype("?" if dtype == "bool" else numpy_type(dtype)).type(value)


def _touch(footprint: Footprint, buffer: simt.Buffer, width: int, lanes: int = 1) -> Touch:
    read, written, found = footprint.of(buffer, width)
    accessed = np.flatnonzero(read | written)
    return Touch(_extent_of(read, lanes), _extent_of(written, lanes), int(np.count_nonzero(written)),
                 bool((found & written).any()), int(accessed[0]) if accessed.size else 0)  # fmt: skip


def _extent_of(marks: Any, lanes: int) -> int:
    """Return the index after the vector that contains the last mark."""
    places = np.flatnonzero(marks)
    return (int(places[-1]) // lanes + 1) * lanes if places.size else 0
