"""Binding of floating-point operations: converts a name, a type and modifiers to a function of arrays.

An instruction is decoded once and executed many times, so the choice between fast and exact code is made when it is
bound. Results are cached by their arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from evokern.errors import InternalError, suggestion
from evokern.simt.numerics.approximation import F32_APPROXIMATIONS, approximate_f64
from evokern.simt.numerics.arithmetic import f32_operation, f64_operation, flush_f32
from evokern.simt.numerics.encoding import canonical, flush, saturate
from evokern.simt.numerics.formats import Array
from evokern.simt.numerics.halves import bind_min_max_of, half_function, half_operation, packed

EXACT_OPERATIONS = ("add", "sub", "mul", "fma", "div", "rcp", "sqrt")
"""Exactly rounded operations."""

APPROXIMATE_OPERATIONS = tuple(F32_APPROXIMATIONS)
"""Operations with `.approx` (and `div.full`)."""

_HALF_FUNCTIONS: dict[str, Callable[[Array], Array]] = {"ex2": np.exp2, "tanh": np.tanh}


@cache
def bind(
    name: str, kind: str, *, rounding: str = "rn", ftz: bool = False, sat: bool = False, relu: bool = False
) -> Callable[..., Array]:
    """Return a floating-point operation as a function of storage arrays.

    Args:
        name: `add sub mul fma div rcp sqrt`, or with the rounding `approx` also `ex2 lg2 rsqrt sin cos tanh` and
            `div.full`. Use `fma` for the ISA's `mad`.
        kind: `f32 f64 f16 bf16 f16x2 bf16x2`.
        rounding: `rn`, for f32 and f64 also `rz rm rp`, and `approx` for the `.approx` form.
        ftz: `.ftz` (f32 and f16).
        sat: `.sat` (f32 and f16).
        relu: `.relu` (`fma` of the half formats).

    Returns:
        A function with one array per operand. Each array has the storage type of `kind`, or items of its width. Shapes
        must be broadcastable and have at least one axis. The function returns a new array in the storage type; call it
        inside `ignore_float_warnings()`.

    Raises:
        InternalError: PTX does not have the combination.
    """
    base, pair = (kind[:-2], True) if kind.endswith("x2") else (kind, False)
    if base in ("f16", "bf16"):
        scalar = _bind_half(name, base, rounding, ftz=ftz, sat=sat, relu=relu)
        return packed(scalar) if pair else scalar
    if kind not in ("f32", "f64") or relu or (kind == "f64" and sat):
        raise InternalError(f"{name}.{kind} does not support the modifiers rounding={rounding}, sat={sat}, relu={relu}")
    if kind == "f64":
        return _bind_f64(name, rounding)
    core = _f32_core(name, rounding)
    return _dress_f32(core, name, ftz=ftz, sat=sat)


def _known(name: str, names: tuple[str, ...], kind: str) -> None:
    if name not in names:
        raise InternalError(f"no floating-point operation {name!r} for .{kind}: {suggestion(name, names)}")


def _bind_half(name: str, kind: str, rounding: str, *, ftz: bool, sat: bool, relu: bool) -> Callable[..., Array]:
    if rounding == "approx":
        _known(name, tuple(_HALF_FUNCTIONS), kind)
        return half_function(_HALF_FUNCTIONS[name], kind, ftz=ftz)
    _known(name, ("add", "sub", "mul", "fma"), kind)
    if rounding != "rn":
        raise InternalError(f"{name}.{kind} supports only rounding to nearest even, not .{rounding}")
    return half_operation(name, kind, ftz=ftz, sat=sat, relu=relu)


def _bind_f64(name: str, rounding: str) -> Callable[..., Array]:
    if rounding == "approx":
        _known(name, ("rcp", "rsqrt"), "f64")
        return lambda values: approximate_f64(name, values.view(np.float64))
    _known(name, EXACT_OPERATIONS, "f64")
    operation = f64_operation(name, rounding)
    return lambda *operands: operation(*[operand.view(np.float64) for operand in operands])


def _f32_core(name: str, rounding: str) -> Callable[..., Array]:
    if rounding == "approx":
        _known(name, APPROXIMATE_OPERATIONS, "f32")
        return F32_APPROXIMATIONS[name]
    _known(name, EXACT_OPERATIONS, "f32")
    return f32_operation(name, rounding)


def _dress_f32(core: Callable[..., Array], name: str, *, ftz: bool, sat: bool) -> Callable[..., Array]:
    """Add the rules for operands and results to an f32 operation."""

    def apply(*operands: Array) -> Array:
        values = [operand.view(np.float32) for operand in operands]
        if ftz:
            values = [flush(value) for value in values]
        result: Array = core(*values)
        if ftz:
            result = flush_f32(name, values, result)
        if sat:
            return saturate(result)
        return canonical("f32", result, result)

    return apply


@cache
def bind_min_max(
    name: str, kind: str, *, ftz: bool = False, nan: bool = False, xorsign: bool = False
) -> Callable[[Array, Array], Array]:
    """Return `min` or `max` of a floating-point type as a function of two storage arrays; see `halves.bind_min_max_of`.

    Args:
        name: `min` or `max`.
        kind: `f32 f64 f16 bf16 f16x2 bf16x2`.
        ftz: `.ftz`.
        nan: `.NaN`.
        xorsign: `.xorsign.abs`.

    Raises:
        InternalError: another name.
    """
    if name not in ("min", "max"):
        raise InternalError(f"no extremum {name!r}; known: min, max")
    base = kind.removesuffix("x2")
    scalar = bind_min_max_of(base, largest=name == "max", ftz=ftz, nan=nan, xorsign=xorsign)
    return packed(scalar) if base != kind else scalar
