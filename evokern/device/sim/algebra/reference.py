"""The reference over the field: each torch operation also acts on the residues of the values.

A tensor of the reference carries its real float64 values, which decide masks, maxima and indices, and the residues of
its elements. Operations that move elements act on all parts alike; `RULES` lists those that compute. torch itself
decomposes all others into these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from evokern.declaration.as_data.golden import KernelReference
from evokern.declaration.bounds.derived import plain_attention
from evokern.declaration.bounds.propagation import CHOICES, COMPARISONS, CONSTANTS, LOGIC, MOVES
from evokern.declaration.bounds.rounded import UnknownOperationError
from evokern.declaration.kernel import Kernel, Problem
from evokern.errors import KERNEL_CODE_EXCEPTIONS
from evokern.simt import exact
from evokern.simt.exact import NO_P, NO_Q, OUTPUT, VANISHES, P, Q, Value

DEPTH = 64
"""Largest depth of one matrix product in the field."""
MOST_NAMED = 4
"""Number of constants of one tensor to remember."""
FACTORIES = frozenset({"empty", "zeros", "ones", "full", "eye", "tensor", "arange", "linspace"})
"""Functions of torch that return a tensor of constants."""
LOG2_E, LN_2, LOG10_2 = (float(np.float32(one)) for one in (math.log2(math.e), math.log(2), math.log10(2)))
"""Constants by which kernels multiply the arguments of exponentials and the results of logarithms."""


@dataclass(frozen=True)
class FieldReference:
    """The reference over the field."""

    values: Mapping[str, Value]
    """Output → residues of its elements, flat."""
    inexact: tuple[float, ...]
    """Constants that float32 cannot represent; a program may round their products instead."""
    arguments: set[int]
    """Arguments of functions with laws that are not known."""


_ARGUMENTS: set[int] = set()
_INEXACT: set[float] = set()
"""Constants of the reference that is being evaluated which float32 cannot represent."""


class FieldTensor(torch.Tensor):
    """Tensor with the residues of its elements."""

    value: torch.Tensor
    parts: tuple[torch.Tensor, torch.Tensor, torch.Tensor]

    @staticmethod
    def __new__(cls, value: torch.Tensor, parts: Sequence[torch.Tensor]) -> FieldTensor:
        """Create a tensor from real values, and from int64 parts: residues modulo P and Q, and why there are none."""
        made: FieldTensor = torch.Tensor._make_wrapper_subclass(
            cls, value.size(), strides=value.stride(), storage_offset=value.storage_offset(), dtype=value.dtype,
            device=value.device,
        )  # fmt: skip
        made.value, made.parts = value, (parts[0], parts[1], parts[2])
        return made

    @classmethod
    def of(cls, value: torch.Tensor, shadow: Value) -> FieldTensor:
        """Return a tensor with some residues, which are broadcast to its shape."""
        value = value.contiguous()
        bad = np.zeros(1, np.uint64) if shadow.bad is None else shadow.bad
        shape = tuple(value.shape) or (1,)
        whole = [np.array(np.broadcast_to(one, shape)).view(np.int64) for one in (shadow.p, shadow.q, bad)]
        return cls(value, [torch.from_numpy(one).reshape(value.shape) for one in whole])

    @property
    def shadow(self) -> Value:
        """The residues of the elements."""
        p, q, bad = (np.atleast_1d(one.contiguous().numpy()).view(np.uint64) for one in self.parts)
        return Value(p, q, bad if bad.any() else None)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Replace attention, whose scale torch splits into two square roots."""
        if getattr(func, "__name__", "") == "scaled_dot_product_attention":
            return _attention(*args, **(kwargs or {}))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation on the real values and on the residues."""
        kwargs, name = kwargs or {}, func._schema.name.partition("::")[2]
        if rule := RULES.get(name):
            return rule(*args, **kwargs)
        if name in SUMS or (name == "index_put" and (kwargs.get("accumulate") or args[3:4] == (True,))):
            return _summed(func, args, kwargs)
        view = any(one.alias_info is not None for one in func._schema.returns)
        plain = name.removesuffix("_")
        if name in COMPARISONS or name in LOGIC or name in CHOICES or name in CONSTANTS:
            found = func(*_real(args), **_real(kwargs))
            numbers = [one for one in pytree.tree_leaves(found) if _is_float(one)]
            if numbers and name not in CONSTANTS:
                raise UnknownOperationError(f"torch's {name!r} has no rule in exact arithmetic")
            return lifted(found) if numbers else found
        if func._schema.is_mutable and (plain in SUMS or (plain == "index_put" and args[3:4] == (True,))):
            total = _summed(getattr(torch.ops.aten, plain), args, kwargs)
            return _moved(torch.ops.aten.copy_.default, (args[0], total), {}, args[0])
        if func._schema.is_mutable and plain in ("copy", "masked_fill", "fill", "zero", "index_put", "masked_scatter"):
            return _moved(func, args, kwargs, args[0])
        if func._schema.is_mutable and plain in RULES:
            return _moved(torch.ops.aten.copy_.default, (args[0], RULES[plain](*args, **kwargs)), {}, args[0])
        if not func._schema.is_mutable and (view or name in MOVES or name in ("_unsafe_view", "masked_fill", "where")):
            return _moved(func, args, kwargs)
        found = NotImplemented if func._schema.is_mutable else _decomposed(func, args, kwargs)
        if found is NotImplemented:
            raise UnknownOperationError(f"torch's {name!r} has no rule in exact arithmetic")
        return found


class ConstantsMode(TorchFunctionMode):
    """Mode in which new tensors of constants have residues, so that the reference can write results into them."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Return a new tensor with the residues of its elements."""
        found = func(*args, **(kwargs or {}))
        constant = type(found) is torch.Tensor and found.is_floating_point()
        return lifted(found) if constant and not types and getattr(func, "__name__", "") in FACTORIES else found


def _decomposed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the result of an operation as that of simpler ones."""
    from torch._decomp import decomposition_table

    found = func.decompose(*args, **kwargs)
    if found is NotImplemented and func in decomposition_table:
        found = decomposition_table[func](*args, **kwargs)
    return found


def _is_float(one: Any) -> bool:
    return isinstance(one, float) or (isinstance(one, torch.Tensor) and one.is_floating_point())


def _real(given: Any) -> Any:
    """Return arguments with the real values of tensors."""
    return pytree.tree_map(lambda one: one.value if isinstance(one, FieldTensor) else one, given)


def lifted(operand: Any) -> FieldTensor:
    """Return an operand with its residues: a constant is the float that a kernel has."""
    if isinstance(operand, FieldTensor):
        return operand
    value = torch.as_tensor(operand, dtype=torch.float64)
    numbers = np.atleast_1d(value.numpy())
    whole = np.isfinite(numbers) & (numbers == np.round(numbers)) & (np.abs(numbers) < 2**53)
    rounded = np.where(whole, numbers, numbers.astype(np.float32).astype(np.float64))
    _INEXACT.update(np.unique(numbers[np.isfinite(numbers) & (rounded != numbers)])[:MOST_NAMED].tolist())
    return FieldTensor.of(value, exact.embedded(rounded, OUTPUT))


def _moved(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], target: Any = None) -> Any:
    """Run an operation that moves elements on all parts; `target` is the tensor that it changes, if any."""
    if target is not None and not isinstance(target, FieldTensor):
        raise UnknownOperationError("the reference writes results into a tensor of constants")
    result = func(*_real(args), **_real(kwargs))
    several = isinstance(result, (tuple, list))
    first = result[0] if several else result
    if not isinstance(first, torch.Tensor) or not first.is_floating_point():
        return result

    def part(number: int) -> Any:
        def chosen(one: Any) -> Any:
            if isinstance(one, FieldTensor):
                return one.parts[number]
            if _is_float(one):
                constant = lifted(one).parts[number]
                return constant if isinstance(one, torch.Tensor) else int(constant)
            return torch.int64 if isinstance(one, torch.dtype) else one

        numbers = pytree.tree_map(chosen, (tuple(args), kwargs))
        try:
            return func(*numbers[0], **numbers[1])
        except NotImplementedError:  # The operation has no kernel for integers; these are exact in float64.
            wide = pytree.tree_map(lambda one: one.double() if isinstance(one, torch.Tensor) else one, numbers)
            return func(*wide[0], **wide[1]).long()

    if "fill" in func._schema.name and isinstance(args[-1], int):
        args = (*args[:-1], float(args[-1]))
    parts = [part(number) for number in range(3)]
    if any(one.dtype != torch.int64 for one in pytree.tree_leaves(parts)):
        raise UnknownOperationError(f"torch's {func._schema.name!r} has no rule in exact arithmetic")
    if target is not None:
        return target
    if several:
        return type(result)(FieldTensor(one, [each[at] for each in parts]) for at, one in enumerate(result))
    return FieldTensor(result, parts)


# ---- operations that compute


def _pointwise(
    real: Callable[..., torch.Tensor], rule: Callable[..., Value], count: int = 2
) -> Callable[..., FieldTensor]:
    def apply(*args: Any, **ignored: Any) -> FieldTensor:
        given = [lifted(one) for one in args[:count]]
        return FieldTensor.of(real(*(one.value for one in given)), rule(*(one.shadow for one in given)))

    return apply


def _inverse(x: Value) -> Value:
    return exact.reciprocal(x, OUTPUT)


def _ratio(x: Value, y: Value) -> Value:
    return exact.multiply(x, _inverse(y))


def _minus(a: Any, b: Any, alpha: float = 1) -> FieldTensor:
    return _plus(a, b, alpha=-alpha)


def _plus(a: Any, b: Any, alpha: float = 1) -> FieldTensor:
    second = lifted(b) if alpha == 1 else times(b, alpha)
    x = lifted(a)
    return FieldTensor.of(x.value + second.value, exact.add(x.shadow, second.shadow))


def _divided(a: Any, b: Any, *, rounding_mode: str | None = None) -> FieldTensor:
    if rounding_mode is not None:
        raise UnknownOperationError("a rounded quotient has no rule in exact arithmetic")
    return over(a, b)


def exponential(a: Any, base: float | None = None) -> FieldTensor:
    """Return e^a, or 2^a if the base is 2."""
    if base != 2:
        _INEXACT.add(math.log2(math.e))
    exponent = lifted(a) if base == 2 else times(a, LOG2_E)
    vanishes = np.ascontiguousarray(exponent.value.numpy() < VANISHES)
    return FieldTensor.of(exponent.value.exp2(), exact.exponential(exponent.shadow, vanishes, OUTPUT))


def _sigmoid(a: Any) -> FieldTensor:
    return over(1, _plus(exponential(times(a, -1)), 1))


def _tanh(a: Any) -> FieldTensor:
    return _minus(1, over(2, _plus(exponential(times(a, 2)), 1)))


def _function(name: str, real: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., FieldTensor]:
    """Return the rule of a function of `evokern.simt.exact`."""

    def apply(a: Any) -> FieldTensor:
        x = lifted(a)
        _ARGUMENTS.update(exact.arguments(name, x.shadow))
        return FieldTensor.of(real(x.value), exact.FUNCTIONS[name](x.shadow, OUTPUT))

    return apply


def _power(a: Any, exponent: Any) -> FieldTensor:
    if isinstance(exponent, torch.Tensor) or not isinstance(a, torch.Tensor):
        return exponential(exponent if not isinstance(a, torch.Tensor) and a == 2 else times(exponent, _log2(a)), 2)
    halves = abs(2 * float(exponent))
    if halves != int(halves) or halves >= 128:
        return exponential(times(exponent, _log2(a)), 2)
    found = root(a) if halves % 2 else lifted(1)
    for _ in range(int(halves) // 2):
        found = times(found, a)
    return found if exponent > 0 else inverse(found)


def _axes(tensor: torch.Tensor, dims: Any) -> tuple[int, ...]:
    whole = dims is None or (not isinstance(dims, int) and not len(dims))
    given = range(tensor.ndim) if whole else [dims] if isinstance(dims, int) else dims
    return tuple(int(one) % max(tensor.ndim, 1) for one in given)


def _summed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> FieldTensor:
    """Run an operation that adds elements, on the real values and on the residues."""
    if kwargs.pop("alpha", 1) != 1:
        name = func.__name__.partition(".")[0]
        raise UnknownOperationError(f"torch's {name!r} with alpha has no rule in exact arithmetic")
    kwargs.pop("dtype", None)
    given = pytree.tree_map(lambda one: lifted(one) if isinstance(one, torch.Tensor) and _is_float(one) else one, args)

    def part(choose: Callable[[FieldTensor], torch.Tensor]) -> torch.Tensor:
        parts = pytree.tree_map(lambda one: choose(one) if isinstance(one, FieldTensor) else one, given)
        return func(*parts, **kwargs).to(torch.int64)  # type: ignore[no-any-return]

    def residues(number: int, modulus: int, none: int) -> torch.Tensor:
        total = part(lambda one: one.parts[number].masked_fill(one.parts[number] == none, 0)) % modulus
        return total.masked_fill(part(lambda one: (one.parts[number] == none).long()) > 0, none)

    bad = part(lambda one: (one.parts[2] != 0).long()) > 0
    reason = max(int(one.parts[2].max()) for one in pytree.tree_leaves(given) if isinstance(one, FieldTensor))
    parts = residues(0, P, int(NO_P)), residues(1, Q, int(NO_Q)), bad * reason
    return FieldTensor(func(*_real(given), **kwargs).contiguous(), parts)


def _mean(a: Any, dims: Any = None, keepdim: bool = False, *, dtype: Any = None) -> FieldTensor:
    return over(torch.sum(a, _axes(a, dims), keepdim), math.prod(a.shape[axis] for axis in _axes(a, dims)))


def _variance(a: Any, dims: Any = None, correction: Any = None, keepdim: bool = False, **rest: Any) -> FieldTensor:
    if isinstance(dims, bool):  # var(x, unbiased) and var(x, dims, unbiased)
        dims, correction = None, int(dims)
    centred = _minus(a, _mean(a, _axes(a, dims), True))
    count = math.prod(a.shape[axis] for axis in _axes(a, dims)) - (1 if correction is None else float(correction))
    return over(torch.sum(times(centred, centred), _axes(a, dims), keepdim), count)


def _variance_and_mean(a: Any, dims: Any = None, *rest: Any, **named: Any) -> Any:
    keepdim = bool(named.get("keepdim", rest[1] if len(rest) > 1 else False))
    return _variance(a, dims, *rest, **named), _mean(a, dims, keepdim)


def _extreme(sign: int) -> Callable[..., Any]:
    """Return the rule of a maximum (1) or a minimum (-1) along axes, or of two tensors: the real values decide."""

    def rule(a: Any, dims: Any = None, keepdim: bool = False) -> Any:
        if isinstance(dims, torch.Tensor):
            x, y = lifted(a), lifted(dims)
            return torch.where(sign * x.value >= sign * y.value, x, y)
        axes = _axes(a, dims)
        rest = [axis for axis in range(a.ndim) if axis not in axes]
        flat = a.permute(*rest, *axes).reshape([a.shape[axis] for axis in rest] + [-1])
        at = (sign * flat.value).argmax(-1, keepdim=True)
        found = flat.gather(-1, at).squeeze(-1)
        if keepdim:
            found = found.reshape([1 if axis in axes else extent for axis, extent in enumerate(a.shape)])
        return (found, at.squeeze(-1).reshape(found.shape)) if isinstance(dims, int) else found

    return rule


def _clamp(a: Any, low: Any = None, high: Any = None, **named: Any) -> Any:
    low, high = named.get("min", low), named.get("max", high)
    for bound, largest in ((low, 1), (high, -1)):
        if bound is not None:
            a = _extreme(largest)(a, lifted(bound).expand(a.shape))
    return a


def _product(a: Any, b: Any) -> FieldTensor:
    """Return the matrix product of two matrices, or of two batches of matrices."""
    x, y = lifted(a), lifted(b)
    left, right = x.shadow, y.shadow

    def part(one: Value, axis: int, start: int) -> Value:
        at = (..., slice(start, start + DEPTH)) if axis == -1 else (..., slice(start, start + DEPTH), slice(None))
        return one.map(lambda words: words[at])

    total: Value | None = None
    for start in range(0, x.shape[-1], DEPTH):
        found = exact.matmul(part(left, -1, start), part(right, -2, start))
        total = found if total is None else exact.add(total, found)
    assert total is not None
    return FieldTensor.of(x.value @ y.value, total)


def _vector_product(a: Any, b: Any) -> Any:
    return (
        _product(lifted(a).reshape(-1, lifted(a).shape[-1]), lifted(b).unsqueeze(-1))
        .squeeze(-1)
        .reshape(lifted(a).shape[:-1])
    )


def _convolution(
    a: Any, weight: Any, bias: Any, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    transposed: bool, output_padding: Sequence[int], groups: int,
) -> Any:  # fmt: skip
    if transposed:
        raise UnknownOperationError("a transposed convolution has no rule in exact arithmetic")
    count, taps, batch, outputs = len(stride), weight.shape[2:], a.shape[0], weight.shape[0]
    windows = torch.constant_pad_nd(lifted(a), [one for each in reversed(padding) for one in (each, each)])
    for axis in range(count):
        windows = windows.unfold(2 + axis, (taps[axis] - 1) * dilation[axis] + 1, stride[axis])[..., :: dilation[axis]]
    places = windows.shape[2 : 2 + count]
    windows = windows.reshape(batch, groups, -1, *places, *taps)  # [batch, group, channel, place, tap]
    windows = windows.permute(1, 0, *range(3, 3 + count), 2, *range(3 + count, 3 + 2 * count))
    factors = lifted(weight).reshape(groups, outputs // groups, -1).transpose(1, 2)
    found = torch.bmm(windows.reshape(groups, -1, factors.shape[1]), factors)  # [group, batch and place, output]
    found = found.permute(0, 2, 1).reshape(outputs, batch, *places).transpose(0, 1)
    return found if bias is None else found + bias.reshape(1, -1, *[1] * count)


def _chosen(name: str) -> Callable[..., Any]:
    """Return the rule of a function that orders elements: the real values decide."""

    def rule(a: Any, *rest: Any, **named: Any) -> Any:
        at = getattr(torch, name)(a.value, *rest, **named).indices
        axis = named.get("dim", rest[1 if name == "topk" else 0] if len(rest) > (name == "topk") else -1)
        return a.gather(axis, at), at

    return rule


def _product_and_sum(bias: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> FieldTensor:
    return _plus(times(_product(a, b), alpha), times(bias, beta))


def softmax(a: Any, axis: int, half_to_float: bool = False) -> FieldTensor:
    """Return the softmax along an axis."""
    largest = _extreme(1)(a, [axis], True)
    terms = exponential(_minus(a, largest))
    return over(terms, torch.sum(terms, [axis], True))


def _attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    if dropout_p:
        raise UnknownOperationError("attention with dropout has no rule in exact arithmetic")
    if enable_gqa:
        key, value = (one.repeat_interleave(query.shape[-3] // one.shape[-3], -3) for one in (key, value))
    scores = query @ key.transpose(-1, -2)
    scores = scores / math.sqrt(query.shape[-1]) if scale is None else scores * scale
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if attn_mask is not None:
        added = attn_mask.dtype != torch.bool
        scores = scores + attn_mask if added else scores.masked_fill(~attn_mask, -math.inf)
    return torch.softmax(scores, -1) @ value


times = _pointwise(torch.mul, exact.multiply)
over = _pointwise(torch.div, _ratio)
inverse = _pointwise(torch.reciprocal, _inverse, 1)
root = _pointwise(torch.sqrt, exact.root, 1)
_log2, _erf = _function("lg2", torch.log2), _function("erf", torch.erf)
_sine, _cosine = _function("sin", torch.sin), _function("cos", torch.cos)


def _log(a: Any) -> FieldTensor:
    return times(_log2(a), LN_2)


def _log_softmax(a: Any, axis: int, half_to_float: bool = False) -> FieldTensor:
    shifted = _minus(a, _extreme(1)(a, [axis], True))
    return _minus(shifted, _log(torch.sum(exponential(shifted), [axis], True)))


RULES: Mapping[str, Callable[..., Any]] = {
    "add": _plus, "sub": _minus, "rsub": lambda a, b, alpha=1: _minus(b, a, alpha), "mul": times, "div": _divided,
    "neg": lambda a: times(a, -1), "reciprocal": inverse, "sqrt": root, "rsqrt": lambda a: inverse(root(a)),
    "exp": exponential, "exp2": lambda a: exponential(a, 2), "sigmoid": _sigmoid, "tanh": _tanh, "pow": _power,
    "mean": _mean, "var": _variance, "var_mean": _variance_and_mean,
    "std": lambda a, *rest, **named: root(_variance(a, *rest, **named)),
    "amax": _extreme(1), "amin": _extreme(-1), "max": _extreme(1), "min": _extreme(-1),
    "maximum": _extreme(1), "minimum": _extreme(-1), "clamp": _clamp, "clamp_min": _clamp,
    "clamp_max": lambda a, high: _clamp(a, None, high), "relu": lambda a: _clamp(a, 0.0),
    "abs": lambda a: _extreme(1)(a, times(a, -1)), "mm": _product, "bmm": _product, "mv": _vector_product,
    "dot": _vector_product, "addmm": _product_and_sum, "baddbmm": _product_and_sum,
    "_softmax": softmax, "square": lambda a: times(a, a), "_log_softmax": _log_softmax, "convolution": _convolution,
    "expm1": lambda a: _minus(exponential(a), 1), "log": _log, "log2": _log2,
    "log10": lambda a: times(_log2(a), LOG10_2), "log1p": lambda a: _log(_plus(a, 1)), "erf": _erf,
    "erfc": lambda a: _minus(1, _erf(a)), "sin": _sine, "cos": _cosine,
    **{one: _function(one, getattr(torch, one)) for one in ("atan", "asin", "acos", "erfinv", "lgamma")},
    "tan": lambda a: over(_sine(a), _cosine(a)),
    "sinh": lambda a: times(_minus(exponential(a), exponential(times(a, -1))), 0.5),
    "cosh": lambda a: times(_plus(exponential(a), exponential(times(a, -1))), 0.5),
    "sort": _chosen("sort"), "topk": _chosen("topk"),
}  # fmt: skip
"""Operations that compute, by their names in ATen."""
SUMS = frozenset({"sum", "cumsum", "index_add", "scatter_add", "bincount"})
"""Operations that add elements."""


def field_reference(
    kernel: Kernel, problem: Problem, inputs: Mapping[str, torch.Tensor], shadows: Mapping[str, Value]
) -> FieldReference | str:
    """Return the residues of each output of the reference; or why there is no reference over the field.

    Args:
        kernel: the kernel.
        problem: the problem.
        inputs: real inputs.
        shadows: residues of the floating-point inputs, flat.
    """
    if isinstance(kernel.workload.reference, KernelReference):
        return "the reference is a candidate's own result"
    given: dict[str, torch.Tensor] = {}
    for name, one in inputs.items():
        wide, shadow = one.to(torch.float64), shadows.get(name)
        if shadow is None:
            given[name] = wide
            continue
        flat = [np.zeros_like(shadow.p) if part is None else part for part in (shadow.p, shadow.q, shadow.bad)]
        given[name] = FieldTensor.of(wide, Value(*(part.reshape(wide.shape) for part in flat)))
    _INEXACT.clear()
    _ARGUMENTS.clear()
    try:
        with torch.no_grad(), plain_attention(), ConstantsMode():
            found = kernel.workload.reference(problem, given)
        if not all(isinstance(one, torch.Tensor) for one in found.values()):
            return "the reference does not return tensors"
        values = {name: _flat(one) for name, one in found.items() if one.is_floating_point()}
        return FieldReference(values, tuple(sorted(_INEXACT)), set(_ARGUMENTS))
    except UnknownOperationError as error:
        return str(error)
    except KERNEL_CODE_EXCEPTIONS as error:
        return f"the reference raised {type(error).__name__}: {error}"


def _flat(tensor: torch.Tensor) -> Value:
    return exact.lost(lifted(tensor).shadow.map(lambda words: words.reshape(-1)), OUTPUT)
