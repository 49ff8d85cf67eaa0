"""Register rows and the binder that hands them to operations.

A register is a row over all lanes of the batch, in one two-dimensional array per width. Operations are bound once per
batch: they take their rows from the `Binder` and return a function without arguments that does the work. Immediates are
rows of length one, which NumPy broadcasts.

A row whose register lives in one segment only may be overwritten in lanes that are elsewhere; all others are written
through a scratch row and the mask when not every lane is active. Operations need not know: the binder hands them the
right row.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from evokern.simt.arrays import DTYPES, SIGNED, Action, Active, Array
from evokern.simt.segments import Unit, row_class
from evokern.simt.syntax import TYPE_BYTES, Immediate, Operand, Register, Sink, Symbol
from evokern.simt.unsupported import Unsupported

if TYPE_CHECKING:
    from evokern.simt.machine import Machine


class RegisterFile:
    """The rows of one batch."""

    def __init__(self, rows: Mapping[str, int], lanes: int) -> None:
        self.lanes = lanes
        self.bits = {
            "pred": np.zeros((rows.get("pred", 0), lanes), np.bool_),
            "16": np.zeros((rows.get("16", 0), lanes), np.uint16),
            "32": np.zeros((rows.get("32", 0), lanes), np.uint32),
            "64": np.zeros((rows.get("64", 0), lanes), np.uint64),
        }
        self._views: dict[tuple[str, str], Array] = {}
        self._scratch: dict[str, list[Array]] = {}

    def row(self, kind: str, index: int, type_name: str) -> Array:
        """Return a row, seen as a type no wider than its register."""
        key = (kind, type_name)
        view = self._views.get(key)
        if view is None:
            view = self.bits[kind]
            dtype = np.dtype(DTYPES[type_name])
            if kind == "pred" or dtype.itemsize == view.itemsize:
                view = view.view(dtype)
            else:
                ratio = view.itemsize // dtype.itemsize
                view = view.view(dtype)[:, ::ratio]
            self._views[key] = view
        row: Array = view[index]
        return row

    def scratch(self, type_name: str, index: int) -> Array:
        """Return the n-th scratch row of a type's width."""
        kind = row_class(type_name)
        rows = self._scratch.setdefault(kind, [])
        while len(rows) <= index:
            rows.append(np.zeros(self.lanes, self.bits[kind].dtype))
        return rows[index].view(DTYPES[type_name])


def immediate_bits(operand: Immediate, type_name: str) -> Array:
    """Return a literal as a row of length one of the type (section 4.5)."""
    value = operand.value
    dtype = np.dtype(DTYPES[type_name])
    if operand.kind in ("f32", "f64"):
        bits = int(value)
        if type_name == "f64" and operand.kind == "f32":
            return np.array([struct.unpack("<f", struct.pack("<I", bits))[0]], np.float64)
        if type_name == "f32" and operand.kind == "f64":
            return np.array([struct.unpack("<d", struct.pack("<Q", bits))[0]], np.float32)
        return np.array([bits], np.dtype(f"u{dtype.itemsize}")).view(dtype)
    if operand.kind == "real":
        return np.array(
            [value], np.float32 if type_name == "b32" else np.float64 if type_name == "b64" else dtype
        ).view(dtype)
    if dtype.kind == "f" and dtype.itemsize > 2:
        return np.array([value], dtype)
    if dtype.kind == "b":
        return np.array([bool(value)])
    size = dtype.itemsize
    return np.frombuffer((int(value) & (1 << 8 * size) - 1).to_bytes(size, "little"), dtype)


class Binder:
    """Hands rows to operations while one instruction is bound.

    Attributes:
        machine: the machine of this batch: memory, specials, the active lanes.
        unit: the function whose registers are meant.
        masked: bind for a partial mask: results go through scratch rows.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.file = machine.registers
        self.unit: Unit
        self.masked = False
        self.guard: Array | None = None
        self.guard_negated = False
        self.pc = -1
        self.active: Callable[[], Active] = lambda: machine.active
        self._stores: list[tuple[Array, Array]] = []

    def start(self, unit: Unit, pc: int, masked: bool) -> None:
        """Begin an instruction."""
        self.unit = unit
        self.pc = pc
        self.masked = masked
        self._stores = []

    def begin_effect(self) -> None:
        """Prepare for an operation that looks after the active lanes itself: its results go straight to their rows."""
        guard, negated, machine = self.guard, self.guard_negated, self.machine
        self.guard = None
        if guard is None:
            self.active = lambda: machine.active
            return

        def guarded() -> Active:
            active = machine.active
            mask = active.mask & ~guard if negated else active.mask & guard
            return Active(mask, int(np.count_nonzero(mask)), machine.live_count)

        self.active = guarded

    def finish(self, action: Action) -> Action:
        """Wrap the work of an operation without side effects so that only the right lanes change."""
        if not self._stores:
            return action
        machine, stores, guard, negated = self.machine, self._stores, self.guard, self.guard_negated
        copyto = np.copyto
        if guard is None:
            if len(stores) == 1:
                ((target, source),) = stores

                def run_one() -> None:
                    action()
                    copyto(target, source, where=machine.active.mask)

                return run_one

            def run() -> None:
                action()
                mask = machine.active.mask
                for target, source in stores:
                    copyto(target, source, where=mask)

            return run

        def run_guarded() -> None:
            action()
            mask = machine.active.mask & ~guard if negated else machine.active.mask & guard
            for target, source in stores:
                copyto(target, source, where=mask)

        return run_guarded

    def type_of(self, operand: Operand) -> str | None:
        """Return the declared type of a register operand."""
        if isinstance(operand, Register):
            special = self.machine.special_type(operand.name)
            return special if special is not None else self.unit.type_of(operand.name)
        return None

    def src(self, operand: Operand, type_name: str) -> Array:
        """Return an operand's row read as a type."""
        if isinstance(operand, Register):
            known = self.unit.slots.get(operand.name)
            if known is None:
                return self._special(operand.name, type_name)
            kind, index, declared = known
            if type_name != "pred" and TYPE_BYTES[type_name] > max(TYPE_BYTES[declared], 2):
                raise Unsupported(f"register {operand.name} of type .{declared} read as .{type_name}")
            return self.file.row(kind, index, type_name)
        if isinstance(operand, Immediate):
            return immediate_bits(operand, type_name)
        if isinstance(operand, Symbol):
            row: Array = self.machine.address_row(self.unit, operand)
            dtype = np.dtype(DTYPES[type_name])
            # A row of addresses that differ by launch is refilled for every batch: it must not be copied.
            return row.view(dtype) if dtype.itemsize == row.itemsize else row.astype(dtype)
        raise Unsupported(f"operand {operand!r} where a value was expected")

    def _special(self, name: str, type_name: str) -> Array:
        row = self.machine.special(name)
        if row is None:
            raise Unsupported(f"special register {name} is not supported")
        dtype = np.dtype(DTYPES[type_name])
        return row.view(dtype) if dtype.itemsize == row.itemsize else row.astype(dtype)

    def pred(self, operand: Operand) -> Array:
        """Return a predicate operand's row, complemented where the operand is ``!p``."""
        row = self.src(operand, "pred")
        if isinstance(operand, Register) and operand.negated:
            raise Unsupported("a complemented predicate in this place")
        return row

    def dst(self, operand: Operand, type_name: str) -> Array:
        """Return the row that a result of this type goes to."""
        if isinstance(operand, Sink):
            return self.file.scratch(type_name, 40)
        if not isinstance(operand, Register):
            raise Unsupported(f"operand {operand!r} where a result register was expected")
        known = self.unit.slots.get(operand.name)
        if known is None:
            raise Unsupported(f"result register {operand.name} was not declared")
        kind, index, _ = known
        row = self.file.row(kind, index, type_name)
        if self.guard is None and (not self.masked or operand.name in self.unit.local_names):
            return row
        scratch = self.file.scratch(type_name, len(self._stores))
        self._stores.append((row, scratch))
        return scratch

    def wide(self, operand: Operand, type_name: str) -> str:
        """Return the type in which a loaded or converted value fills its register: extended as section 9.4.1 says."""
        if isinstance(operand, Register):
            known = self.unit.slots.get(operand.name)
            if known is not None and known[0] != "pred":
                size = {"16": 2, "32": 4, "64": 8}[known[0]]
                if size > TYPE_BYTES[type_name]:
                    return f"{'s' if type_name in SIGNED else 'u'}{8 * size}"
        return type_name

    def temporary(self, type_name: str, index: int = 0) -> Array:
        """Return a row for intermediate values."""
        return self.file.scratch(type_name, 20 + index)
