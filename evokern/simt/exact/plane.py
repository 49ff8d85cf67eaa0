"""Shadows of the registers and memories of one batch, and the steps that update them before each instruction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from evokern.ptx.segments import Routine
from evokern.ptx.syntax import (
    TYPE_BYTES,
    Address,
    Immediate,
    Instruction,
    Operand,
    Pair,
    Register,
    Sink,
    Symbol,
    Vector,
)
from evokern.simt.arrays import Action, Active, Array
from evokern.simt.batch import LaunchStopped
from evokern.simt.binder import Binder
from evokern.simt.exact.field import (
    BAD,
    BITS,
    CODE_SHIFT,
    CODES,
    NO_RULE,
    RAW,
    REASON_SHIFT,
    UNWRITTEN,
    WIDTHS,
    Value,
    parts,
)
from evokern.simt.exact.memory import ExactMemory, SpacePlane, embedded_bits, valued
from evokern.simt.memory.buffers import GLOBAL_BASE
from evokern.simt.numerics import STORAGE
from evokern.simt.operations.memory_ops import address_rows, space_of
from evokern.simt.operations.spaces import by_state_space
from evokern.simt.state import MachineState

Key = tuple[str, int]
"""Register class and row."""
Name = tuple[int, str]
"""Number of a function and a register in it."""
UNITS = {"16": 1, "32": 2, "64": 4}
"""Register class → units of two bytes."""
HALVES, BYTES = ("f16", "bf16"), ("e4m3", "e5m2")


@dataclass(frozen=True, slots=True)
class Carriers:
    """Instructions that may access a shadow, and registers that may have one."""

    instructions: Mapping[int, tuple[frozenset[Key], frozenset[Key]] | None]
    """Number of an instruction → rows of its results and operands if it only moves bits, else None."""
    names: frozenset[Name]
    """The registers."""
    unwritten: Mapping[Key, int]
    """Row that a path from the kernel's start reads before it is written → an instruction that reads it."""


class ShadowPlane:
    """Shadow of one batch.

    A row has one word per unit and lane. A row with too few words holds whole floats or doubles. A missing
    row is raw: each value is the number that its real bits represent.
    """

    def __init__(
        self,
        state: MachineState,
        exact: ExactMemory,
        bind: Callable[[list[Site]], list[Action]],
        carriers: Carriers,
    ) -> None:
        """Create the shadow.

        Args:
            state: the machine's state.
            exact: shadow of global memory.
            bind: function that binds independent instructions.
            carriers: what may have a shadow.
        """
        self._bind, self._instructions, self.names = bind, carriers.instructions, carriers.names
        self._unwritten = carriers.unwritten
        self.state, self.exact = state, exact
        self.lanes = state.batch.lanes
        self.first = exact.site(state.batch.program)
        self.rows: dict[Key, Array] = {}
        self.last: dict[Key, tuple[Array, str, Value]] = {}
        """Last words that an instruction wrote to a row, with their format and their values."""
        self._shared = np.zeros(state.shared.bytes.size // 2, np.uint64)
        self._local = np.zeros(state.local.bytes.size // 2, np.uint64)
        self._params = state.params.shadow = np.zeros((state.params.area.shape[0], state.params.stride // 2), np.uint64)
        shared = state.shared
        cluster = (shared.window, shared.stride) if shared.ranks > 1 else None
        in_memory = SpacePlane(lambda: exact.words, lambda: exact.memory.storage, None, GLOBAL_BASE)
        self.spaces = {
            "shared": SpacePlane(lambda: self._shared, lambda: shared.bytes, shared.base, cluster=cluster),
            "local": SpacePlane(lambda: self._local, lambda: state.local.bytes, state.local.base),
            "global": in_memory,
            "const": in_memory,
            "param": SpacePlane(lambda: self._params.reshape(-1), lambda: state.params.area.reshape(-1), None),
        }
        state.bulk.mirror = lambda: exact.words, self._shared
        self.copies: list[tuple[Array, Array, Array, Array]] = []
        """Pending copies: lanes, groups, first units in shared memory, words."""

    def load(self) -> None:
        """Reset the registers and the memory of the blocks.

        Raises:
            LaunchStopped: the time of the run is over.
        """
        if self.exact.is_late():
            raise LaunchStopped
        self.rows.clear()
        for key, number in self._unwritten.items():
            word = np.uint64(self.first + number) | UNWRITTEN << REASON_SHIFT | BAD << CODE_SHIFT
            self.rows[key] = np.broadcast_to(word, (UNITS[key[0]], self.lanes))
        self.last.clear()
        self.copies.clear()
        self._shared.fill(0)
        self._local.fill(0)
        self._params.fill(0)

    def before(self, numbers: Sequence[int]) -> list[Action]:
        """Return the steps that update the shadow; they run before the instructions, which may run as one group."""
        known = [(number, self._instructions[number]) for number in numbers if number in self._instructions]
        sites = [Site(self, number) for number, rows in known if rows is None]
        moves = [self._move(number, *rows) for number, rows in known if rows is not None]
        return moves + (self._bind(sites) if sites else [])

    def _move(self, number: int, targets: frozenset[Key], sources: frozenset[Key]) -> Action:
        """Return the step of an instruction that only moves bits; it is bound when it first meets a shadow."""
        present, steps = self.rows.keys(), list[Action]()

        def run() -> None:
            if present.isdisjoint(sources) and present.isdisjoint(targets):
                return
            if not steps:
                steps.extend(self._bind([Site(self, number)]) or [lambda: None])
            for step in steps:
                step()

        return run

    # ---- registers

    def units(self, key: Key) -> Array | None:
        """Return the words of a row, one per unit and lane; None if it is raw."""
        words = self.rows.get(key)
        return None if words is None else whole_row(key, words)

    def put(self, key: Key, words: Array | None, mask: Array | None) -> None:
        """Replace the words of a row where the mask is set; arrays in `rows` are never changed in place."""
        if mask is None:
            if words is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = words
            return
        old = self.rows.get(key)
        if words is None:
            if old is not None:
                self.rows[key] = np.where(mask, RAW, old)
            return
        if old is None:
            self.rows[key] = np.where(mask, words, RAW)
            return
        if old.shape[0] != words.shape[0]:
            words, old = whole_row(key, words), whole_row(key, old)
        self.rows[key] = np.where(mask, words, old)


class Site:
    """One instruction that is bound to the shadow: its operands as values, units and addresses."""

    def __init__(self, plane: ShadowPlane, number: int) -> None:
        program = plane.state.batch.program
        self.plane, self.state, self.batch = plane, plane.state, plane.state.batch
        self.i: Instruction = program.instructions[number]
        self.operation = program.operations[number]
        self.routine: Routine = program.owners[number]
        self.number = np.uint64(plane.first + number)
        self.binder = Binder(plane.state)
        self.binder.start(self.routine, number, False)
        self._guard: Array | None = None
        if self.i.guard is not None:
            self._guard = self.binder.src(Register(self.i.guard.name), "pred")

    def active(self) -> Active:
        """Return the lanes that execute the instruction."""
        active = self.batch.active
        if self._guard is None:
            return active
        assert self.i.guard is not None
        mask = active.mask & (~self._guard if self.i.guard.negated else self._guard)
        return Active(mask, int(np.count_nonzero(mask)), self.batch.live_count)

    def mask(self) -> Array | None:
        """Return the lanes that execute the instruction; None for all live lanes."""
        active = self.active()
        return None if active.full else active.mask

    def key(self, operand: Operand) -> Key | None:
        """Return the row of a register that may have a shadow; None for other operands and predicates."""
        if not isinstance(operand, Register) or (self.routine.number, operand.name) not in self.plane.names:
            return None
        known = self.routine.slots.get(operand.name)
        return None if known is None or known[0] == "pred" else (known[0], known[1])

    def keys(self, operand: Operand | None) -> list[Key]:
        """Return the rows of all registers of an operand that hold values."""
        if isinstance(operand, Vector):
            return [key for item in operand.items for key in self.keys(item)]
        if isinstance(operand, Pair):
            return self.keys(operand.first)
        if operand is None or isinstance(operand, (Address, Sink)):
            return []
        key = self.key(operand)
        return [] if key is None else [key]

    def bits(self, operand: Operand, kind: str) -> Callable[[], Array]:
        """Return a function that reads the real bits of an operand: for a packed pair, [2, lanes]."""
        base, pair = kind.removesuffix("x2"), kind.endswith("x2")
        size = STORAGE[base].itemsize
        row = self.binder.src(operand, f"u{8 * size * (1 + pair)}")
        if not pair:
            return lambda: row
        return lambda: np.ascontiguousarray(row).view(f"u{size}").reshape(-1, 2).T

    def reader(self, operand: Operand, kind: str) -> Callable[[], Value]:
        """Return a function that reads an operand as floating-point values: for a packed pair, [2, lanes]."""
        base, pair = kind.removesuffix("x2"), kind.endswith("x2")
        if base not in WIDTHS:
            return lambda: self.bad_value(NO_RULE)
        bits, key, plane, number = self.bits(operand, kind), self.key(operand), self.plane, self.number
        if key is None:
            if isinstance(operand, Register):
                return lambda: embedded_bits(base, bits(), number)
            constant = embedded_bits(base, bits(), number)
            return lambda: constant

        def read() -> Value:
            words = plane.rows.get(key)
            if words is None:
                return embedded_bits(base, bits(), number)
            last = plane.last.get(key)
            if last is not None and last[0] is words and last[1] == kind:
                return last[2]
            if base in HALVES:
                words = whole_row(key, words)
                return valued(words if pair else words[0], bits(), base, number)
            if base in BYTES:
                return valued(self.split(words[0]), bits(), base, number)
            value = valued(words, bits(), base, number)
            if value.bad is None and words.shape[0] > 1 and bool((words[0] >> CODE_SHIFT == CODES[base]).all()):
                plane.rows[key] = words[:1]
            return value

        return read

    def split(self, words: Array) -> Array:
        """Return the words of the bytes of units, [2, ...]; parts of wider numbers are not comparable."""
        return self.plane.exact.split(words, self.bad_word(BITS))

    def bad_value(self, reason: np.uint64) -> Value:
        """Return a value that is not comparable because of this instruction."""
        none = np.zeros(self.plane.lanes, np.uint64)
        return Value(none, none, none + (self.number | reason << REASON_SHIFT))

    def writer(self, operand: Operand, kind: str) -> Callable[[Value], None]:
        """Return a function that writes values to a register: for a packed pair, [2, lanes]."""
        key, plane = self.key(operand), self.plane
        base, pair = kind.removesuffix("x2"), kind.endswith("x2")
        if key is None:
            return lambda value: None
        if base not in WIDTHS:
            word = np.full(plane.lanes, self.bad_word(NO_RULE))
            return lambda value: self.put_tainted([key], word, self.mask())
        shape = (1 + pair, plane.lanes)
        rest = 0 if WIDTHS[base] > 1 else UNITS[key[0]] - (1 if base in BYTES else shape[0])

        def write(value: Value) -> None:
            words = np.broadcast_to(value.words(base), shape)
            if base in BYTES:
                words = plane.exact.joined(*words)[None]
            if rest:
                words = np.concatenate([words, np.zeros((rest, plane.lanes), np.uint64)])
            mask = self.mask()
            plane.put(key, words, mask)
            if mask is None:
                plane.last[key] = words, kind, value

        return write

    def units(self, operand: Operand, count: int) -> Callable[[], Array | None]:
        """Return a function that reads the words of an operand's first units, [count, lanes]; None if all are raw."""
        key, plane = self.key(operand), self.plane
        if key is None:
            return lambda: None

        def read() -> Array | None:
            found = plane.units(key)
            return None if found is None else found[:count]

        return read

    def put_units(self, operand: Operand, words: Array | None, mask: Array | None) -> None:
        """Write words to a register's first units; the remaining units become raw."""
        key = self.key(operand)
        if key is None:
            return
        if words is not None and words.shape[0] < UNITS[key[0]]:
            rest = np.zeros((UNITS[key[0]] - words.shape[0], self.plane.lanes), np.uint64)
            words = np.concatenate([words, rest])
        self.plane.put(key, words, mask)

    def carried(self, target: Operand, sources: Sequence[Operand], count: int, chosen: Callable[..., Array]) -> Action:
        """Return the step of a result that carries words of some operands; it is raw if all of them are.

        Args:
            target: the result.
            sources: operands, whose first `count` units are read.
            count: number of units.
            chosen: function of the words of all operands that returns those of the result.
        """
        read, none = [self.units(operand, count) for operand in sources], np.zeros((count, self.plane.lanes), np.uint64)

        def run() -> None:
            found = [one() for one in read]
            some = any(one is not None for one in found)
            words = chosen(*(none if one is None else one for one in found)) if some else None
            self.put_units(target, words, self.mask())

        return run

    def bad_word(self, reason: np.uint64) -> np.uint64:
        """Return the word of a unit that is not comparable because of this instruction."""
        return np.uint64(self.number | reason << REASON_SHIFT | BAD << CODE_SHIFT)

    def tainted(self, keys: list[Key], reason: np.uint64) -> Array | None:
        """Return a word for each lane: not comparable if one of the rows holds a floating-point value, else raw."""
        found: Array | None = None
        for key in keys:
            words = self.plane.rows.get(key)
            if words is None:
                continue
            for row in words:
                code = row >> CODE_SHIFT
                here = np.where(code == BAD, row, np.where(code == RAW, RAW, self.bad_word(reason)))
                found = here if found is None else np.where(found != 0, found, here)
        return found if found is not None and found.any() else None

    def put_tainted(self, keys: list[Key], words: Array | None, mask: Array | None) -> None:
        """Write one word for each lane to all units of some registers."""
        for key in keys:
            self.plane.put(key, None if words is None else np.tile(words, (UNITS[key[0]], 1)), mask)

    def places(
        self, operand: Operand, space: str | None = None
    ) -> Callable[[], Iterator[tuple[SpacePlane, Active, Array]]]:
        """Return a function that yields the space, the lanes and the first byte of each lane's access."""
        space = space_of(self.i) if space is None else space
        if space == "param":
            return self._parameters(operand)
        row, offset = address_rows(operand, self.binder, space)
        reached = by_state_space(self.batch, space, self.plane.spaces)

        def find() -> Iterator[tuple[SpacePlane, Active, Array]]:
            active = self.active()
            if active.count:
                for plane, lanes, address in reached(active, active.pick(row)):
                    yield plane, lanes, plane.places(lanes, address, offset)

        return find

    def _parameters(self, operand: Operand) -> Callable[[], Iterator[tuple[SpacePlane, Active, Array]]]:
        """Return the function of `places` for parameters and results of device functions, one range per lane."""
        assert isinstance(operand, Address) and isinstance(operand.base, Symbol)
        start, stride = self.routine.params[operand.base.name] + operand.offset, self.state.params.stride

        def find() -> Iterator[tuple[SpacePlane, Active, Array]]:
            active = self.active()
            yield self.plane.spaces["param"], active, active.lanes.astype(np.int64) * stride + start

        return find


def whole_row(key: Key, words: Array) -> Array:
    """Return the words of all units of a row, which may have a single word for a whole number."""
    return parts(words[0], UNITS[key[0]]) if words.shape[0] < UNITS[key[0]] else words


def immediate(operand: Operand) -> int | None:
    """Return the value of an integer literal; None for other operands."""
    return int(operand.value) if isinstance(operand, Immediate) and operand.kind == "int" else None


def element_units(kind: str) -> int:
    """Return the units of an element; 0 for bytes."""
    return TYPE_BYTES[kind] // 2
