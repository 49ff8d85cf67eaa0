"""Loads and stores (PTX ISA 9.7.9.8–9.7.9.12) and prefetches.

The state space is in the instruction or, for generic addresses, in the address: its window. A load takes all lanes'
elements with one gather; vectors are gathered whole and then split into rows.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from evokern.simt.arrays import DTYPES, RAW, Action, Active, Array
from evokern.simt.batch import Batch
from evokern.simt.binder import Binder
from evokern.simt.globals import Site
from evokern.simt.memory import WINDOW_BITS
from evokern.simt.operations.table import operation
from evokern.simt.state import MachineState
from evokern.simt.syntax import TYPE_BYTES, Address, Instruction, Operand, Register, Symbol, Vector
from evokern.simt.unsupported import Unsupported

_SPACES = ("global", "shared", "local", "const", "param")
_TYPES = frozenset(TYPE_BYTES)
Access = Callable[[Active, Array, int], None]
"""(active lanes, their addresses, offset): one state space's part of an access."""


def space_of(i: Instruction) -> str:
    """Return the state space of a memory instruction, ``generic`` when it names none."""
    words = {word.split("::")[0]: word for word in i.modifiers}
    for space in _SPACES:
        if space in words:
            if words[space] == "shared::cluster":
                raise Unsupported("shared memory of another block of a cluster")
            return space
    return "generic"


def access_type(i: Instruction) -> tuple[str, int]:
    """Return the element type of a memory instruction and how many elements it moves."""
    kind = next((word for word in reversed(i.modifiers) if word in _TYPES), None)
    if kind is None or TYPE_BYTES[kind] == 16:
        raise Unsupported(f"{i.name}: type")
    count = next((int(word[1]) for word in i.modifiers if word in ("v2", "v4", "v8")), 1)
    return kind, count


def address_rows(operand: Operand, b: Binder, space: str) -> tuple[Array, int]:
    """Return the row of base addresses and the offset."""
    if isinstance(operand, Register):
        operand = Address(operand, 0)
    if not isinstance(operand, Address):
        raise Unsupported(f"address {operand!r}")
    if operand.base is None:
        return np.array([operand.offset], np.uint64), 0
    if isinstance(operand.base, Symbol):
        return b.src(operand.base, "u64"), operand.offset
    declared = b.type_of(operand.base)
    size = TYPE_BYTES[declared or "b64"]
    return b.src(operand.base, "u32" if size == 4 and space in ("shared", "local") else f"u{8 * size}"), operand.offset


def widened(address: Array) -> Array:
    """Return addresses as 64-bit, which 32-bit registers can hold only for small windows."""
    return address if address.dtype.itemsize == 8 else address.astype(np.uint64)


def by_window(batch: Batch, parts: dict[str, Access]) -> Access:
    """Return an access to generic addresses that sorts the lanes by window."""

    def run(active: Active, address: Array, offset: int) -> None:
        window = widened(address) >> np.uint64(WINDOW_BITS)
        for name, wanted in (("shared", 1), ("local", 2), ("global", 0)):
            chosen = window > 2 if not wanted else window == wanted
            if not wanted:
                chosen |= window == 0
            if not chosen.any():
                continue
            low = np.uint64(wanted << WINDOW_BITS)
            if chosen.all():
                parts[name](active, address - low if wanted else address, offset)
                return
            part = batch.restrict(active, chosen)
            parts[name](part, address[chosen] - low if wanted else address[chosen], offset)

    return run


def _columns(operand: Operand, b: Binder, kind: str, count: int, *, store: bool) -> list[Array]:
    items = operand.items if isinstance(operand, Vector) else (operand,)
    if len(items) != count:
        raise Unsupported(f"a vector of {len(items)} where {count} elements move")
    plain = f"u{8 * TYPE_BYTES[kind]}"
    if store:
        return [b.src(item, plain) for item in items]
    typed = kind if kind[0] in "us" else plain
    return [b.dst(item, b.wide(item, typed)) for item in items]


@operation("ld ldu", "9.7.9.8-11", pipe="load_store", kind="effect")
def load(i: Instruction, b: Binder) -> Action:
    """Load one element or a vector from any state space."""
    space = space_of(i)
    kind, count = access_type(i)
    if space == "param":
        return _load_param(i, b, kind, count)
    state, batch, number, active_of = b.state, b.state.batch, b.pc, b.active
    row, offset = address_rows(i.operands[1], b, space)
    outs = _columns(i.operands[0], b, kind, count, store=False)
    size = TYPE_BYTES[kind]
    width = size * count
    element = np.dtype(DTYPES[kind if kind[0] in "us" else f"u{8 * size}"])
    polls = i.has("volatile", "relaxed", "acquire")
    check_race = not i.has("relaxed", "acquire", "mmio")

    def deliver(active: Active, found: Array) -> None:
        values = found.view(element)
        if count == 1:
            active.put(outs[0], values)
        else:
            for index, out in enumerate(outs):
                active.put(out, values[index::count])

    def from_shared(active: Active, address: Array, extra: int) -> None:
        shared = state.shared
        sound, index, part = shared.locate(active, address, extra, width, number)
        if sound is not active:
            _zero(active, outs)
            if sound is None:
                return
            active = sound
        if shared.shadow is not None and check_race:
            shared.shadow.read(active, index, width, number, part)
        if state.events is not None:
            state.events.shared(number, active, index, width)
        deliver(active, shared.view(width).take(index, mode="clip"))

    def from_local(active: Active, address: Array, extra: int) -> None:
        sound, index = state.local.locate(active, address, extra, width, number)
        if sound is not active:
            _zero(active, outs)
            if sound is None:
                return
            active = sound
        state.local.note_read(active, index, width, number)
        if state.events is not None:
            state.events.local(number, active, width)
        deliver(active, state.local.view(width).take(index, mode="clip"))

    site = Site()

    def from_global(active: Active, address: Array, extra: int) -> None:
        space_ = state.globals
        sound, index = space_.locate(active, widened(address), extra, width, number, site, write=False)
        if sound is not active:
            _zero(active, outs)
            if sound is None:
                return
            active = sound
        space_.note_read(active, index, width, number, site, synchronises=polls)
        if state.events is not None:
            state.events.sectors(number, active, index, width, write=False)
        deliver(active, space_.view(width).take(index, mode="clip"))

    parts: dict[str, Access] = {"shared": from_shared, "local": from_local, "global": from_global, "const": from_global}
    work = by_window(batch, parts) if space == "generic" else parts[space]

    def run() -> None:
        active = active_of()
        if active.count:
            work(active, active.pick(row), offset)

    return run


def _zero(active: Active, outs: list[Array]) -> None:
    for out in outs:
        active.put(out, np.zeros(1, out.dtype))


def _load_param(i: Instruction, b: Binder, kind: str, count: int) -> Action:
    address = i.operands[1]
    size = TYPE_BYTES[kind]
    outs = _columns(i.operands[0], b, kind, count, store=False)
    active_of, state = b.active, b.state
    typed = kind if kind[0] in "us" else f"u{8 * size}"
    if isinstance(address, Address) and isinstance(address.base, Symbol):
        name = address.base.name
        if name in b.unit.params:
            start = b.unit.params[name] + address.offset
            columns = [state.params.column(start + index * size, typed) for index in range(count)]
        elif b.unit.function.is_entry:
            if name not in state.params.offsets:
                raise Unsupported(f"parameter {name} was not declared")
            columns = [state.params.entry_value(name, address.offset + index * size, typed) for index in range(count)]
        else:
            raise Unsupported(f"parameter {name} was not declared")

        def run() -> None:
            active = active_of()
            for out, column in zip(outs, columns, strict=True):
                active.put(out, active.pick(column))

        return run
    if not b.unit.function.is_entry:
        raise Unsupported("a computed address of a function parameter")
    row, offset = address_rows(address, b, "global")
    site = Site()
    number = b.pc
    width = size * count
    element = np.dtype(DTYPES[typed])

    def run_computed() -> None:
        active = active_of()
        sound, index = state.globals.locate(active, widened(active.pick(row)), offset, width, number, site, write=False)
        if sound is None:
            return
        values = state.globals.view(width).take(index, mode="clip").view(element)
        for place, out in enumerate(outs):
            sound.put(out, values[place::count])

    return run_computed


@operation("st", "9.7.9.12", pipe="load_store", kind="effect", results=0)
def store(i: Instruction, b: Binder) -> Action:
    """Store one element or a vector to any state space."""
    space = space_of(i)
    kind, count = access_type(i)
    size = TYPE_BYTES[kind]
    width = size * count
    rows = _columns(i.operands[1], b, kind, count, store=True)
    state, batch, number, active_of = b.state, b.state.batch, b.pc, b.active
    if space == "param":
        return _store_param(i, b, kind, rows)
    row, offset = address_rows(i.operands[0], b, space)
    synchronises, releases = i.has("volatile", "relaxed", "release"), i.has("release")
    check_race = not i.has("relaxed", "release", "mmio")
    plain = np.dtype(DTYPES[f"u{8 * size}"])

    def gather(active: Active) -> Array:
        if count == 1:
            values = active.pick(rows[0])
            return np.repeat(values, active.count) if values.shape[0] != active.count else np.ascontiguousarray(values)
        block = np.empty((active.count, count), plain)
        for index, source in enumerate(rows):
            block[:, index] = active.pick(source)
        whole: Array = block.view(RAW[width]).reshape(-1)
        return whole

    def counted(active: Active, index: Array) -> None:
        if state.events is not None:
            state.events.shared(number, active, index, width)

    def to_shared(active: Active, address: Array, extra: int) -> None:
        shared = state.shared
        sound, index, part = shared.locate(active, address, extra, width, number)
        if sound is None:
            return
        values = gather(sound)
        counted(sound, index)
        if shared.shadow is not None:
            if not check_race:
                shared.shadow.settle(index, width, part)
            elif shared.shadow.write(sound, index, width, number, part):
                _put_shared(state, sound, index, values, width, number)
                return
        shared.view(width)[index] = values.view(RAW[width])

    def to_local(active: Active, address: Array, extra: int) -> None:
        sound, index = state.local.locate(active, address, extra, width, number)
        if sound is None:
            return
        state.local.note_write(index, width)
        if state.events is not None:
            state.events.local(number, sound, width)
        state.local.view(width)[index] = gather(sound).view(RAW[width])

    site = Site()

    def to_global(active: Active, address: Array, extra: int) -> None:
        space_ = state.globals
        sound, index = space_.locate(active, widened(address), extra, width, number, site, write=True)
        if sound is None:
            return
        values = gather(sound)
        space_.note_write(sound, index, width, number, site, values, synchronises=synchronises, releases=releases)
        if state.events is not None:
            state.events.sectors(number, sound, index, width, write=True)
        space_.view(width)[index] = values.view(RAW[width])

    parts: dict[str, Access] = {"shared": to_shared, "local": to_local, "global": to_global}
    if space == "const":
        raise Unsupported("a store to constant memory")
    work = by_window(batch, parts) if space == "generic" else parts[space]

    def run() -> None:
        active = active_of()
        if active.count:
            work(active, active.pick(row), offset)

    return run


def _put_shared(state: MachineState, active: Active, index: Array, values: Array, width: int, number: int) -> None:
    """Store, and report lanes that write different values to one place: which one stays is undefined."""
    view = state.shared.view(width)
    raw = values.view(RAW[width])
    view[index] = raw
    after = view.take(index, mode="clip")
    lost = after.view(np.uint8) != raw.view(np.uint8)
    if lost.any():
        bad = lost.reshape(-1, width).any(1)
        lane = int(active.lanes[bad][0])
        at, name, offset = state.shared.place_of(int(index[bad][0]) * width, lane)
        state.batch.report(
            "shared_race",
            number,
            lane,
            count=int(np.count_nonzero(bad)),
            address=at,
            allocation=name,
            offset=offset,
            other=number,
            detail="Several threads write different values to the same place at once",
        )


def _store_param(i: Instruction, b: Binder, kind: str, rows: list[Array]) -> Action:
    address = i.operands[0]
    if not (isinstance(address, Address) and isinstance(address.base, Symbol) and address.base.name in b.unit.params):
        raise Unsupported("a computed address of a call parameter")
    size = TYPE_BYTES[kind]
    start = b.unit.params[address.base.name] + address.offset
    columns = [b.state.params.column(start + index * size, f"u{8 * size}") for index in range(len(rows))]
    active_of = b.active

    def run() -> None:
        active = active_of()
        for column, row in zip(columns, rows, strict=True):
            active.put(column, active.pick(row))

    return run


@operation("prefetch prefetchu applypriority discard", "9.7.9.14-18", pipe="load_store", results=0)
def prefetch(i: Instruction, b: Binder) -> Action:
    """Hints to the caches: no effect on results."""
    if i.has("tensormap"):
        raise Unsupported("tensor maps")

    def run() -> None:
        return None

    return run
