"""Atomic updates and reductions in global and shared memory (PTX ISA 9.7.13.5-6).

Lanes with the same address are served in rounds, in lane order. Integer reductions without a result take a single NumPy
call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from evokern.ptx.operands import access_type
from evokern.ptx.syntax import TYPE_BYTES, Instruction, Operand, Sink, Vector
from evokern.ptx.unsupported import Unsupported
from evokern.simt import numerics
from evokern.simt.arrays import Action, Active, Array
from evokern.simt.binder import Binder
from evokern.simt.operations.memory_ops import address_rows, reaches_cluster, space_of, synchronises_in_block
from evokern.simt.operations.spaces import AccessRules, AtomicAccess, GlobalAccess, SharedAccess, by_state_space
from evokern.simt.operations.spaces import Update as Change
from evokern.simt.operations.table import operation

Update = Callable[..., Array]
"""(old, b[, c]) → new."""

_AT: dict[str, Any] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def _swap(old: Array, expected: Array, new: Array) -> Array:
    swapped: Array = np.where(np.equal(old, expected), new, old)
    return swapped


def _increment(old: Array, limit: Array) -> Array:
    stepped: Array = np.where(old >= limit, old.dtype.type(0), old + old.dtype.type(1))
    return stepped


def _decrement(old: Array, limit: Array) -> Array:
    stepped: Array = np.where((old == 0) | (old > limit), limit, old - old.dtype.type(1))
    return stepped


_CONDITIONAL: dict[str, Update] = {"cas": _swap, "inc": _increment, "dec": _decrement}


def update_of(name: str, kind: str) -> Update:
    """Return the update function of an atomic operation."""
    if name == "exch":
        return lambda old, new: new
    if name in _CONDITIONAL:
        return _CONDITIONAL[name]
    if kind in ("f16", "bf16", "f16x2", "bf16x2"):
        if name == "add":
            return numerics.bind("add", kind)
        if name in ("min", "max"):
            return numerics.bind_min_max(name, kind)
    if name in _AT:
        function: Update = _AT[name]
        return function
    raise Unsupported(f"atomic .{name}.{kind}")


@operation("atom", "9.7.13.5", pipe="load_store", kind="effect", results=1)
def atom(i: Instruction, b: Binder) -> Action:
    """Read, update and write memory atomically; the result is the old value."""
    return _atomic(i, b, i.operands[0], i.operands[1], i.operands[2:])


@operation("red", "9.7.13.6", pipe="load_store", kind="effect", results=0)
def red(i: Instruction, b: Binder) -> Action:
    """Update memory atomically, without a result."""
    return _atomic(i, b, None, i.operands[0], i.operands[1:])


def _atomic(i: Instruction, b: Binder, result: Operand | None, where: Operand, values: tuple[Operand, ...]) -> Action:
    if i.has("async", "mbarrier"):
        raise Unsupported(f"{i.name}")
    active_of = b.active
    space = space_of(i)
    kind, count = access_type(i)
    name = next((word for word in i.modifiers if word in (*_AT, "exch", "cas", "inc", "dec")), "")
    typed = kind if kind[0] in "us" or kind in ("f32", "f64") else f"u{8 * TYPE_BYTES[kind]}"
    if name in ("exch", "cas"):
        typed = f"u{8 * TYPE_BYTES[kind]}"
    update = update_of(name, kind)
    flushes = name == "add" and kind == "f32"  # In global memory only (PTX ISA 9.7.13.5, "Notes").
    in_memory = numerics.bind("add", "f32", ftz=True) if flushes else update
    size = TYPE_BYTES[kind]
    columns = [operand.items if isinstance(operand, Vector) else (operand,) for operand in values]
    sources = [[b.src(items[place], typed) for items in columns] for place in range(count)]
    wanted = None if result is None or isinstance(result, Sink) else result
    targets = wanted.items if isinstance(wanted, Vector) else (wanted,) * (wanted is not None)
    outs = [None if isinstance(item, Sink) else b.dst(item, typed) for item in targets]  # type: ignore[arg-type]
    row, offset = address_rows(where, b, space)
    quick = not outs and name in _AT and kind not in ("f16", "bf16", "f16x2", "bf16x2")
    dtype = np.dtype(sources[0][0].dtype)

    def apply(active: Active, memory: Array, index: Array, place: int, step: Update) -> None:
        operands = [np.broadcast_to(active.pick(source), (active.count,)) for source in sources[place]]
        if quick and step is update:
            _AT[name].at(memory, index, operands[0])
            return
        if quick:  # Intermediate sums are not flushed, because their order is undefined.
            memory[index] = numerics.flush(memory[index])
            np.add.at(memory, index, numerics.flush(operands[0]))
            memory[index] = numerics.flush(memory[index])
            return
        old = _rounds(memory, index, operands, step)
        if outs and outs[place] is not None:
            active.put(outs[place], old)  # type: ignore[arg-type]

    def changes(place: int, step: Update) -> Change:
        return lambda active, memory, index: apply(active, memory.view(dtype), index, place, step)

    rules = AccessRules(
        releases=i.has("release", "acq_rel"), cluster=reaches_cluster(i), block_scope=synchronises_in_block(i, b)
    )
    shared = [(SharedAccess(b.state, b.pc, size, rules), changes(place, update)) for place in range(count)]
    memory = [(GlobalAccess(b.state, b.pc, size, rules), changes(place, in_memory)) for place in range(count)]
    updates: dict[str, Sequence[tuple[AtomicAccess, Change]]] = {"shared": shared, "global": memory, "local": memory}
    reached = by_state_space(b.state.batch, space, updates)

    counter: list[Array] = []

    def stand_in(active: Active, address: Array) -> Array:
        """Return the address of the one counter of a sample; it starts in the middle, so that shares are rounded."""
        if not counter:
            counter.append(np.array(address[:1]))
            start = (int(active.pick(sources[0][0]).flat[0]) + 1) // 2
            for accesses, lanes, at in reached(active, np.broadcast_to(counter[0], address.shape)):
                accesses[0][0].update(
                    lanes, at, offset, lambda _, memory, index: _set(memory.view(dtype), index, start)
                )
        return np.broadcast_to(counter[0], address.shape)

    shares = name == "inc" and b.state.batch.options.sample

    def run() -> None:
        active = active_of()
        if not active.count:
            return
        where = stand_in(active, active.pick(row)) if shares else active.pick(row)
        for accesses, lanes, address in reached(active, where):
            for place, (access, change) in enumerate(accesses):
                access.update(lanes, address, offset + place * size, change)

    return run


def _set(memory: Array, index: Array, value: int) -> None:
    memory[index] = value


def _rounds(memory: Array, index: Array, operands: list[Array], update: Update) -> Array:
    """Update memory in lane order, one lane per address and round; return the old values."""
    if index.size == 1 or np.unique(index).size == index.size:
        old = memory[index]
        memory[index] = np.ascontiguousarray(update(old, *operands)).view(memory.dtype)
        return old
    order = np.argsort(index, kind="stable")
    ordered = index[order]
    fresh = np.r_[True, ordered[1:] != ordered[:-1]]
    start = np.maximum.accumulate(np.where(fresh, np.arange(index.size), 0))
    rank = np.empty(index.size, np.int64)
    rank[order] = np.arange(index.size) - start
    result = np.empty(index.size, memory.dtype)
    by_rank = np.argsort(rank, kind="stable")
    bounds = np.searchsorted(rank[by_rank], np.arange(int(rank.max()) + 2))
    for low, high in pairwise(bounds):
        chosen = by_rank[low:high]
        old = memory[index[chosen]]
        result[chosen] = old
        memory[index[chosen]] = update(old, *[operand[chosen] for operand in operands]).view(memory.dtype)
    return result
