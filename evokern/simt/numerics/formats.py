"""PTX number formats as bit patterns, and their exact values.

Each PTX type has one *storage type* (`STORAGE`): NumPy's own for f16, f32 and f64, and an unsigned integer with the
bit pattern for formats that NumPy lacks. `encoding` rounds values to a format.

Sources: PTX ISA 8.5, sections 5.2.1 (fundamental types) and 5.2.3 (alternate floating-point formats: bf16, tf32, e4m3,
e5m2) and 9.7.9.21 `cvt` for the canonical NaNs; the bit layouts of e4m3 and e5m2 are those of "FP8 Formats for Deep
Learning", arXiv 2209.05433, table 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from evokern.errors import InternalError, suggestion

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
"""PTX type -> NumPy type of an array of values, one element per lane (packed types: low half = element 0)."""

CANONICAL_NAN: Mapping[str, int] = {
    "f32": 0x7FFFFFFF,
    "f16": 0x7FFF,
    "bf16": 0x7FFF,
    "tf32": 0x7FFFFFFF,
    "e4m3": 0x7F,
    "e5m2": 0x7F,
}
"""Type -> bit pattern of a NaN result; f64 keeps the payload of the operand instead."""


@dataclass(frozen=True)
class FloatFormat:
    """Binary floating-point format.

    Raises:
        InternalError: float64 cannot represent the precision.
    """

    precision: int
    """Significand bits, including the implicit one."""
    minimum_exponent: int
    """Exponent of the smallest normal number."""
    largest: float
    """Largest finite value."""

    def __post_init__(self) -> None:
        if not 2 <= self.precision <= 53:
            raise InternalError(f"float64 cannot round to a format of {self.precision} significand bits")

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
"""Formats of PTX that `encode` supports."""


def ignore_float_warnings() -> np.errstate:
    """Return the NumPy error context for this module's functions: no floating-point warnings.

    Entering it costs about a microsecond, so the caller enters it once for many instructions.
    """
    return np.errstate(all="ignore")


def stored(kind: str, values: Array) -> Array:
    """View `values` in the storage type of PTX type `kind` without changing bits.

    Args:
        kind: a key of `STORAGE`.
        values: any array whose items have the width of `kind`.

    Raises:
        InternalError: the type is unknown, or the items have another width.
    """
    dtype = STORAGE.get(kind)
    if dtype is None:
        raise InternalError(f"unknown PTX type {kind!r}: {suggestion(kind, STORAGE)}")
    if values.dtype == dtype:
        return values
    if values.dtype.itemsize != dtype.itemsize:
        raise InternalError(f"an array of {values.dtype} cannot hold .{kind}: each item needs {dtype.itemsize} bytes")
    return values.view(dtype)


def _f16_table() -> Array:
    with ignore_float_warnings():
        table: Array = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    return table


_F16 = _f16_table()
"""Every f16 value as float32; a look-up takes a third of the time of NumPy's cast."""


def _decode_f16(bits: Array) -> Array:
    return _F16.take(bits.view(np.uint16), mode="wrap")


def _decode_bf16(bits: Array) -> Array:
    wide = bits.view(np.uint16).astype(np.uint32)
    wide <<= 16
    return wide.view(np.float32)


def _decode_tf32(bits: Array) -> Array:
    return (bits.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def _fp8_table(fraction_bits: int, bias: int) -> Array:
    """Return all 256 values of an 8-bit format as float32; the caller handles exponents with all bits set."""
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
    """Return the exact values that bit patterns represent.

    Args:
        kind: a key of `FORMATS`. The 13 low bits of a tf32 register are ignored (PTX ISA 5.2.3).
        bits: patterns in any type of the correct width.

    Returns:
        float64 for f64, float32 otherwise, of the same shape.
    """
    return _DECODERS[kind](bits)
