"""PTX bit operations over lanes: logic, permutations, bit fields, searches and funnel shifts.

Sources: PTX ISA 8.5, sections 9.7.1 (`popc`, `clz`, `bfind`, `brev`, `bfe`, `bfi`), 9.7.7 (`lop3`, `shf`) and
9.7.9.7 (`prmt`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

import numpy as np

from evokern.errors import InternalError, suggestion
from evokern.simt.numerics.formats import Array

# --------------------------------------------------------------------------------------------------------------- lop3

_Binary = Callable[[Array, Array], Array]

_BINARY: tuple[tuple[int, _Binary], ...] = (
    # (vector operations, function); the index is the truth table: bit 2x + y is the value at (x, y)
    (0, lambda x, y: np.zeros_like(x)),
    (2, lambda x, y: ~(x | y)),
    (2, lambda x, y: ~x & y),
    (1, lambda x, y: ~x),
    (2, lambda x, y: x & ~y),
    (1, lambda x, y: ~y),
    (1, lambda x, y: x ^ y),
    (2, lambda x, y: ~(x & y)),
    (1, lambda x, y: x & y),
    (2, lambda x, y: ~(x ^ y)),
    (0, lambda x, y: y),
    (2, lambda x, y: ~x | y),
    (0, lambda x, y: x),
    (2, lambda x, y: x | ~y),
    (1, lambda x, y: x | y),
    (0, lambda x, y: ~np.zeros_like(x)),
)


def _expansion(lut: int, first: int) -> tuple[int, int]:
    """Return the truth tables of lop3 over the other two operands if operand number `first` is 0 and if it is 1."""
    others = [operand for operand in range(3) if operand != first]
    tables = [0, 0]
    for index in range(8):
        bits = [(index >> 2) & 1, (index >> 1) & 1, index & 1]  # a is the high bit of the index: ta = 0xF0
        position = 2 * bits[others[0]] + bits[others[1]]
        tables[bits[first]] |= ((lut >> index) & 1) << position
    return tables[0], tables[1]


def _expansion_cost(at_zero: int, at_one: int) -> int:
    if at_zero == at_one:
        return _BINARY[at_zero][0]
    combine = 1 if at_zero == 0 or at_zero ^ at_one == 15 else 2
    return _BINARY[at_zero][0] + _BINARY[at_zero ^ at_one][0] + combine


@lru_cache(maxsize=256)
def lop3(lut: int) -> Callable[[Array, Array, Array], Array]:
    """Return `lop3.b32` for an immediate table (PTX ISA 9.7.7.5) as a function of three arrays.

    The table is expanded along the cheapest operand x: f = g0(y, z) ^ (x & (g0 ^ g1)(y, z)).

    Args:
        lut: immLut, 0 to 255: the function applied to 0xF0, 0xCC and 0xAA.

    Raises:
        InternalError: the table is out of range.
    """
    if not 0 <= lut <= 255:
        raise InternalError(f"lop3 needs a table from 0 to 255, not {lut}")
    first = min(range(3), key=lambda operand: _expansion_cost(*_expansion(lut, operand)))
    at_zero, at_one = _expansion(lut, first)
    base, change = _BINARY[at_zero][1], _BINARY[at_zero ^ at_one][1]
    left, right = (operand for operand in range(3) if operand != first)

    def apply(*operands: Array) -> Array:
        x, y, z = operands[first], operands[left], operands[right]
        if at_zero == at_one:
            return base(y, z)
        if at_zero ^ at_one == 15:
            return base(y, z) ^ x if at_zero else x
        if at_zero == 0:
            return x & change(y, z)
        return base(y, z) ^ (x & change(y, z))

    return apply


# --------------------------------------------------------------------------------------------------------------- prmt

_PRMT_MODES: Mapping[str, tuple[tuple[int, ...], ...]] = {
    "f4e": ((0, 1, 2, 3), (1, 2, 3, 4), (2, 3, 4, 5), (3, 4, 5, 6)),
    "b4e": ((0, 7, 6, 5), (1, 0, 7, 6), (2, 1, 0, 7), (3, 2, 1, 0)),
    "rc8": ((0, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2), (3, 3, 3, 3)),
    "ecl": ((0, 1, 2, 3), (1, 1, 2, 3), (2, 2, 2, 3), (3, 3, 3, 3)),
    "ecr": ((0, 0, 0, 0), (0, 1, 1, 1), (0, 1, 2, 2), (0, 1, 2, 3)),
    "rc16": ((0, 1, 0, 1), (2, 3, 2, 3), (0, 1, 0, 1), (2, 3, 2, 3)),
}
"""Mode -> source byte of result bytes 0 to 3 for each value of c[1:0] (table of PTX ISA 9.7.9.7)."""


def prmt(a: Array, b: Array, selector: Array | int, mode: str = "") -> Array:
    """Permute the bytes of {b, a}: `prmt.b32` (PTX ISA 9.7.9.7).

    Args:
        a: uint32, bytes 0 to 3 of the source.
        b: uint32, bytes 4 to 7.
        selector: four selectors of four bits, or for a named mode its two low bits; an int is faster than an array.
        mode: empty, or `f4e b4e rc8 ecl ecr rc16`.

    Raises:
        InternalError: the mode is unknown.
    """
    if mode:
        if mode not in _PRMT_MODES:
            raise InternalError(f"prmt has no mode {mode!r}: {suggestion(mode, _PRMT_MODES)}")
        codes = [sum(byte << (4 * place) for place, byte in enumerate(row)) for row in _PRMT_MODES[mode]]
        selector = (
            codes[selector & 3] if isinstance(selector, int) else np.array(codes, np.uint32)[selector & np.uint32(3)]
        )
    if isinstance(selector, int):
        return _prmt_constant(a, b, selector)
    source = a.astype(np.uint64) | (b.astype(np.uint64) << np.uint64(32))
    result = np.zeros(np.broadcast_shapes(source.shape, selector.shape), np.uint32)
    for place in range(4):
        code = (selector >> np.uint32(4 * place)) & np.uint32(15)
        byte = (source >> ((code & np.uint32(7)).astype(np.uint64) << np.uint64(3))).astype(np.uint32) & np.uint32(0xFF)
        sign = (byte >> np.uint32(7)) * np.uint32(0xFF)
        result |= np.where(code > 7, sign, byte) << np.uint32(8 * place)
    return result


def _prmt_constant(a: Array, b: Array, selector: int) -> Array:
    """Permute by a constant selector, with strided copies of bytes, or of 16-bit halves if none is split."""
    a, b = (np.ascontiguousarray(x, dtype=np.uint32) for x in np.broadcast_arrays(a, b))
    codes = [(selector >> (4 * place)) & 15 for place in range(4)]
    result = np.empty(a.shape, np.uint32)
    whole_halves = all(codes[p] < 8 and codes[p] % 2 == 0 and codes[p + 1] == codes[p] + 1 for p in (0, 2))
    width, step = (np.uint16, 2) if whole_halves else (np.uint8, 1)
    parts: Array = result[..., None].view(width)
    sources: list[Array] = [a[..., None].view(width), b[..., None].view(width)]
    for place in range(0, 4, step):
        code = codes[place]
        taken = sources[(code & 7) >> 2][..., (code & 3) // step]
        parts[..., place // step] = (taken >> 7) * np.uint8(0xFF) if code > 7 else taken
    return result


# --------------------------------------------------------------------------------------------------------- bit fields


def bfe(a: Array, position: Array | int, length: Array | int) -> Array:
    """Extract a bit field: `bfe` (PTX ISA 9.7.1.19), sign-extended for signed arrays.

    Args:
        a: uint32, int32, uint64 or int64.
        position: start, modulo 256. A single number (an immediate) is faster than an array.
        length: number of bits, modulo 256; 0 gives 0.
    """
    width = a.dtype.itemsize * 8
    first, bits = _constant(position), _constant(length)
    if first is not None and bits is not None and 0 < bits <= width - first:
        up, down = a.dtype.type(width - first - bits), a.dtype.type(width - bits)
        extracted: Array = (a << up) >> down  # An arithmetic shift extends the field's sign.
        return extracted
    start = np.asarray(position).astype(np.int64) & 0xFF
    count = np.asarray(length).astype(np.int64) & 0xFF
    unsigned = a.view(f"u{a.dtype.itemsize}").astype(np.uint64)
    inside = np.minimum(start, 63).astype(np.uint64)
    field = np.where(start < width, unsigned >> inside, np.uint64(0))
    kept = np.clip(np.minimum(count, width - start), 0, 64)
    field &= _mask64(kept)
    if a.dtype.kind == "i":
        last = np.minimum(start + count - 1, width - 1)
        sign = (unsigned >> np.maximum(last, 0).astype(np.uint64)) & np.uint64(1)
        field |= np.where((sign == 1) & (count > 0), ~_mask64(kept), np.uint64(0))
    return field.astype(f"u{a.dtype.itemsize}").view(a.dtype)


def bfi(source: Array, target: Array, position: Array | int, length: Array | int) -> Array:
    """Insert a bit field: `bfi` (PTX ISA 9.7.1.20). Low bits of `source` replace bits of `target` from `position` on.

    Args:
        source: uint32 or uint64.
        target: same type.
        position: start, modulo 256; a start beyond the width changes nothing.
        length: number of bits, modulo 256.
    """
    width = target.dtype.itemsize * 8
    first, bits = _constant(position), _constant(length)
    if first is not None and bits is not None and bits <= width - first:
        field = target.dtype.type(((1 << bits) - 1) << first)
        inserted: Array = (target & ~field) | ((source << target.dtype.type(min(first, width - 1))) & field)
        return inserted
    start = np.asarray(position).astype(np.int64) & 0xFF
    count = np.asarray(length).astype(np.int64) & 0xFF
    inside = np.minimum(start, 63).astype(np.uint64)
    mask = np.where(start < width, _mask64(np.minimum(count, 64)) << inside, np.uint64(0))
    merged: Array = (target.astype(np.uint64) & ~mask) | ((source.astype(np.uint64) << inside) & mask)
    return merged.astype(target.dtype)


def _constant(value: Array | int) -> int | None:
    """Return the low 8 bits of an operand that is one number (an immediate); None for one number per lane."""
    if isinstance(value, int):
        return value & 0xFF
    return int(value.item()) & 0xFF if value.size == 1 else None


def _mask64(count: Array) -> Array:
    """Return a uint64 whose `count` low bits are set, with `count` from 0 to 64."""
    shifted = np.uint64(0xFFFFFFFFFFFFFFFF) >> (np.uint64(64) - np.clip(count, 1, 64).astype(np.uint64))
    return np.where(count > 0, shifted, np.uint64(0))


def bit_length(a: Array) -> Array:
    """Return the position of the highest set bit plus one (0 for 0) of uint32 or uint64 values, as uint32."""
    if a.dtype.itemsize == 4:
        return np.frexp(a.astype(np.float64))[1].astype(np.uint32)
    upper = (a >> np.uint64(32)).astype(np.float64)
    lower = (a & np.uint64(0xFFFFFFFF)).astype(np.float64)
    return np.where(upper > 0, np.frexp(upper)[1] + 32, np.frexp(lower)[1]).astype(np.uint32)


def clz(a: Array) -> Array:
    """Count the leading zeros of uint32 or uint64 values, as uint32 (PTX ISA 9.7.1.16)."""
    return np.uint32(a.dtype.itemsize * 8) - bit_length(a)


def bfind(a: Array, *, shiftamt: bool = False) -> Array:
    """Return the position of the highest non-sign bit (PTX ISA 9.7.1.17), as uint32; 0xffffffff if there is none.

    Args:
        a: uint32, int32, uint64 or int64; for negative numbers, the position of the highest zero bit.
        shiftamt: return, instead of the position, the left shift that moves the bit to the top.
    """
    if a.dtype.kind == "i":
        a = np.where(a < 0, ~a, a).view(f"u{a.dtype.itemsize}")
    length = bit_length(a)
    position = length - np.uint32(1)
    if shiftamt:
        return np.where(length > 0, np.uint32(a.dtype.itemsize * 8 - 1) - position, position)
    return position


_COUNT = getattr(np, "bitwise_count", None)  # NumPy 2
_POPC16 = np.array([bin(code).count("1") for code in range(1 << 16)], np.uint8)
_BREV16 = np.array([int(f"{code:016b}"[::-1], 2) for code in range(1 << 16)], np.uint16)


def popc(a: Array) -> Array:
    """Count the set bits of uint32 or uint64 values, as uint32 (PTX ISA 9.7.1.15)."""
    if _COUNT is not None:
        ones: Array = _COUNT(a).astype(np.uint32)
        return ones
    parts = np.ascontiguousarray(a)[..., None].view(np.uint16)
    counts = _POPC16.take(parts)
    total: Array = counts.sum(axis=-1, dtype=np.uint32)
    return total


def brev(a: Array) -> Array:
    """Reverse the bits of uint32 or uint64 values (PTX ISA 9.7.1.18)."""
    parts = np.ascontiguousarray(a)[..., None].view(np.uint16)
    turned = np.ascontiguousarray(_BREV16.take(parts)[..., ::-1])
    return turned.view(a.dtype)[..., 0]


def shf(direction: str, a: Array, b: Array, count: Array | int, *, clamp: bool = False) -> Array:
    """Shift {b, a}; return the upper 32 bits for `shf.l`, the lower for `shf.r` (PTX ISA 9.7.7.6).

    Args:
        direction: `l` or `r`.
        a: uint32, lower half.
        b: uint32, upper half.
        count: shift distance; `.wrap` uses its low 5 bits.
        clamp: `.clamp`, by which counts above 32 act as 32.
    """
    if isinstance(count, int) or count.size == 1:
        return _shf_constant(
            direction, a, b, int(count if isinstance(count, int) else count.item()) & 0xFFFFFFFF, clamp
        )
    amount = count.astype(np.uint64) & np.uint64(0xFFFFFFFF)
    amount = np.minimum(amount, np.uint64(32)) if clamp else amount & np.uint64(31)
    wide = a.astype(np.uint64) | (b.astype(np.uint64) << np.uint64(32))
    shifted: Array = (wide << amount) >> np.uint64(32) if direction == "l" else wide >> amount
    return shifted.astype(np.uint32)


def _shf_constant(direction: str, a: Array, b: Array, count: int, clamp: bool) -> Array:
    """Shift all lanes by one count, with two 32-bit shifts instead of a 64-bit shift."""
    places = min(count, 32) if clamp else count & 31
    kept, other = (b, a) if direction == "l" else (a, b)
    if places in (0, 32):
        return (other if places else kept).copy()
    near, far = np.uint32(places), np.uint32(32 - places)
    shifted: Array = (b << near) | (a >> far) if direction == "l" else (a >> near) | (b << far)
    return shifted
