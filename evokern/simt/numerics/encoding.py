"""Rounding of real values to PTX formats in one step, and modifiers of the result.

Sources: PTX ISA 8.5, section 9.7.9.21 `cvt` for the rounding modes, `.satfinite`, `.relu`, `.sat`, the canonical NaNs;
IEEE 754-2019, sections 4.3 and 7.4, for the directions and for overflow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

import numpy as np

from evokern.errors import InternalError, suggestion
from evokern.simt.numerics.formats import CANONICAL_NAN, FORMATS, ROUNDINGS, Array, FloatFormat, ignore_float_warnings


def round_to_f32(values: Array, rounding: str = "rn") -> Array:
    """Round float64 to float32 in any rounding mode (PTX ISA 9.7.9.21, `cvt.frnd.f32.f64`).

    Args:
        values: float64.
        rounding: one of `ROUNDINGS` except `rna`.
    """
    nearest_even = values.astype(np.float32)
    if rounding == "rn":
        return nearest_even
    back = nearest_even.astype(np.float64)
    bits = nearest_even.view(np.int32)
    if rounding == "rz":
        bits -= np.abs(back) > np.abs(values)
    elif rounding == "rm":
        bits += np.where(back > values, np.where(np.signbit(nearest_even), 1, -1), 0).astype(np.int32)
    elif rounding == "rp":
        bits += np.where(back < values, np.where(np.signbit(nearest_even), -1, 1), 0).astype(np.int32)
    else:
        raise InternalError(
            f".{rounding} is not a rounding from float64 to float32: {suggestion(rounding, ROUNDINGS[:4])}"
        )
    return nearest_even


_ROUND_INTEGRAL: Mapping[str, Callable[[Array], Array]] = {
    "rn": np.rint,
    "rz": np.trunc,
    "rm": np.floor,
    "rp": np.ceil,
    "rna": lambda values: np.copysign(np.floor(np.abs(values) + 0.5), values),
}


def round_to_format(kind: str, values: Array, rounding: str = "rn") -> Array:
    """Round float64 values to values of a narrower format, including overflow, and return them as float64.

    The value is scaled so that the format's last place is one, rounded to an integer and scaled back. Only the
    rounding is inexact. `rna` adds one half before the floor, which is exact for formats of fewer than 52 bits.

    Args:
        kind: a format of at most 24 significand bits.
        values: float64.
        rounding: one of `ROUNDINGS`.
    """
    target = FORMATS[kind]
    _, exponent = np.frexp(values)
    last_place = np.maximum(exponent - 1, target.minimum_exponent) - (target.precision - 1)
    scaled = np.ldexp(values, -last_place)
    rounded: Array = np.ldexp(_ROUND_INTEGRAL[rounding](scaled), last_place)
    overflow = np.abs(rounded) > target.largest
    if np.count_nonzero(overflow):
        limit = np.copysign(_overflow_limit(target, rounding, np.signbit(values)), values)
        rounded = np.where(overflow & np.isfinite(values), limit, rounded)
    return rounded


def _overflow_limit(target: FloatFormat, rounding: str, negative: Array) -> Array:
    """Return the result of overflow (IEEE 754 7.4): infinity, or the largest finite value if rounding toward zero."""
    if rounding in ("rn", "rna"):
        to_infinity: Array = np.ones_like(negative)
    elif rounding == "rz":
        to_infinity = np.zeros_like(negative)
    else:
        to_infinity = negative if rounding == "rm" else ~negative
    return np.where(to_infinity, np.inf, target.largest)


def _pack_bf16_nearest(values: Array) -> Array:
    """Convert float32 to bf16, rounding to nearest even, with integer arithmetic."""
    bits = values.view(np.uint32)
    rounded = bits >> 16
    rounded &= 1
    rounded += np.uint32(0x7FFF)
    rounded += bits
    rounded >>= 16
    return rounded.astype(np.uint16)


def _pack_tf32_away(values: Array) -> Array:
    """Convert float32 to tf32, rounding to nearest with ties away from zero: add half a unit and drop 13 low bits."""
    bits = values.view(np.uint32) + np.uint32(0x1000)
    bits &= np.uint32(0xFFFFE000)
    return bits


def _pack_exact(kind: str, values: Array) -> Array:
    """Return the bit patterns of float64 values that `kind` represents exactly."""
    if kind == "f16":
        return values.astype(np.float16)
    if kind in ("bf16", "tf32"):
        single = values.astype(np.float32).view(np.uint32)
        return (single >> 16).astype(np.uint16) if kind == "bf16" else single
    if kind == "e5m2":  # The upper half of an f16.
        return (values.astype(np.float16).view(np.uint16) >> 8).astype(np.uint8)
    scaled = np.ldexp(values, -8).astype(np.float16).view(np.uint16)  # The bias of e4m3 is 8 below that of f16.
    return ((scaled >> 8) & 0x80 | (scaled >> 7) & 0x7F).astype(np.uint8)


def _upper_half_odd(values: Array) -> Array:
    """Return the upper half of float32 patterns, rounded to odd: lost bits set the last bit kept."""
    bits = values.view(np.uint32)
    odd: Array = (bits >> 16) | ((bits & np.uint32(0xFFFF)) != 0)
    return odd


@cache
def _fp8_codes(kind: str, rounding: str, satfinite: bool, relu: bool) -> Array:
    """Return the 8-bit code for every possible upper half of a float32.

    After rounding to odd, the half has 8 significant bits, at least two more than the 8-bit formats need. The table
    therefore rounds as if from the whole float32.
    """
    upper = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)
    with ignore_float_warnings():
        return encode(kind, upper.astype(np.float64), rounding, satfinite=satfinite, relu=relu)


def encode(kind: str, values: Array, rounding: str = "rn", *, satfinite: bool = False, relu: bool = False) -> Array:
    """Round values to a format in one step, and return the bit patterns in the storage type.

    Args:
        kind: a key of `FORMATS`.
        values: float32 or float64, taken as exact.
        rounding: one of `ROUNDINGS`.
        satfinite: clamp results beyond the largest finite value, including infinities, with the sign kept (PTX ISA
            9.7.9.21). It always applies to e4m3, which has no infinity; every conversion to e5m2 sets it.
        relu: convert negative results to +0 and NaN to the canonical NaN.

    Returns:
        Storage array of the same shape; NaN is `CANONICAL_NAN` except in f64.
    """
    if kind in ("e4m3", "e5m2") and values.dtype == np.float32:
        return _fp8_codes(kind, rounding, satfinite, relu).take(_upper_half_odd(values))
    if relu:
        values = np.where(values > 0, values, np.where(np.isnan(values), values, np.zeros_like(values)))
    if satfinite or kind == "e4m3":
        largest = values.dtype.type(FORMATS[kind].largest)
        values = np.where(np.abs(values) > largest, np.copysign(largest, values), values)
    single = values.dtype == np.float32
    if kind == "f64":
        return values.astype(np.float64)
    if kind == "f32":
        packed = values if single else round_to_f32(values, rounding)
    elif kind == "f16" and rounding == "rn":
        packed = values.astype(np.float16)
    elif kind == "bf16" and rounding == "rn" and single:
        packed = _pack_bf16_nearest(values)
    elif kind == "tf32" and rounding == "rna" and single:
        packed = _pack_tf32_away(values)
    else:
        packed = _pack_exact(kind, round_to_format(kind, values.astype(np.float64), rounding))
    return canonical(kind, packed, values)


def canonical(kind: str, packed: Array, values: Array) -> Array:
    """Write the canonical NaN of `kind` to `packed`, in place, wherever `values` is NaN; return `packed`.

    The dot product of the values with themselves is NaN exactly if one of them is NaN: one pass, without a temporary.
    """
    flat = values.ravel()
    square = np.dot(flat, flat)
    if square != square:
        if packed is values:
            packed = packed.copy()
        packed.view(f"u{packed.dtype.itemsize}")[np.isnan(values)] = CANONICAL_NAN[kind]
    return packed


def flush(values: Array, smallest_normal: float = FORMATS["f32"].smallest_normal) -> Array:
    """Replace subnormals with zero of the same sign (`.ftz`, PTX ISA 9.7.3); without subnormals, return the argument.

    Args:
        values: float32, or the decoded values of a narrower format.
        smallest_normal: smallest normal number of that format.
    """
    small = np.abs(values) < values.dtype.type(smallest_normal)
    if np.count_nonzero(small):
        return np.where(small, np.copysign(values.dtype.type(0), values), values)
    return values


def saturate(values: Array) -> Array:
    """Clamp values to [0, 1], with NaN giving +0 (`.sat`, PTX ISA 9.7.3.3)."""
    zero, one = values.dtype.type(0), values.dtype.type(1)
    result: Array = np.where(values > zero, np.minimum(values, one), zero)
    return result
