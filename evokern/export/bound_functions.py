"""C++ functions that compute bounds on rounding errors for each element, as the gate does (docs/proof.md).

A bound is available if it follows from the inputs and the reference's result. Functions of kernel.py are not: a bound
given as a function, and the `operands`, `attend`, `merge_unit` and `offsets` of an attention.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evokern.declaration.bounds import LOG2_E, ErrorBound, Softmax
from evokern.declaration.bounds.attention import Attention
from evokern.declaration.bounds.layer_norm import LayerNorm
from evokern.declaration.kernel import Problem, Tensor
from evokern.export.sampled_check import SampledField

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
