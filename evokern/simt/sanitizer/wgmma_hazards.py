"""Registers of wgmma products in flight: reading accumulators or changing operands before the wait is a finding.

A static analysis follows every path through the code with the groups that may be in flight on it. It determines the
instructions that may access such registers too early. Only these are checked when they run, against the groups that
each lane really has in flight. A kernel that waits in time contains none of them and has no extra cost. A copy between
registers counts as the same value, because the assembler removes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evokern.ptx.program import PtxProgram
from evokern.ptx.register_accesses import factors_of, is_product, sums_of
from evokern.ptx.segments import Routine, Segment, following
from evokern.ptx.syntax import Immediate, Instruction, Register
from evokern.simt.arrays import Action, Active, Array
from evokern.simt.batch import Batch

MAX_GROUPS = 9
"""Maximum number of groups that are distinguished, including the open one; more than any wait leaves in flight."""
_State = tuple[tuple[int, int], ...]
"""(accumulators, operands) in flight as bits, by group: first the open group, then the others from the latest on."""


@dataclass(frozen=True, slots=True)
class RegisterHazards:
    """Registers to check before an instruction runs."""

    reads: tuple[int, ...]
    """Registers that the instruction reads although a product may still write to them."""
    writes: tuple[int, ...]
    """Registers that the instruction writes although a product may still use them."""
    copy: tuple[int, int] | None
    """(to, from): registers of a copy, which passes their state on."""


class _Paths:
    """Analysis of the paths through one function."""

    def __init__(self, program: PtxProgram, routine: Routine) -> None:
        self.program, self.routine = program, routine
        self.segments = [segment for segment in program.segments if segment.routine is routine]
        names = [name for item in routine.function.instructions if is_product(item)
                 for name in sums_of(item) + factors_of(item)]  # fmt: skip
        self.bit = {name: at for at, name in enumerate(dict.fromkeys(names))}
        copies = [pair for item in routine.function.instructions if (pair := _copied(item)) is not None]
        known = -1
        while known != len(self.bit):
            known = len(self.bit)
            for to, source in copies:
                if source in self.bit:
                    self.bit.setdefault(to, len(self.bit))

    def mask(self, names: Sequence[object] | frozenset[object]) -> int:
        """Return registers as bits."""
        return sum(1 << self.bit[name] for name in {str(name) for name in names} if name in self.bit)

    def watched(self) -> dict[int, RegisterHazards]:
        """Return the instructions to check; copies are included only if there are other instructions."""
        states: dict[int, _State] = {self.routine.first_segment: ((0, 0),)}
        waiting = [self.routine.first_segment]
        while waiting:
            index = waiting.pop()
            segment = self.program.segments[index]
            after = self._pass(segment, states[index], None)
            for after_it in following(segment, self.program.label_segment):
                known = states.get(after_it)
                joined = after if known is None else _joined(known, after)
                if joined != known:
                    states[after_it] = joined
                    waiting.append(after_it)
        found: dict[int, RegisterHazards] = {}
        for index, state in states.items():
            self._pass(self.program.segments[index], state, found)
        return found if any(watch.reads or watch.writes for watch in found.values()) else {}

    def _pass(self, segment: Segment, state: _State, found: dict[int, RegisterHazards] | None) -> _State:
        for number in range(segment.base, segment.base + segment.stop - segment.start):
            instruction = self.program.instructions[number]
            if instruction.opcode == "wgmma" and not is_product(instruction):
                state = _ordered(instruction, state)
                continue
            reads, writes = (self.mask(names) for names in self.program.register_access_at(number))
            if not reads and not writes:
                continue
            sums = factors = 0
            for group in state:
                sums, factors = sums | group[0], factors | group[1]
            copied = _copied(instruction)
            if is_product(instruction):
                own, taken = self.mask(sums_of(instruction)), self.mask(factors_of(instruction))
                late, changed = taken & sums, own & factors
                state = ((state[0][0] | own, state[0][1] | taken), *state[1:])
            else:
                late, changed = reads & sums if copied is None else 0, writes & (sums | factors)
                state = tuple((group[0] & ~writes, group[1] & ~writes) for group in state)
                if copied is not None and reads & sums:
                    state = tuple((group[0] | (writes if group[0] & reads else 0), group[1]) for group in state)
            if found is not None and (late or changed or (copied is not None and reads & sums)):
                pair = None if copied is None or not reads else (self.bit[copied[0]], self.bit[copied[1]])
                found[number] = RegisterHazards(_places(late), _places(changed), pair)
        return state


def _copied(instruction: Instruction) -> tuple[str, str] | None:
    """Return the registers (to, from) of an instruction that copies a register."""
    if instruction.opcode != "mov" or len(instruction.operands) != 2:
        return None
    to, source = instruction.operands
    return (to.name, source.name) if isinstance(to, Register) and isinstance(source, Register) else None


def _ordered(instruction: Instruction, state: _State) -> _State:
    if instruction.has("commit_group"):
        rest = state[MAX_GROUPS - 2 :]
        last = (0, 0)
        for sums, factors in rest:
            last = last[0] | sums, last[1] | factors
        return ((0, 0), *state[: MAX_GROUPS - 2], *([last] if rest else []))
    operand = instruction.operands[0] if instruction.has("wait_group") else None
    return state[: 1 + int(operand.value)] if isinstance(operand, Immediate) else state


def _joined(one: _State, other: _State) -> _State:
    size = max(len(one), len(other))
    pairs = zip(one + ((0, 0),) * (size - len(one)), other + ((0, 0),) * (size - len(other)), strict=True)
    return tuple((a[0] | b[0], a[1] | b[1]) for a, b in pairs)


def _places(mask: int) -> tuple[int, ...]:
    return tuple(at for at in range(mask.bit_length()) if mask >> at & 1)


@dataclass(frozen=True)
class _Table:
    """Group that last used each register of one function, as [registers, lanes]; −1 before the first group."""

    names: tuple[str, ...]
    bit: dict[str, int]
    sums: Array
    factors: Array


class WgmmaHazards:
    """Groups that use registers, for each lane; tracked only in functions that may access registers too early.

    Attributes:
        watched: instructions to check before they run.
        finished: number of groups that each lane has waited for.
    """

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self.watched: dict[int, RegisterHazards] = {}
        self.finished = np.zeros(batch.lanes, np.int64)
        self._tables: dict[int, _Table] = {}
        for routine in batch.program.routines if batch.options.sanitize else ():
            if any(is_product(item) for item in routine.function.instructions):
                paths = _Paths(batch.program, routine)
                if found := paths.watched():
                    self.watched |= found
                    none = np.full((len(paths.bit), batch.lanes), -1, np.int64)
                    self._tables[routine.number] = _Table(tuple(paths.bit), paths.bit, none, none.copy())

    def load(self) -> None:
        """Reset the state for new blocks."""
        self.finished.fill(0)
        for table in self._tables.values():
            table.sums.fill(-1)
            table.factors.fill(-1)

    def issue(self, number: int, active: Active, group: Array) -> None:
        """Record the registers of a product, and the group of each active lane."""
        table = self._tables.get(self._batch.program.owners[number].number)
        if table is None:
            return
        instruction = self._batch.program.instructions[number]
        for rows, names in ((table.sums, sums_of(instruction)), (table.factors, factors_of(instruction))):
            rows[np.array([table.bit[name] for name in names], np.int64)[:, None], active.lanes] = group

    def checks_before(self, number: int) -> list[Action]:
        """Return the checks to run before an instruction; nearly all instructions have none."""
        watch = self.watched.get(number)
        if watch is None:
            return []
        batch = self._batch
        routine, guard = batch.program.owners[number], batch.program.instructions[number].guard
        table = self._tables[routine.number]
        row = None
        if guard is not None:
            kind, index, _ = routine.slots[guard.name]
            row = batch.registers.row(kind, index, "pred")

        def run() -> None:
            mask = batch.active.mask
            if guard is not None and row is not None:
                mask = mask & ~row if guard.negated else mask & row
            lanes = np.flatnonzero(mask)
            for places, tables in ((watch.reads, (table.sums,)), (watch.writes, (table.sums, table.factors))):
                for place in places:
                    late = np.zeros(lanes.size, np.bool_)
                    for groups in tables:
                        late |= groups[place, lanes] >= self.finished[lanes]
                    detail = f"Register {table.names[place]} is in use by a wgmma whose group has not been waited for"
                    batch.report_lanes("async_not_waited", number, lanes[late], detail=detail)
            if watch.copy is not None:
                to, source = watch.copy
                table.sums[to, lanes] = table.sums[source, lanes]

        return [run]
