"""Number formats of PTX as bit patterns, and the rounding of real values into them.

Values travel in one *storage type* per PTX type (`STORAGE`): NumPy's own for f16, f32 and f64, unsigned integers that
hold the bit pattern for the formats that NumPy lacks. `decode` is exact in every case; `encode` rounds once.

Sources: PTX ISA 8.5, section 5.2.1 (fundamental types) and 5.2.3 (alternate floating-point formats: bf16, tf32, e4m3,
e5m2); section 9.7.9.21 `cvt` for the rounding modes, `.satfinite`, `.relu`, `.sat` and the canonical NaNs; the bit
layouts of e4m3 and e5m2 are those of "FP8 Formats for Deep Learning", arXiv 2209.05433, table 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from evokern.errors import InternalError, nearest

Array = npt.NDArray[Any]

ROUNDINGS = ("rn", "rz", "rm", "rp", "rna")
"""Floating-point rounding modifiers: to nearest even, to zero, down, up, to nearest with ties away from zero."""

STORAGE: Mapping[str, np.dtype[Any]] = {
    "f64": np.dtype(np.float64),
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(np.uint16),
    "tf32": np.dtype(np.uint32),
    "e4m3": np.dtype(np.uint8),
    "e5m2": np.dtype(np.uint8),
    "f16x2": np.dtype(np.uint32),
    "bf16x2": np.dtype(np.uint32),
    "e4m3x2": np.dtype(np.uint16),
    "e5m2x2": np.dtype(np.uint16),
    **{
        f"{sign}{bits}": np.dtype(f"{kind}{bits // 8}")
        for sign, kind in (("u", "u"), ("s", "i"), ("b", "u"))
        for bits in (8, 16, 32, 64)
    },
}
"""PTX type -> NumPy type of an array that holds it, one element a lane (packed types: low half = element 0)."""

CANONICAL_NAN: Mapping[str, int] = {
    "f32": 0x7FFFFFFF,
    "f16": 0x7FFF,
    "bf16": 0x7FFF,
    "tf32": 0x7FFFFFFF,
    "e4m3": 0x7F,
    "e5m2": 0x7F,
}
"""The bit pattern that an operation gives for NaN; f64 keeps the payload of its operand."""


@dataclass(frozen=True)
class FloatFormat:
    """A binary floating-point format.

    Raises:
        InternalError: a precision that float64 cannot hold.
    """

    precision: int
    """Significand bits, the implicit one included."""
    minimum_exponent: int
    """Exponent of the smallest normal number."""
    largest: float
    """Largest finite value."""

    def __post_init__(self) -> None:
        if not 2 <= self.precision <= 53:
            raise InternalError(f"a format of {self.precision} significand bits cannot be rounded in float64")

    @property
    def smallest_normal(self) -> float:
        """Smallest positive normal value."""
        return float(2.0**self.minimum_exponent)


FORMATS: Mapping[str, FloatFormat] = {
    "f64": FloatFormat(53, -1022, float(np.finfo(np.float64).max)),
    "f32": FloatFormat(24, -126, float(np.finfo(np.float32).max)),
    "tf32": FloatFormat(11, -126, float((2 - 2.0**-10) * 2.0**127)),
    "bf16": FloatFormat(8, -126, float((2 - 2.0**-7) * 2.0**127)),
    "f16": FloatFormat(11, -14, 65504.0),
    "e5m2": FloatFormat(3, -14, 57344.0),
    "e4m3": FloatFormat(4, -6, 448.0),
}
"""The formats of PTX that `encode` rounds to."""


def quiet() -> np.errstate:
    """Return the context in which these functions run: no warning for overflow, invalid or division by zero.

    Entering it costs about a microsecond, so the caller enters it once for many instructions.
    """
    return np.errstate(all="ignore")


def stored(kind: str, values: Array) -> Array:
    """View `values` in the storage type of PTX type `kind`; the bits stay as they are.

    Args:
        kind: a key of `STORAGE`.
        values: any array whose items have the width of `kind`.

    Raises:
        InternalError: unknown type, or items of another width.
    """
    dtype = STORAGE.get(kind)
    if dtype is None:
        raise InternalError(f"unknown PTX type {kind!r}: {nearest(kind, STORAGE)}")
    if values.dtype == dtype:
        return values
    if values.dtype.itemsize != dtype.itemsize:
        raise InternalError(
            f"an array of {values.dtype} cannot hold .{kind}: {dtype.itemsize} bytes an item are needed"
        )
    return values.view(dtype)


# ------------------------------------------------------------------------------------------------------------- decode


def _f16_table() -> Array:
    with quiet():
        table: Array = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    return table


_F16 = _f16_table()
"""Every f16 as float32: a look-up costs a third of NumPy's own cast, which converts one number at a time."""


def _decode_f16(bits: Array) -> Array:
    return _F16.take(bits.view(np.uint16), mode="wrap")


def _decode_bf16(bits: Array) -> Array:
    wide = bits.view(np.uint16).astype(np.uint32)
    wide <<= 16
    return wide.view(np.float32)


def _decode_tf32(bits: Array) -> Array:
    return (bits.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def _fp8_table(fraction_bits: int, bias: int) -> Array:
    """All 256 values of an 8-bit format as float32; an exponent of ones is settled by the caller."""
    codes = np.arange(256)
    fraction = codes & ((1 << fraction_bits) - 1)
    exponent = (codes & 0x7F) >> fraction_bits
    significand = np.where(exponent > 0, fraction + (1 << fraction_bits), fraction)
    magnitude = significand * 2.0 ** (np.maximum(exponent, 1) - bias - fraction_bits)
    result: Array = np.where(codes >= 128, -magnitude, magnitude).astype(np.float32)
    return result


def _e4m3_table() -> Array:
    table = _fp8_table(3, 7)
    table[[0x7F, 0xFF]] = np.nan
    return table


def _e5m2_table() -> Array:
    table = _fp8_table(2, 15)
    table[[0x7C, 0xFC]] = np.inf, -np.inf
    table[[0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF]] = np.nan
    return table


_E4M3, _E5M2 = _e4m3_table(), _e5m2_table()

_DECODERS: Mapping[str, Callable[[Array], Array]] = {
    "f64": lambda bits: bits.view(np.float64),
    "f32": lambda bits: bits.view(np.float32),
    "f16": _decode_f16,
    "bf16": _decode_bf16,
    "tf32": _decode_tf32,
    "e4m3": lambda bits: _E4M3.take(bits),
    "e5m2": lambda bits: _E5M2.take(bits),
}


def decode(kind: str, bits: Array) -> Array:
    """Return the values of bit patterns, exactly.

    Args:
        kind: a key of `FORMATS`. The 13 low bits of a tf32 register are ignored (PTX ISA 5.2.3).
        bits: patterns in any type of the right width.

    Returns:
        float64 for f64, float32 otherwise, of the same shape.
    """
    return _DECODERS[kind](bits)


# ------------------------------------------------------------------------------------------------------------- encode


def round_to_f32(values: Array, rounding: str = "rn") -> Array:
    """Round float64 to float32 in any direction (PTX ISA 9.7.9.21, `cvt.frnd.f32.f64`).

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
        raise InternalError(f"no rounding .{rounding} from float64 to float32: {nearest(rounding, ROUNDINGS[:4])}")
    return nearest_even


_ROUND_INTEGRAL: Mapping[str, Callable[[Array], Array]] = {
    "rn": np.rint,
    "rz": np.trunc,
    "rm": np.floor,
    "rp": np.ceil,
    "rna": lambda values: np.copysign(np.floor(np.abs(values) + 0.5), values),
}


def round_to_format(kind: str, values: Array, rounding: str = "rn") -> Array:
    """Round float64 values to the nearest values of a narrower format, overflow included, as float64.

    The value is scaled so that the format's last place is one, rounded to an integer and scaled back; every step but
    the rounding is exact. `rna` adds one half before the floor, which is exact for formats of fewer than 52 bits.

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
    """IEEE 754 7.4: to infinity when rounding to nearest or away from zero, else to the largest finite value."""
    if rounding in ("rn", "rna"):
        to_infinity: Array = np.ones_like(negative)
    elif rounding == "rz":
        to_infinity = np.zeros_like(negative)
    else:
        to_infinity = negative if rounding == "rm" else ~negative
    return np.where(to_infinity, np.inf, target.largest)


def _pack_bf16_nearest(values: Array) -> Array:
    """float32 -> bf16 to nearest even, in integers."""
    bits = values.view(np.uint32)
    rounded = bits >> 16
    rounded &= 1
    rounded += np.uint32(0x7FFF)
    rounded += bits
    rounded >>= 16
    return rounded.astype(np.uint16)


def _pack_tf32_away(values: Array) -> Array:
    """float32 -> tf32 to nearest, ties away from zero, in integers: half a unit is added and the 13 low bits fall."""
    bits = values.view(np.uint32) + np.uint32(0x1000)
    bits &= np.uint32(0xFFFFE000)
    return bits


def _pack_exact(kind: str, values: Array) -> Array:
    """Bit patterns of float64 values that `kind` represents exactly."""
    if kind == "f16":
        return values.astype(np.float16)
    if kind in ("bf16", "tf32"):
        single = values.astype(np.float32).view(np.uint32)
        return (single >> 16).astype(np.uint16) if kind == "bf16" else single
    if kind == "e5m2":  # the upper half of an f16
        return (values.astype(np.float16).view(np.uint16) >> 8).astype(np.uint8)
    scaled = np.ldexp(values, -8).astype(np.float16).view(np.uint16)  # e4m3's bias is 8 below f16's
    return ((scaled >> 8) & 0x80 | (scaled >> 7) & 0x7F).astype(np.uint8)


def encode(
    kind: str,
    values: Array,
    rounding: str = "rn",
    *,
    satfinite: bool = False,
    relu: bool = False,
) -> Array:
    """Round values into a format, once, and return its bit patterns in the storage type.

    Args:
        kind: a key of `FORMATS`.
        values: float32 or float64; both are taken as exact.
        rounding: one of `ROUNDINGS`.
        satfinite: results beyond the largest finite value, infinities included, become it with the sign kept
            (PTX ISA 9.7.9.21; always so for e4m3, which has no infinity, and asked for by every conversion to e5m2).
        relu: negative results become +0 and NaN the canonical NaN.

    Returns:
        Storage array of the same shape; NaN is `CANONICAL_NAN` except in f64.
    """
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
    """Put the canonical NaN of `kind` wherever `values` is NaN, in place, and return `packed`.

    A dot product of the values with themselves is NaN exactly when one of them is: one pass, without a temporary.
    """
    flat = values.ravel()
    square = np.dot(flat, flat)
    if square != square:
        if packed is values:
            packed = packed.copy()
        packed.view(f"u{packed.dtype.itemsize}")[np.isnan(values)] = CANONICAL_NAN[kind]
    return packed


def flush(values: Array, smallest_normal: float = FORMATS["f32"].smallest_normal) -> Array:
    """Replace subnormal values by zero of the same sign (`.ftz`, PTX ISA 9.7.3); returns the argument if there is none.

    Args:
        values: float32, or the decoded values of a narrower format.
        smallest_normal: of that format.
    """
    small = np.abs(values) < values.dtype.type(smallest_normal)
    if np.count_nonzero(small):
        return np.where(small, np.copysign(values.dtype.type(0), values), values)
    return values


def saturate(values: Array) -> Array:
    """Clamp to [0, 1], NaN to +0 (`.sat`, PTX ISA 9.7.3.3)."""
    zero, one = values.dtype.type(0), values.dtype.type(1)
    result: Array = np.where(values > zero, np.minimum(values, one), zero)
    return result
