"""Approximate functions of PTX, computed in float64 and rounded once.

The ISA does not specify the last bits of the hardware's results but bounds their error. This module returns the
correctly rounded result, which is within every bound. Special values follow the ISA's tables. A comparison with a GPU
may allow the error bounds below (`ERROR_BOUNDS`).

Sources: PTX ISA 8.5, sections 9.7.3.8 `div`, 9.7.3.13 `rcp`, 9.7.3.14 `rcp.approx.ftz.f64`, 9.7.3.15 `sqrt`, 9.7.3.16
`rsqrt`; 9.7.3.17 `rsqrt.approx.ftz.f64`, 9.7.3.18 `sin`, 9.7.3.19 `cos`, 9.7.3.20 `lg2`, 9.7.3.21 `ex2`, 9.7.3.22
`tanh`, and for the half formats 9.7.4.9 `tanh`, 9.7.4.10 `ex2`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from evokern.simt.numerics.formats import Array

ERROR_BOUNDS: Mapping[tuple[str, str], tuple[str, float]] = {
    ("ex2", "f32"): ("ulp", 2.0),
    ("lg2", "f32"): ("absolute in (0.5, 2), relative elsewhere", 2.0**-22),
    ("rcp", "f32"): ("ulp", 1.0),
    ("sqrt", "f32"): ("relative", 2.0**-23),
    ("rsqrt", "f32"): ("relative", 2.0**-22.9),
    ("sin", "f32"): ("absolute in [-2 pi, 2 pi]", 2.0**-20.5),
    ("cos", "f32"): ("absolute in [-2 pi, 2 pi]", 2.0**-20.5),
    ("tanh", "f32"): ("relative", 2.0**-11),
    ("div", "f32"): ("ulp", 2.0),
    ("div.full", "f32"): ("ulp", 2.0),
    ("ex2", "f16"): ("relative", 2.0**-9.9),
    ("ex2", "bf16"): ("relative", 2.0**-7),
    ("tanh", "f16"): ("absolute", 2.0**-10.987),
    ("tanh", "bf16"): ("absolute", 2.0**-8),
}
"""(operation, type) -> (kind of error, largest error that the ISA allows the hardware)."""

_HUGE_DIVISOR = 2.0**126


def _through_double(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    def approximate(values: Array) -> Array:
        result: Array = function(values.astype(np.float64)).astype(np.float32)
        return result

    return approximate


def _div_approx(a: Array, b: Array) -> Array:
    """Return a * (1/b). For |b| above 2^126, the reciprocal is flushed, so the result is zero (NaN for infinite a)."""
    quotient = (a.astype(np.float64) / b).astype(np.float32)
    magnitude = np.abs(b)
    huge = (magnitude > _HUGE_DIVISOR) & (magnitude < np.inf)
    if np.count_nonzero(huge):
        zero = np.copysign(np.float32(0), quotient)
        quotient = np.where(huge, np.where(np.isfinite(a), zero, np.float32(np.nan)), quotient)
    return quotient


def _div_full(a: Array, b: Array) -> Array:
    return np.divide(a, b)


def _reciprocal_root(values: Array) -> Array:
    """Return 1/sqrt(x); the quotient gives -infinity for -0, as the ISA requires, without extra code."""
    return 1.0 / np.sqrt(values)


F32_APPROXIMATIONS: Mapping[str, Callable[..., Array]] = {
    "ex2": _through_double(np.exp2),
    "lg2": _through_double(np.log2),
    "sin": _through_double(np.sin),
    "cos": _through_double(np.cos),
    "tanh": _through_double(np.tanh),
    "rcp": _through_double(np.reciprocal),
    "rsqrt": _through_double(_reciprocal_root),
    "sqrt": np.sqrt,
    "div": _div_approx,
    "div.full": _div_full,
}
"""Name -> f32 function on float32 arrays; `bind` adds `.ftz` and the canonical NaN."""


def approximate_f64(name: str, values: Array) -> Array:
    """Compute `rcp.approx.ftz.f64` or `rsqrt.approx.ftz.f64`, which use only the upper 32 bits of operand and result.

    The ISA requires at least 20 fraction bits, computed from the upper word of the operand, and a result whose lower
    word is zero. Subnormal operands are flushed. This function truncates the result. An NVIDIA H200 returns the same
    result for 97 of 100 operands; for the others, its upper word is larger by one.

    Args:
        name: `rcp` or `rsqrt`.
        values: float64.
    """
    upper = np.uint64(0xFFFFFFFF00000000)
    operand = (values.view(np.uint64) & upper).view(np.float64)
    operand = np.where(np.abs(operand) < 2.0**-1022, np.copysign(0.0, operand), operand)
    exact = np.reciprocal(operand) if name == "rcp" else _reciprocal_root(operand)
    bits = exact.view(np.uint64)
    settled = np.where(np.isfinite(exact), (bits & upper).view(np.float64), exact)
    return np.where(np.abs(settled) < 2.0**-1022, np.copysign(0.0, settled), settled)
