"""f16 and bf16 arithmetic with one rounding, for scalars and packed pairs.

Operands are decoded to float32, which represents both formats exactly, and the result is rounded once:

- Sums and products of f16 and bf16 are rounded to float32 and then to the format. The first rounding is harmless,
  because float32 has at least 2p + 2 bits for p = 11 and 8 (S. Figueroa, "When is double rounding innocuous?", SIGNUM
  Newsletter 30(3), 1995). Products of f16 are exact.
- Multiply-add computes the sum in float64. An f16 sum that is inexact there is never half-way between two f16 values. A
bf16 sum can be half-way between two bf16 values and is then rounded to odd.

Sources: PTX ISA 8.5, sections 9.7.4.1 `add` to 9.7.4.8 `max`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from evokern.simt.numerics.encoding import canonical, encode, flush, saturate
from evokern.simt.numerics.exact import sum_to_odd
from evokern.simt.numerics.formats import FORMATS, Array, decode


def _fma_f16(a: Array, b: Array, c: Array) -> Array:
    """Return a float64 sum of decoded f16 operands that rounds to the correct f16 result."""
    total: Array = (a * b).astype(np.float64) + c
    return total


def _fma_bf16(a: Array, b: Array, c: Array) -> Array:
    """Return a float32 sum of decoded bf16 operands that rounds to the correct bf16 result.

    bf16 is the upper half of float32, so two roundings can differ from one only if the float32 sum is half-way between
    two bf16 values. In these lanes, the sum is rounded to odd and then truncated to float32, with its lost bits or-ed
    into the last place.
    """
    product = a.astype(np.float64) * b
    total = product + c
    result: Array = total.astype(np.float32)
    doubtful = (result.view(np.uint32) & np.uint32(0xFFFF)) == 0x8000
    if np.count_nonzero(doubtful):
        addend = np.broadcast_to(c, total.shape)[doubtful].astype(np.float64)
        odd = sum_to_odd(np.broadcast_to(product, total.shape)[doubtful], addend)
        nearest = odd.astype(np.float32)
        bits = nearest.view(np.int32)
        bits -= np.abs(nearest.astype(np.float64)) > np.abs(odd)
        bits |= nearest.astype(np.float64) != odd
        result[doubtful] = nearest
    return result


_OPERATIONS: Mapping[str, Mapping[str, Callable[..., Array]]] = {
    kind: {"add": np.add, "sub": np.subtract, "mul": np.multiply, "fma": fused}
    for kind, fused in (("f16", _fma_f16), ("bf16", _fma_bf16))
}


def half_operation(name: str, kind: str, *, ftz: bool, sat: bool, relu: bool) -> Callable[..., Array]:
    """Return the operation `name` (`add`, `sub`, `mul`, `fma`) as a function of arrays of f16 or bf16 bit patterns.

    Args:
        name: operation.
        kind: `f16` or `bf16`.
        ftz: flush subnormal operands and results to zero of the same sign (only f16 in the ISA).
        sat: clamp the result to [0, 1], NaN to +0.
        relu: clamp negative results to +0, NaN to the canonical NaN.
    """
    operation = _OPERATIONS[kind][name]
    smallest = FORMATS[kind].smallest_normal

    def apply(*operands: Array) -> Array:
        values = [decode(kind, operand) for operand in operands]
        if ftz:
            values = [flush(value, smallest) for value in values]
        result = operation(*values)
        if sat:
            result = saturate(result)
        if ftz:  # Results that are subnormal before rounding are flushed, as for f32.
            result = flush(result, smallest)
        return encode(kind, result, relu=relu)

    return apply


def half_function(function: Callable[[Array], Array], kind: str, *, ftz: bool) -> Callable[[Array], Array]:
    """Turn a float64 function into a function of f16 or bf16 patterns that rounds once (`ex2`, `tanh`)."""
    smallest = FORMATS[kind].smallest_normal

    def apply(operand: Array) -> Array:
        values = decode(kind, operand)
        if ftz:
            values = flush(values, smallest)
        result = function(values.astype(np.float64))
        if ftz:
            result = flush(result, smallest)
        return encode(kind, result)

    return apply


def packed(function: Callable[..., Array]) -> Callable[..., Array]:
    """Turn a function of 16-bit patterns into a function of registers that hold two patterns."""

    def apply(*registers: Array) -> Array:
        halves = [np.ascontiguousarray(register)[..., None].view(np.uint16) for register in registers]
        result: Array = np.ascontiguousarray(function(*halves)).view(np.uint32)[..., 0]
        return result

    return apply


def _minimum_or_maximum(largest: bool, a: Array, b: Array) -> Array:
    """Return the minimum or maximum with -0 below +0, which `np.fmin` does not guarantee."""
    result: Array = np.fmax(a, b) if largest else np.fmin(a, b)
    zero = result == 0
    if np.count_nonzero(zero):
        negative = (np.signbit(a) & np.signbit(b)) if largest else (np.signbit(a) | np.signbit(b))
        tie = zero & (a == b)
        result = np.where(tie, np.where(negative, -result.dtype.type(0), result.dtype.type(0)), result)
    return result


def bind_min_max_of(
    kind: str, *, largest: bool, ftz: bool = False, nan: bool = False, xorsign: bool = False
) -> Callable[[Array, Array], Array]:
    """Return `min` or `max` for a floating-point type (PTX ISA 9.7.3.11 and 9.7.3.12; 9.7.4.7 and 9.7.4.8 for halves).

    Args:
        kind: `f32`, `f64`, `f16` or `bf16`; arrays in storage type.
        largest: `max` instead of `min`.
        ftz: flush subnormal operands and results.
        nan: `.NaN`: the result is the canonical NaN if either operand is NaN; without it, only if both are.
        xorsign: `.xorsign.abs`: compare magnitudes, and give the result the exclusive or of the operands' signs.

    Returns:
        Function of two storage arrays. -0 counts as less than +0.
    """
    smallest = FORMATS[kind].smallest_normal

    def apply(a: Array, b: Array) -> Array:
        a, b = decode(kind, a), decode(kind, b)
        if ftz:
            a, b = flush(a, smallest), flush(b, smallest)
        sign = np.signbit(a) ^ np.signbit(b) if xorsign else None
        if xorsign:
            a, b = np.abs(a), np.abs(b)
        result = _minimum_or_maximum(largest, a, b)
        if nan:
            either = np.isnan(a) | np.isnan(b)
            if np.count_nonzero(either):
                result = np.where(either, result.dtype.type(np.nan), result)
        if sign is not None:
            result = np.where(sign, -result, result)
        if kind == "f64":
            return result
        return canonical("f32", result, result) if kind == "f32" else encode(kind, result)

    return apply
