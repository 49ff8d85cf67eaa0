"""Rules of exact arithmetic for loads, stores, asynchronous copies and atomic operations."""

from __future__ import annotations

import numpy as np

from evokern.ptx.instruction_set import result_count
from evokern.ptx.operands import access_type
from evokern.ptx.segments import Routine
from evokern.ptx.syntax import Address, Instruction, Register, Symbol
from evokern.simt.arrays import Action, Array
from evokern.simt.exact import field
from evokern.simt.exact.field import ORDER, RAW, WIDTHS, Value
from evokern.simt.exact.memory import SpacePlane, valued
from evokern.simt.exact.move_rules import Rule, raw, sources_of, targets_of
from evokern.simt.exact.plane import Site, element_units, immediate
from evokern.simt.operations.matrix_ops import items_of
from evokern.simt.operations.memory_ops import space_of


def is_argument(routine: Routine, i: Instruction) -> bool:
    """Return whether a load or store accesses an argument of the kernel, which is raw."""
    operand = i.operands[1 if i.opcode == "ld" else 0]
    base = operand.base if isinstance(operand, Address) else None
    return space_of(i) == "param" and (not isinstance(base, Symbol) or base.name not in routine.params)


def _load(site: Site) -> Action | None:
    i = site.i
    kind, count = access_type(i)
    if is_argument(site.routine, i):
        return raw(site)
    size = element_units(kind)
    places, outs, lanes_of = site.places(i.operands[1]), items_of(i.operands[0]), site.plane.lanes
    total = max(size, 1) * count

    def run() -> None:
        active = site.active()
        words = np.zeros((total, lanes_of), np.uint64)
        for space, lanes, first in places():
            found = (
                space.load(first, total) if size else np.stack([_byte(site, space, first + n) for n in range(count)])
            )
            if lanes.all:
                words = found
            else:
                words[:, lanes.lanes] = found
        mask = None if active.full else active.mask
        some = bool(words.any())
        for at, out in enumerate(outs):
            site.put_units(out, words[at * total // count : (at + 1) * total // count] if some else None, mask)

    return run


def _byte(site: Site, space: SpacePlane, where: Array) -> Array:
    """Return the words of registers that hold one byte of memory each."""
    units: Array = space.load(where, 1)[0]
    if not units.any():
        return units
    odd = where % 2 == 1
    low, high = site.split(units)
    return site.plane.exact.joined(np.where(odd, high, low), np.zeros_like(units))


def _store(site: Site) -> Action | None:
    i = site.i
    kind, _ = access_type(i)
    if is_argument(site.routine, i):
        return None
    size = element_units(kind)
    items = items_of(i.operands[1])
    places, read = site.places(i.operands[0]), [site.units(item, max(size, 1)) for item in items]

    def run() -> None:
        none = np.zeros((max(size, 1), site.plane.lanes), np.uint64)
        words = np.concatenate([none if (found := one()) is None else found for one in read])
        for space, lanes, first in places():
            mine = words if lanes.all else words[:, lanes.lanes]
            if size:
                space.store(first, mine)
                continue
            for at, row in enumerate(mine):
                _put_byte(site, space, first + at, row)

    return run


def _put_byte(site: Site, space: SpacePlane, where: Array, words: Array) -> None:
    """Store the lower bytes of units; a byte next to it keeps its word."""
    for parity in (0, 1):  # Lanes that store the two bytes of a unit must not undo each other's store.
        mine = where % 2 == parity
        at, new = where[mine], words[mine]
        old = space.load(at, 1)[0]
        if old.any() or new.any():
            low, high = site.split(old)
            byte = site.split(new)[0]
            space.store(at, site.plane.exact.joined(*((low, byte) if parity else (byte, high)))[None])


def _copy(site: Site) -> Action | None:
    """Bind `cp.async`: as in the machine, the data arrive when the thread waits for them."""
    i, plane, copies = site.i, site.plane, site.state.copies
    if i.has("commit_group", "bulk", "reduce"):  # Bulk copies move the words of the shadow themselves.
        return None
    if i.has("wait_all", "mbarrier"):
        return lambda: _land(site, None)
    if i.has("wait_group"):
        most = immediate(i.operands[0])
        return lambda: _land(site, most)
    width, extra = immediate(i.operands[2]) or 0, i.operands[3] if len(i.operands) > 3 else None
    if "cache_hint" in i.name and len(i.operands) < 5:
        extra = None
    ignores = isinstance(extra, Register) and site.binder.type_of(extra) == "pred"
    limit = None if extra is None else site.binder.src(extra, "pred" if ignores else "u32")
    target = site.places(i.operands[0], "shared" if any(w.startswith("shared") for w in i.modifiers) else "generic")
    source = site.places(i.operands[1], "global")

    def run() -> None:
        for _, lanes, to in target():
            for space, _, start in source():
                words = space.load(start, width // 2)
                if limit is not None:
                    bound = np.broadcast_to(lanes.pick(limit), (lanes.count,)).astype(np.int64)
                    bound = np.where(bound != 0, 0, width) if ignores else bound
                    words = np.where(2 * np.arange(width // 2)[:, None] < bound, words, RAW)
                group = copies.committed
                groups = np.full(lanes.count, group) if isinstance(group, int) else group[lanes.lanes]
                plane.copies.append((lanes.lanes, groups, to, words))

    return run


def _land(site: Site, most: int | None) -> None:
    plane, mask, committed = site.plane, site.active().mask, site.state.copies.committed
    kept = []
    for lanes, groups, to, words in plane.copies:
        limit = 1 << 60 if most is None else (committed if isinstance(committed, int) else committed[lanes]) - most
        ready = mask[lanes] & (groups < limit)
        if ready.any():
            plane.spaces["shared"].store(to[ready], words[:, ready])
        if not ready.all():
            kept.append((lanes[~ready], groups[~ready], to[~ready], words[:, ~ready]))
    plane.copies = kept


def _atomic(site: Site) -> Action | None:
    """Bind atomic operations: sums of floats are sums in the field; the old value of a sum is not comparable."""
    i = site.i
    kind, count = access_type(i)
    result = result_count(i, site.operation)
    places, targets, sources = site.places(i.operands[result]), targets_of(site), sources_of(site)
    sums = kind.removesuffix("x2") in WIDTHS and count == 1 and i.has("add")
    read = site.reader(i.operands[result + 1], kind) if sums else None
    units = max(element_units(kind) * count, 1)

    def run() -> None:
        for space, lanes, first in places():
            if read is not None:
                _accumulate(site, (space, first, lanes.lanes), read(), kind)
                continue
            old, tainted = space.load(first, units), site.tainted(sources, ORDER)
            bad = old != 0 if tainted is None else (old != 0) | (tainted[lanes.lanes] != 0)
            if bad.any():
                space.store(first, np.where(bad, site.bad_word(ORDER), RAW))
        if targets:
            word = np.full(site.plane.lanes, site.bad_word(ORDER)) if sums else None
            site.put_tainted(targets, word, site.mask())

    return run


def _accumulate(site: Site, at: tuple[SpacePlane, Array, Array], value: Value, kind: str) -> None:
    """Add the values of some lanes to floats in memory, from a first byte each."""
    space, first, lanes = at
    base, each = kind.removesuffix("x2"), 1 + kind.endswith("x2")
    units, none = WIDTHS[base], np.zeros(1, np.uint64)
    where, slot = np.unique(np.concatenate([first + 2 * n for n in range(each)]), return_inverse=True)
    added_p, added_q, reasons = (
        np.broadcast_to(one, (each, site.plane.lanes))[:, lanes].reshape(-1)
        for one in (value.p, value.q, none if value.bad is None else value.bad)
    )
    bad = np.zeros(where.size, np.uint64)
    np.maximum.at(bad, slot, reasons)
    p, q = (_total(*one, slot, where.size) for one in ((added_p, field.P, field.NO_P), (added_q, field.Q, field.NO_Q)))
    words = space.load(where, units)
    old = valued(words if units > 1 else words[0], space.real(where, base), base, site.number)
    space.store(where, field.parts(field.add(old, Value(p, q, bad)).words(base), units))


def _total(added: Array, modulus: int, none: np.uint64, slot: Array, count: int) -> Array:
    """Return sums of residues by slot; those of values that have none have none."""
    found, without = np.zeros(count, np.uint64), added == none
    np.add.at(found, slot, np.where(without, np.uint64(0), added))
    found %= np.uint64(modulus)
    found[slot[without]] = none
    return found


MEMORY_RULES: dict[tuple[str, str], Rule] = {
    **{(opcode, "*"): _load for opcode in ("ld", "ldu")},
    ("st", "*"): _store,
    ("cp", "*"): _copy,
    **{(opcode, "*"): _atomic for opcode in ("atom", "red")},
}
