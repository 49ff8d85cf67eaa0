"""Second run of a launch, to find out whether the values of suspect reads are ever used.

A compiler may move a load above its condition and discard the value if the condition is false; a program may read ahead
and never need the data. Such a read may race, or read uninitialised memory, without any effect. The machine is
deterministic, so it can run the launch again. In this run it follows the values of suspect reads from register to
register, lane by lane. A value counts as used when it reaches a store, an address, a branch, or an exchange between
lanes. Runs without findings have no extra cost.
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
"""Maximum number of findings per call that are examined again; each takes one bit of a word."""


class UsedValues:
    """Tracker that follows suspect values through the registers of one batch."""

    def __init__(self, batch: Batch, suspects: SuspectReads) -> None:
        self._batch, self._suspects = batch, suspects
        self._rows: dict[tuple[str, int], Array] = {}

    def load(self) -> None:
        """Reset the state for new blocks."""
        self._rows.clear()

    def around(self, number: int, action: Action | None) -> list[Action]:
        """Return the steps of an instruction and the steps that track its registers."""
        program = self._batch.program
        instruction, operation, routine = (
            program.instructions[number],
            program.operations[number],
            program.owners[number],
        )
        reads, writes = registers_accessed(replace(instruction, guard=None), operation)
        # The predicate of an instruction also affects the lanes that do not execute it.
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
        """Return steps that mark the results if the predicate that selects them comes from a suspect read."""

        def run() -> None:
            bits = self._of(deciding)
            if bits is not None:
                for slot in targets:
                    row = self._rows.setdefault(slot, np.zeros(self._batch.lanes, np.uint64))
                    mask = self._batch.active.mask
                    row[mask] |= bits[mask]

        return [run] if deciding else []

    def _guard(self, instruction: Instruction, routine: Routine) -> Callable[[], Array]:
        """Return a function that selects the lanes that execute an instruction."""
        batch = self._batch
        if instruction.guard is None:
            return lambda: batch.active.mask
        kind, index, _ = routine.slots[instruction.guard.name]
        row, negated = batch.registers.row(kind, index, "pred"), instruction.guard.negated
        return lambda: batch.active.mask & ~row if negated else batch.active.mask & row

    def _of(self, slots: Sequence[tuple[str, int]]) -> Array | None:
        """Return the suspect reads from which the values in some registers come; None if there are none."""
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
        """Return a load with steps that store its addresses before it and mark its results after it."""
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
                    # Addresses in shared memory are relative to the block and do not contain the rank.
                    in_shared = names_shared | (row.astype(np.int64) >> WINDOW_BITS == 1)
                    places[in_shared] &= (1 << RANK_BITS) - 1

        def mark() -> None:
            mask = guard()
            lanes = np.flatnonzero(mask)
            # The address of a variable named in the instruction is not evaluated: all its reads count as suspect.
            where = places[lanes] if isinstance(address.base, Register) else None
            bits = np.zeros(batch.lanes, np.uint64)
            bits[lanes] = suspects.bits(number, batch.global_lane_ids(lanes), batch.stamp(), where, width)
            self._put(targets, bits, mask)

        return [note, *main, mark]


def surely_used(program: PtxProgram, number: int) -> bool:
    """Return whether all lanes use all values that an instruction reads before its segment ends."""
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
    """Return whether an instruction is a load whose value may be unused."""
    instruction = program.instructions[number]
    return (
        instruction.opcode in ("ld", "ldu")
        and "param" not in instruction.modifiers
        and not surely_used(program, number)
    )


class SecondRun:
    """Second run for findings about reads whose values may be unused.

    Attributes:
        suspects: reads to follow; None if no second run is needed.
    """

    def __init__(self, program: PtxProgram, collectors: Sequence[Collector], undecided: Sequence[bool]) -> None:
        """Determine which findings need a second run.

        Args:
            program: the program.
            collectors: collector of each launch's findings.
            undecided: for each launch, whether its findings may be examined.
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
        """Downgrade findings to warnings if their values were not used."""
        for bit, (collector, number) in enumerate(self._places):
            if self.suspects is not None and not self.suspects.used >> bit & 1:
                collector.acquit([number])


def _slots(routine: Routine, names: Sequence[str]) -> list[tuple[str, int]]:
    return [routine.slots[name][:2] for name in dict.fromkeys(names) if name in routine.slots]
