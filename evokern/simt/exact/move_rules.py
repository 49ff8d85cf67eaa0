"""Rules of exact arithmetic for moves of bits: selections, shifts, masks, permutations and shuffles."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from evokern.ptx.instruction_set import data_type, result_count
from evokern.ptx.syntax import TYPE_BYTES, Operand, Pair, Vector
from evokern.simt.arrays import Action, Array
from evokern.simt.exact.field import BITS, CODE_SHIFT, NO_RULE, PAIR, RAW
from evokern.simt.exact.plane import Key, Site, immediate
from evokern.simt.operations.warp_ops import shuffle_sources

Rule = Callable[[Site], Action | None]


def targets_of(site: Site) -> list[Key]:
    """Return the rows of the results of an instruction."""
    results = result_count(site.i, site.operation)
    return [key for operand in site.i.operands[:results] for key in site.keys(operand)]


def sources_of(site: Site) -> list[Key]:
    """Return the rows of the operands of an instruction."""
    results = result_count(site.i, site.operation)
    return [key for operand in site.i.operands[results:] for key in site.keys(operand)]


def bits_of(site: Site) -> Action | None:
    """Bind integer arithmetic: its result is raw, but not comparable if an operand is a floating-point value."""
    targets, sources = targets_of(site), sources_of(site)
    return (lambda: site.put_tainted(targets, site.tainted(sources, BITS), site.mask())) if targets else None


def without_rule(site: Site) -> Action | None:
    """Bind an instruction without a rule: its results are not comparable if they are read as floating-point values."""
    targets = targets_of(site)
    word = np.full(site.plane.lanes, site.bad_word(NO_RULE))
    return (lambda: site.put_tainted(targets, word, site.mask())) if targets else None


def raw(site: Site) -> Action | None:
    """Bind an instruction whose results are the numbers that their bits represent."""
    targets = targets_of(site)
    return (lambda: site.put_tainted(targets, None, site.mask())) if targets else None


# ---- whole registers


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
        return bits_of(site)
    return lambda: plane.put(key, plane.rows.get(origin), site.mask())


def _pack(site: Site, target: Operand, source: Operand) -> Action | None:
    """Bind the joining and splitting of registers."""
    parts = target.items if isinstance(target, Vector) else (target,)
    pieces = source.items if isinstance(source, Vector) else (source,)
    total = TYPE_BYTES[data_type(site.i) or "b32"] // 2
    if total % len(parts) or total % len(pieces):
        return bits_of(site)
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


def _logic(site: Site) -> Action | None:
    """Bind `and` and `or`: units and bytes that the other operand keeps or clears completely carry their value."""
    i, kind = site.i, data_type(site.i) or "pred"
    if kind == "pred":
        return None
    size, lanes, clears = TYPE_BYTES[kind] // 2, site.plane.lanes, i.opcode == "and"
    rows = [site.binder.src(operand, f"u{16 * size}") for operand in i.operands[1:]]
    read = [site.units(operand, size) for operand in i.operands[1:]]

    def chosen(x: Array, y: Array, width: int) -> Array:
        """Combine words of units, [size, lanes], or with a width of 1 of their bytes, [2, size, lanes]."""
        bits = [np.ascontiguousarray(np.broadcast_to(row, (lanes,))).view(f"u{width}") for row in rows]
        a, b = (one.reshape(lanes, size, -1).transpose(2, 1, 0).reshape(x.shape) for one in bits)
        keeps = (1 << 8 * width) - 1 if clears else 0
        result = np.where((x == RAW) & (y == RAW), RAW, site.bad_word(BITS))
        result = np.where((y == RAW) & (b == keeps), x, np.where((x == RAW) & (a == keeps), y, result))
        if clears:
            result = np.where(((y == RAW) & (b == 0)) | ((x == RAW) & (a == 0)), RAW, result)
        return result

    def run() -> None:
        x, y = (one() for one in read)
        if x is None and y is None:
            site.put_units(i.operands[0], None, site.mask())
            return
        none = np.zeros((size, lanes), np.uint64)
        x, y = (none if one is None else one for one in (x, y))
        if (np.stack([x, y]) >> CODE_SHIFT == PAIR).any():
            result = site.plane.exact.joined(*chosen(site.split(x), site.split(y), 1))
        else:
            result = chosen(x, y, 2)
        site.put_units(i.operands[0], result, site.mask())

    return run


def move_bytes(site: Site, order: list[tuple[int, int] | None]) -> Action:
    """Bind an instruction whose result consists of bytes of its operands: (operand, byte), or None for raw ones."""
    read = {number: site.units(site.i.operands[number], 4) for number in {one[0] for one in order if one}}
    whole = all(
        low == high if low is None or high is None else low[1] % 2 == 0 and high == (low[0], low[1] + 1)
        for low, high in zip(order[::2], order[1::2], strict=True)
    )

    def run() -> None:
        found = {number: one() for number, one in read.items()}
        if all(one is None for one in found.values()):
            site.put_units(site.i.operands[0], None, site.mask())
            return
        none = np.zeros((4, site.plane.lanes), np.uint64)
        words = {number: none if one is None else one for number, one in found.items()}
        if whole:
            rows = [none[0] if one is None else words[one[0]][one[1] // 2] for one in order[::2]]
        else:
            split = {number: site.split(one) for number, one in words.items()}
            parts = [none[0] if one is None else split[one[0]][one[1] % 2, one[1] // 2] for one in order]
            rows = [site.plane.exact.joined(*pair) for pair in zip(parts[::2], parts[1::2], strict=True)]
        site.put_units(site.i.operands[0], np.stack(rows), site.mask())

    return run


def _shift(site: Site) -> Action | None:
    i = site.i
    size, by = TYPE_BYTES[data_type(i) or "b32"], immediate(i.operands[2])
    if by is None or by % 8 or i.has("wrap", "clamp") or (i.opcode == "shr" and i.has("s16", "s32", "s64")):
        return bits_of(site)
    step = by // 8 * (-1 if i.opcode == "shl" else 1)
    return move_bytes(site, [(1, at + step) if 0 <= at + step < size else None for at in range(size)])


def _permute(site: Site) -> Action | None:
    """Bind `prmt`: lanes whose selector moves whole units or bytes keep their values."""
    i = site.i
    if i.modifiers != ("b32",):
        return bits_of(site)
    selector, lanes = site.binder.src(i.operands[3], "u32"), np.arange(site.plane.lanes)
    read = [site.units(operand, 2) for operand in i.operands[1:3]]

    def run() -> None:
        found = [one() for one in read]
        if all(one is None for one in found):
            site.put_units(i.operands[0], None, site.mask())
            return
        none = np.zeros((2, site.plane.lanes), np.uint64)
        units = np.concatenate([none if one is None else one for one in found])
        chosen = np.broadcast_to(selector, lanes.shape).astype(np.int64)
        places = [chosen >> at & 15 for at in (0, 4, 8, 12)]
        wholes = [
            (low % 2 == 0) & (low < 8) & (high == low + 1) for low, high in zip(places[::2], places[1::2], strict=True)
        ]
        rows = [units[place // 2 & 3, lanes] for place in places[::2]]
        if not all(whole.all() for whole in wholes):
            bytes_of = site.split(units)
            picked = [bytes_of[place & 1, place // 2 & 3, lanes] for place in places]
            # Places from 8 on repeat a sign.
            parts = [
                np.where((at < 8) | (one == RAW), one, site.bad_word(BITS))
                for at, one in zip(places, picked, strict=True)
            ]
            pairs = zip(wholes, rows, parts[::2], parts[1::2], strict=True)
            rows = [np.where(whole, row, site.plane.exact.joined(low, high)) for whole, row, low, high in pairs]
        site.put_units(i.operands[0], np.stack(rows), site.mask())

    return run


def _insert(site: Site) -> Action | None:
    start, length = (immediate(operand) for operand in site.i.operands[3:5])
    if start is None or length is None or start % 8 or length % 8:
        return bits_of(site)
    first, last = start // 8, (start + length) // 8
    size = TYPE_BYTES[data_type(site.i) or "b32"]
    return move_bytes(site, [(1, at - first) if first <= at < last else (2, at) for at in range(size)])


def _extract(site: Site) -> Action | None:
    start, length = (immediate(operand) for operand in site.i.operands[2:4])
    size = TYPE_BYTES[data_type(site.i) or "u32"]
    if start is None or length is None or start % 8 or length % 8 or site.i.has("s32", "s64"):
        return bits_of(site)
    kept = min(length // 8, size - start // 8)
    return move_bytes(site, [(1, at + start // 8) if at < kept else None for at in range(size)])


def _shuffle(site: Site) -> Action | None:
    i = site.i
    target = i.operands[0].first if isinstance(i.operands[0], Pair) else i.operands[0]
    sources, read = shuffle_sources(i, site.binder), site.units(i.operands[1], 2)

    def run() -> None:
        words = read()
        site.put_units(target, None if words is None else words[:, sources()[0]], site.mask())

    return run


MOVE_RULES: dict[tuple[str, str], Rule] = {
    ("mov", "*"): _move,
    ("selp", "*"): _select,
    **{(opcode, "*"): _logic for opcode in ("and", "or")},
    **{(opcode, "*"): _shift for opcode in ("shl", "shr")},
    ("prmt", "*"): _permute,
    ("bfi", "*"): _insert,
    ("bfe", "*"): _extract,
    ("shfl", "*"): _shuffle,
    **{(opcode, "*"): raw for opcode in ("vote", "activemask", "match", "elect", "set")},
}
