"""Bounds on rounding errors in exported programs, which check their results on normal inputs.

A bound is evaluated there as in the gate: by the reference on absolute values, and by C++ functions for each element
(docs/proof.md). Other bounds become a constant: the largest bound of any element on normal inputs of a
small problem, scaled to the program's problem.

A bound is available if it follows from the inputs and the reference's result. Functions of kernel.py are not: a bound
given as a function, and the `operands`, `attend`, `merge_unit` and `offsets` of an attention.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evokern.declaration.bounds import LOG2_E, Elementwise, ErrorBound, RmsNorm, Softmax, Sum, SumOfProducts
from evokern.declaration.bounds.attention import Attention, LayerNorm
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Kernel, Problem, Tensor, Tolerance
from evokern.declaration.small_problems import small_problem
from evokern.errors import EvokernError, KernelError
from evokern.export.formula import member
from evokern.export.sampled_check import SampledField
from evokern.export.trace import Traces

ATTENTION = """/// Turns the attention of |v| into the bound of the arithmetic.
void attention_bound(Expected& expected, const std::vector<double>& q, const std::vector<double>& k,
                     const std::vector<double>& v, size_t depth, size_t keys, size_t columns, double scale,
                     double weights, double scores, double small, double merged) {
  const size_t heads = k.size() / (keys * depth), queries = q.size() / (heads * depth);
  const auto norm = [depth](const double* row) {
    double sum = 0;
    for (size_t i = 0; i < depth; i++) sum += row[i] * row[i];
    return std::sqrt(sum);
  };
  if (scale == 0) scale = 1 / std::sqrt(static_cast<double>(depth));
  for (size_t head = 0; head < heads; head++) {
    double longest = 0;
    std::vector<double> total(columns);
    for (size_t key = head * keys; key < (head + 1) * keys; key++) {
      longest = std::fmax(longest, norm(&k[key * depth]));
      for (size_t i = 0; i < columns; i++) total[i] += std::fabs(v[key * columns + i]);
    }
    for (size_t row = head * queries; row < (head + 1) * queries; row++) {
      const double shift = std::expm1(2 * scores * norm(&q[row * depth]) * longest * scale) + weights;
      for (size_t i = 0; i < columns; i++) {
        double& bound = expected.magnitudes[row * columns + i];
        bound = std::fabs(bound) * shift + total[i] * small + merged;
      }
    }
  }
}
"""
SOFTMAX = f"""/// Computes the bound of a softmax's arithmetic.
void softmax_bound(Expected& expected, const std::vector<double>& x, size_t columns, double fixed, double growing) {{
  expected.magnitudes.resize(x.size());
  for (size_t start = 0; start < x.size(); start += columns) {{
    double largest = 0;
    for (size_t i = start; i < start + columns; i++) largest = std::fmax(largest, std::fabs(x[i]));
    for (size_t i = start; i < start + columns; i++)
      expected.magnitudes[i] = std::fabs(expected.values[i]) * (fixed + growing * largest * {LOG2_E!r});
  }}
}}
"""
LAYER_NORM = """/// Computes the bound of a layer normalisation's arithmetic.
void layer_norm_bound(Expected& expected, const std::vector<double>& x, const std::vector<double>& weight,
                      const std::vector<double>& bias, size_t columns, double eps, double one_pass, double sums,
                      double single) {
  expected.magnitudes.resize(x.size());
  for (size_t start = 0; start < x.size(); start += columns) {
    double mean = 0, size = 0, square = 0, variance = 0;
    for (size_t i = start; i < start + columns; i++)
      mean += x[i] / columns, size += std::fabs(x[i]) / columns, square += x[i] * x[i] / columns;
    for (size_t i = start; i < start + columns; i++) variance += (x[i] - mean) * (x[i] - mean) / columns;
    const double total = variance + eps, shift = sums * size / std::sqrt(total);
    const double spread = (one_pass != 0 ? square : std::sqrt(square * variance)) / total;
    const double relative = 4 * sums * spread + shift * shift + single;
    const double most = std::sqrt(total / eps);
    const double small = std::fmin(relative < 1 ? 1 / std::sqrt(1 - relative) : HUGE_VAL, most + 1) - 1;
    const double off = std::fmax(small, relative);
    for (size_t i = 0; i < columns; i++) {
      const double factor = weight.empty() ? 1 : std::fabs(weight[i]);
      const double scaled = std::fabs(x[start + i] - mean) / std::sqrt(total) * factor;
      const double added = bias.empty() ? 0 : std::fabs(bias[i]);
      expected.magnitudes[start + i] = factor * shift * (1 + off) + scaled * (off + single) + single * added;
    }
  }
}
"""
SOURCES = {"attention_bound": ATTENTION, "softmax_bound": SOFTMAX, "layer_norm_bound": LAYER_NORM}
"""Name of a C++ function → its source."""


@dataclass(frozen=True)
class BoundFunction:
    """Call of a C++ function that computes the bound of an output's arithmetic for each element."""

    name: str
    """Name of the function."""
    operands: tuple[str | None, ...]
    """Inputs whose values it takes; None for an operand that does not exist."""
    extents: tuple[tuple[str, int], ...]
    """Tensors and axes, counted from the last, whose extents it takes."""
    numbers: tuple[float, ...]
    """Numbers that it takes."""
    factors: tuple[float, ...]
    """Factors of the bound, which grow with the shape."""
    absolute: tuple[str, ...] = ()
    """Inputs on whose absolute values the reference runs first."""


def bound_function(
    bound: ErrorBound,
    problem: Problem,
    factors: tuple[float, ...],
    tensors: Mapping[str, Tensor],
    sampled: Sequence[SampledField],
) -> BoundFunction | None:
    """Return the function for a bound, or None if it cannot be computed in C++, or not for a sample.

    Args:
        bound: the bound of an output.
        problem: the problem of the program.
        factors: factors of the bound's magnitudes.
        tensors: tensors of the workload.
        sampled: fields that can be sampled.
    """
    match bound:
        case Attention(operands=None, attend=None, merge_unit=None, offsets=None, inputs=(q, k, v)):
            scale = 0.0 if bound.scale is None else abs(bound.scale(problem))
            extents = ((q, -1), (k, -2), (v, -1))
            found = BoundFunction("attention_bound", (q, k, v), extents, (scale,), factors, (v,))
            whole = [(q, -1), (k, -1), (k, -2), (v, -1), (v, -2)]
        case Softmax(input=x):
            found = BoundFunction("softmax_bound", (x,), ((x, -1),), (), factors)
            whole = [(x, -1)]
        case LayerNorm(input=x, weight=weight, bias=bias):
            numbers = (bound.eps, float(bound.one_pass))
            found = BoundFunction("layer_norm_bound", (x, weight, bias), ((x, -1),), numbers, factors)
            whole = [(name, -1) for name in (x, weight, bias) if name is not None]
        case _:
            return None
    ranks = {name: len(tensors[name].shape) for name, _ in whole}
    cut = {(name, axis - ranks[name]) for one in sampled for name, axis in one.axes.items() if name in ranks}
    able = all(ranks[name] >= -axis for name, axis in whole) and not cut & set(whole)
    return found if able else None


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
