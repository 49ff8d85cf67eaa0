"""Bounds on the rounding errors of attention and of a layer normalisation."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evokern.declaration.bounds import (
    ROUNDOFF,
    TENSOR_CORE_BITS,
    Count,
    ErrorBound,
    Inputs,
    PerCandidate,
    Reference,
    absolute,
    count_of,
    precision,
    sum_factor,
    widest_of,
)
from evokern.declaration.genes import Config
from evokern.declaration.problem import Problem
from evokern.errors import KernelError, suggestion

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Attention(ErrorBound):
    """Bound for `softmax(scale * q @ k^T) @ v` with axes (..., sequence, head dimension), in any order of the keys.

    An error d of a score changes its weight by at most exp(2 d) - 1, relative to the exact weight. Rounded weights
    change the output by at most the roundoff times the weighted mean of |v|, twice if the sum of the weights rounds
    differently.
    """

    depth: Count
    """Head dimension."""
    keys: Count
    """Number of keys."""
    inputs: tuple[str, str, str] = ("q", "k", "v")
    """Names of the queries, keys and values."""
    operands: Callable[[Problem, Inputs], Inputs] | None = None
    """Function that returns float64 queries, keys and values, for inputs that are stored in another form."""
    attend: Callable[[Problem, Inputs], torch.Tensor] | None = None
    """Reference as a function of these operands; None for the workload's reference. Required with `operands`."""
    rounded: PerCandidate = "f32"
    """Type to which queries, keys and values are rounded before they are multiplied."""
    score_bits: Callable[[Config, Problem], int] | None = None
    """Bits of the operands of the scores, if a gene selects them; None for the bits of the inputs."""
    scale: Callable[[Problem], float] | None = None
    """Factor of the scores; None for 1 / sqrt(depth)."""
    probabilities: PerCandidate = "f32"
    """Type to which weights are rounded before they multiply the values."""
    exponential: PerCandidate = "f32"
    """Type of the exponential."""
    scores: PerCandidate = "f32"
    """Accumulator of the scores."""
    values: PerCandidate = "f32"
    """Accumulator of the weighted values."""
    merge: PerCandidate = "f32"
    """Type of the parts that are merged if the keys are split."""
    merge_unit: Callable[[Problem, Inputs], torch.Tensor] | None = None
    """Function that returns the value of a 1 in the merged parts, broadcastable to (..., 1, 1); None for 1."""
    offsets: Callable[[Problem, Inputs], tuple[torch.Tensor, torch.Tensor]] | None = None
    """Function that returns the zero points of keys and of values, as numbers broadcastable to (..., 1, 1)."""
    keeps_offsets: Callable[[Config, Problem], bool] | None = None
    """Whether a candidate multiplies keys and values with their zero points, and subtracts these afterwards; None for
    every candidate. The rounding errors then grow with the zero points."""

    def factors(self, problem: Problem, config: Config | None, bits: Mapping[str, int]) -> tuple[float, ...]:
        """Return the factors of the weighted values, of the scores, of the sum of values, and of merged parts.

        With `offsets`, also those of both zero points.
        """
        depth, keys = count_of(self.depth, problem), count_of(self.keys, problem)
        names = ("probabilities", "exponential", "merge", "rounded")
        of = {name: precision(getattr(self, name), problem, config) for name in names}
        units = {"probabilities": 2, "exponential": 2 * 6, "merge": 2, "rounded": 1}
        weights = sum(units[name] * ROUNDOFF[of[name]] for name in names)
        widest = widest_of(bits, self.inputs)
        # 8-bit values are converted to 16 bits, because weights have 16 bits.
        values = sum_factor(keys, precision(self.values, problem, config), max(widest, TENSOR_CORE_BITS))
        products = values + 2 * keys * ROUNDOFF["f32"]
        if self.score_bits is not None and config is not None:
            widest = self.score_bits(config, problem)
        scores = sum_factor(depth, precision(self.scores, problem, config), widest) + 4 * ROUNDOFF["f32"]
        # The argument of the exponential, at most twice the largest score, is rounded to the exponential's type.
        scores += 2 * ROUNDOFF[of["exponential"]] + 2 * ROUNDOFF[of["rounded"]]
        # Weights below 2^-14 are subnormal in float16: each is rounded by at most 2^-25.
        small = 2.0**-25 if of["probabilities"] == "f16" or of["exponential"] == "f16" else 0.0
        merged = 2.0**-25 if of["merge"] == "f16" else 0.0  # parts below 2^-14 are subnormal, too
        found = weights + products, scores, small, merged
        if self.offsets is None:
            return found
        kept = config is None or self.keeps_offsets is None or self.keeps_offsets(config, problem)
        return (*found, scores if kept else 0.0, products if kept else 0.0)

    def magnitudes(
        self, problem: Problem, inputs: Inputs, result: torch.Tensor, reference: Reference
    ) -> tuple[torch.Tensor, ...]:
        """Return the result for |v|, a bound on the absolute products of each score, the sum of |v|, and the unit."""
        import torch

        given = inputs if self.operands is None else self.operands(problem, inputs)
        run = reference if self.attend is None else functools.partial(self.attend, problem)
        q, k, v = (given[name] for name in self.inputs)
        scale = count_of(self.depth, problem) ** -0.5 if self.scale is None else abs(self.scale(problem))
        # Cauchy-Schwarz: the sum of |q| |k| is at most the product of the norms.
        reach = q.norm(dim=-1, keepdim=True) * k.norm(dim=-1).amax(-1)[..., None, None] * scale
        unit = (
            torch.ones_like(reach) if self.merge_unit is None else self.merge_unit(problem, inputs).expand(reach.shape)
        )
        found = run(absolute(given, self.inputs[2:])).abs(), reach, v.abs().sum(-2, keepdim=True), unit
        if self.offsets is None:
            return found
        of_keys, of_values = (one.abs().expand(reach.shape) for one in self.offsets(problem, inputs))
        return (*found, q.abs().sum(-1, keepdim=True) * of_keys * scale, of_values)

    def intermediates(self, problem: Problem, config: Config | None) -> tuple[int, int]:
        """Return the number of keys, and of those that are accumulated in 16 bits."""
        count = count_of(self.keys, problem)
        return count, 1 if precision(self.values, problem, config) in ("f32", "f64") else count

    def combined(
        self, factors: Sequence[float], magnitudes: Sequence[torch.Tensor], dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        """Return the bound; see `ErrorBound.combined`."""
        import torch

        weighted = magnitudes[0]  # has the size of the output, and is read once
        reach, total, unit, *offsets = (one.to(dtype or torch.float64) for one in magnitudes[1:])
        weights, scores, small, merged = factors[:4]
        change, rest = scores * reach, total * small + unit * merged
        for score, value, of_keys, of_values in zip(
            factors[4::2], factors[5::2], offsets[::2], offsets[1::2], strict=True
        ):
            change = change + score * of_keys
            rest = rest + value * of_values
        return torch.addcmul(rest, weighted, (2 * change).expm1_().add_(weights))


ROUNDINGS = 8
"""Roundings of the mean and the variance in addition to those of the sums."""


@dataclass(frozen=True)
class LayerNorm(ErrorBound):
    """Bound for `(x - mean(x)) / sqrt(var(x) + eps) * weight + bias` along the last axis, with float32 statistics.

    The variance may be computed from the differences to the mean, or by Welford's method, in any order (Chan, Golub,
    LeVeque: Algorithms for Computing the Sample Variance, The American Statistician 37 (1983), table 1).
    """

    terms: Count
    """Length of the axis."""
    input: str = "x"
    """Input that is normalised, with the shape of the output."""
    weight: str | None = "weight"
    """Input with one factor per column; None without factors."""
    bias: str | None = "bias"
    """Input with one summand per column; None without summands."""
    eps: float = 1e-5
    """Number that is added to the variance."""
    one_pass: bool = False
    """Whether the variance may be mean(x^2) - mean(x)^2, which loses digits if the mean is large."""
    normalised: PerCandidate = "f32"
    """Type to which the normalised row is rounded before the product with the weight."""

    def factors(self, problem: Problem, config: Config | None, bits: Mapping[str, int]) -> tuple[float, ...]:
        """Return the relative errors of the sums, and of the operations on single elements."""
        for name in (self.input, self.weight, self.bias):
            if name is not None and name not in bits:
                raise KernelError(f"an error bound names {name!r}, which is not an input: {suggestion(name, bits)}")
        sums = (count_of(self.terms, problem) + ROUNDINGS) * ROUNDOFF["f32"]
        return sums, ROUNDINGS * ROUNDOFF["f32"] + ROUNDOFF[precision(self.normalised, problem, config)]

    def magnitudes(
        self, problem: Problem, inputs: Inputs, result: torch.Tensor, reference: Reference
    ) -> tuple[torch.Tensor, ...]:
        """Return the scaled differences to the mean, and the magnitudes of each row and of each column."""
        import torch

        x = inputs[self.input]
        one = torch.ones((), dtype=x.dtype, device=x.device)
        weight, bias = (inputs[name].abs() if name else one for name in (self.weight, self.bias))
        mean = x.mean(-1, keepdim=True)
        variance = (x - mean).square().mean(-1, keepdim=True)
        total, square = variance + self.eps, x.square().mean(-1, keepdim=True)
        size = x.abs().mean(-1, keepdim=True)
        spread = square if self.one_pass else (square * variance).sqrt()
        return (
            (x - mean).abs() * total.rsqrt() * weight,
            weight.expand(x.shape[-1:]),
            (bias if self.bias else 0 * one).expand(x.shape[-1:]),
            size * total.rsqrt(),
            spread / total,
            (total / self.eps).sqrt(),
        )

    def combined(
        self, factors: Sequence[float], magnitudes: Sequence[torch.Tensor], dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        """Return the bound.

        The mean is off by `sums` times the mean of |x|. This shifts all elements of a row, and adds its square to the
        variance. The standard deviation is at least sqrt(eps), however large the error of the variance is.
        """
        import torch

        sums, single = factors
        scaled = magnitudes[0]
        weight, bias, mean, spread, most = (one.to(dtype or torch.float64) for one in magnitudes[1:])
        shift = sums * mean
        relative = 4 * sums * spread + shift.square() + single
        off = (1 - relative).clamp_min(0).rsqrt().minimum(most + 1) - 1
        off = off.maximum(relative)  # the variance may also be too large
        return torch.addcmul(weight * (shift * (1 + off)) + single * bias, scaled, off + single)

    def intermediates(self, problem: Problem, config: Config | None) -> tuple[int, int]:
        """Return the number of terms."""
        return count_of(self.terms, problem), 1
