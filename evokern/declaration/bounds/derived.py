"""Bounds derived from the reference: for workloads that declare neither a bound nor a tolerance.

A bound is derived if the reference is one known torch operation, apart from views, copies and conversions. Tracing the
reference on tensors without data yields the operation, and the number of terms at any problem.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from evokern.declaration.bounds import Elementwise, ErrorBound, Mean, RmsNorm, Softmax, Sum, SumOfProducts
from evokern.declaration.genes import Config
from evokern.declaration.kernel import SIGNIFICAND_BITS, Kernel, Tensor
from evokern.declaration.problem import Problem
from evokern.errors import KERNEL_CODE_EXCEPTIONS, KernelError

if TYPE_CHECKING:
    import torch

MOVES = frozenset(
    {
        *("view", "reshape", "flatten", "unflatten", "permute", "transpose", "t", "T", "mT", "squeeze", "unsqueeze"),
        *("expand", "expand_as", "contiguous", "clone", "to", "double", "float", "type", "view_as", "movedim"),
        *("__getitem__", "narrow", "select", "split", "chunk", "cat", "stack", "unbind", "shape", "size", "dim"),
        *("ndim", "numel", "dtype", "device", "is_floating_point", "detach"),
    }
)
"""Operations that do not compute: views, copies, conversions, and properties."""
PRODUCTS = frozenset(
    {"matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "mv", "dot", "linear", "conv1d", "conv2d", "conv3d"}
)
"""Operations that add products."""
FUNCTIONS: Mapping[str, float] = {
    "relu": 0, "abs": 0, "neg": 0, "__neg__": 0, "clamp": 0, "maximum": 0, "minimum": 0, "exp": 4, "log": 4, "sqrt": 1,
    "rsqrt": 4, "sigmoid": 8, "tanh": 8, "silu": 12, "gelu": 16, "sin": 4, "cos": 4, "reciprocal": 2,
}  # fmt: skip
"""Functions of single elements, with the error in ulp that a float32 kernel may have (CUDA C++ Programming Guide,
"Mathematical Functions", doubled for approximate instructions)."""
COMBINATIONS = frozenset(
    {*("add", "sub", "mul", "div"), *(f"__{side}{name}__" for side in ("", "r") for name in ("add", "sub", "mul")),
     "__truediv__"}
)  # fmt: skip
"""Operations on two elements, each rounded once."""


@dataclass(frozen=True)
class TracedOperation:
    """One torch operation of a reference."""

    name: str
    """Its name without the module."""
    args: tuple[Any, ...]
    """Its positional arguments."""
    kwargs: Mapping[str, Any]
    """Its named arguments."""


def with_derived_bounds(kernel: Kernel) -> Kernel:
    """Return the kernel with a bound for each output that has neither a bound nor a tolerance.

    Raises:
        KernelError: an output has neither, and its reference is not one known operation.
    """
    if not kernel.workload.small_problems:
        return kernel  # the outputs are unknown; the gate names those without a limit
    config, problem = kernel.space.default(), kernel.problem(kernel.workload.small_problems[0])
    try:
        tensors = kernel.workload.tensors(problem, config)
    except KERNEL_CODE_EXCEPTIONS as error_:
        where = f"kernel {kernel.name}: tensors raised {type(error_).__name__}: {error_} at {problem}"
        raise KernelError(where) from error_
    error = dict(kernel.workload.error)
    for name, tensor in tensors.items():
        if tensor.role not in ("output", "inout") or name in kernel.workload.tolerance:
            continue
        bound = derived_bound(kernel, config, problem) if tensor.dtype in SIGNIFICAND_BITS else None
        if bound is None:
            raise KernelError(
                f"kernel {kernel.name}: output {name!r} has neither a bound nor a tolerance, and its reference is not "
                f"one operation with a known bound; add error={{{name!r}: ...}} to the workload (docs/proof.md)"
            )
        error[name] = bound
    if len(error) == len(kernel.workload.error):
        return kernel
    return replace(kernel, workload=replace(kernel.workload, error=error))


def derived_bound(kernel: Kernel, config: Config, problem: Problem) -> ErrorBound | None:
    """Return the bound of a reference that is one known operation with one output, or None."""
    operations = operations_of(kernel, config, problem)
    if operations is None or len(operations) != 1:
        return None
    (one,) = operations
    tensors = kernel.workload.tensors(problem, config)
    given = tuple(name for name, tensor in tensors.items() if tensor.given and tensor.dtype in SIGNIFICAND_BITS)

    @functools.cache  # a candidate's buffers ask several times
    def terms(at: Problem) -> int:
        found = operations_of(kernel, config, at)
        if found is None or [operation.name for operation in found] != [one.name]:
            raise KernelError(f"the reference is not one {one.name} at {at}; declare a bound with `error` in kernel.py")
        return _terms(found[0])

    if one.name in PRODUCTS:
        return SumOfProducts(terms, given)
    if one.name in FUNCTIONS and len(given) >= 1:
        return Elementwise(FUNCTIONS[one.name])
    if one.name in COMBINATIONS:
        return Elementwise(1, inputs=given if one.name not in ("mul", "__mul__", "__rmul__") else ())
    if len(given) == 1 and one.name in ("sum", "mean"):
        return (Sum if one.name == "sum" else Mean)(terms, given[0])
    if len(given) == 1 and one.name == "softmax" and _last_axis(one):
        return Softmax(terms, given[0])
    if one.name == "rms_norm":
        return RmsNorm(terms)
    return None


def operations_of(kernel: Kernel, config: Config, problem: Problem) -> list[TracedOperation] | None:
    """Return the torch operations that the reference computes with, or None if it cannot be traced."""
    import torch
    from torch.overrides import TorchFunctionMode

    found: list[TracedOperation] = []

    class Recorder(TorchFunctionMode):
        def __torch_function__(
            self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Any = None
        ) -> Any:
            name = getattr(func, "__name__", "")
            if name == "__get__":
                name = getattr(getattr(func, "__self__", None), "__name__", "")
            if name not in MOVES:
                found.append(TracedOperation(name, tuple(args), kwargs or {}))
                with torch._C.DisableTorchFunctionSubclass():
                    return func(*args, **(kwargs or {}))
            return func(*args, **(kwargs or {}))

    tensors: Mapping[str, Tensor] = kernel.workload.tensors(problem, config)
    inputs = {n: torch.empty(t.shape, dtype=torch.float64, device="meta") for n, t in tensors.items() if t.given}
    try:
        with Recorder():
            kernel.workload.reference(problem, inputs)
    except KERNEL_CODE_EXCEPTIONS:
        return None
    return found


def _terms(one: TracedOperation) -> int:
    """Return the number of terms that an operation adds for one element."""
    if one.name.startswith("conv"):
        weight: torch.Tensor = one.args[1]
        return weight[0].numel() + 1
    given: torch.Tensor = one.args[0]
    if one.name in ("sum", "mean"):
        axes = one.args[1] if len(one.args) > 1 else one.kwargs.get("dim")
        if axes is None:
            return given.numel()
        total = 1
        for axis in axes if isinstance(axes, (tuple, list)) else (axes,):
            total *= given.shape[axis]
        return total
    if one.name == "rms_norm":
        return math.prod(one.args[1] if len(one.args) > 1 else one.kwargs["normalized_shape"])
    return int(given.shape[-1]) + (1 if one.name == "linear" else 0)


def _last_axis(one: TracedOperation) -> bool:
    axis = one.args[1] if len(one.args) > 1 else one.kwargs.get("dim")
    return axis is not None and axis % one.args[0].ndim == one.args[0].ndim - 1
