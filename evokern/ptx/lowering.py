"""Lowering of a module to a program for one entry: reachable functions, segments, register rows and memory layout.

A segment is a run of instructions that the same lanes execute together without interruption. A new segment starts at
every label, and after every branch, call, exit and barrier. A segment also starts before a warp-synchronous
instruction, because early lanes have to wait there for the rest of their warp.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from evokern.compile.launch_attributes import has_grid_barrier
from evokern.cuda_source.mangled import source_name
from evokern.errors import SourceError
from evokern.ptx.early_reads import early_reads
from evokern.ptx.granularity import global_granularity, shared_granularity
from evokern.ptx.instruction_set import Operation
from evokern.ptx.layout import LaneAreas, data_variables, shared_layout, used_symbols
from evokern.ptx.lines import LineTable
from evokern.ptx.operands import symbols_of
from evokern.ptx.program import PtxProgram
from evokern.ptx.register_rows import RegisterRows
from evokern.ptx.segments import Routine, Segment, is_warp_barrier, member_mask_key
from evokern.ptx.syntax import Function, Instruction, Symbol, Variable
from evokern.ptx.unsupported import Unsupported, unsupported_error

INTRINSICS = frozenset({"vprintf", "__assertfail", "__assert_fail", "malloc", "free"})
"""Functions that the CUDA runtime provides; the machine implements all except ``malloc`` and ``free``."""
Lookup = Callable[[Instruction], Operation]
"""Function that returns the table entry of an instruction, and raises Unsupported if there is none."""


def lower(
    functions: Mapping[str, Function],
    variables: Mapping[str, Variable],
    lines: LineTable,
    entry: str,
    target: str,
    lookup: Lookup,
) -> PtxProgram:
    """Return the executable program of an entry.

    Args:
        functions: functions of the module, by name.
        variables: variables outside functions, by name.
        lines: line table of the module.
        entry: the kernel.
        target: architecture that the PTX was compiled for.
        lookup: the machine's table of operations.

    Raises:
        SourceError: the entry reaches unsupported PTX.
    """
    call_graph = _CallGraph(functions, variables, lines)
    call_graph.reach(functions[entry])
    call_graph.reach_through_data()
    call_graph.refuse_recursion(functions[entry], (entry,))
    routines = call_graph.routines
    code = _Code(lines, lookup)
    for routine in routines:
        code.add(routine)
    early = early_reads(code.segments, code.instructions, code.operations, code.label_segment)
    rows, areas = RegisterRows(code.segments, code.instructions, code.operations, early), LaneAreas()
    for routine in routines:
        rows.allocate(routine)
        areas.place(routine)
    used = used_symbols(code.instructions)
    shared, static_shared = shared_layout(variables, routines, used)
    formal = {item.name for item in functions[entry].params}
    return PtxProgram(
        entry=functions[entry],
        target=target,
        lines=lines,
        routines=routines,
        routine_of=call_graph.routine_of,
        segments=code.segments,
        instructions=code.instructions,
        operations=code.operations,
        owners=code.owners,
        label_segment=code.label_segment,
        orders=[rows.orders[segment.index] for segment in code.segments],
        constant_rows=rows.constants(),
        rows=rows.rows,
        param_bytes=areas.param_bytes,
        local_bytes=areas.local_bytes,
        shared=shared,
        static_shared=static_shared,
        data_symbols=data_variables(variables, used),
        param_address=any(
            isinstance(operand, Symbol) and operand.name in formal
            for item in code.instructions
            for operand in item.operands
        ),
        grid_wide=has_grid_barrier([[item.text for item in one.function.instructions] for one in routines]),
        shared_granularity=shared_granularity(code.instructions, code.operations),
        global_granularity=global_granularity(code.instructions),
        orders_blocks=any(
            (item.opcode in ("membar", "fence") and not item.has("proxy"))
            or (item.opcode != "barrier" and item.has("release", "acquire", "acq_rel", "sc"))
            for item in code.instructions
        ),
        early_reads=early,
    )


@dataclass(slots=True)
class _CallGraph:
    """Functions that an entry can reach."""

    functions: Mapping[str, Function]
    variables: Mapping[str, Variable]
    lines: LineTable
    routines: list[Routine] = field(default_factory=list)
    routine_of: dict[str, Routine] = field(default_factory=dict)

    def reach(self, function: Function) -> None:
        """Add a function and all functions that its code names."""
        if function.name in self.routine_of:
            return
        routine = Routine(function, len(self.routines))
        self.routines.append(routine)
        self.routine_of[function.name] = routine
        for instruction in function.instructions:
            for operand in instruction.operands:
                for name in symbols_of(operand):
                    target = self.functions.get(name)
                    if target is None or name in function.labels:
                        continue
                    if target.has_body:
                        self.reach(target)
                    elif name not in INTRINSICS and instruction.opcode == "call":
                        reason = f"call to {source_name(name)}, which has no body in this module"
                        raise unsupported_error(self.lines, instruction, reason)

    def reach_through_data(self) -> None:
        """Add the functions to which tables of function pointers refer."""
        known = -1
        while known != len(self.routines):
            known = len(self.routines)
            names = used_symbols([item for routine in self.routines for item in routine.function.instructions])
            for variable in data_variables(self.variables, names):
                for _, symbol, _, _ in variable.pointers:
                    target = self.functions.get(symbol)
                    if target is not None and target.has_body:
                        self.reach(target)

    def refuse_recursion(self, function: Function, path: tuple[str, ...]) -> None:
        """Reject recursion: a call to a function that is already on the call path."""
        for instruction in function.instructions:
            if instruction.opcode == "call":
                for operand in instruction.operands:
                    for name in symbols_of(operand):
                        if name in path:
                            raise unsupported_error(
                                self.lines,
                                instruction,
                                f"recursive call to {source_name(name)} is not simulated",
                            )
                        if name in self.routine_of:
                            self.refuse_recursion(self.functions[name], (*path, name))


@dataclass(slots=True)
class _Code:
    """Instructions of all functions, divided into segments."""

    lines: LineTable
    lookup: Lookup
    segments: list[Segment] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    owners: list[Routine] = field(default_factory=list)
    label_segment: dict[tuple[int, str], int] = field(default_factory=dict)

    def add(self, routine: Routine) -> None:
        """Add the segments of a function."""
        function = routine.function
        operations = self._operation_of(function)
        leaders = _leaders(function, operations)
        starts = sorted(position for position in leaders if position < len(function.instructions))
        routine.first_segment = len(self.segments)
        segment_at: dict[int, int] = {}
        for start, stop in zip(starts, [*starts[1:], len(function.instructions)], strict=True):
            segment_at[start] = len(self.segments)
            self.segments.append(
                Segment(
                    len(self.segments),
                    routine,
                    start,
                    stop,
                    leaders[start],
                    operations[stop - 1].kind == "control",
                    len(self.instructions),
                )
            )
            self.instructions.extend(function.instructions[start:stop])
            self.operations.extend(operations[start:stop])
            self.owners.extend([routine] * (stop - start))
        for label, position in function.labels.items():
            if position < len(function.instructions):
                self.label_segment[routine.number, label] = segment_at[position]

    def _operation_of(self, function: Function) -> list[Operation]:
        operations: list[Operation] = []
        for instruction in function.instructions:
            try:
                operations.append(self.lookup(instruction))
            except Unsupported as error:
                raise unsupported_error(self.lines, instruction, str(error)) from None
        if not function.instructions or operations[-1].kind != "control":
            raise SourceError(f"function {function.name} continues past its last instruction: end it with ret or exit")
        return operations


def _leaders(function: Function, operations: list[Operation]) -> dict[int, bool]:
    """Return the positions at which segments start, and whether lanes reconverge there."""
    leaders = {0: False}
    for position in function.labels.values():
        leaders[position] = False
    met: set[object] = set()
    for position, (instruction, operation) in enumerate(zip(function.instructions, operations, strict=True)):
        if position in leaders:
            met = set()
        if operation.converged or is_warp_barrier(instruction):
            key = member_mask_key(instruction)
            if key not in met:
                leaders[position] = True
                met = {key}
        if operation.kind == "control":
            leaders.setdefault(position + 1, False)
    return leaders
