"""Rules by which single torch operations propagate errors, for `propagation`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch

from evokern.declaration.bounds.rounded import (
    FUNCTIONS,
    Rounded,
    UnknownOperationError,
    applied,
    divided,
    finite,
    limited,
    negative,
    number,
    plus,
    power,
    summed,
    times,
)


class Propagation(Protocol):
    """Operands of a rule, implemented by `evokern.declaration.bounds.propagation.ErrorPropagation`."""

    unit: float
    """Unit roundoff of the arithmetic."""

    def of(self, tensor: torch.Tensor) -> Rounded:
        """Return a value with its error bound."""

    def given(self, operand: Any) -> Rounded:
        """Return an operand of an arithmetic operation with its error bound."""

    def bilinear(self, func: Any, a: torch.Tensor, b: torch.Tensor) -> Rounded:
        """Return sums of products."""


def _sum(mode: Propagation, a: Any, dims: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Rounded:
    found = mode.given(a)
    dims = dims if dims is None or isinstance(dims, int) or len(dims) else None
    return summed(found, lambda x: x.sum() if dims is None else x.sum(dims, keepdim=keepdim), _extent(a, dims))


def _mean(mode: Propagation, a: Any, dims: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Rounded:
    total = _sum(mode, a, dims, keepdim)
    return divided(total, number(_extent(a, dims), mode.unit))


def _variance(
    mode: Propagation, a: Any, dims: Any = None, correction: Any = None, keepdim: bool = False, **rest: Any
) -> Any:
    if isinstance(dims, bool):  # var(x, unbiased) and var(x, dims, unbiased)
        dims, correction = None, int(dims)
    given, every = mode.given(a), _extent(a, dims)
    mean = _mean(mode, a, dims, True) if dims is not None and not isinstance(dims, bool) else _mean(mode, a)
    centred = plus(given, negative(mean))
    squares = times(centred, centred)
    total = summed(squares, lambda x: x.sum() if dims is None else x.sum(dims, keepdim=keepdim), every)
    count = every - (1 if correction is None else float(correction))
    return replace(divided(total, number(max(0.0, count), mode.unit)), least=0.0)


def _variance_and_mean(mode: Propagation, a: Any, dims: Any = None, *rest: Any, **named: Any) -> Any:
    keepdim = bool(named.get("keepdim", rest[1] if len(rest) > 1 else False))
    return _variance(mode, a, dims, *rest, **named), _mean(mode, a, dims, keepdim)


def _deviation(mode: Propagation, a: Any, *rest: Any, **named: Any) -> Rounded:
    return applied(FUNCTIONS["sqrt"], _variance(mode, a, *rest, **named))


def _norm(mode: Propagation, a: Any, order: float = 2, dims: Any = None, keepdim: bool = False, **rest: Any) -> Rounded:
    given = mode.given(a)
    if order != 2:
        raise UnknownOperationError(f"no bound on the error of a norm of order {order} is known")
    squares = times(given, given)
    dims = dims if dims is None or isinstance(dims, int) or len(dims) else None
    total = summed(squares, lambda x: x.sum() if dims is None else x.sum(dims, keepdim=keepdim), _extent(a, dims))
    return applied(FUNCTIONS["sqrt"], total)


def _running_sum(mode: Propagation, a: Any, axis: int, *, dtype: Any = None) -> Rounded:
    return summed(mode.given(a), lambda x: x.cumsum(axis), a.shape[axis] if a.ndim else 1)


def _product(mode: Propagation, a: Any, axis: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Rounded:
    given = mode.given(a)
    if given.other is not None:
        raise UnknownOperationError("no bound on the error of a product of rounded values is known")
    value, size = (one.prod() if axis is None else one.prod(axis, keepdim) for one in (given.value, given.size))
    return Rounded(value, size, _extent(a, axis) * (given.count + 1), unit=mode.unit)


def _running_product(mode: Propagation, a: Any, axis: int, *, dtype: Any = None) -> Rounded:
    given = mode.given(a)
    if given.other is not None:
        raise UnknownOperationError("no bound on the error of a product of rounded values is known")
    count = a.shape[axis] * (given.count + 1)
    return Rounded(given.value.cumprod(axis), given.size.cumprod(axis), count, unit=mode.unit)


def _extreme(largest: bool) -> Callable[..., Any]:
    """Return the rule of a maximum or a minimum along axes, or of two tensors."""
    reduce, pair = (torch.amax, torch.maximum) if largest else (torch.amin, torch.minimum)

    def rule(mode: Propagation, a: Any, dims: Any = None, keepdim: bool = False) -> Any:
        if isinstance(dims, torch.Tensor):
            return two(mode, a, dims)
        given = mode.given(a)
        whole = dims is None or dims == []
        own = tuple(range(a.ndim)) if whole else dims
        value = reduce(given.value, own, keepdim=keepdim)
        other = None if given.exact else torch.amax(given.error, own, keepdim=keepdim)
        found = Rounded(value, finite(value.abs(), value), 0 if given.exact else 1, other, given.least,
                        given.terms, given.degree, mode.unit)  # fmt: skip
        if not isinstance(dims, int):
            return found
        index = (torch.argmax if largest else torch.argmin)(given.value, dims, keepdim=keepdim)
        if given.exact:
            return found, index
        doubt = torch.ones_like(index, dtype=torch.bool)
        return found, Rounded(index, doubt.to(torch.float64), 1, doubt, unit=mode.unit)

    def two(mode: Propagation, a: Any, b: Any) -> Rounded:
        x, y = mode.given(a), mode.given(b)
        others = [torch.zeros_like(one.size) if one.other is None else one.other for one in (x, y)]
        other = None if x.other is None and y.other is None else torch.maximum(*others)
        least = (max if largest else min)(x.least, y.least)
        terms = max(x.terms, y.terms) if x.terms and y.terms else 0.0
        return Rounded(pair(x.value, y.value), torch.maximum(x.size, y.size), max(x.count, y.count), other, least,
                       terms, max(x.degree, y.degree), mode.unit)  # fmt: skip

    return rule


def _clamp(mode: Propagation, a: Any, low: Any = None, high: Any = None, **named: Any) -> Rounded:
    low, high = named.get("min", low), named.get("max", high)
    found = mode.given(a)
    for bound, largest in ((low, True), (high, False)):
        if isinstance(bound, torch.Tensor):
            raise UnknownOperationError("no bound on the error of a clamp to tensors is known; use maximum and minimum")
        if bound is not None:
            value = found.value.clamp_min(bound) if largest else found.value.clamp_max(bound)
            least = max(found.least, bound) if largest else min(found.least, bound)
            found = replace(limited(found, value), least=float(least))
    return found


def _where(mode: Propagation, condition: Any, a: Any, b: Any) -> Rounded:
    sure, x, y = mode.of(condition), mode.given(a), mode.given(b)
    value = torch.where(condition, x.value, y.value)
    others = [torch.zeros_like(one.size) if one.other is None else one.other for one in (x, y)]
    size = torch.where(condition, x.size, y.size)
    other: torch.Tensor | None = None
    if x.other is not None or y.other is not None:
        other = torch.where(condition, others[0], others[1])
    if sure.other is not None:
        either = torch.maximum((x.value - value).abs() + x.error, (y.value - value).abs() + y.error)
        size = torch.where(sure.other, torch.maximum(x.size, y.size), size)
        other = torch.where(sure.other, either, torch.zeros_like(either) if other is None else other)
    terms = max(x.terms, y.terms) if x.terms and y.terms and sure.exact else 0.0
    return Rounded(value, size, max(x.count, y.count), other, min(x.least, y.least), terms, max(x.degree, y.degree),
                   mode.unit)  # fmt: skip


def _relu(mode: Propagation, a: Any) -> Rounded:
    return limited(mode.given(a), a.clamp_min(0), least=0.0)


def _absolute(mode: Propagation, a: Any) -> Rounded:
    return limited(mode.given(a), a.abs(), least=0.0)


def _leaky(mode: Propagation, a: Any, slope: float = 0.01) -> Rounded:
    found = mode.given(a)
    return replace(limited(found, torch.nn.functional.leaky_relu(a, slope), max(1.0, abs(slope))),
                   count=found.count + 2, terms=0.0)  # fmt: skip


def _plus(mode: Propagation, a: Any, b: Any, *, alpha: float = 1) -> Rounded:
    second = mode.given(b)
    return plus(mode.given(a), second if alpha == 1 else times(second, number(alpha, mode.unit)))


def _minus(mode: Propagation, a: Any, b: Any, *, alpha: float = 1) -> Rounded:
    second = mode.given(b)
    second = second if alpha == 1 else times(second, number(alpha, mode.unit))
    constant = isinstance(b, (int, float)) and alpha == 1
    return plus(mode.given(a), replace(negative(second), least=-float(b) if constant else -math.inf))


def _times(mode: Propagation, a: Any, b: Any) -> Rounded:
    first = mode.given(a)
    return times(first, first if a is b else mode.given(b))


def _divided(mode: Propagation, a: Any, b: Any, *, rounding_mode: str | None = None) -> Rounded:
    found = divided(mode.given(a), mode.given(b))
    return found if rounding_mode is None else applied(FUNCTIONS[rounding_mode], found)


def _matrix_and_sum(product: Any) -> Callable[..., Rounded]:
    def rule(mode: Propagation, bias: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> Rounded:
        found, added = mode.bilinear(product, a, b), mode.given(bias)
        found = found if alpha == 1 else times(found, number(alpha, mode.unit))
        return plus(found, added if beta == 1 else times(added, number(beta, mode.unit)))

    return rule


def _power(mode: Propagation, a: Any, exponent: Any) -> Rounded:
    if isinstance(exponent, torch.Tensor) or not isinstance(a, torch.Tensor):
        if not isinstance(a, torch.Tensor) and a > 0:
            scaled = times(mode.given(exponent), number(math.log2(a), mode.unit))
            return applied(FUNCTIONS["exp2"], scaled)
        raise UnknownOperationError("no bound on the error of a power with a tensor as exponent is known")
    named = {0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}.get(float(exponent))
    found = mode.given(a)
    return applied(FUNCTIONS[named], found) if named else power(found, float(exponent))


def _largest_of_windows(mode: Propagation, a: Any, *window: Any) -> tuple[Rounded, Rounded]:
    given, pool = mode.given(a), torch.ops.aten.max_pool2d_with_indices.default
    value, index = pool(given.value, *window)
    other = None if given.exact else pool(given.error, *window)[0]
    doubt = None if given.exact else torch.ones_like(index, dtype=torch.bool)
    return (
        Rounded(value, finite(value.abs(), value), 0 if given.exact else 1, other, given.least, given.terms,
                given.degree, mode.unit),
        Rounded(index, torch.ones_like(index, dtype=torch.float64), 0 if given.exact else 1, doubt, unit=mode.unit),
    )  # fmt: skip


def _pooled(mode: Propagation, a: Any, kernel: Sequence[int], *rest: Any) -> Rounded:
    average, terms = torch.ops.aten.avg_pool2d.default, math.prod(kernel)
    return replace(summed(mode.given(a), lambda x: average(x, kernel, *rest), terms + 3), terms=0.0)


RULES: Mapping[str, Callable[..., Any]] = {
    "add": _plus, "sub": _minus, "rsub": lambda mode, a, b, alpha=1: _minus(mode, b, a, alpha=alpha), "mul": _times,
    "div": _divided, "neg": lambda mode, a: negative(mode.given(a)), "abs": _absolute, "relu": _relu,
    "leaky_relu": _leaky, "clamp": _clamp, "clamp_min": _clamp, "hardtanh": lambda mode, a, low=-1, high=1: _clamp(
        mode, a, low, high), "clamp_max": lambda mode, a, high: _clamp(mode, a, None, high), "where": _where,
    "masked_fill": lambda mode, a, mask, value: _where(mode, mask, value, a), "sum": _sum, "mean": _mean,
    "var": _variance, "std": _deviation, "var_mean": _variance_and_mean, "linalg_vector_norm": _norm, "norm": _norm,
    "cumsum": _running_sum, "cumprod": _running_product, "prod": _product, "pow": _power, "avg_pool2d": _pooled,
    "max_pool2d_with_indices": _largest_of_windows,
    "amax": _extreme(True), "amin": _extreme(False), "max": _extreme(True), "min": _extreme(False),
    "maximum": _extreme(True), "minimum": _extreme(False), "addmm": _matrix_and_sum(torch.ops.aten.mm.default),
    "addmv": _matrix_and_sum(torch.ops.aten.mv.default), "baddbmm": _matrix_and_sum(torch.ops.aten.bmm.default),
}  # fmt: skip
"""Rule of each operation that is not a function of single elements."""


def _extent(tensor: torch.Tensor, dims: Any) -> int:
    """Return the number of elements that a reduction adds."""
    if dims is None or (not isinstance(dims, int) and not len(dims)):
        return max(1, tensor.numel())
    return max(1, math.prod(tensor.shape[axis] for axis in ([dims] if isinstance(dims, int) else dims)))
