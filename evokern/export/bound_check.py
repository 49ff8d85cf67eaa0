"""Bounds on rounding errors in exported programs, which check their results on normal inputs.

A bound is evaluated there as in the gate: by the reference on absolute values, and by the functions of
`evokern.export.bound_functions`. Other bounds become a constant: the largest bound of any element on normal inputs of a
small problem, scaled to the program's problem.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evokern.declaration.bounds import Elementwise, ErrorBound, RmsNorm, Sum, SumOfProducts
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Kernel, Problem, Tensor, Tolerance
from evokern.declaration.small_problems import small_problem
from evokern.errors import EvokernError, KernelError
from evokern.export.bound_functions import BoundFunction, bound_function
from evokern.export.formula import member
from evokern.export.sampled_check import SampledField
from evokern.export.trace import Traces

ROOM = 2.0
"""Factor of a constant bound, because other normal inputs have other largest elements."""
SEED = 0
"""Seed of the normal inputs from which a constant is computed."""


@dataclass(frozen=True)
class ExportedLimit:
    """Allowed error of an output: `atol + (rtol + relative) |reference| + factor M + constant`."""

    atol: float
    """Absolute part."""
    rtol: float
    """Part relative to the reference."""
    absolute: tuple[str, ...] = ()
    """Inputs whose absolute values give M, the reference on them; without inputs, M is not computed."""
    factor: float = 0.0
    """Factor of M."""
    relative: float = 0.0
    """Bound of the arithmetic relative to the reference."""
    constant: float = 0.0
    """Bound of the arithmetic that does not depend on the element."""
    elements: int | None = None
    """Number of elements from which a tolerance grows (`Tolerance.elements`)."""
    bounded: bool = False
    """Whether the error is that of a bound, which grows with the shape."""
    function: BoundFunction | None = None
    """Function that computes M itself, so that its factor is 1; None for the reference."""


def exported_limit(
    kernel: Kernel,
    config: Config,
    problem: Problem,
    tolerances: Mapping[str, Tolerance],
    name: str,
    sampled: Sequence[SampledField] = (),
) -> ExportedLimit:
    """Return the allowed error of an output in an exported program.

    Args:
        kernel: the kernel.
        config: the candidate.
        problem: the problem of the program.
        tolerances: tolerance of each output.
        name: the output.
        sampled: fields that can be sampled.
    """
    tensors = kernel.workload.buffers(problem, config)
    tensor = tensors[name]
    bound = tolerances[name].bound
    if bound is None:
        plain = tolerances[name].of(tensor.dtype)
        return ExportedLimit(plain.atol, plain.rtol, elements=plain.elements)
    limit = tolerances[name].for_tensor(tensor)
    absolute = _absolute(bound)
    function = bound_function(bound, problem, limit.factors, tensors, sampled)
    if function is not None:
        return ExportedLimit(limit.atol, limit.rtol, function.absolute, bounded=True, function=function)
    if absolute is None:
        constant = ROOM * _constant(kernel, config, problem, tolerances, name, tensor)
        return ExportedLimit(limit.atol, limit.rtol, constant=constant, bounded=True)
    if not absolute:
        return ExportedLimit(limit.atol, limit.rtol, relative=limit.factors[0], bounded=True)
    return ExportedLimit(limit.atol, limit.rtol, absolute, limit.factors[0], bounded=True)


def growth(kernel: Kernel, problem: Problem, traces: Traces) -> str:
    """Return the growth of a bound from the problem to the shape of a run, as C++.

    No field occurs in a number of terms with a higher power than one, so it covers any larger shape.
    """
    chosen = {entry.name for entry in kernel.fields if entry.choices}
    free = [one for one in traces.fields if one not in chosen and int(problem[one]) > 0]
    return " * ".join(f"std::max(1.0, shape.{member(one)} / {int(problem[one])}.0)" for one in free) or "1.0"


def _absolute(bound: ErrorBound) -> tuple[str, ...] | None:
    """Return the inputs whose absolute values give M; empty if M is the result itself, None for other bounds."""
    match bound:
        case SumOfProducts():
            return bound.inputs
        case Sum():
            return (bound.input,)
        case Elementwise():
            return bound.inputs
        case RmsNorm():
            return ()
    return None


def _constant(
    kernel: Kernel,
    config: Config,
    problem: Problem,
    tolerances: Mapping[str, Tolerance],
    name: str,
    tensor: Tensor,
) -> float:
    """Return the largest bound of an output's arithmetic on normal inputs of a small problem, for the given problem."""
    from evokern.device.sim.arguments import drawn
    from evokern.gate.references import answers_of

    failed: EvokernError | None = None
    for text in kernel.workload.small_problems:
        try:
            small = small_problem(kernel, text, problem)
            tensors = kernel.workload.buffers(small, config)
            inputs = {one: data for one, declared, data in drawn(tensors, "normal", SEED) if declared.given}
            found = answers_of(kernel, small, tensors, tolerances, inputs, exact=False).errors[name]
        except EvokernError as error:
            failed = failed or error  # this candidate may not support the small problem
            continue
        pairs = zip(tensor.factors, tensors[name].factors, strict=True)
        growth = max([1.0, *(wanted / had for wanted, had in pairs if had)])
        return float(found.double().max()) * growth
    why = f"none could be used ({failed})" if failed else "the kernel has none; add one to small_problems"
    raise KernelError(f"kernel {kernel.name}: the bound of {name!r} is computed at a small problem, but {why}")
