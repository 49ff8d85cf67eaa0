"""Access to register rows and to the machine's state while an operation is bound.

An operation is bound once per batch. It gets its rows from the `Binder` and returns a function without arguments, which
does the work.

If a register is used in only one segment, its row may be overwritten for inactive lanes. All other rows are written
through a scratch row and the mask, unless every lane is active. The binder chooses the row, so operations need no code
for masks.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from evokern.ptx.segments import Routine
from evokern.ptx.syntax import TYPE_BYTES, Immediate, Operand, Register, Sink, Symbol
from evokern.ptx.unsupported import Unsupported
from evokern.simt.arrays import DTYPES, SIGNED, Action, Active, Array
from evokern.simt.registers import immediate_bits
from evokern.simt.state import MachineState


class Binder:
    """Provider of register rows for an instruction that is being bound.

    Attributes:
        state: the machine's state in this batch: memories, special registers, active lanes.
        routine: the function that contains the instruction.
        masked: whether to bind for a partial mask, with results in scratch rows.
    """

    def __init__(self, state: MachineState) -> None:
        self.state = state
        self._batch = batch = state.batch
        self.file = batch.registers
        self.routine: Routine
        self.masked = False
        self.guard: Array | None = None
        self.guard_negated = False
        self.pc = -1
        self.active: Callable[[], Active] = lambda: batch.active
        self._stores: list[tuple[Array, Array]] = []

    def start(self, routine: Routine, pc: int, masked: bool) -> None:
        """Begin to bind an instruction."""
        self.routine = routine
        self.pc = pc
        self.masked = masked
        self._stores = []

    def begin_effect(self) -> None:
        """Prepare to bind an operation that handles active lanes itself and writes its results directly."""
        guard, negated, batch = self.guard, self.guard_negated, self._batch
        self.guard = None
        if guard is None:
            self.active = lambda: batch.active
            return

        def guarded() -> Active:
            active = batch.active
            mask = active.mask & ~guard if negated else active.mask & guard
            return Active(mask, int(np.count_nonzero(mask)), batch.live_count)

        self.active = guarded

    def finish(self, action: Action) -> Action:
        """Wrap an operation without side effects so that it changes only the active lanes."""
        if not self._stores:
            return action
        batch, stores, guard, negated = self._batch, self._stores, self.guard, self.guard_negated
        copyto = np.copyto
        if guard is None:
            if len(stores) == 1:
                ((target, source),) = stores

                def run_one() -> None:
                    action()
                    copyto(target, source, where=batch.active.mask)

                return run_one

            def run() -> None:
                action()
                mask = batch.active.mask
                for target, source in stores:
                    copyto(target, source, where=mask)

            return run

        def run_guarded() -> None:
            action()
            mask = batch.active.mask & ~guard if negated else batch.active.mask & guard
            for target, source in stores:
                copyto(target, source, where=mask)

        return run_guarded

    def type_of(self, operand: Operand) -> str | None:
        """Return the declared type of a register operand."""
        if isinstance(operand, Register):
            special = self.state.specials.type(operand.name)
            return special if special is not None else self.routine.type_of(operand.name)
        return None

    def src(self, operand: Operand, type_name: str) -> Array:
        """Return an operand's row, viewed as the given type."""
        if isinstance(operand, Register):
            known = self.routine.slots.get(operand.name)
            if known is None:
                return self._special(operand.name, type_name)
            kind, index, declared = known
            if type_name != "pred" and TYPE_BYTES[type_name] > max(TYPE_BYTES[declared], 2):
                raise Unsupported(f"register {operand.name} is declared .{declared}, but read as .{type_name}")
            return self.file.row(kind, index, type_name)
        if isinstance(operand, Immediate):
            return immediate_bits(operand, type_name)
        if isinstance(operand, Symbol):
            row = self._address(operand)
            dtype = np.dtype(DTYPES[type_name])
            # A row of addresses that differ between launches is refilled for every batch, so it must not be copied.
            return row.view(dtype) if dtype.itemsize == row.itemsize else row.astype(dtype)
        raise Unsupported(f"operand {operand!r} cannot be used as a value")

    def _special(self, name: str, type_name: str) -> Array:
        row = self.state.specials.row(name)
        if row is None:
            raise Unsupported(f"special register {name} is not supported")
        dtype = np.dtype(DTYPES[type_name])
        return row.view(dtype) if dtype.itemsize == row.itemsize else row.astype(dtype)

    def _address(self, symbol: Symbol) -> Array:
        """Return the address of a variable in its own state space, as a 64-bit row."""
        name, routine, program, params = symbol.name, self.routine, self._batch.program, self.state.params
        shared = program.shared.get(name)
        if shared is not None:
            address = np.array([shared[0] + symbol.offset], np.uint64)
            return address + self.state.shared.window.astype(np.uint64) if self.state.shared.ranks > 1 else address
        if name in routine.depot:
            return np.array([routine.depot[name] + symbol.offset], np.uint64)
        if name in routine.params:
            raise Unsupported(f"taking the address of the call parameter {name} is not supported")
        if routine.function.is_entry and any(item.name == name for item in routine.function.params):
            return params.address(name, symbol.offset)
        row = self.state.symbols.get(name)
        if row is not None:
            return params.per_lane(row + np.uint64(symbol.offset))
        if name in program.routine_of:
            return np.array([program.routine_of[name].number], np.uint64)
        raise Unsupported(f"cannot take the address of {name}: it is not a variable of this module")

    def constant_row(self, operand: Immediate, kind: str) -> int:
        """Return the number of the register row that holds a literal."""
        row = self._batch.program.constant_rows.get((kind, operand))
        if row is None:
            raise Unsupported(f"literal {operand.value!r} is not supported here")
        return row

    def pred(self, operand: Operand) -> Array:
        """Return the row of a predicate operand, negated for ``!p``."""
        row = self.src(operand, "pred")
        if isinstance(operand, Register) and operand.negated:
            raise Unsupported("a negated predicate is not supported here")
        return row

    def dst(self, operand: Operand, type_name: str) -> Array:
        """Return the row for a result of the given type."""
        if isinstance(operand, Sink):
            return self.file.scratch(type_name, 40)
        if not isinstance(operand, Register):
            raise Unsupported(f"operand {operand!r} cannot be used as a result register")
        known = self.routine.slots.get(operand.name)
        if known is None:
            raise Unsupported(f"result register {operand.name} is not declared")
        kind, index, _ = known
        row = self.file.row(kind, index, type_name)
        if self.guard is None and (not self.masked or operand.name in self.routine.local_names):
            return row
        scratch = self.file.scratch(type_name, len(self._stores))
        self._stores.append((row, scratch))
        return scratch

    def wide(self, operand: Operand, type_name: str) -> str:
        """Return the type to which a loaded or converted value is extended in a register (section 9.4.1)."""
        if isinstance(operand, Register):
            known = self.routine.slots.get(operand.name)
            if known is not None and known[0] != "pred":
                size = {"16": 2, "32": 4, "64": 8}[known[0]]
                if size > TYPE_BYTES[type_name]:
                    return f"{'s' if type_name in SIGNED else 'u'}{8 * size}"
        return type_name

    def temporary(self, type_name: str, index: int = 0) -> Array:
        """Return a row for intermediate values."""
        return self.file.scratch(type_name, 20 + index)
