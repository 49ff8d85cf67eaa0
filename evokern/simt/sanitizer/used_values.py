"""Whether what was read at a finding is ever used: a second look at a launch that had findings.

A compiler may move a load above the condition that it stands under, and throw its value away where the condition does
not hold; a program may read ahead and never come to what it read. Such a read races, or reads the unwritten, without
any effect. The machine is deterministic: the launch is run once more, and what the reads in question bring is followed
from register to register, lane by lane, until something with an effect uses it (a store, an address, a branch, an
exchange between lanes) or nothing does. Runs without findings pay nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from evokern.ptx.operands import access_type, registers_of
from evokern.ptx.program import PtxProgram
from evokern.ptx.register_accesses import registers_accessed
from evokern.ptx.segments import Routine
from evokern.ptx.syntax import TYPE_BYTES, Address, Instruction, Register
from evokern.simt.arrays import Action, Array
from evokern.simt.batch import Batch
from evokern.simt.clusters.layout import RANK_BITS
from evokern.simt.memory.buffers import WINDOW_BITS
from evokern.simt.sanitizer.findings import Collector, SuspectReads

MOST_SUSPECTS = 64
"""Findings of one call that are looked at again: each is a bit of a word."""


class UsedValues:
    """Follows values through the registers of one batch."""

    def __init__(self, batch: Batch, suspects: SuspectReads) -> None:
        self._batch, self._suspects = batch, suspects
        self._rows: dict[tuple[str, int], Array] = {}

    def load(self) -> None:
        """New blocks."""
        self._rows.clear()

    def around(self, number: int, action: Action | None) -> list[Action]:
        """Return the steps of an instruction: what is known of its registers follows them."""
        program = self._batch.program
        instruction, operation, routine = (
            program.instructions[number],
            program.operations[number],
            program.owners[number],
        )
        reads, writes = registers_accessed(replace(instruction, guard=None), operation)
        # What decides whether an instruction is done matters to the lanes for which it is not done, too.
        deciding = _slots(routine, [instruction.guard.name]) if instruction.guard is not None else []
        guard = self._guard(instruction, routine)
        main = [action] if action is not None else []
        targets = _slots(routine, writes)
        if operation.kind == "lanes" and not instruction.has("cc"):
            if instruction.opcode == "selp" and isinstance(instruction.operands[3], Register):
                return [self._select(instruction, routine, targets, guard), *self._held(deciding, targets), *main]
            return [self._spread(_slots(routine, reads), targets, guard), *self._held(deciding, targets), *main]
        used = [self._use(deciding, self._active), self._use(_slots(routine, reads), guard)]
        if number in self._suspects.of_load:
            return [*used, *self._around_load(number, main, targets, guard)]
        return [*used, *main, self._spread([], targets, guard)] if targets else [*used, *main]

    def _active(self) -> Array:
        return self._batch.active.mask

    def _held(self, deciding: Sequence[tuple[str, int]], targets: Sequence[tuple[str, int]]) -> list[Action]:
        """Return what adds to results where the predicate comes from that decides on them."""

        def run() -> None:
            bits = self._of(deciding)
            if bits is not None:
                for slot in targets:
                    row = self._rows.setdefault(slot, np.zeros(self._batch.lanes, np.uint64))
                    mask = self._batch.active.mask
                    row[mask] |= bits[mask]

        return [run] if deciding else []

    def _guard(self, instruction: Instruction, routine: Routine) -> Callable[[], Array]:
        """Return what says which lanes an instruction is done for."""
        batch = self._batch
        if instruction.guard is None:
            return lambda: batch.active.mask
        kind, index, _ = routine.slots[instruction.guard.name]
        row, negated = batch.registers.row(kind, index, "pred"), instruction.guard.negated
        return lambda: batch.active.mask & ~row if negated else batch.active.mask & row

    def _of(self, slots: Sequence[tuple[str, int]]) -> Array | None:
        """Return what the values of some registers come from, None where from nothing in question."""
        known = [self._rows[slot] for slot in slots if slot in self._rows]
        joint: Array | None = None
        for row in known:
            joint = row if joint is None else joint | row
        return joint

    def _put(self, targets: Sequence[tuple[str, int]], bits: Array | None, mask: Array) -> None:
        for slot in targets:
            row = self._rows.get(slot)
            if row is None:
                if bits is None:
                    continue
                row = self._rows[slot] = np.zeros(self._batch.lanes, np.uint64)
            row[mask] = 0 if bits is None else bits[mask]

    def _spread(
        self, sources: Sequence[tuple[str, int]], targets: Sequence[tuple[str, int]], guard: Callable[[], Array]
    ) -> Action:
        def run() -> None:
            if self._rows:
                self._put(targets, self._of(sources), guard())

        return run

    def _select(
        self, instruction: Instruction, routine: Routine, targets: Sequence[tuple[str, int]], guard: Callable[[], Array]
    ) -> Action:
        predicate = instruction.operands[3]
        assert isinstance(predicate, Register)
        kind, index, _ = routine.slots[predicate.name]
        row = self._batch.registers.row(kind, index, "pred")
        yes, no, condition = (_slots(routine, registers_of(operand)) for operand in instruction.operands[1:4])

        def run() -> None:
            if not self._rows:
                return
            one, two, whether = self._of(yes), self._of(no), self._of(condition)
            bits: Array | None = None
            if one is not None or two is not None or whether is not None:
                none = np.zeros(self._batch.lanes, np.uint64)
                bits = np.where(row, none if one is None else one, none if two is None else two)
                bits = bits if whether is None else bits | whether
            self._put(targets, bits, guard())

        return run

    def _use(self, sources: Sequence[tuple[str, int]], guard: Callable[[], Array]) -> Action:
        def run() -> None:
            if self._rows and (bits := self._of(sources)) is not None:
                self._suspects.used |= int(np.bitwise_or.reduce(bits[guard()], initial=np.uint64(0)))

        return run

    def _around_load(
        self, number: int, main: Sequence[Action], targets: Sequence[tuple[str, int]], guard: Callable[[], Array]
    ) -> list[Action]:
        """Return a load between what notes its addresses, which it may overwrite, and what marks its results."""
        batch, suspects = self._batch, self._suspects
        instruction, routine = batch.program.instructions[number], batch.program.owners[number]
        address = instruction.operands[1]
        assert isinstance(address, Address)
        kind, count = access_type(instruction)
        width = TYPE_BYTES[kind] * count
        places = np.zeros(batch.lanes, np.int64)
        names_shared = instruction.has("shared", "shared::cta", "shared::cluster")

        def note() -> None:
            if isinstance(address.base, Register):
                of, index, typed = routine.slots[address.base.name]
                row = batch.registers.row(of, index, typed)
                places[:] = (row.astype(np.int64) + address.offset) & ((1 << WINDOW_BITS) - 1)
                if batch.geometry.ranks > 1:
                    # Places in shared memory are those within a block: the address's rank is none of it.
                    in_shared = names_shared | (row.astype(np.int64) >> WINDOW_BITS == 1)
                    places[in_shared] &= (1 << RANK_BITS) - 1

        def mark() -> None:
            mask = guard()
            lanes = np.flatnonzero(mask)
            # Where a variable named in the instruction lies is not looked up: any of its reads is one in question.
            where = places[lanes] if isinstance(address.base, Register) else None
            bits = np.zeros(batch.lanes, np.uint64)
            bits[lanes] = suspects.bits(number, batch.who(lanes), batch.stamp(), where, width)
            self._put(targets, bits, mask)

        return [note, *main, mark]


def surely_used(program: PtxProgram, number: int) -> bool:
    """Say whether whatever an instruction reads is used by all lanes before its segment ends: no look is needed."""
    segment = next(item for item in program.segments if item.base <= number < item.base + item.stop - item.start)
    _, writes = registers_accessed(program.instructions[number], program.operations[number])
    held = set(writes)
    for at in range(number + 1, segment.base + segment.stop - segment.start):
        instruction, operation = program.instructions[at], program.operations[at]
        reads, results = registers_accessed(instruction, operation)
        if instruction.guard is None and held.intersection(reads):
            if operation.kind != "lanes":
                return True
            held.update(results if instruction.opcode != "selp" else ())
        elif instruction.guard is None:
            held.difference_update(results)
    return False


def may_be_unused(program: PtxProgram, number: int) -> bool:
    """Say whether an instruction is a load whose value may come to nothing."""
    instruction = program.instructions[number]
    return (
        instruction.opcode in ("ld", "ldu")
        and "param" not in instruction.modifiers
        and not surely_used(program, number)
    )


class SecondLook:
    """The findings of a call at reads that may come to nothing.

    Attributes:
        suspects: what is to be followed; None where no look is needed.
    """

    def __init__(self, program: PtxProgram, collectors: Sequence[Collector], undecided: Sequence[bool]) -> None:
        """Ask what needs a look.

        Args:
            program: what ran.
            collectors: the findings of each launch.
            undecided: per launch, whether its findings may be looked at.
        """
        self._places: list[tuple[Collector, int]] = []
        suspects = SuspectReads()
        for collector, may in zip(collectors, undecided, strict=True):
            for number, loads in enumerate(collector.reads() if may else ()):
                if loads and len(self._places) < MOST_SUSPECTS and any(may_be_unused(program, load) for load in loads):
                    for load, parts in loads.items():
                        who, when, where = (np.concatenate(part) for part in zip(*parts, strict=True))
                        suspects.add(len(self._places), load, (who, when, where))
                    self._places.append((collector, number))
        self.suspects = suspects if self._places else None

    def acquit(self) -> None:
        """Make warnings of findings whose values nothing used."""
        for bit, (collector, number) in enumerate(self._places):
            if self.suspects is not None and not self.suspects.used >> bit & 1:
                collector.acquit([number])


def _slots(routine: Routine, names: Sequence[str]) -> list[tuple[str, int]]:
    return [routine.slots[name][:2] for name in dict.fromkeys(names) if name in routine.slots]
