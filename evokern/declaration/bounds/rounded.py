"""Values with a bound on their error in float32 arithmetic, and the rules by which errors propagate.

A kernel may evaluate the formula of the reference in any order, so a value carries three quantities:

- `size`: the formula evaluated on absolute values, with every difference replaced by a sum;
- `count`: the largest number of roundings on a path from an input. The error of sums and products is at most
  gamma(count) * size in any order. The source is Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed.,
  lemma 3.1 and section 3.3;
- `other`: errors from functions that are not polynomials, propagated by the range of the function.

Functions may use the approximate instructions of the CUDA C++ Programming Guide ("Mathematical Functions") and the
PTX ISA ("Floating Point Instructions"): `FUNCTIONS` lists their errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch

from evokern.declaration.bounds import ROUNDOFF
from evokern.errors import KernelError

FLUSHED = 2.0**-102
"""Size added to every value: one rounding of it is 2^-126, the largest number that float32 may flush to 0."""
RESCALED = 2
"""Roundings per term of a sum of function values: a pass in tiles rescales the sums of exponentials."""
MOST_COUNT = 2**22
"""Number of roundings from which gamma is not small, so that no bound is derived."""


class UnknownOperationError(KernelError):
    """A reference uses an operation without a known bound on its error."""


@dataclass(frozen=True)
class RoundedFunction:
    """A function of single elements, with the error of float32 kernels in units of 2^-24."""

    compute: Callable[[torch.Tensor], torch.Tensor]
    """The function, monotone unless `slope` is given."""
    relative: float
    """Error relative to the result; 1 ulp has 2 units."""
    absolute: float = 0.0
    """Absolute error."""
    argument: float = 0.0
    """Error relative to the result, times the size of the argument."""
    slope: float | None = None
    """Largest slope of a function that is not monotone."""
    least: float = -math.inf
    """Smallest value."""


_APPROXIMATE_SINE = 2.0**-20.5 / ROUNDOFF["f32"]
_APPROXIMATE_LOGARITHM = 2.0**-21.4 / ROUNDOFF["f32"]
FUNCTIONS: Mapping[str, RoundedFunction] = {
    # `__expf(x)` has 2 + 1.173 |x| ulp, `ex2.approx` 2 ulp.
    "exp": RoundedFunction(torch.exp, 4, argument=2.35, least=0.0),
    "exp2": RoundedFunction(torch.exp2, 4, argument=2.35, least=0.0),
    # exp(x) - 1 has the error of exp(x), which is below 1 ulp of 1 near 0.
    "expm1": RoundedFunction(torch.expm1, 6, 6, argument=2.35),
    # `__logf` has an absolute error of 2^-21.41 near 1, and 3 ulp elsewhere.
    **{
        name: RoundedFunction(getattr(torch, name), 8, _APPROXIMATE_LOGARITHM)
        for name in ("log", "log2", "log10", "log1p")
    },
    # `sqrt.approx` and `rsqrt.approx` have 2^-23 and 2^-22.9; sqrt(x) may be x * rsqrt(x).
    "sqrt": RoundedFunction(torch.sqrt, 8, least=0.0),
    "rsqrt": RoundedFunction(torch.rsqrt, 8, least=0.0),
    # `__fdividef` has 2 ulp, `rcp.approx` 1 ulp.
    "reciprocal": RoundedFunction(torch.reciprocal, 4),
    # 1 / (1 + exp(-x)), or 0.5 tanh(0.5 x) + 0.5, which has an absolute error.
    "sigmoid": RoundedFunction(torch.sigmoid, 14, 4, argument=2.35, least=0.0),
    # `tanhf` has 2 ulp; 1 - 2 / (exp(2 x) + 1) has an absolute error.
    "tanh": RoundedFunction(torch.tanh, 8, 10),
    "erf": RoundedFunction(torch.erf, 8, 2),
    # `sin.approx` and `cos.approx` have 2^-20.5 for at most two periods; `sinf` and `cosf` have 2 ulp.
    "sin": RoundedFunction(torch.sin, 4, _APPROXIMATE_SINE, slope=1.0),
    "cos": RoundedFunction(torch.cos, 4, _APPROXIMATE_SINE, slope=1.0),
    "atan": RoundedFunction(torch.atan, 8),
    **{name: RoundedFunction(getattr(torch, name), 0) for name in ("floor", "ceil", "round", "trunc", "sign", "sgn")},
}
"""Functions of single elements that are not polynomials."""


@dataclass(frozen=True)
class Rounded:
    """A value of the reference with a bound on the error of the same value in a kernel."""

    value: torch.Tensor
    """Value in float64."""
    size: torch.Tensor
    """Value of the formula on absolute values, for sums and products in any order."""
    count: int = 0
    """Largest number of roundings from an input to this value; 0 for inputs and constants."""
    other: torch.Tensor | None = None
    """Error that is not a multiple of the size. For booleans, whether a kernel may find another value."""
    least: float = -math.inf
    """Smallest value that a kernel may compute."""
    terms: float = 0.0
    """Sum of the absolute coefficients of a polynomial of the inputs with simple coefficients; 0 for other values."""
    degree: int = 0
    """Degree of this polynomial."""
    unit: float = ROUNDOFF["f32"]
    """Unit roundoff of the arithmetic."""
    near: torch.Tensor | None = None
    """Size if differences of inputs are computed before other operations; None if it is `size`. Functions and their
    products use it, because a kernel cannot reorder sums through a function."""

    @property
    def exact(self) -> bool:
        """Whether a kernel computes the same value."""
        return self.count == 0 and self.other is None

    @property
    def error(self) -> torch.Tensor:
        """Bound on the error of the value."""
        if self.count > MOST_COUNT:
            raise UnknownOperationError(
                f"no bound is known: an element depends on {self.count} roundings, more than {MOST_COUNT}"
            )
        linear = self.count * self.unit
        found = self.size * (linear / (1 - linear)) if self.count else torch.zeros_like(self.size)
        return found if self.other is None else found + self.other

    @property
    def closest(self) -> torch.Tensor:
        """Size if differences of inputs are computed before other operations."""
        return self.size if self.near is None else self.near

    @property
    def ordered(self) -> Rounded:
        """The value with this size."""
        return self if self.near is None else replace(self, size=self.near, near=None)

    @property
    def range(self) -> torch.Tensor:
        """Largest absolute value in a kernel."""
        return self.value.abs() + self.ordered.error


def finite(values: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
    """Return values, or 0 where a result is infinite or NaN: a kernel computes these exactly."""
    return torch.where(of.isfinite(), values, 0.0) if of.is_floating_point() else values


def coefficient(values: torch.Tensor) -> float:
    """Return the largest absolute value of constants that are multiples of 1/4 up to 16; 0 for other constants."""
    simple = bool((values.abs() <= 16).all() and (values * 4 == (values * 4).round()).all())
    return max(float(values.abs().max()), 0.25) if simple else 0.0


def number(value: float, unit: float) -> Rounded:
    """Return a constant, which a kernel rounds to float32."""
    tensor = torch.tensor(float(value), dtype=torch.float64)
    inexact = math.isfinite(value) and float(tensor.float()) != value
    size = finite(tensor.abs(), tensor) + FLUSHED
    return Rounded(tensor, size, int(inexact), least=float(value), terms=coefficient(tensor), unit=unit)


def plus(a: Rounded, b: Rounded) -> Rounded:
    """Return the sum."""
    value, near = a.value + b.value, None
    if a.degree == b.degree == 1 and a.exact and b.exact:
        near = finite(value.abs(), value) + FLUSHED
    elif a.near is not None or b.near is not None:
        near = a.closest + b.closest
    return Rounded(
        value, a.size + b.size, max(a.count, b.count) + 1, _added(a.other, b.other), _lowered(a.least + b.least),
        a.terms + b.terms if a.terms and b.terms else 0.0, max(a.degree, b.degree), a.unit, near,
    )  # fmt: skip


def negative(a: Rounded) -> Rounded:
    """Return the negative value, which is exact."""
    return replace(a, value=-a.value, least=-math.inf)


def times(a: Rounded, b: Rounded) -> Rounded:
    """Return the product."""
    if (a.other is None) != (b.other is None):
        a, b = a.ordered, b.ordered
    other = near = None
    if a.near is not None or b.near is not None:
        near = a.closest * b.closest
    if b.other is not None:
        other = a.range * b.other
    if a.other is not None:
        other = _added(other, b.range * a.other)
    least = 0.0 if a.value is b.value or (a.least >= 0 and b.least >= 0) else -math.inf
    return Rounded(a.value * b.value, a.size * b.size, a.count + b.count + 1, other, least, a.terms * b.terms,
                   a.degree + b.degree, a.unit, near)  # fmt: skip


def divided(a: Rounded, b: Rounded) -> Rounded:
    """Return the quotient, which a kernel may compute as a product with the reciprocal."""
    if b.exact:
        found = Rounded(1 / b.value, finite(1 / b.value.abs(), 1 / b.value) + FLUSHED, 3, unit=a.unit, least=0.0)
        found = replace(found, least=found.least if b.least >= 0 else -math.inf)
    else:
        found = applied(FUNCTIONS["reciprocal"], b)
    return replace(times(a, found), value=a.value / b.value)


def applied(function: RoundedFunction, a: Rounded) -> Rounded:
    """Return a function of the value."""
    value, error = function.compute(a.value), a.ordered.error
    other = torch.zeros_like(value)
    if not a.exact and function.slope is not None:
        other = function.slope * error
    elif not a.exact:
        low, high = function.compute((a.value - error).clamp_min(a.least)), function.compute(a.value + error)
        other = torch.maximum((high - value).abs(), (low - value).abs()).nan_to_num(nan=math.inf, posinf=math.inf)
    reach = value.abs() + other
    own = reach * function.relative + function.absolute
    if function.argument:
        own = own + (reach + (1.0 if function.absolute else 0.0)) * a.size * function.argument
    other = finite(other + own * a.unit, value)
    lowest = function.least
    if math.isfinite(a.least) and function.slope is None:
        lowest = max(lowest, float(function.compute(torch.tensor(a.least, dtype=torch.float64))))
    return Rounded(value, finite(value.abs(), value), 1, other, _lowered(lowest), unit=a.unit)


def limited(a: Rounded, value: torch.Tensor, slope: float = 1.0, least: float = -math.inf) -> Rounded:
    """Return a function of single elements without roundings of its own, such as a maximum with a constant."""
    other = None if a.other is None else a.other * slope
    size = torch.maximum(a.size * slope, finite(value.abs(), value))
    return replace(a, value=value, size=size, other=other, least=least, near=None)


def summed(a: Rounded, reduce: Callable[[torch.Tensor], torch.Tensor], terms: int) -> Rounded:
    """Return sums of some elements.

    Args:
        a: the elements.
        reduce: linear function with coefficients of 0 and 1.
        terms: largest number of elements in a sum.
    """
    least = 0.0 if a.least >= 0 else -math.inf
    other, near = (None if one is None else reduce(one) for one in (a.other, a.near))
    roundings = terms if a.other is None else RESCALED * terms
    return Rounded(
        reduce(a.value), reduce(a.size), a.count + roundings, other, least, a.terms * terms, a.degree, a.unit, near
    )


def power(a: Rounded, exponent: float) -> Rounded:
    """Return a power with a constant exponent; a kernel may multiply, or use `exp2f(y * __log2f(x))`."""
    if exponent == int(exponent) and 1 <= exponent <= 8:
        found = a
        for _ in range(int(exponent) - 1):
            found = times(found, a)
        least = 0.0 if exponent % 2 == 0 else found.least
        return replace(found, value=a.value**exponent, least=least)
    # The logarithm has an absolute error of 2^-21.4 near 1, and the argument of the exponential is rounded.
    logarithm = a.value.abs().log2().abs().nan_to_num(posinf=0.0, nan=0.0)
    base = RoundedFunction(lambda x: x**exponent, 8 + 16 * abs(exponent), least=0.0)
    found = applied(base, a)
    reach = found.value.abs() + (found.other if found.other is not None else 0.0)
    extra = finite(reach * logarithm * (2 * abs(exponent) * a.unit), found.value)
    return replace(found, other=_added(found.other, extra))


def _added(a: torch.Tensor | None, b: torch.Tensor | None) -> torch.Tensor | None:
    return a if b is None else b if a is None else a + b


def _lowered(least: float) -> float:
    """Return a smallest value with a margin for its own rounding; one of at least 0 stays so."""
    if math.isnan(least):
        return -math.inf
    return least * (1 - 1e-6) if least > 0 else least * (1 + 1e-6) if math.isfinite(least) else least
