"""Forward error analysis of a reference: every torch operation propagates the bounds of `rounded`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from evokern.declaration.bounds import FP8_BITS, MMA_DEPTH, ROUNDOFF, TENSOR_CORE_BITS
from evokern.declaration.bounds.rounded import (
    FLUSHED,
    FUNCTIONS,
    RESCALED,
    Rounded,
    UnknownOperationError,
    applied,
    coefficient,
    finite,
    number,
    plus,
)
from evokern.declaration.bounds.rules import RULES

MOVES = frozenset(
    {
        *("clone", "_to_copy", "cat", "stack", "index", "gather", "index_select", "take", "flip", "roll", "repeat"),
        *("tril", "triu", "embedding", "im2col", "slice_scatter", "select_scatter", "scatter", "index_copy", "diag"),
        *("lift_fresh_copy", "diag_embed", "constant_pad_nd", "reflection_pad1d", "reflection_pad2d"),
        *("replication_pad1d", "replication_pad2d", "pixel_shuffle", "pixel_unshuffle", "_pin_memory"),
    }
)
"""Operations that move elements, and may insert constants."""
BILINEAR = frozenset({"mm", "bmm", "mv", "dot", "convolution"})
"""Operations that add products of elements of two tensors."""
SCATTERS = frozenset({"scatter_add", "index_add", "index_put"})
"""Operations that add elements to selected places."""
CHOICES = frozenset(
    {"sort", "topk", "argmax", "argmin", "argsort", "nonzero", "searchsorted", "bucketize", "median", "_unique2",
     "mode", "kthvalue", "unique_consecutive", "unique_dim", "equal", "_local_scalar_dense", "bincount", "histc"}
)  # fmt: skip
"""Operations whose results may differ completely after a rounding error; their operands must be exact."""
COMPARISONS = frozenset({"gt", "lt", "ge", "le", "eq", "ne"})
LOGIC = frozenset({"logical_and", "logical_or", "logical_not", "logical_xor", "bitwise_and", "bitwise_or",
                   "bitwise_not", "bitwise_xor", "any", "all"})  # fmt: skip
CONSTANTS = frozenset({"zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_full", "new_ones",
                       "new_empty", "isnan", "isinf", "isfinite", "new_empty_strided"})  # fmt: skip
"""Operations whose results do not depend on rounded values."""
RANDOM = frozenset({"uniform_", "normal_", "random_", "bernoulli_", "exponential_", "log_normal_"})
MOST_SAVED = 256
"""Number of saved storages from which those of deleted tensors are removed."""


class ErrorPropagation(TorchDispatchMode):
    """Mode that propagates error bounds through every operation on tensors.

    Errors are kept by storage, in the layout of the values, so that views share them.
    """

    def __init__(
        self, inputs: Sequence[torch.Tensor] = (), *, bits: int = 32, narrow: float = 0.0, unit: float = ROUNDOFF["f32"]
    ) -> None:
        """Create the mode.

        Args:
            inputs: tensors whose values are exact, and from which polynomials are recognised.
            bits: bits of the widest input; tensor cores may multiply at most 16.
            narrow: unit roundoff to which kernels may round computed operands of a product; 0 for none.
            unit: unit roundoff of the arithmetic.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self._inputs = {_key(one) for one in inputs}
        self._bits, self._narrow = bits, narrow
        self.unit = unit
        """Unit roundoff of the arithmetic."""
        self._saved: dict[int, tuple[StorageWeakRef, Rounded]] = {}

    def of(self, tensor: torch.Tensor) -> Rounded:
        """Return a value with its error bound."""
        saved = self._saved.get(_key(tensor))
        if saved is None:
            return self._leaf(tensor)

        def here(flat: torch.Tensor) -> torch.Tensor:
            return flat.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())

        flat = saved[1]
        other, near = (None if one is None else here(one) for one in (flat.other, flat.near))
        return replace(flat, value=tensor, size=here(flat.size), other=other, near=near)

    def _leaf(self, tensor: torch.Tensor) -> Rounded:
        """Return an input or a constant."""
        terms, degree = 0.0, 0
        if _key(tensor) in self._inputs:
            terms, degree = 1.0, 1
        elif tensor.device.type != "meta" and 0 < tensor.numel() <= 4096:
            terms = coefficient(tensor.to(torch.float64))
        size = finite(tensor.to(torch.float64).abs(), tensor) + FLUSHED
        least = 0.0 if tensor.dtype in (torch.bool, torch.uint8) else -math.inf
        return Rounded(tensor, size, least=least, terms=terms, degree=degree, unit=self.unit)

    def _save(self, tensor: torch.Tensor, found: Rounded) -> None:
        """Keep the error of a new tensor in the layout of its storage."""
        storage = tensor.untyped_storage()
        extent = storage.nbytes() // tensor.element_size()

        def flat(values: torch.Tensor) -> torch.Tensor:
            values = values.expand(tensor.shape)
            if tensor.is_contiguous() and extent == tensor.numel():
                return values.contiguous().view(-1)
            whole = values.new_zeros(extent)
            whole.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset()).copy_(values)
            return whole

        if len(self._saved) > MOST_SAVED:
            alive = {key: one for key, one in self._saved.items() if not one[0].expired()}  # type: ignore[no-untyped-call]
            self._saved = alive
        other, near = (None if one is None else flat(one) for one in (found.other, found.near))
        kept = replace(found, size=flat(found.size), other=other, near=near)
        self._saved[_key(tensor)] = _weak(tensor), kept

    # ---- dispatch

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation and keep the error bounds of its results."""
        kwargs, name = kwargs or {}, func._schema.name.partition("::")[2]
        if func._schema.is_mutable:
            return self._in_place(func, name, args, kwargs)
        given = [self.of(one) for one in _tensors((args, kwargs))]
        if all(one.exact and not one.value.is_floating_point() for one in given) or name in CONSTANTS:
            return self._constant(name, func(*args, **kwargs))
        if name in FUNCTIONS:
            return self._new(applied(FUNCTIONS[name], self.given(args[0])))
        if rule := RULES.get(name):
            return self._new(rule(self, *args, **kwargs))
        if name in BILINEAR:
            return self._new(self.bilinear(func, *args))
        if name in MOVES:
            return self._new(self._moved(func, args, kwargs))
        if name in SCATTERS or (name == "bincount" and len(_tensors((args, kwargs))) > 1):
            return self._new(self._scattered(func, name, args, kwargs))
        if name in COMPARISONS or name in LOGIC:
            return self._new(self._compared(func, name, args, kwargs))
        view = name == "_unsafe_view" or any(one.alias_info is not None for one in func._schema.returns)
        if view or (name in CHOICES and all(one.exact for one in given)):
            return func(*args, **kwargs)  # a view shares the errors of its storage
        return self._decomposed(func, name, args, kwargs)

    def _constant(self, name: str, value: Any) -> Any:
        """Return a result of integers and constants; the elements of a tensor without data are known by its name."""
        if isinstance(value, torch.Tensor) and value.device.type == "meta" and value.is_floating_point():
            terms = next((known for word, known in (("zeros", 0.25), ("ones", 1.0)) if word in name), 0.0)
            self._save(value, replace(self._leaf(value), terms=terms))
        return value

    def _decomposed(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation as simpler ones."""
        from torch._decomp import decomposition_table

        found: Any = NotImplemented
        if name not in CHOICES:
            with self:
                found = func.decompose(*args, **kwargs)
                if found is NotImplemented and func in decomposition_table:
                    found = decomposition_table[func](*args, **kwargs)
        if found is NotImplemented:
            raise UnknownOperationError(f"no bound on the error of torch's {name!r} is known")
        return found

    def _in_place(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation that changes its first argument, as one that returns a new tensor."""
        target = args[0]
        if not name.endswith("_") or not isinstance(target, torch.Tensor):
            raise UnknownOperationError(f"no bound on the error of torch's {str(func)!r} is known")
        if name in RANDOM:
            return func(*args, **kwargs)  # a constant, such as a weight of a module that is being created
        if name in ("copy_", "fill_", "zero_"):
            given = self.given(args[1] if len(args) > 1 else 0.0)
        else:
            packet = getattr(torch.ops.aten, name.strip("_").removesuffix("_impl") if "impl" in name else name[:-1])
            with self:
                result = getattr(packet, func._overloadname, packet)(*args, **kwargs)
            given = self.of(result)
        if _key(target) not in self._saved:  # the whole storage, which views share
            extent = target.untyped_storage().nbytes() // target.element_size()
            leaf = self._leaf(target.as_strided((extent,), (1,), 0))
            self._saved[_key(target)] = _weak(target), leaf
        target.copy_(given.value)
        reference, old = self._saved[_key(target)]
        other, near = old.other, old.near
        if given.other is not None and other is None:
            other = torch.zeros_like(old.size, dtype=given.other.dtype)
        if given.near is not None and near is None:
            near = old.size.clone()
        new = replace(
            old, other=other, near=near, count=max(old.count, given.count), least=min(old.least, given.least),
            terms=max(old.terms, given.terms) if old.terms and given.terms else 0.0,
            degree=max(old.degree, given.degree),
        )  # fmt: skip
        self._saved[_key(target)] = reference, new
        view = self.of(target)
        view.size.copy_(given.size.expand(target.shape))
        if view.near is not None:
            view.near.copy_(given.closest.expand(target.shape))
        if view.other is not None:
            view.other.copy_(torch.zeros_like(view.other) if given.other is None else given.other.expand(target.shape))
        return target

    def given(self, operand: Any) -> Rounded:
        """Return an operand of an arithmetic operation with its error bound."""
        if not isinstance(operand, torch.Tensor):
            return number(operand, self.unit)
        found = self.of(operand)
        if operand.is_floating_point():
            return found
        if found.other is not None and operand.dtype != torch.bool:
            raise UnknownOperationError("no bound is known: integers of the reference depend on rounded values")
        other = None if found.other is None else found.other.to(torch.float64)
        return replace(found, value=operand.to(torch.float64), other=other)

    def _new(self, found: Any) -> Any:
        """Keep the error bounds of results, and return their values."""
        if isinstance(found, (tuple, list)):
            return type(found)(self._new(one) for one in found)
        if not isinstance(found, Rounded):
            return found
        if found.value.is_floating_point():
            other = None if found.other is None else finite(found.other.nan_to_num(nan=math.inf), found.value)
            found = replace(found, size=finite(found.size, found.value) + FLUSHED, other=other)
        self._save(found.value, found)
        return found.value

    # ---- rules for kinds of operations

    def bilinear(self, func: Any, a: torch.Tensor, b: torch.Tensor, *rest: Any) -> Rounded:
        """Return sums of products: a matrix product or a convolution, on tensor cores if the inputs are narrow."""
        if func._schema.name == "aten::convolution":
            bias, transposed = rest[0], rest[4]
            rest = (None, *rest[1:])
            terms = b.numel() // b.shape[1 if transposed else 0]
        else:
            bias, terms = None, b.shape[0] if b.ndim < 3 else b.shape[1]
        x, y = self._operand(a), self._operand(b)
        if (x.other is None) != (y.other is None):
            x, y = x.ordered, y.ordered
        other = near = None
        if x.near is not None or y.near is not None:
            near = func(x.closest, y.closest, *rest)
        if y.other is not None:
            other = func(x.range, y.other, *rest)
        if x.other is not None:
            more = func(x.other, y.range, *rest)
            other = more if other is None else other + more
        count = terms if x.other is None and y.other is None else RESCALED * terms
        if self._bits <= TENSOR_CORE_BITS:
            count += 2 * -(-terms // MMA_DEPTH) + (terms << 11 if self._bits <= FP8_BITS else 0)
        least = 0.0 if x.least >= 0 and y.least >= 0 else -math.inf
        found = Rounded(func(x.value, y.value, *rest), func(x.size, y.size, *rest), x.count + y.count + count, other,
                        least, x.terms * y.terms * terms, x.degree + y.degree, self.unit, near)  # fmt: skip
        if bias is not None:
            found = plus(found, self.given(bias.as_strided((len(bias), *[1] * (a.ndim - 2)), (bias.stride(0), *[1] * (
                a.ndim - 2)), bias.storage_offset())))  # fmt: skip
        return found

    def _operand(self, tensor: torch.Tensor) -> Rounded:
        """Return an operand of a product, rounded for the tensor cores if it is computed and the inputs are narrow."""
        found = self.given(tensor)
        if not self._narrow or found.exact:
            return found
        rounding = found.range * (2 * self._narrow) + 2.0**-25
        return replace(found, other=rounding if found.other is None else found.other + rounding)

    def _moved(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Rounded:
        """Return moved elements."""
        given = [self.of(one) for one in _tensors((args, kwargs))]
        value = func(*args, **kwargs)
        if value.is_floating_point() and any(not one.exact and not one.value.is_floating_point() for one in given):
            given = [self.given(one.value) for one in given]
        wide = [one for one in given if one.value.dtype == torch.float64]
        if wide and value.is_floating_point() and value.dtype != torch.float64:
            raise UnknownOperationError(f"the reference converts values to {value.dtype}; it must compute in float64")
        if not value.is_floating_point() and any(not one.exact and one.value.is_floating_point() for one in given):
            raise UnknownOperationError("no bound is known: the reference converts rounded values to integers")

        def same(change: Callable[[Rounded], torch.Tensor]) -> torch.Tensor:
            def moved(one: Any) -> Any:
                if isinstance(one, torch.Tensor):
                    return change(self.given(one)) if one.is_floating_point() or one is args[0] else one
                if isinstance(one, float):
                    return float(change(number(one, self.unit)))
                return type(one)(moved(item) for item in one) if isinstance(one, (list, tuple)) else one

            result: torch.Tensor = func(*moved(args), **{key: moved(one) for key, one in kwargs.items()})
            return result

        if all(one.exact for one in given) and not value.is_floating_point():
            return self._leaf(value)
        kwargs = {key: one for key, one in kwargs.items() if key != "dtype"}
        other = None
        if any(one.other is not None for one in given):
            other = same(lambda one: torch.zeros_like(one.size) if one.other is None else one.other.to(torch.float64))
            other = other.to(torch.bool) if value.dtype == torch.bool else other
        size = same(lambda one: one.size)
        near = same(lambda one: one.closest) if any(one.near is not None for one in given) else None
        terms = [one.terms for one in given if one.value.is_floating_point()]
        constant = any(isinstance(one, float) for one in args)
        return Rounded(
            value, size, max(one.count for one in given), other,
            min([one.least for one in given], default=-math.inf) if not constant else -math.inf,
            max(terms, default=0.0) if all(terms) else 0.0, max(one.degree for one in given), self.unit, near,
        )  # fmt: skip

    def _scattered(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Rounded:
        """Return sums of elements that are added to selected places."""
        if name == "index_put" and not (args[3] if len(args) > 3 else kwargs.get("accumulate", False)):
            return self._put(func, args)
        if float(kwargs.get("alpha", 1)) != 1:
            raise UnknownOperationError(f"no bound on the error of torch's {name!r} with a factor is known")
        # The destination, if there is one, and the elements that are added.
        places = [at for at, one in enumerate(args) if isinstance(one, torch.Tensor) and one.is_floating_point()]

        def changed(of: Callable[[Rounded], torch.Tensor]) -> torch.Tensor:
            result: torch.Tensor = func(
                *[of(self.given(one)) if at in places else one for at, one in enumerate(args)], **kwargs
            )
            return result

        given = [self.given(args[at]) for at in places]
        value = func(*args, **kwargs)
        most = args[places[-1]].numel()
        if value.device.type != "meta":
            most = max(1, int(changed(lambda one: torch.ones_like(one.size)).max()))
        other = None
        if any(one.other is not None for one in given):
            other = changed(lambda one: torch.zeros_like(one.size) if one.other is None else one.other)
        least = 0.0 if all(one.least >= 0 for one in given) else -math.inf
        terms = sum(one.terms * (most if at or len(given) == 1 else 1) for at, one in enumerate(given))
        return Rounded(
            value, changed(lambda one: one.size), max(one.count for one in given) + most, other, least,
            terms if all(one.terms for one in given) else 0.0, max(one.degree for one in given), self.unit,
        )  # fmt: skip

    def _put(self, func: Any, args: tuple[Any, ...]) -> Rounded:
        """Return a tensor with some elements replaced."""
        into, given = self.given(args[0]), self.given(args[2])
        other = None
        if into.other is not None or given.other is not None:
            parts = [torch.zeros_like(one.size) if one.other is None else one.other for one in (into, given)]
            other = func(parts[0], args[1], parts[1])
        return Rounded(
            func(args[0], args[1], args[2]), func(into.size, args[1], given.size), max(into.count, given.count), other,
            min(into.least, given.least), max(into.terms, given.terms) if into.terms and given.terms else 0.0,
            max(into.degree, given.degree), self.unit,
        )  # fmt: skip

    def _compared(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return a condition, and where a kernel may find another one."""
        value = func(*args, **kwargs)
        if name in COMPARISONS:
            a, b = (self.given(one) for one in args[:2])
            unsure = None if a.exact and b.exact else (a.value - b.value).abs() <= a.error + b.error
        else:
            found = [self.of(one) for one in _tensors(args)]
            if any(one.value.is_floating_point() and not one.exact for one in found):
                raise UnknownOperationError(f"no bound on the error of torch's {name!r} of rounded values is known")
            doubts = [one.other for one in found if one.other is not None]
            unsure = None
            if doubts and name in ("any", "all"):
                unsure = torch.ops.aten.any(doubts[0], *args[1:], **kwargs)
            elif doubts:
                unsure = torch.stack([one.expand(value.shape) for one in doubts]).any(0)
        if unsure is None:
            return value
        return Rounded(value, torch.ones_like(value, dtype=torch.float64), 1, unsure, 0.0, unit=self.unit)


def _key(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _weak(tensor: torch.Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]


def _tensors(given: Any) -> list[torch.Tensor]:
    return list(_found(given))


def _found(given: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in nested arguments."""
    if isinstance(given, torch.Tensor):
        yield given
    elif isinstance(given, Mapping):
        yield from _found(tuple(given.values()))
    elif isinstance(given, (list, tuple)):
        for one in given:
            yield from _found(one)
