"""Bounds derived from the reference: for workloads that declare neither a bound nor a tolerance.

A reference of one known torch operation, apart from views and conversions, has the ready-made bound of this operation.
For other references, the bound is propagated through every operation (`evokern.declaration.bounds.propagation`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from evokern.declaration.as_data.words import call_words
from evokern.declaration.bounds import (
    EXACT_SUM,
    ROUNDOFF,
    TENSOR_CORE_BITS,
    ErrorBound,
    Inputs,
    Mean,
    Reference,
    RmsNorm,
    Softmax,
    Sum,
    SumOfProducts,
)
from evokern.declaration.genes import Config
from evokern.declaration.kernel import DTYPE_BYTES, SIGNIFICAND_BITS, Baseline, Kernel, Tensor, Tolerance
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
CONVERSIONS = frozenset({"numpy", "__array__", "tolist", "__dlpack__"})
"""Methods that copy a tensor to another library."""
PRODUCTS = frozenset(
    {"matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "mv", "dot", "linear", "conv1d", "conv2d", "conv3d"}
)
"""Operations that add products."""
EXACT_TERM = 1.5
"""Expected absolute value of a nonzero `exact` input, which is -2, -1, 1 or 2 (`evokern.gate.data`)."""


@dataclass(frozen=True)
class TracedOperation:
    """One torch operation of a reference."""

    name: str
    """Its name without the module."""
    args: tuple[Any, ...]
    """Its positional arguments."""
    kwargs: Mapping[str, Any]
    """Its named arguments."""


@dataclass(frozen=True)
class PropagatedBound(ErrorBound):
    """Bound propagated through the operations of the reference."""

    arithmetic: Callable[[Problem], tuple[int, float, float]]
    """Function that returns the bits of the widest input, and the unit roundoffs of operands and of the arithmetic."""
    formula: Callable[[Problem], tuple[int, float, int]]
    """Function that returns the largest number of roundings; and the number of terms and the degree of a polynomial,
    with 0 terms for other references."""
    coarser: float = 1.0
    """Unit roundoff of a baseline's arithmetic divided by that of `arithmetic`; errors grow in proportion."""

    def factors(self, problem: Problem, config: Config | None, bits: Mapping[str, int]) -> tuple[float, ...]:
        """Return the number of roundings, by which the magnitude is divided."""
        return (self.coarser * self.formula(problem)[0],)

    def magnitudes(
        self, problem: Problem, inputs: Inputs, result: torch.Tensor, reference: Reference
    ) -> tuple[torch.Tensor, ...]:
        """Return the error of each element divided by the number of roundings."""
        mode = self.propagation(problem, inputs)
        with plain_attention(), _inside_torch(), mode:
            found = reference(inputs)
        return (mode.of(found).error / self.formula(problem)[0],)

    def propagation(self, problem: Problem, inputs: Inputs) -> Any:
        """Return an `ErrorPropagation` mode that propagates errors from these inputs."""
        from evokern.declaration.bounds.propagation import ErrorPropagation

        bits, narrow, unit = self.arithmetic(problem)
        return ErrorPropagation(list(inputs.values()), bits=bits, narrow=narrow, unit=unit)

    def density(self, problem: Problem) -> float | None:
        """Return a density for which a polynomial with simple coefficients stays far below 2048."""
        _, terms, degree = self.formula(problem)
        if not terms or not degree:
            return None
        return float(min(1.0, (EXACT_SUM / EXACT_TERM**degree / terms) ** (1 / degree)))


def with_derived_bounds(kernel: Kernel, *, tried: bool = True) -> Kernel:
    """Return the kernel with a bound for each output that has neither a bound nor a tolerance.

    Integer outputs must be exact.

    Args:
        kernel: the kernel.
        tried: whether to run the reference on its first small problem, to find unknown operations early.

    Raises:
        KernelError: an output has neither, and its reference uses an operation without a known bound.
    """
    small = kernel.workload.small_problems
    if not small and any(field.default is None for field in kernel.fields):
        return kernel  # the outputs are unknown; the gate names those without a limit
    config, problem = kernel.space.default(), kernel.problem(small[0] if small else {})
    try:
        tensors = kernel.workload.tensors(problem, config)
    except KERNEL_CODE_EXCEPTIONS as error_:
        where = f"kernel {kernel.name}: tensors raised {type(error_).__name__}: {error_} at {problem}"
        raise KernelError(where) from error_
    error, tolerance = dict(kernel.workload.error), dict(kernel.workload.tolerance)
    for name, tensor in tensors.items():
        if tensor.role not in ("output", "inout") or name in tolerance:
            continue
        if tensor.dtype not in SIGNIFICAND_BITS:
            tolerance[name] = Tolerance(0.0, 0.0)
            continue
        try:
            error[name] = derived_bound(kernel, config, problem, name, tried=tried)
        except KernelError as reason:
            raise KernelError(
                f"kernel {kernel.name}: output {name!r} has neither a bound nor a tolerance, and {reason}; "
                f"add error={{{name!r}: ...}} to the workload (docs/proof.md)"
            ) from reason
    given = {name: one for name, one in tolerance.items() if name not in error}
    baselines = _with_own_rounding(kernel.workload.baselines, error, {tensor.dtype for tensor in tensors.values()})
    return replace(kernel, workload=replace(kernel.workload, error=error, tolerance=given, baselines=baselines))


def _with_own_rounding(
    baselines: Sequence[Baseline], error: Mapping[str, Any], dtypes: Set[str]
) -> tuple[Baseline, ...]:
    """Return baselines that may round the result of each operation to the narrowest type, as torch does in 16 bits."""
    unit = max(ROUNDOFF[one] for one in ("f32", *(dtypes & ROUNDOFF.keys())))
    own = {
        name: replace(bound, coarser=unit / ROUNDOFF["f32"])
        for name, bound in error.items()
        if isinstance(bound, PropagatedBound) and unit > ROUNDOFF["f32"]
    }
    return tuple(replace(one, error={**own, **one.error}) for one in baselines)


def derived_bound(kernel: Kernel, config: Config, problem: Problem, output: str, *, tried: bool = True) -> ErrorBound:
    """Return the bound of an output of a reference.

    Raises:
        UnknownOperationError: the reference uses an operation without a known bound.
    """
    bound = _propagated(kernel, config, output)
    if tried:
        _try(kernel, bound, config, problem, output)
    operations = operations_of(kernel, config, problem)
    found = _ready_made(kernel, config, problem, operations[0]) if operations and len(operations) == 1 else None
    return found or bound


def _ready_made(kernel: Kernel, config: Config, problem: Problem, one: TracedOperation) -> ErrorBound | None:
    """Return the bound of a reference that is this one operation, or None."""
    tensors = kernel.workload.tensors(problem, config)
    given = tuple(name for name, tensor in tensors.items() if tensor.given and tensor.dtype in SIGNIFICAND_BITS)

    @functools.cache  # a candidate's buffers ask several times
    def terms(at: Problem) -> int:
        found = operations_of(kernel, config, at)
        if found is None or [operation.name for operation in found] != [one.name]:
            message = f"the reference is not one {one.name} at {at}; declare a bound with `error` in kernel.py"
            raise KernelError(call_words(message, at))
        return _terms(found[0])

    if one.name in PRODUCTS:
        return SumOfProducts(terms, given)
    if len(given) == 1 and one.name in ("sum", "cumsum", "mean"):
        return (Mean if one.name == "mean" else Sum)(terms, given[0])
    if len(given) == 1 and one.name == "softmax" and _last_axis(one):
        return Softmax(terms, given[0])
    if one.name == "rms_norm":
        return RmsNorm(terms)
    return None


def _propagated(kernel: Kernel, config: Config, output: str) -> PropagatedBound:
    @functools.cache
    def arithmetic(at: Problem) -> tuple[int, float, float]:
        tensors = kernel.workload.tensors(at, config)
        used = {tensor.dtype for tensor in tensors.values() if tensor.given and tensor.dtype in SIGNIFICAND_BITS}
        bits = max((8 * DTYPE_BYTES[dtype] for dtype in used), default=32)
        narrow = max((ROUNDOFF[dtype] for dtype in used if dtype in ("f16", "bf16")), default=ROUNDOFF["f16"])
        # In float64, the reference has an error of its own.
        wide = tensors[output].dtype == "f64" and used <= {"f64"}
        unit = 2 * ROUNDOFF["f64"] if wide else ROUNDOFF["f32"]
        return bits, narrow if bits <= TENSOR_CORE_BITS else 0.0, unit

    @functools.cache
    def formula(at: Problem) -> tuple[int, float, int]:
        inputs = _inputs(kernel.workload.tensors(at, config), "meta")
        mode = bound.propagation(at, inputs)
        try:
            with plain_attention(), mode:
                result = mode.of(kernel.workload.reference(at, inputs)[output])
        except KERNEL_CODE_EXCEPTIONS:
            return 1, 0.0, 0  # the reference depends on the values
        return max(1, result.count), result.terms if result.other is None else 0.0, result.degree

    bound = PropagatedBound(arithmetic, formula)
    return bound


def _try(kernel: Kernel, bound: PropagatedBound, config: Config, problem: Problem, output: str) -> None:
    """Propagate errors through the reference at a small problem, to find unknown operations early."""
    from evokern.declaration.bounds.rounded import UnknownOperationError

    inputs = _inputs(kernel.workload.tensors(problem, config), "cpu")
    mode = bound.propagation(problem, inputs)
    try:
        with plain_attention(), _inside_torch(), mode:
            result = kernel.workload.reference(problem, inputs)[output]
        _ = mode.of(result).error
    except UnknownOperationError:
        raise
    except KERNEL_CODE_EXCEPTIONS:
        return  # the gate and `evokern check` explain a reference that raises


def _inputs(tensors: Mapping[str, Tensor], device: str) -> dict[str, torch.Tensor]:
    """Return float64 inputs: ones, the smallest integers, or drawn values."""
    import torch

    found = {}
    for name, tensor in tensors.items():
        if not tensor.given:
            continue
        if tensor.draw is not None and device == "cpu":
            found[name] = tensor.draw(torch.Generator().manual_seed(0)).to(torch.float64)
        else:
            value = 1.0 if tensor.dtype in SIGNIFICAND_BITS else float(tensor.low)
            found[name] = torch.full(tensor.shape, value, dtype=torch.float64, device=device)
    return found


def plain_attention() -> Any:
    """Return a context in which scaled dot-product attention consists of matrix products and a softmax."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel([SDPBackend.MATH])


def _inside_torch() -> Any:
    """Return a context in which a reference must not convert tensors, because other libraries propagate no errors."""
    from torch.overrides import TorchFunctionMode

    from evokern.declaration.bounds.rounded import UnknownOperationError

    class InsideTorch(TorchFunctionMode):
        def __torch_function__(
            self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Any = None
        ) -> Any:
            if getattr(func, "__name__", "") in CONVERSIONS:
                raise UnknownOperationError(
                    "the reference computes outside torch, where no bound on its error is known"
                )
            return func(*args, **(kwargs or {}))

    return InsideTorch()


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
    if one.name == "cumsum":
        return int(given.shape[one.args[1] if len(one.args) > 1 else one.kwargs["dim"]])
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
