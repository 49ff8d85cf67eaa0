"""Exactly rounded f32 and f64 arithmetic in the four IEEE 754 rounding modes.

For f32 rounding to nearest, a single CPU operation suffices if it rounds once. f32 multiply-add and all directed f32
rounding use float64. A product of two f32 values is exact in float64. An inexact sum is rounded to odd
(`exact.sum_to_odd`) before the final rounding. `exact` contains the f64 operations that the CPU lacks.

Sources: PTX ISA 8.5, sections 9.7.3.3 `add` to 9.7.3.15 `sqrt`; NaN results of f32 are 0x7fffffff (section 9.7.3).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from evokern.simt.numerics.encoding import round_to_f32
from evokern.simt.numerics.exact import fma_directed, fma_nearest, sum_to_odd
from evokern.simt.numerics.formats import Array

_LOW_29 = np.int64(0x1FFFFFFF)
_MIDPOINT = np.int64(0x10000000)
_TINY_F32 = np.float32(2.0**-126)


def _double(values: Array) -> Array:
    return values.astype(np.float64)


def _fma_f32_nearest(a: Array, b: Array, c: Array) -> Array:
    """Return a*b + c of float32, rounded once.

    The float64 product is exact, so only the sum can be rounded twice. This matters only if the float64 sum is exactly
    half-way between two f32: its 29 low bits are 1 followed by zeros, or the result is subnormal. These lanes are
    recomputed.
    """
    product = _double(a) * _double(b)
    wide = _double(c)
    total = product + wide
    result: Array = total.astype(np.float32)
    doubtful = (total.view(np.int64) & _LOW_29) == _MIDPOINT
    tiny = np.abs(result) <= _TINY_F32
    if np.count_nonzero(tiny):
        doubtful |= tiny & (total != 0)
    if np.count_nonzero(doubtful):
        lanes = np.flatnonzero(doubtful)
        product, wide = (row if row.size == 1 else row[lanes] for row in (product, wide))
        result[lanes] = sum_to_odd(product, wide).astype(np.float32)
    return result


def _directed_sum_f32(x: Array, y: Array, rounding: str) -> Array:
    """Return x + y of float64 operands, rounded once to f32; exact cancellation gives -0 when rounding down."""
    total = sum_to_odd(x, y)
    if rounding == "rm":
        total = np.where((total == 0) & (np.signbit(x) != np.signbit(y)), -0.0, total)
    return round_to_f32(total, rounding)


def _step(values: Array, difference: Array, rounding: str) -> Array:
    """Move a result rounded to nearest by one unit in the last place if the rounding mode requires it.

    Args:
        values: float64 results rounded to nearest.
        difference: any array with the sign of (exact result - `values`).
        rounding: direction.
    """
    if rounding == "rz":
        move = (difference * np.sign(values)) < 0
        target = np.zeros_like(values)
    elif rounding == "rm":
        move, target = difference < 0, np.full_like(values, -np.inf)
    else:
        move, target = difference > 0, np.full_like(values, np.inf)
    return np.where(move, np.nextafter(values, target), values)


def _div_f64_directed(a: Array, b: Array, rounding: str) -> Array:
    """Correct a quotient by the sign of its remainder, which is exact for operands and quotients near 1."""
    a, b = np.broadcast_arrays(a, b)
    quotient = a / b
    a_fraction, a_exponent = np.frexp(a)
    b_fraction, b_exponent = np.frexp(b)
    scaled = np.ldexp(quotient, b_exponent - a_exponent)
    remainder = fma_nearest(-scaled, b_fraction, a_fraction) * np.sign(b)
    proper = np.isfinite(a) & np.isfinite(b) & (b != 0)
    return np.where(proper, _step(quotient, remainder, rounding), quotient)


def _sqrt_f64_directed(a: Array, rounding: str) -> Array:
    root = np.sqrt(a)
    fraction, exponent = np.frexp(a)
    odd = exponent & 1
    scaled = np.ldexp(root, -((exponent - odd) >> 1))
    remainder = fma_nearest(-scaled, scaled, np.ldexp(fraction, odd))
    return np.where(np.isfinite(a) & (a > 0), _step(root, remainder, rounding), root)


def f32_operation(name: str, rounding: str) -> Callable[..., Array]:
    """Return the f32 operation `name` with a rounding mode, for float32 arrays, without `.ftz`, `.sat` or NaN rules."""
    if rounding == "rn":
        return _F32_NEAREST[name]
    directed: Mapping[str, Callable[..., Array]] = {
        "add": lambda a, b: _directed_sum_f32(_double(a), _double(b), rounding),
        "sub": lambda a, b: _directed_sum_f32(_double(a), -_double(b), rounding),
        "mul": lambda a, b: round_to_f32(_double(a) * _double(b), rounding),
        "fma": lambda a, b, c: _directed_sum_f32(_double(a) * _double(b), _double(c), rounding),
        # Quotients and roots of 24-bit numbers differ from any 24-bit number by 2^-48 or are equal to it. The float64
        # result is therefore on the correct side of it.
        "div": lambda a, b: round_to_f32(_double(a) / _double(b), rounding),
        "rcp": lambda a: round_to_f32(1.0 / _double(a), rounding),
        "sqrt": lambda a: round_to_f32(np.sqrt(_double(a)), rounding),
    }
    return directed[name]


_UNROUNDED: Mapping[str, Callable[..., Array]] = {
    "mul": lambda a, b: a * b,
    "fma": lambda a, b, c: sum_to_odd(a * b, c),
    "div": lambda a, b: a / b,
    "div.full": lambda a, b: a / b,
    "rcp": lambda a: 1.0 / a,
}
"""Compute results without rounding, on the same side of 2^-126 as the exact value, from float64 operands."""


def flush_f32(name: str, operands: Sequence[Array], result: Array) -> Array:
    """Replace f32 results below the smallest normal number (before rounding) with zero of the same sign.

    A product just below 2^-126 that would be rounded up to it is flushed too, as on an NVIDIA H200.

    Args:
        name: the operation.
        operands: float32, flushed.
        result: float32, rounded as without `.ftz`.
    """
    magnitude = np.abs(result)
    small = magnitude <= _TINY_F32
    if not np.count_nonzero(small):
        return result
    least = magnitude == _TINY_F32
    if np.count_nonzero(least):
        small[least] = False
        exact = _UNROUNDED.get(name)
        if exact is not None:
            wide = exact(*[np.broadcast_to(operand, result.shape)[least].astype(np.float64) for operand in operands])
            small[least] = np.abs(wide) < _TINY_F32
    flushed: Array = np.where(small, np.copysign(np.float32(0), result), result)
    return flushed


def f64_operation(name: str, rounding: str) -> Callable[..., Array]:
    """Return the f64 operation `name` with the given rounding mode, for float64 arrays."""
    if rounding == "rn":
        return _F64_NEAREST[name]
    one = np.ones(())
    directed: Mapping[str, Callable[..., Array]] = {
        "add": lambda a, b: fma_directed(a, one, b, rounding),
        "sub": lambda a, b: fma_directed(a, one, -b, rounding),
        "mul": lambda a, b: fma_directed(a, b, np.copysign(0.0, np.copysign(1.0, a) * np.copysign(1.0, b)), rounding),
        "fma": lambda a, b, c: fma_directed(a, b, c, rounding),
        "div": lambda a, b: _div_f64_directed(a, b, rounding),
        "rcp": lambda a: _div_f64_directed(one, a, rounding),
        "sqrt": lambda a: _sqrt_f64_directed(a, rounding),
    }
    return directed[name]


_F32_NEAREST: Mapping[str, Callable[..., Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "fma": _fma_f32_nearest,
    "div": np.divide,
    "rcp": lambda a: np.float32(1) / a,
    "sqrt": np.sqrt,
}

_F64_NEAREST: Mapping[str, Callable[..., Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "fma": fma_nearest,
    "div": np.divide,
    "rcp": lambda a: 1.0 / a,
    "sqrt": np.sqrt,
}
