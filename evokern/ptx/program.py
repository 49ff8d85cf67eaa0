"""Program of one kernel, independent of any launch; `evokern.ptx.lowering` creates it from a module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evokern.errors import SourceError
from evokern.ptx.early_reads import EarlyReads
from evokern.ptx.instruction_groups import IssueOrder, split
from evokern.ptx.instruction_set import Operation
from evokern.ptx.lines import LineTable
from evokern.ptx.register_accesses import RegisterAccess, register_access
from evokern.ptx.segments import Routine, Segment
from evokern.ptx.syntax import Function, Immediate, Instruction, Variable
from evokern.ptx.unsupported import unsupported_error


@dataclass(frozen=True, slots=True, eq=False)
class PtxProgram:
    """Kernel and its reachable functions: instructions, segments, register rows and memory layout."""

    entry: Function
    """The kernel."""
    target: str
    """Architecture that the PTX was compiled for, for example ``sm_89``."""
    lines: LineTable
    """Source lines of the module."""
    routines: Sequence[Routine]
    """All functions; the kernel is the first."""
    routine_of: Mapping[str, Routine]
    """Functions by name."""
    segments: Sequence[Segment]
    """Segments of all functions, in code order."""
    instructions: Sequence[Instruction]
    """Instructions of all segments, one after another; the number of an instruction is its index here."""
    operations: Sequence[Operation]
    """Table entry of each instruction."""
    owners: Sequence[Routine]
    """Function that contains each instruction."""
    label_segment: Mapping[tuple[int, str], int]
    """(number of the function, label) → segment that starts there."""
    orders: Sequence[IssueOrder]
    """Execution order of each segment's instructions, with groups that may run as one."""
    rows: Mapping[str, int]
    """Register class → number of rows in the register file."""
    constant_rows: Mapping[tuple[str, Immediate], int]
    """(register class, literal) → row that holds the literal, for matrix instructions."""
    param_bytes: int
    """Bytes of call parameters per lane."""
    local_bytes: int
    """Bytes of local memory per lane."""
    shared: Mapping[str, tuple[int, int]]
    """Shared variable → (offset, size); the size is 0 for dynamic shared memory."""
    static_shared: int
    """Bytes of shared memory that is declared with a size."""
    data_symbols: Sequence[Variable]
    """Global and constant variables that the program can reach, by name or through an initialiser."""
    param_address: bool
    """Whether the program takes the address of a kernel parameter."""
    grid_wide: bool
    """Whether the blocks synchronise the whole grid (``grid.sync()``), which needs a cooperative launch."""
    shared_granularity: int
    """Smallest width of an access that can reach shared memory, at most 4 bytes."""
    global_granularity: int
    """Smallest width of an access that may overlap a store in global memory, at most 4 bytes."""
    orders_blocks: bool
    """Whether a fence, a release or an acquire orders blocks."""
    early_reads: EarlyReads
    """Reads of shared memory that an arrival may release before they are complete."""

    @property
    def polls(self) -> bool:
        """Whether threads may wait for memory that other threads write."""
        return any(segment.polls for segment in self.segments)

    def plan(self, segment: Segment, most: int) -> IssueOrder:
        """Return the execution order of a segment's instructions, with groups of at most `most` instructions."""
        return split(self.orders[segment.index], most)

    def register_access_at(self, number: int) -> RegisterAccess:
        """Return the registers that an instruction reads and writes; the carry flag counts as a register."""
        return register_access(self.instructions[number], self.operations[number])

    def refuse(self, instruction: Instruction, reason: str) -> SourceError:
        """Return the exception to raise for an unsupported instruction."""
        return unsupported_error(self.lines, instruction, reason)
