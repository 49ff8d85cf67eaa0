"""Assignment of registers to rows of the register file; registers used in only one segment share rows."""

from __future__ import annotations

from collections.abc import Sequence

from evokern.errors import SourceError
from evokern.ptx.early_reads import EarlyReads
from evokern.ptx.instruction_groups import IssueOrder, plan
from evokern.ptx.instruction_set import Operation
from evokern.ptx.register_accesses import register_access, registers_accessed, with_awaited_registers
from evokern.ptx.segments import Routine, Segment, row_class
from evokern.ptx.syntax import Immediate, Instruction, Vector
from evokern.ptx.unsupported import Unsupported


class RegisterRows:
    """Register rows of one program, assigned function by function.

    Attributes:
        rows: register class → number of assigned rows.
        orders: segment → execution order of its instructions, which determines register lifetimes in it.
    """

    def __init__(
        self,
        segments: Sequence[Segment],
        instructions: Sequence[Instruction],
        operations: Sequence[Operation],
        early: EarlyReads,
    ) -> None:
        self.rows: dict[str, int] = {}
        self.orders: dict[int, IssueOrder] = {}
        self._segments, self._instructions, self._operations = segments, instructions, operations
        self._in_place = early.reads | early.uses.keys()

    def allocate(self, routine: Routine) -> None:
        """Assign a row to each register of a function."""
        order, lasting = self._outliving_segment(routine)
        for name in order:
            declared = routine.function.register_type(name)
            if declared is None:
                if name[0] == "%":
                    continue
                raise SourceError(f"function {routine.function.name}: register {name} is not declared")
            if name in lasting:
                kind = _class_of(routine, declared)
                routine.slots[name] = (kind, self._fresh(kind), declared)
        free: dict[str, list[int]] = {}
        for segment in self._segments:
            if segment.routine is routine:
                self._share_rows(routine, segment, lasting, free)

    def constants(self) -> dict[tuple[str, Immediate], int]:
        """Assign rows to literals that matrix instructions use in place of registers."""
        rows: dict[tuple[str, Immediate], int] = {}
        for instruction in self._instructions:
            if instruction.opcode in ("mma", "wmma", "wgmma"):
                kind = "64" if instruction.has("f64") else "32"
                for operand in instruction.operands:
                    for item in operand.items if isinstance(operand, Vector) else ():
                        if isinstance(item, Immediate) and (kind, item) not in rows:
                            rows[kind, item] = self._fresh(kind)
        return rows

    def _fresh(self, kind: str) -> int:
        row = self.rows.setdefault(kind, 0)
        self.rows[kind] += 1
        return row

    def _outliving_segment(self, routine: Routine) -> tuple[list[str], set[str]]:
        """Return a function's registers in the order of their first use, and the registers that outlive a segment."""
        first: dict[str, int] = {}
        lasting: set[str] = set()
        for segment in self._segments:
            if segment.routine is not routine:
                continue
            for number in range(segment.base, segment.base + segment.stop - segment.start):
                reads, writes = registers_accessed(self._instructions[number], self._operations[number])
                lasting.update(name for name in reads if name not in first)
                for name in (*reads, *writes):
                    if first.setdefault(name, segment.index) != segment.index:
                        lasting.add(name)
        return list(first), lasting

    def _share_rows(self, routine: Routine, segment: Segment, lasting: set[str], free: dict[str, list[int]]) -> None:
        """Assign rows to registers used in only one segment, in its execution order; free them after the last use."""
        numbers = slice(segment.base, segment.base + segment.stop - segment.start)
        instructions, operations = self._instructions[numbers], self._operations[numbers]
        accesses = [register_access(*pair) for pair in zip(instructions, operations, strict=True)]
        accesses = with_awaited_registers(routine.function, instructions, accesses)
        size = len(instructions) - segment.control
        order = self.orders[segment.index] = plan(
            routine,
            instructions[:size],
            operations[:size],
            accesses[:size],
            frozenset(number - segment.base for number in self._in_place),
        )
        steps = [item if isinstance(item, tuple) else (item,) for item in order]
        if segment.control:
            steps.append((size,))
        born: dict[str, int] = {}
        last: dict[str, int] = {}
        for step, members in enumerate(steps):
            for member in members:
                for name in sorted(str(item) for item in accesses[member][0] | accesses[member][1]):
                    if name not in lasting and name != "carry" and routine.type_of(name) is not None:
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
                declared = routine.type_of(name) or "b32"
                kind = _class_of(routine, declared)
                pool = free.setdefault(kind, [])
                routine.slots[name] = (kind, pool.pop() if pool else self._fresh(kind), declared)
                routine.local_names.add(name)
            for name in dying.get(step, ()):
                kind, row, _ = routine.slots[name]
                free.setdefault(kind, []).append(row)


def _class_of(routine: Routine, declared: str) -> str:
    try:
        return row_class(declared)
    except Unsupported as error:
        raise SourceError(f"function {routine.function.name}: {error}") from None
