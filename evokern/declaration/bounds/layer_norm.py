"""Bound on the rounding error of a layer normalisation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evokern.declaration.bounds import ROUNDOFF, Count, ErrorBound, Inputs, PerCandidate, Reference, count_of, precision
from evokern.declaration.genes import Config
from evokern.declaration.problem import Problem
from evokern.errors import KernelError, suggestion

if TYPE_CHECKING:
    import torch

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
