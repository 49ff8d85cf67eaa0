"""Rules of exact arithmetic: how each instruction changes the shadow of its results."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from evokern.ptx.instruction_set import data_type, result_count
from evokern.ptx.operands import access_type
from evokern.ptx.syntax import TYPE_BYTES, Address, Operand, Pair, Register, Symbol, Vector
from evokern.simt.arrays import Action, Array
from evokern.simt.exact import field
from evokern.simt.exact.field import BITS, MIXED, NO_RULE, ORDER, RAW, Value
from evokern.simt.exact.matrix_rules import MATRIX_RULES, bind_products
from evokern.simt.exact.memory import SpacePlane, valued
from evokern.simt.exact.plane import HALVES, Key, Site, element_units, immediate
from evokern.simt.operations.memory_ops import space_of
from evokern.simt.operations.warp_ops import shuffle_sources

Rule = Callable[[Site], Action | None]
FLOATS = ("f32", *HALVES, "f16x2", "bf16x2")
_TO_INTEGER = ("rni", "rzi", "rmi", "rpi")
VANISHING = -1000.0
"""Exponentials of lower arguments are zero, so that finite masks hide keys completely."""


def bind_rules(sites: list[Site]) -> list[Action]:
    """Return the steps that update the shadow for one instruction, or for independent ones that run as a group."""
    if len(sites) > 1 and (sites[0].i.opcode == "mma" or sites[0].i.has("mma")):
        steps = [bind_products(sites)]
    else:
        steps = [_bind_rule(site) for site in sites]
    return [step for step in steps if step is not None]


def _bind_rule(site: Site) -> Action | None:
    """Return the step that updates the shadow for an instruction; None if nothing changes."""
    opcode, family = site.operation.opcode, site.operation.family
    rule = RULES.get((opcode, family)) or RULES.get((opcode, "*"))
    if rule is not None:
        return rule(site)
    if site.operation.kind == "control" or not site.operation.results:
        return None
    return _bits_of(site) if site.operation.kind == "lanes" else _without_rule(site)


def _targets(site: Site) -> list[Key]:
    results = result_count(site.i, site.operation)
    return [key for operand in site.i.operands[:results] for key in site.keys(operand)]


def _sources(site: Site) -> list[Key]:
    results = result_count(site.i, site.operation)
    return [key for operand in site.i.operands[results:] for key in site.keys(operand)]


def _bits_of(site: Site) -> Action | None:
    """Bind integer arithmetic: its result is raw, but not comparable if an operand is a floating-point value."""
    targets, sources = _targets(site), _sources(site)
    if not targets:
        return None
    return lambda: site.put_tainted(targets, site.tainted(sources, BITS), site.mask())


def _without_rule(site: Site) -> Action | None:
    """Bind an instruction without a rule: its results are not comparable if they are read as floating-point values."""
    targets = _targets(site)
    word = np.full(site.plane.lanes, site.bad_word(NO_RULE))
    return (lambda: site.put_tainted(targets, word, site.mask())) if targets else None


def _raw(site: Site) -> Action | None:
    targets = _targets(site)
    return (lambda: site.put_tainted(targets, None, site.mask())) if targets else None


# ---- arithmetic


def _arithmetic(site: Site) -> Action | None:
    i, kind = site.i, data_type(site.i) or ""
    results = i.operands[0]
    write = site.writer(results, kind)
    if kind not in FLOATS or i.has("sat", "relu", "xorsign") or i.opcode not in _COMPUTE:
        return lambda: write(site.bad_value(NO_RULE))
    read = [site.reader(operand, kind) for operand in i.operands[1:]]
    compute = _COMPUTE[i.opcode]
    return lambda: write(compute(site, *[one() for one in read]))


_COMPUTE: dict[str, Callable[..., Value]] = {
    "add": lambda site, x, y: field.add(x, y),
    "sub": lambda site, x, y: field.add(x, field.negate(y)),
    "mul": lambda site, x, y: field.multiply(x, y),
    "fma": lambda site, x, y, z: field.fma(x, y, z),
    "mad": lambda site, x, y, z: field.fma(x, y, z),
    "neg": lambda site, x: field.negate(x),
    "rcp": lambda site, x: field.reciprocal(x, site.number),
    "div": lambda site, x, y: field.multiply(x, field.reciprocal(y, site.number)),
    "sqrt": lambda site, x: field.root(x),
    "rsqrt": lambda site, x: field.reciprocal(field.root(x), site.number),
}


def _exponential(site: Site) -> Action | None:
    kind = data_type(site.i) or ""
    operand, write = site.i.operands[1], site.writer(site.i.operands[0], kind)
    if kind not in FLOATS:
        return lambda: write(site.bad_value(NO_RULE))
    read, bits, base = site.reader(operand, kind), site.bits(operand, kind), kind.removesuffix("x2")
    return lambda: write(field.exponential(read(), field.floats(base, bits()) < VANISHING, site.number))


def _absolute(site: Site) -> Action | None:
    kind = data_type(site.i) or ""
    operand, write = site.i.operands[1], site.writer(site.i.operands[0], kind)
    if kind not in FLOATS:
        return lambda: write(site.bad_value(NO_RULE))
    read, bits, base = site.reader(operand, kind), site.bits(operand, kind), kind.removesuffix("x2")

    def run() -> None:
        x, negative = read(), np.signbit(field.floats(base, bits()))
        other = field.negate(x)
        write(Value(np.where(negative, other.p, x.p), np.where(negative, other.q, x.q), x.bad))

    return run


def _extreme(site: Site) -> Action | None:
    """Bind minimum and maximum: the real bits decide which value the result carries.

    Values that differ may be equal after rounding. All lanes must then choose the same one, so the shadow decides.
    """
    i, kind = site.i, data_type(site.i) or ""
    if kind not in FLOATS or len(i.operands) != 3 or i.has("xorsign"):
        return _without_rule(site)
    base, pair = kind.removesuffix("x2"), kind.endswith("x2")
    count = 1 if kind in HALVES else 2
    first, second = (site.units(operand, count) for operand in i.operands[1:])
    bits = [site.bits(operand, kind) for operand in i.operands[1:]]
    largest = i.opcode == "max"

    def run() -> None:
        x, y = first(), second()
        chosen = None
        if x is not None or y is not None:
            a, b = (field.floats(base, one()) for one in bits)
            none = np.zeros((count, 1), np.uint64)
            x, y = none if x is None else x, none if y is None else y
            first_wins = x >= y if pair or count == 1 else x[0] >= y[0]
            takes = (a > b if largest else a < b) | np.isnan(b) | ((a == b) & first_wins)
            chosen = np.where(takes, x, y)
            chosen = np.broadcast_to(chosen, (count, site.plane.lanes))
        site.put_units(i.operands[0], chosen, site.mask())

    return run


# ---- moves


def _move(site: Site) -> Action | None:
    target, source = site.i.operands
    if data_type(site.i) == "pred":
        return None
    if isinstance(target, Vector) or isinstance(source, Vector):
        return _pack(site, target, source)
    key, origin, plane = site.key(target), site.key(source), site.plane
    if key is None:
        return None
    if origin is None or origin[0] != key[0]:
        return _bits_of(site)
    return lambda: plane.put(key, plane.rows.get(origin), site.mask())


def _pack(site: Site, target: Operand, source: Operand) -> Action | None:
    """Bind the joining and splitting of registers."""
    parts = target.items if isinstance(target, Vector) else (target,)
    pieces = source.items if isinstance(source, Vector) else (source,)
    total = TYPE_BYTES[data_type(site.i) or "b32"] // 2
    if total % len(parts) or total % len(pieces):
        return _bits_of(site)
    size, each = total // len(parts), total // len(pieces)
    read = [site.units(piece, each) for piece in pieces]

    def run() -> None:
        found, mask = [one() for one in read], site.mask()
        if all(one is None for one in found):
            for part in parts:
                site.put_units(part, None, mask)
            return
        none = np.zeros((each, site.plane.lanes), np.uint64)
        whole = np.concatenate([none if one is None else one for one in found])
        for number, part in enumerate(parts):
            site.put_units(part, whole[number * size : (number + 1) * size], mask)

    return run


def _select(site: Site) -> Action | None:
    target, yes, no, condition = site.i.operands
    count = site.size_of(target)
    predicate, first, second = site.binder.src(condition, "pred"), site.units(yes, count), site.units(no, count)

    def run() -> None:
        x, y, mask = first(), second(), site.mask()
        if x is None and y is None:
            site.put_units(target, None, mask)
        else:
            site.put_units(target, np.where(predicate, RAW if x is None else x, RAW if y is None else y), mask)

    return run


def _convert(site: Site) -> Action | None:
    i = site.i
    kinds = [word for word in i.modifiers if word in TYPE_BYTES]
    to, source = kinds[0], kinds[-1]
    target, origin = i.operands[0], i.operands[1]
    integral = to[0] in "us", source[0] in "us"
    if all(integral):
        count = min(TYPE_BYTES[to], TYPE_BYTES[source]) // 2
        if i.has("sat") or not count:
            return _bits_of(site)
        read = site.units(origin, count)
        return lambda: site.put_units(target, read(), site.mask())
    if integral[0] or i.has("sat", "relu", *_TO_INTEGER):
        return _bits_of(site)
    if integral[1]:
        return _from_integer(site, to, source)
    if to not in (*FLOATS, "tf32") or source not in (*FLOATS, "tf32"):
        return _without_rule(site)
    write = site.writer(target, to)
    if len(i.operands) == 3:
        high, low = (site.reader(operand, source) for operand in i.operands[1:])
        return lambda: write(_pair(low(), high()))
    read_one = site.reader(origin, source)
    return lambda: write(read_one())


def _pair(low: Value, high: Value) -> Value:
    p, q = (np.stack(np.broadcast_arrays(x, y)) for x, y in ((low.p, high.p), (low.q, high.q)))
    if low.bad is None and high.bad is None:
        return Value(p, q)
    none = np.zeros(1, np.uint64)
    bads = [np.broadcast_to(none if one.bad is None else one.bad, p.shape[1:]) for one in (low, high)]
    return Value(p, q, np.stack(bads))


def _from_integer(site: Site, to: str, source: str) -> Action | None:
    if to not in FLOATS:
        return _without_rule(site)
    row, write = site.binder.src(site.i.operands[1], source), site.writer(site.i.operands[0], to)
    sources = _sources(site)

    def run() -> None:
        value = field.integers(row.astype(np.int64))
        tainted = site.tainted(sources, BITS)
        bad = None if tainted is None else tainted & field.PAYLOAD
        write(Value(value.p, value.q, bad))

    return run


# ---- bits that move in whole units


def _logic(site: Site) -> Action | None:
    """Bind `and` and `or`: units that the other operand keeps or clears completely carry their value."""
    i, kind = site.i, data_type(site.i) or "pred"
    if kind == "pred":
        return None
    size = TYPE_BYTES[kind] // 2
    rows = [site.binder.src(operand, f"u{16 * size}") for operand in i.operands[1:]]
    read = [site.units(operand, size) for operand in i.operands[1:]]
    keeps = np.uint16(0xFFFF if i.opcode == "and" else 0)
    lanes = site.plane.lanes

    def bits(row: Array) -> Array:
        return np.ascontiguousarray(np.broadcast_to(row, (lanes,))).view(np.uint16).reshape(-1, size).T

    def run() -> None:
        x, y = (one() for one in read)
        mask = site.mask()
        if x is None and y is None:
            site.put_units(i.operands[0], None, mask)
            return
        none = np.zeros((size, lanes), np.uint64)
        first, second = (none if one is None else one for one in (x, y))
        a, b = bits(rows[0]), bits(rows[1])
        result = np.where((first == 0) & (second == 0), RAW, site.bad_word(BITS))
        result = np.where((second == 0) & (b == keeps), first, result)
        result = np.where((first == 0) & (a == keeps), second, result)
        if i.opcode == "and":
            result = np.where(((second == 0) & (b == 0)) | ((first == 0) & (a == 0)), RAW, result)
        site.put_units(i.operands[0], result, mask)

    return run


def _rearranged(site: Site, order: list[tuple[int, int] | None]) -> Action:
    """Bind an instruction whose result consists of whole units: (operand, unit), or None for raw ones."""
    read = {number: site.units(site.i.operands[number], 4) for number in {one[0] for one in order if one}}

    def run() -> None:
        found = {number: one() for number, one in read.items()}
        if all(one is None for one in found.values()):
            site.put_units(site.i.operands[0], None, site.mask())
            return
        none = np.zeros(site.plane.lanes, np.uint64)
        rows = [none if one is None or (words := found[one[0]]) is None else words[one[1]] for one in order]
        site.put_units(site.i.operands[0], np.stack(rows), site.mask())

    return run


def _shift(site: Site) -> Action | None:
    i = site.i
    size, by = TYPE_BYTES[data_type(i) or "b32"] // 2, immediate(i.operands[2])
    if by is None or by % 16 or i.has("wrap", "clamp") or (i.opcode == "shr" and i.has("s16", "s32", "s64")):
        return _bits_of(site)
    step = by // 16 * (-1 if i.opcode == "shl" else 1)
    return _rearranged(site, [(1, at + step) if 0 <= at + step < size else None for at in range(size)])


def _permute(site: Site) -> Action | None:
    """Bind `prmt`: lanes whose selector moves whole units keep their values."""
    i = site.i
    if i.modifiers != ("b32",):
        return _bits_of(site)
    selector, lanes = site.binder.src(i.operands[3], "u32"), np.arange(site.plane.lanes)
    read = [site.units(operand, 2) for operand in i.operands[1:3]]

    def run() -> None:
        found = [one() for one in read]
        if all(one is None for one in found):
            site.put_units(i.operands[0], None, site.mask())
            return
        none = np.zeros((2, site.plane.lanes), np.uint64)
        units = np.concatenate([none if one is None else one for one in found])
        chosen, rows = np.broadcast_to(selector, lanes.shape).astype(np.int64), []
        for at in (0, 8):
            low, high = chosen >> at & 15, chosen >> at + 4 & 15
            whole = (low % 2 == 0) & (low < 8) & (high == low + 1)
            split = np.where((units != 0).any(0), site.bad_word(BITS), RAW)
            rows.append(np.where(whole, units[low // 2 & 3, lanes], split))
        site.put_units(i.operands[0], np.stack(rows), site.mask())

    return run


def _insert(site: Site) -> Action | None:
    start, length = (immediate(operand) for operand in site.i.operands[3:5])
    if start is None or length is None or start % 16 or length % 16 or data_type(site.i) != "b32":
        return _bits_of(site)
    first, last = start // 16, (start + length) // 16
    return _rearranged(site, [(1, at - first) if first <= at < last else (2, at) for at in range(2)])


# ---- memory


def _columns(operand: Operand) -> tuple[Operand, ...]:
    return operand.items if isinstance(operand, Vector) else (operand,)


def _load(site: Site) -> Action | None:
    i = site.i
    kind, count = access_type(i)
    if space_of(i) == "param":
        address = i.operands[1]
        of_kernel = isinstance(address, Address) and isinstance(address.base, Symbol) and site.routine.function.is_entry
        return _raw(site) if of_kernel else _without_rule(site)
    size = element_units(kind)
    places, outs, lanes_of = site.places(i.operands[1]), _columns(i.operands[0]), site.plane.lanes
    total = max(size * count, 1)

    def run() -> None:
        active = site.active()
        words = np.zeros((total, lanes_of), np.uint64)
        for space, lanes, first in places():
            found = space.load(first, total)
            if not size:
                found = np.where(found != 0, site.bad_word(MIXED), found)
            if lanes.all:
                words = found
            else:
                words[:, lanes.lanes] = found
        mask = None if active.full else active.mask
        some = bool(words.any())
        for at, out in enumerate(outs):
            part = words[at * size : (at + 1) * size] if size else words
            site.put_units(out, part if some else None, mask)

    return run


def _store(site: Site) -> Action | None:
    i = site.i
    kind, _ = access_type(i)
    if space_of(i) == "param":
        return None
    size = element_units(kind)
    items = _columns(i.operands[1])
    places, read = site.places(i.operands[0]), [site.units(item, max(size, 1)) for item in items]
    sources = site.keys(i.operands[1])

    def run() -> None:
        none = np.zeros((size, site.plane.lanes), np.uint64)
        words = np.concatenate([none if (found := one()) is None else found for one in read]) if size else none
        for space, lanes, first in places():
            if size:
                space.store(first, words if lanes.all else words[:, lanes.lanes])
                continue
            tainted, old = site.tainted(sources, BITS), space.load(first, 1)
            bad = old != 0 if tainted is None else (old != 0) | (tainted[lanes.lanes] != 0)
            space.store(first, np.where(bad, site.bad_word(MIXED), RAW))

    return run


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
    places, targets, sources = site.places(i.operands[result]), _targets(site), _sources(site)
    sums = kind == "f32" and count == 1 and i.has("add")
    read = site.reader(i.operands[result + 1], "f32") if sums else None
    units = max(element_units(kind) * count, 1)

    def run() -> None:
        for space, lanes, first in places():
            if read is not None:
                _accumulate(site, space, first, read(), lanes.lanes)
                continue
            old, tainted = space.load(first, units), site.tainted(sources, ORDER)
            bad = old != 0 if tainted is None else (old != 0) | (tainted[lanes.lanes] != 0)
            if bad.any():
                space.store(first, np.where(bad, site.bad_word(ORDER), RAW))
        if targets:
            word = np.full(site.plane.lanes, site.bad_word(ORDER)) if sums else None
            site.put_tainted(targets, word, site.mask())

    return run


def _accumulate(site: Site, space: SpacePlane, first: Array, value: Value, lanes: Array) -> None:
    """Add the values of some lanes to floats in memory."""
    where, slot = np.unique(first, return_inverse=True)
    old = valued(space.load(where, 2), space.real(where), "f32", site.number)
    p, q, bad = (np.zeros(where.size, np.uint64) for _ in range(3))
    shape = (site.plane.lanes,)
    added = np.broadcast_to(value.q, shape)[lanes]
    np.add.at(p, slot, np.broadcast_to(value.p, shape)[lanes])
    np.add.at(q, slot, np.where(added == field.NO_Q, np.uint64(0), added))
    np.maximum.at(bad, slot, np.where(added == field.NO_Q, np.uint64(1), np.uint64(0)))
    q = np.where(bad != 0, field.NO_Q, q % np.uint64(field.Q))
    bad[...] = 0
    if value.bad is not None:
        np.maximum.at(bad, slot, np.broadcast_to(value.bad, shape)[lanes])
    words = field.add(old, Value(p % np.uint64(field.P), q, bad)).words("f32")
    space.store(where, np.stack([words, field.upper(words)]))


# ---- lanes


def _shuffle(site: Site) -> Action | None:
    i = site.i
    target = i.operands[0].first if isinstance(i.operands[0], Pair) else i.operands[0]
    sources, read = shuffle_sources(i, site.binder), site.units(i.operands[1], 2)

    def run() -> None:
        words = read()
        site.put_units(target, None if words is None else words[:, sources()[0]], site.mask())

    return run


RULES: dict[tuple[str, str], Rule] = {
    **{(opcode, family): _arithmetic for opcode in _COMPUTE for family in ("float", "half", "packed")},
    **{(opcode, "float"): _arithmetic for opcode in ("sin", "cos", "lg2", "tanh", "copysign")},
    ("tanh", "half"): _arithmetic,
    **{("ex2", family): _exponential for family in ("float", "half")},
    **{("abs", family): _absolute for family in ("float", "half")},
    **{(opcode, family): _extreme for opcode in ("min", "max") for family in ("float", "half")},
    ("mov", "*"): _move,
    ("selp", "*"): _select,
    ("cvt", "*"): _convert,
    **{(opcode, "*"): _logic for opcode in ("and", "or")},
    **{(opcode, "*"): _shift for opcode in ("shl", "shr")},
    ("prmt", "*"): _permute,
    ("bfi", "*"): _insert,
    **{(opcode, "*"): _load for opcode in ("ld", "ldu")},
    ("st", "*"): _store,
    ("cp", "*"): _copy,
    **{(opcode, "*"): _atomic for opcode in ("atom", "red")},
    ("shfl", "*"): _shuffle,
    **{(opcode, "*"): _raw for opcode in ("vote", "activemask", "match", "elect")},
    **MATRIX_RULES,
}
"""(opcode, type family) → rule; instructions of lanes without one treat their operands as integers."""
