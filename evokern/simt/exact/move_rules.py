"""Rules of exact arithmetic for moves of bits: selections, shifts, masks, permutations and shuffles."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from evokern.ptx.instruction_set import data_type, result_count
from evokern.ptx.syntax import TYPE_BYTES, Operand, Pair, Vector
from evokern.simt.arrays import Action, Array
from evokern.simt.exact.field import BITS, CODE_SHIFT, NO_RULE, PAIR, RAW
from evokern.simt.exact.plane import UNITS, Key, Site, immediate
from evokern.simt.operations.matrix_ops import items_of
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
    parts, pieces = items_of(target), items_of(source)
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
    predicate, key = site.binder.src(condition, "pred"), site.key(target)

    def chosen(x: Array, y: Array) -> Array:
        return np.where(predicate, x, y)

    return site.carried(target, (yes, no), UNITS[key[0]], chosen) if key is not None else None


def _logic(site: Site) -> Action | None:
    """Bind `and` and `or`: units and bytes that the other operand keeps or clears completely carry their value."""
    i, kind = site.i, data_type(site.i) or "pred"
    if kind == "pred":
        return None
    size, lanes, clears = TYPE_BYTES[kind] // 2, site.plane.lanes, i.opcode == "and"
    rows = [site.binder.src(operand, f"u{16 * size}") for operand in i.operands[1:]]

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

    def result(x: Array, y: Array) -> Array:
        if (np.stack([x, y]) >> CODE_SHIFT == PAIR).any():
            return site.plane.exact.joined(*chosen(site.split(x), site.split(y), 1))
        return chosen(x, y, 2)

    return site.carried(i.operands[0], i.operands[1:], size, result)


def move_bytes(site: Site, order: list[tuple[int, int] | None]) -> Action:
    """Bind an instruction whose result consists of bytes of its operands: (operand, byte), or None for raw ones."""
    numbers = sorted({one[0] for one in order if one})
    whole = all(
        low == high if low is None or high is None else low[1] % 2 == 0 and high == (low[0], low[1] + 1)
        for low, high in zip(order[::2], order[1::2], strict=True)
    )

    def chosen(*found: Array) -> Array:
        none, words = np.zeros(site.plane.lanes, np.uint64), dict(zip(numbers, found, strict=True))
        if whole:
            return np.stack([none if one is None else words[one[0]][one[1] // 2] for one in order[::2]])
        split = {number: site.split(one) for number, one in words.items()}
        parts = [none if one is None else split[one[0]][one[1] % 2, one[1] // 2] for one in order]
        return np.stack([site.plane.exact.joined(*pair) for pair in zip(parts[::2], parts[1::2], strict=True)])

    return site.carried(site.i.operands[0], [site.i.operands[number] for number in numbers], 4, chosen)


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

    def result(low_half: Array, high_half: Array) -> Array:
        units = np.concatenate([low_half, high_half])
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
        return np.stack(rows)

    return site.carried(i.operands[0], i.operands[1:3], 2, result)


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
    sources = shuffle_sources(i, site.binder)
    return site.carried(target, i.operands[1:2], 2, lambda words: words[:, sources()[0]])


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
