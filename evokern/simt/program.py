"""From a module to a program for one entry: reachable functions, segments, register slots.

A segment is a run of instructions that the same lanes execute together without interruption. A new one begins at every
label, after every branch, call, exit and barrier, and before the first warp-synchronous instruction, where lanes that
arrive early have to wait for the rest of their warp.
"""

from __future__ import annotations

from evokern.errors import SourceError
from evokern.simt import operations as _operations  # noqa: F401 - fills the table
from evokern.simt.fusion import Plan, plan, split
from evokern.simt.grain import global_grain, shared_grain
from evokern.simt.instruction_set import Operation
from evokern.simt.lines import LineTable
from evokern.simt.operands import symbols_of
from evokern.simt.operations.table import lookup
from evokern.simt.segments import Segment, Unit, is_warp_barrier, member_mask_key, row_class
from evokern.simt.syntax import Function, Immediate, Instruction, Symbol, Variable, Vector
from evokern.simt.touches import Touch, awaited, registers_touched, touch_of
from evokern.simt.unsupported import Unsupported, refusal

INTRINSICS = frozenset({"vprintf", "__assertfail", "__assert_fail", "malloc", "free"})
"""Functions that the CUDA runtime provides; the machine has its own for the first three."""


class Program:
    """Everything about one entry that does not depend on a launch."""

    def __init__(
        self, functions: dict[str, Function], variables: dict[str, Variable], lines: LineTable, entry: str, target: str
    ) -> None:
        self.functions = functions
        self.variables = variables
        self.lines = lines
        self.entry = functions[entry]
        self.target = target
        self.units: list[Unit] = []
        self.unit_of: dict[str, Unit] = {}
        self.segments: list[Segment] = []
        self.instructions: list[Instruction] = []
        self.operations: list[Operation] = []
        self.owners: list[Unit] = []
        self.rows: dict[str, int] = {}
        self.label_segment: dict[tuple[int, str], int] = {}
        self.segment_at: dict[tuple[int, int], int] = {}
        self.param_bytes = 0
        self.local_bytes = 0
        self._plans: dict[int, Plan] = {}
        self._reach(self.entry)
        self._reach_through_data()
        self._refuse_recursion(self.entry, (entry,))
        for unit in self.units:
            self._segment(unit)
        for unit in self.units:
            self._allocate(unit)
            self._place(unit)
        self.constant_rows = self._constant_rows()
        self.shared, self.static_shared = self._shared_layout()
        self.data_symbols = self._data_symbols()
        names = {item.name for item in self.entry.params}
        self.param_address = any(
            isinstance(operand, Symbol) and operand.name in names
            for item in self.instructions
            for operand in item.operands
        )
        self.grid_wide = any("%envreg" in item.text for item in self.instructions)
        self.shared_grain = shared_grain(self.instructions, self.operations)
        self.global_grain = global_grain(self.instructions)
        self.orders_blocks = any(
            (item.opcode in ("membar", "fence") and not item.has("proxy"))
            or item.has("release", "acquire", "acq_rel", "sc")
            for item in self.instructions
        )

    def plan(self, segment: Segment, most: int) -> Plan:
        """Return the order of a segment's instructions with groups of at most so many that run as one."""
        return split(self._plans[segment.index], most)

    def touch(self, unit: Unit, number: int) -> Touch:
        """Return the registers that an instruction reads and writes; the carry flag counts as one."""
        return touch_of(self.instructions[number], self.operations[number])

    def refuse(self, instruction: Instruction, reason: str) -> SourceError:
        """Return the error for an instruction that the machine does not execute."""
        return refusal(self.lines, instruction, reason)

    def _reach(self, function: Function) -> None:
        if function.name in self.unit_of:
            return
        unit = Unit(function, len(self.units))
        self.units.append(unit)
        self.unit_of[function.name] = unit
        for instruction in function.instructions:
            for operand in instruction.operands:
                for name in symbols_of(operand):
                    target = self.functions.get(name)
                    if target is None or name in function.labels:
                        continue
                    if target.has_body:
                        self._reach(target)
                    elif name not in INTRINSICS and instruction.opcode == "call":
                        raise self.refuse(instruction, f"call of {name}, which has no body in this module")

    def _reach_through_data(self) -> None:
        """Follow tables of function pointers."""
        known = -1
        while known != len(self.units):
            known = len(self.units)
            names = {
                name
                for unit in self.units
                for item in unit.function.instructions
                for operand in item.operands
                for name in symbols_of(operand)
            }
            for variable in self._data_among(names):
                for _, symbol, _, _ in variable.pointers:
                    target = self.functions.get(symbol)
                    if target is not None and target.has_body:
                        self._reach(target)

    def _refuse_recursion(self, function: Function, path: tuple[str, ...]) -> None:
        for instruction in function.instructions:
            if instruction.opcode == "call":
                for operand in instruction.operands:
                    for name in symbols_of(operand):
                        if name in path:
                            raise self.refuse(instruction, f"recursive call of {name}")
                        if name in self.unit_of:
                            self._refuse_recursion(self.functions[name], (*path, name))

    def _segment(self, unit: Unit) -> None:
        function = unit.function
        operations: list[Operation] = []
        for instruction in function.instructions:
            try:
                operations.append(lookup(instruction))
            except Unsupported as verdict:
                raise self.refuse(instruction, str(verdict)) from None
        if not function.instructions or operations[-1].kind != "control":
            raise SourceError(f"function {function.name} runs past its last instruction: end it with ret or exit")
        leaders = {0: False}
        for position in function.labels.values():
            leaders[position] = False
        met: set[object] = set()
        for position, (instruction, operation) in enumerate(zip(function.instructions, operations, strict=True)):
            if position in leaders:
                met = set()
            if operation.gate or is_warp_barrier(instruction):
                key = member_mask_key(instruction)
                if key not in met:
                    leaders[position] = True
                    met = {key}
            if operation.kind == "control":
                leaders.setdefault(position + 1, False)
        starts = sorted(position for position in leaders if position < len(function.instructions))
        unit.first_segment = len(self.segments)
        for start, stop in zip(starts, [*starts[1:], len(function.instructions)], strict=True):
            last = operations[stop - 1]
            segment = Segment(
                len(self.segments),
                unit,
                start,
                stop,
                leaders[start],
                last.kind == "control",
                len(self.instructions),
            )
            self.segment_at[unit.number, start] = segment.index
            self.segments.append(segment)
            self.instructions.extend(function.instructions[start:stop])
            self.operations.extend(operations[start:stop])
            self.owners.extend([unit] * (stop - start))
        for label, position in function.labels.items():
            if position < len(function.instructions):
                self.label_segment[unit.number, label] = self.segment_at[unit.number, position]

    def _allocate(self, unit: Unit) -> None:
        """Give every register a row; those that live within one segment share rows."""
        first: dict[str, tuple[int, int]] = {}
        shared_names: set[str] = set()
        order: list[str] = []
        for segment in self.segments:
            if segment.unit is not unit:
                continue
            for position in range(segment.start, segment.stop):
                instruction = unit.function.instructions[position]
                operation = self.operations[segment.base + position - segment.start]
                reads, writes = registers_touched(instruction, operation)
                for name in reads:
                    if name not in first:
                        shared_names.add(name)
                        order.append(name)
                        first[name] = (segment.index, position)
                    elif first[name][0] != segment.index:
                        shared_names.add(name)
                for name in writes:
                    if name not in first:
                        first[name] = (segment.index, position)
                        order.append(name)
                    elif first[name][0] != segment.index:
                        shared_names.add(name)
        for name in order:
            declared = unit.function.register_type(name)
            if declared is None:
                if name[0] == "%":
                    continue
                raise SourceError(f"function {unit.function.name}: register {name} was not declared")
            if name in shared_names:
                kind = self._class_of(unit, declared)
                unit.slots[name] = (kind, self.rows.setdefault(kind, 0), declared)
                self.rows[kind] += 1
        free: dict[str, list[int]] = {}
        for segment in self.segments:
            if segment.unit is unit:
                self._share_rows(unit, segment, shared_names, free)

    def _share_rows(self, unit: Unit, segment: Segment, lasting: set[str], free: dict[str, list[int]]) -> None:
        """Give registers that live within a segment rows, in the order of its plan, freed after the last use."""
        touches = [self.touch(unit, segment.base + at) for at in range(segment.stop - segment.start)]
        touches = awaited(unit.function, unit.function.instructions[segment.start : segment.stop], touches)
        order = self._plans[segment.index] = plan(self, segment, touches)
        steps = [item if isinstance(item, tuple) else (item,) for item in order]
        if segment.control:
            steps.append((segment.stop - segment.start - 1,))
        born: dict[str, int] = {}
        last: dict[str, int] = {}
        for step, members in enumerate(steps):
            for member in members:
                for name in sorted(str(item) for item in touches[member][0] | touches[member][1]):
                    if name not in lasting and name != "carry" and unit.type_of(name) is not None:
                        born.setdefault(name, step)
                        last[name] = step
        dying: dict[int, list[str]] = {}
        for name, step in last.items():
            dying.setdefault(step, []).append(name)
        arriving: dict[int, list[str]] = {}
        for name, step in born.items():
            arriving.setdefault(step, []).append(name)
        for step in range(len(steps)):
            for name in arriving.get(step, ()):
                declared = unit.type_of(name) or "b32"
                kind = self._class_of(unit, declared)
                pool = free.setdefault(kind, [])
                if pool:
                    row = pool.pop()
                else:
                    row = self.rows.setdefault(kind, 0)
                    self.rows[kind] += 1
                unit.slots[name] = (kind, row, declared)
                unit.local_names.add(name)
            for name in dying.get(step, ()):
                kind, row, _ = unit.slots[name]
                free.setdefault(kind, []).append(row)

    def _class_of(self, unit: Unit, declared: str) -> str:
        try:
            return row_class(declared)
        except Unsupported as verdict:
            raise SourceError(f"function {unit.function.name}: {verdict}") from None

    def _place(self, unit: Unit) -> None:
        function = unit.function
        formals = [] if function.is_entry else [*function.params, *function.returns]
        for variable in [*formals, *(item for item in function.locals.values() if item.space == "param")]:
            self.param_bytes = -(-self.param_bytes // 16) * 16
            unit.params[variable.name] = self.param_bytes
            self.param_bytes += max(variable.size, 1)
        for variable in function.locals.values():
            if variable.space == "local":
                align = max(variable.align, 16)
                self.local_bytes = -(-self.local_bytes // align) * align
                unit.depot[variable.name] = self.local_bytes
                self.local_bytes += variable.size

    def _constant_rows(self) -> dict[tuple[str, Immediate], int]:
        """Give literals among the registers of matrix instructions rows of their own."""
        rows: dict[tuple[str, Immediate], int] = {}
        for instruction in self.instructions:
            if instruction.opcode in ("mma", "wmma", "wgmma"):
                kind = "64" if instruction.has("f64") else "32"
                for operand in instruction.operands:
                    for item in operand.items if isinstance(operand, Vector) else ():
                        if isinstance(item, Immediate) and (kind, item) not in rows:
                            rows[kind, item] = self.rows.setdefault(kind, 0)
                            self.rows[kind] += 1
        return rows

    def _used_symbols(self) -> set[str]:
        return {name for item in self.instructions for operand in item.operands for name in symbols_of(operand)}

    def _shared_layout(self) -> tuple[dict[str, tuple[int, int]], int]:
        """Return (offset, size) of each shared variable, and where dynamic shared memory begins."""
        used = self._used_symbols()
        variables = [item for item in self.variables.values() if item.space == "shared" and item.name in used]
        for unit in self.units:
            variables += [item for item in unit.function.locals.values() if item.space == "shared"]
        layout: dict[str, tuple[int, int]] = {}
        offset = 0
        for variable in variables:
            if not variable.extern:
                offset = -(-offset // variable.align) * variable.align
                layout[variable.name] = (offset, variable.size)
                offset += variable.size
        static = offset
        for variable in variables:
            if variable.extern:
                layout[variable.name] = (-(-static // max(variable.align, 16)) * max(variable.align, 16), 0)
        return layout, static

    def _data_symbols(self) -> list[Variable]:
        """Return the global and constant variables that the program can reach, by name or through an initialiser."""
        return self._data_among(self._used_symbols())

    def _data_among(self, names: set[str]) -> list[Variable]:
        wanted = [name for name in names if name in self.variables]
        found: dict[str, Variable] = {}
        while wanted:
            name = wanted.pop()
            variable = self.variables.get(name)
            if name in found or variable is None or variable.space not in ("global", "const"):
                continue
            found[name] = variable
            wanted.extend(symbol for _, symbol, _, _ in variable.pointers)
        return sorted(found.values(), key=lambda item: list(self.variables).index(item.name))
