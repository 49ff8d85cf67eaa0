"""`cvt`: conversion between any two PTX number types, scalar or packed in pairs.

Source: PTX ISA 8.5, section 9.7.9.21 `cvt`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from evokern.errors import InternalError, suggestion
from evokern.simt.numerics.encoding import encode, flush, round_to_f32, saturate
from evokern.simt.numerics.formats import STORAGE, Array, decode, stored

INTEGER_ROUNDINGS: Mapping[str, Callable[[Array], Array]] = {
    "rni": np.rint,
    "rzi": np.trunc,
    "rmi": np.floor,
    "rpi": np.ceil,
}
"""Modifiers for rounding to an integer: to nearest even, to zero, down, up."""


def _is_integer(kind: str) -> bool:
    return kind[0] in "usb" and kind[1:].isdigit()


def convert(
    to: str, source: str, values: Array, rounding: str | None = None, *, ftz: bool = False, clamps: Collection[str] = ()
) -> Array:
    """Convert lanes from PTX type `source` to PTX type `to`: `cvt.rounding.to.source`.

    Args:
        to: `u8` to `s64`, `f16`, `bf16`, `f32`, `f64`, `tf32`, `e4m3`, `e5m2`.
        source: likewise.
        values: array whose items have the width of `source`.
        rounding: `rn rz rm rp rna` to a floating-point type, `rni rzi rmi rpi` to an integer or to an integral value of
            the same type; None if the conversion is exact.
        ftz: flush f32 operands and results that are subnormal.
        clamps: `sat` clamps to the range of an integer type, or to [0, 1] for a floating-point type; `satfinite` to the
            largest finite value; `relu` clamps negative results to 0.

    Returns:
        Array in the storage type of `to`.

    Raises:
        InternalError: the type or the rounding is unknown.
    """
    values, sat = stored(source, values), "sat" in clamps
    if _is_integer(source):
        if _is_integer(to):
            return _integer_to_integer(values, STORAGE[to], sat)
        return _integer_to_float(to, values, rounding or "rn", sat)
    if to not in STORAGE:
        raise InternalError(f"unknown PTX type {to!r}: {suggestion(to, STORAGE)}")
    numbers = decode(source, values)
    if ftz and source == "f32":
        numbers = flush(numbers)
    if _is_integer(to):
        return _float_to_integer(source, to, numbers, rounding or "rzi")
    if rounding is not None and rounding in INTEGER_ROUNDINGS:
        numbers = INTEGER_ROUNDINGS[rounding](numbers)
    if sat:
        numbers = saturate(numbers)
    if to == source == "f64":
        return numbers
    direction = rounding if rounding is not None and rounding not in INTEGER_ROUNDINGS else "rn"
    if to == "f64":
        return numbers.astype(np.float64)
    if ftz and to == "f32":
        numbers = flush(numbers)
    return encode(to, numbers, direction, satfinite="satfinite" in clamps, relu="relu" in clamps)


def convert_pair(
    to: str, source: str, high: Array, low: Array, rounding: str = "rn", clamps: Collection[str] = ()
) -> Array:
    """Convert two arrays and pack them: `cvt.rounding.f16x2.f32 d, a, b` puts a in the upper half, b in the lower.

    Args:
        to: `f16x2`, `bf16x2`, `e4m3x2` or `e5m2x2`.
        source: type of both operands, `f32` in the ISA.
        high: operand a.
        low: operand b.
        rounding: `rn` or `rz`.
        clamps: `satfinite`, which the ISA requires for e4m3x2 and e5m2x2, and `relu`.

    Returns:
        uint32 for halves, uint16 for bytes.
    """
    element = to.removesuffix("x2")
    high, low = stored(source, high), stored(source, low)
    both = np.empty((*np.broadcast_shapes(high.shape, low.shape), 2), low.dtype)
    both[..., 0] = low
    both[..., 1] = high
    parts = convert(element, source, both, rounding, clamps=clamps)
    result: Array = parts.view(STORAGE[to])[..., 0]
    return result


def convert_packed(to: str, source: str, values: Array, rounding: str = "rn", clamps: Collection[str] = ()) -> Array:
    """Convert packed pairs element by element: `cvt.rn.f16x2.e4m3x2`, `cvt.rn.satfinite.e5m2x2.f16x2`.

    Args:
        to: packed type.
        source: packed type.
        values: array whose items have the width of `source`.
        rounding: direction.
        clamps: `satfinite`, `relu`.
    """
    element, origin = to.removesuffix("x2"), source.removesuffix("x2")
    halves = np.ascontiguousarray(stored(source, values))[..., None].view(STORAGE[origin])
    result = convert(element, origin, halves, rounding, clamps=clamps)
    narrow: Array = np.ascontiguousarray(result).view(STORAGE[to])[..., 0]
    return narrow


def _integer_to_integer(values: Array, target: np.dtype[Any], sat: bool) -> Array:
    if sat:
        limits, own = np.iinfo(target), np.iinfo(values.dtype)
        values = np.clip(values, max(limits.min, own.min), min(limits.max, own.max))
    return values.astype(target)


def _integer_to_float(to: str, values: Array, rounding: str, sat: bool) -> Array:
    if to == "f32" and rounding == "rn" and not sat:
        return values.astype(np.float32)
    if to == "f64" and not sat:
        if values.dtype.itemsize < 8 or rounding == "rn":
            return values.astype(np.float64)
        return _wide_to_f64(values, rounding)
    numbers = values.astype(np.float64) if values.dtype.itemsize < 8 else _wide_to_odd(values)
    if sat:
        numbers = saturate(numbers)
    return round_to_f32(numbers, rounding) if to == "f32" else encode(to, numbers, rounding)


def _magnitude(values: Array) -> tuple[Array, Array]:
    """Split 64-bit integers into sign and uint64 magnitude."""
    if values.dtype.kind == "u":
        return np.zeros(values.shape, bool), values
    negative = values < 0
    bits = values.view(np.uint64)
    return negative, np.where(negative, ~bits + np.uint64(1), bits)


def _wide_to_odd(values: Array) -> Array:
    """Return 64-bit integers as float64, rounded to odd: bits beyond 53 are or-ed into the last bit kept."""
    negative, magnitude = _magnitude(values)
    low = np.uint64(0x7FF)
    cut = (magnitude & ~low) | (((magnitude & low) != 0).astype(np.uint64) << np.uint64(11))
    numbers = np.where(magnitude >= np.uint64(1 << 53), cut, magnitude).astype(np.float64)
    return np.where(negative, -numbers, numbers)


def _wide_to_f64(values: Array, rounding: str) -> Array:
    """Convert 64-bit integers to float64 in a rounding mode: round to nearest, compare as integers, then step back."""
    negative, magnitude = _magnitude(values)
    numbers = magnitude.astype(np.float64)
    top = numbers >= 2.0**64
    back = np.where(top, 0.0, numbers).astype(np.uint64)
    above, below = top | (back > magnitude), ~top & (back < magnitude)
    bits = numbers.view(np.int64)
    if rounding == "rz":
        bits -= above
    else:
        outward = negative if rounding == "rm" else ~negative
        bits -= above & ~outward
        bits += below & outward
    return np.where(negative, -numbers, numbers)


def _float_to_integer(source: str, to: str, numbers: Array, rounding: str) -> Array:
    """Round, clamp to the target's range, and handle NaN.

    NaN becomes 0, but 1 << (width - 1) if the source is f64 or the target has 64 bits (PTX ISA 8.5, 9.7.9.21, Integer
    Notes).
    """
    if rounding not in INTEGER_ROUNDINGS:
        raise InternalError(f".{rounding} is not a rounding to an integer: {suggestion(rounding, INTEGER_ROUNDINGS)}")
    target = STORAGE[to]
    limits = np.iinfo(target)
    wide = numbers.astype(np.float64)
    if rounding != "rzi":  # The cast below truncates.
        wide = INTEGER_ROUNDINGS[rounding](wide)
    if target.itemsize < 8:
        result = np.minimum(np.maximum(wide, limits.min), limits.max)
        unordered = result != result
        if np.count_nonzero(unordered):
            odd_one = (1 << (8 * target.itemsize - 1)) if source == "f64" else 0
            result = np.where(unordered, _as_number(odd_one, target), result)
        return result.astype(np.int64).astype(target)
    return _to_64_bits(wide, target)


def _as_number(pattern: int, target: np.dtype[Any]) -> float:
    """Return the value of a bit pattern in an integer type."""
    return float(np.array(pattern, f"u{target.itemsize}").view(target)[()])


def _to_64_bits(wide: Array, target: np.dtype[Any]) -> Array:
    """Clamp to a 64-bit type, whose upper limit float64 cannot represent."""
    limits = np.iinfo(target)
    beyond, below = wide >= float(limits.max), wide < float(limits.min)
    unordered = np.isnan(wide)
    settled = np.where(beyond | below | unordered, 0.0, wide)
    result = settled.astype(target)
    result[beyond] = limits.max
    result[below] = limits.min
    result.view(np.uint64)[unordered] = np.uint64(1 << 63)
    return result
