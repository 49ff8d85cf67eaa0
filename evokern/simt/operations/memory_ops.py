"""Loads, stores (PTX ISA 9.7.9.8-11) and prefetches.

The instruction determines the state space; for a generic address, its window determines the space. A load gathers the
elements of all lanes in one step. Vectors are gathered whole and then split into rows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from evokern.ptx.operands import access_type, registers_of
from evokern.ptx.segments import Routine
from evokern.ptx.syntax import TYPE_BYTES, Address, Instruction, Operand, Register, Symbol, Vector
from evokern.ptx.unsupported import Unsupported
from evokern.simt.arrays import DTYPES, RAW, Action, Active, Array
from evokern.simt.binder import Binder
from evokern.simt.memory.buffers import SHARED_WINDOW
from evokern.simt.memory.bulk_copies import Arrival
from evokern.simt.memory.global_space import AccessSite
from evokern.simt.memory.mbarrier_state import MbarrierCall
from evokern.simt.operations.spaces import AccessRules, Values, by_state_space, space_accesses, widened
from evokern.simt.operations.table import operation

_SPACES = ("global", "shared", "local", "const", "param")


def space_of(i: Instruction) -> str:
    """Return the state space of a memory instruction; ``generic`` if it names none."""
    words = {word.split("::")[0]: word for word in i.modifiers}
    for space in _SPACES:
        if space in words:
            return space
    return "generic"


def reaches_cluster(i: Instruction) -> bool:
    """Return whether an instruction's addresses may be in other blocks of the cluster."""
    return i.has("shared::cluster") or space_of(i) == "generic"


def synchronises_in_block(i: Instruction, b: Binder) -> bool:
    """Return whether an instruction synchronises only in the scope of its block, which is smaller than the cluster.

    Raises:
        Unsupported: it may do so in global memory, for which the simulator does not track synchronisation within a
            cluster.
    """
    if b.state.batch.geometry.ranks == 1 or not i.has("cta", "cluster"):
        return False
    if space_of(i) != "shared":
        raise Unsupported(
            "in a cluster, synchronisation through global memory in the scope of a block or cluster is not supported"
        )
    return i.has("cta")


def address_rows(operand: Operand, b: Binder, space: str) -> tuple[Array, int]:
    """Return the row of base addresses, and the offset of the address operand."""
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


def lane_addresses(operand: Operand, b: Binder, space: str) -> Callable[[Active], Array]:
    """Return a function that computes an address for each active lane; shared addresses lose their window."""
    row, offset = address_rows(
        Address(operand.base, operand.offset) if isinstance(operand, Address) else operand, b, space
    )
    window = np.uint64(SHARED_WINDOW if space == "shared" and row.dtype.itemsize == 8 else 0)

    def found(active: Active) -> Array:
        address = np.broadcast_to(widened(active.pick(row)), (active.count,)) + np.uint64(offset & (1 << 64) - 1)
        return address - window if window and int(address.min(initial=0)) >= int(window) else address

    return found


def _columns(operand: Operand, b: Binder, kind: str, count: int, *, store: bool) -> list[Array]:
    items = operand.items if isinstance(operand, Vector) else (operand,)
    if len(items) != count:
        raise Unsupported(f"a vector of {len(items)} elements does not match the {count} elements of the access")
    plain = f"u{8 * TYPE_BYTES[kind]}"
    if store:
        return [b.src(item, plain) for item in items]
    typed = kind if kind[0] in "us" else plain
    return [b.dst(item, b.wide(item, typed)) for item in items]


@operation("ld ldu", "9.7.9.8-10", pipe="load_store", kind="effect")
def load(i: Instruction, b: Binder) -> Action:
    """Load one element or a vector from any state space."""
    space = space_of(i)
    kind, count = access_type(i)
    if space == "param":
        return _load_param(i, b, kind, count)
    active_of = b.active
    row, offset = address_rows(i.operands[1], b, space)
    outs = _columns(i.operands[0], b, kind, count, store=False)
    size = TYPE_BYTES[kind]
    element = np.dtype(DTYPES[kind if kind[0] in "us" else f"u{8 * size}"])
    feeds = is_expected_value_load(b.routine, i)
    rules = AccessRules(
        races=not (feeds or i.has("relaxed", "acquire", "mmio")),
        synchronises=feeds or i.has("volatile", "relaxed", "acquire"),
        cluster=reaches_cluster(i),
        block_scope=synchronises_in_block(i, b),
    )
    reached = by_state_space(b.state.batch, space, space_accesses(b.state, b.pc, size * count, rules))

    def run() -> None:
        active = active_of()
        if not active.count:
            return
        for access, lanes, address in reached(active, active.pick(row)):
            sound, found = access.load(lanes, address, offset)
            if sound is not lanes:
                _zero(lanes, outs)
                if sound is None:
                    continue
            values = found.view(element)
            if count == 1:
                sound.put(outs[0], values)
            else:
                for index, out in enumerate(outs):
                    sound.put(out, values[index::count])

    return run


def is_expected_value_load(routine: Routine, i: Instruction) -> bool:
    """Return whether a load only provides the first expected value of a compare-and-swap loop."""
    targets = i.operands[0].items if isinstance(i.operands[0], Vector) else (i.operands[0],)
    compared = _compared(routine)
    return any(isinstance(item, Register) and item.name in compared for item in targets)


@lru_cache(maxsize=256)
def _compared(routine: Routine) -> frozenset[str]:
    """Return the registers that, through copies alone, become the expected value of a function's compare-and-swaps."""
    found = {
        item.operands[2].name
        for item in routine.function.instructions
        if item.opcode == "atom" and item.has("cas") and isinstance(item.operands[2], Register)
    }
    size = -1
    while found and size != len(found):
        size = len(found)
        for item in routine.function.instructions:
            if item.opcode == "mov" and isinstance(item.operands[0], Register) and item.operands[0].name in found:
                found.update(registers_of(item.operands[1]))
    return frozenset(found)


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
        if name in b.routine.params:
            start = b.routine.params[name] + address.offset
            columns = [state.params.column(start + index * size, typed) for index in range(count)]
        elif b.routine.function.is_entry:
            if name not in state.params.offsets:
                raise Unsupported(f"parameter {name} is not declared")
            columns = [state.params.entry_value(name, address.offset + index * size, typed) for index in range(count)]
        else:
            raise Unsupported(f"parameter {name} is not declared")

        def run() -> None:
            active = active_of()
            for out, column in zip(outs, columns, strict=True):
                active.put(out, active.pick(column))

        return run
    if not b.routine.function.is_entry:
        raise Unsupported("computed addresses of function parameters are not supported")
    row, offset = address_rows(address, b, "global")
    width = size * count
    site = AccessSite(b.pc, width)
    element = np.dtype(DTYPES[typed])

    def run_computed() -> None:
        active = active_of()
        sound, index = state.globals.locate(active, widened(active.pick(row)), offset, site, write=False)
        if sound is None:
            return
        values = state.globals.view(width).take(index, mode="clip").view(element)
        for place, out in enumerate(outs):
            sound.put(out, values[place::count])

    return run_computed


@operation("st", "9.7.9.11", pipe="load_store", kind="effect", results=0)
def store(i: Instruction, b: Binder) -> Action:
    """Store one element or a vector to any state space."""
    if i.has("bulk"):
        raise Unsupported(f"{i.name}")
    space = space_of(i)
    kind, count = access_type(i)
    size = TYPE_BYTES[kind]
    width = size * count
    rows = _columns(i.operands[1], b, kind, count, store=True)
    active_of = b.active
    if space == "param":
        return _store_param(i, b, kind, rows)
    if i.has("async"):
        return _store_async(i, b, _gathered(rows, size), width)
    row, offset = address_rows(i.operands[0], b, space)
    rules = AccessRules(
        races=not i.has("relaxed", "release", "mmio"),
        synchronises=i.has("volatile", "relaxed", "release"),
        releases=i.has("release"),
        collisions=True,
        cluster=reaches_cluster(i),
        block_scope=synchronises_in_block(i, b),
    )
    gather = _gathered(rows, size)
    if space == "const":
        raise Unsupported("stores to constant memory are not supported")
    reached = by_state_space(b.state.batch, space, space_accesses(b.state, b.pc, width, rules))

    def run() -> None:
        active = active_of()
        if active.count:
            for access, lanes, address in reached(active, active.pick(row)):
                access.store(lanes, address, offset, gather)

    return run


def _gathered(rows: list[Array], size: int) -> Values:
    """Return a function that joins the elements of each active lane."""
    count, plain = len(rows), np.dtype(DTYPES[f"u{8 * size}"])

    def gather(active: Active) -> Array:
        if count == 1:
            values = active.pick(rows[0])
            return np.repeat(values, active.count) if values.shape[0] != active.count else np.ascontiguousarray(values)
        block = np.empty((active.count, count), plain)
        for index, source in enumerate(rows):
            block[:, index] = active.pick(source)
        whole: Array = block.view(RAW[size * count]).reshape(-1)
        return whole

    return gather


def _store_async(i: Instruction, b: Binder, gather: Values, width: int) -> Action:
    """Bind ``st.async`` (9.7.9.12): stores to the cluster's shared memory, which signal a barrier object there."""
    state, number, active_of = b.state, b.pc, b.active
    target, barrier = lane_addresses(i.operands[0], b, "shared"), lane_addresses(i.operands[2], b, "shared")
    call = MbarrierCall(number=number, cluster=True)

    def run() -> None:
        active = active_of()
        if not active.count:
            return
        stamp, step = state.bulk.now(), -1 if state.events is None else state.events.step
        to, at_object = target(active), barrier(active)
        sound, index, _ = state.shared.locate(active, to, 0, width, number, cluster=True)
        found, places = state.mbarriers.locate(active, at_object, call)
        if sound is active and found is active and state.mbarriers.same_block(active, to, at_object, number):
            values = gather(active).view(RAW[width])
            for at, lane in enumerate(active.lanes.tolist()):
                arrival = Arrival(
                    lane=lane,
                    index=index[at : at + 1],
                    data=values[at : at + 1],
                    number=number,
                    stamp=stamp,
                    width=width,
                    step=step,
                )
                state.bulk.issue(arrival, int(places[at]))
        state.bulk.issued()

    return run


def _store_param(i: Instruction, b: Binder, kind: str, rows: list[Array]) -> Action:
    address = i.operands[0]
    if not (
        isinstance(address, Address) and isinstance(address.base, Symbol) and address.base.name in b.routine.params
    ):
        raise Unsupported("computed addresses of call parameters are not supported")
    size = TYPE_BYTES[kind]
    start = b.routine.params[address.base.name] + address.offset
    columns = [b.state.params.column(start + index * size, f"u{8 * size}") for index in range(len(rows))]
    active_of = b.active

    def run() -> None:
        active = active_of()
        for column, row in zip(columns, rows, strict=True):
            active.put(column, active.pick(row))

    return run


@operation("prefetch prefetchu applypriority discard", "9.7.9.15-17", pipe="load_store", results=0)
def prefetch(i: Instruction, b: Binder) -> Action:
    """Bind cache hints, which have no effect on results."""

    def run() -> None:
        return None

    return run
