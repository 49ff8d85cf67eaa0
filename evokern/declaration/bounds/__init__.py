"""Bounds on rounding errors: how far a correct output may differ from the float64 reference.

A bound is computed for each element from the inputs, so it holds at every shape and for every order of the additions:

    |output - reference| <= u (|reference| + E) + E + eta

u is the unit roundoff of the output's type, and eta covers its subnormal numbers. E is the error of the arithmetic
before the output is rounded. For a sum of n products it is gamma(n) times the sum of the absolute products. That sum is
the reference itself, computed on absolute values (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed.,
equations 3.5 and 4.4).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from evokern.declaration.genes import Config
from evokern.declaration.problem import Problem
from evokern.errors import KERNEL_CODE_EXCEPTIONS, KernelError, suggestion

if TYPE_CHECKING:
    import torch

Inputs = Mapping[str, "torch.Tensor"]
Reference = Callable[[Inputs], "torch.Tensor"]
"""Function from float64 inputs to the float64 output of the bound."""
Count = int | Callable[[Problem], int]
"""Number of terms of a sum, or a function of the problem."""
Precision = Literal["f16", "bf16", "f32", "f64"]
"""Type of an intermediate result."""
PerCandidate = Precision | Callable[[Config, Problem], Precision]
"""Type of an intermediate result, or a function of the candidate and the problem that select it."""

ROUNDOFF: Mapping[str, float] = {"f16": 2.0**-11, "bf16": 2.0**-8, "f32": 2.0**-24, "f64": 2.0**-53}
"""Unit roundoff of each type of intermediate results (IEEE 754, table 3.5)."""
MMA_DEPTH = 8
"""Products that a tensor core adds in one step: the smallest depth of 16-bit `mma` instructions (PTX ISA, "mma")."""
STEP_ROUNDING = 2.0**-23
"""Largest relative error of the sum of one step, which tensor cores truncate to float32."""
ALIGNMENT = 2.0**-24
"""Largest error of one product of 16-bit numbers, relative to the largest number of its step.

Tensor cores align the products and the accumulator to the largest of them and drop the bits below one extra bit
(sm_80) or two (sm_90); see docs/lab/2026-11-27-bounds.md and Fasi et al., PeerJ Computer Science 7 (2021), e330."""
ALIGNMENT_FP8 = 2.0**-13
"""As `ALIGNMENT`, for 8-bit floating-point products: the accumulator keeps about 13 bits."""
CUDA_CORE_BITS = 32
"""Bits of inputs that only CUDA cores add in float32."""
TENSOR_CORE_BITS, FP8_BITS = 16, 8
"""Bits of the widest inputs of tensor core instructions that accumulate in float32, and of 8-bit floating point."""
EXACT_SUM = 320
"""Expected sum of the absolute terms of `exact` inputs; sums stay below 2048, which float16 represents exactly."""
EXACT_PRODUCT = 2.25
"""Expected absolute product of two nonzero `exact` inputs, which are -2, -1, 1 or 2 (`evokern.gate.data`)."""


LOG2_E = 1.4426950408889634
"""Factor of arguments of base-2 exponentials."""


class ErrorBound(ABC):
    """Bound on the error of one output before the output is rounded to its type."""

    @abstractmethod
    def factors(self, problem: Problem, config: Config | None, bits: Mapping[str, int]) -> tuple[float, ...]:
        """Return the factors of the magnitudes.

        Args:
            problem: the problem.
            config: the candidate, which may select the precision of intermediate results; None for float32.
            bits: input → bits of its type; tensor cores may add products of at most 16 bits.
        """

    @abstractmethod
    def magnitudes(
        self, problem: Problem, inputs: Inputs, result: torch.Tensor, reference: Reference
    ) -> tuple[torch.Tensor, ...]:
        """Return float64 tensors that broadcast to the shape of the output; they do not depend on the candidate.

        Args:
            problem: the problem.
            inputs: float64 inputs of the reference.
            result: the output that the reference returned for them.
            reference: the reference of this output.
        """

    def combined(
        self, factors: Sequence[float], magnitudes: Sequence[torch.Tensor], dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        """Return the bound: by default, the sum of the magnitudes times their factors.

        Args:
            factors: factors of the magnitudes.
            magnitudes: the magnitudes, which may be stored in a narrower type.
            dtype: type of the arithmetic; None for float64.
        """
        import torch

        first = magnitudes[0]
        total = torch.zeros((1,) * first.ndim, dtype=dtype or torch.float64, device=first.device)
        for factor, magnitude in zip(factors, magnitudes, strict=True):
            # One pass over memory: torch converts the operands as it reads them.
            total = torch.add(total, magnitude, alpha=factor)
        return total

    def density(self, problem: Problem) -> float | None:
        """Return the share of nonzero elements in `exact` inputs, or None if no inputs make the arithmetic exact."""
        return None

    def intermediates(self, problem: Problem, config: Config | None) -> tuple[int, int]:
        """Return how many results an element depends on: all, which float32 may flush to 0, and those in 16 bits."""
        return 1, 1


@dataclass(frozen=True)
class SumOfProducts(ErrorBound):
    """Bound for sums of products of inputs: a matrix product, a convolution, a dot product, a stencil.

    The sum may be split and added in any order, on tensor cores or not.
    """

    terms: Count
    """Largest number of products that are added for one element."""
    inputs: tuple[str, ...] = ("a", "b")
    """Inputs that are multiplied; the bound uses their absolute values."""
    accumulate: PerCandidate = "f32"
    """Type of the accumulator."""

    def factors(self, problem: Problem, config: Config | None, bits: Mapping[str, int]) -> tuple[float, ...]:
        """Return the factor of the sum of absolute products."""
        count, widest = count_of(self.terms, problem) + 1, widest_of(bits, self.inputs)
        return (sum_factor(count, precision(self.accumulate, problem, config), widest),)

    def magnitudes(
        self, problem: Problem, inputs: Inputs, result: torch.Tensor, reference: Reference
    ) -> tuple[torch.Tensor, ...]:
        """Return the reference on absolute values."""
        return (reference(absolute(inputs, self.inputs)).abs(),)

    def density(self, problem: Problem) -> float | None:
        """Return a density for which sums of products stay far below 2048."""
        pairs = EXACT_SUM / EXACT_PRODUCT / count_of(self.terms, problem)
        return float(min(1.0, pairs ** (1 / max(1, len(self.inputs)))))

    def intermediates(self, problem: Problem, config: Config | None) -> tuple[int, int]:
        """Return the number of terms, and of those that are accumulated in 16 bits."""
        count = count_of(self.terms, problem)
        return count, 1 if precision(self.accumulate, problem, config) in ("f32", "f64") else count


@dataclass(frozen=True)
class Sum(ErrorBound):
    """Bound for sums of the elements of one input, on CUDA cores, in any order."""

    terms: Count
    """Largest number of elements that are added for one element of the output."""
    input: str = "x"
    """Input whose elements are added."""
    accumulate: PerCandidate = "f32"
    """Type of the accumulator."""
    roundings: int = 1
    """Roundings after the sum, for example by a scale."""

    def factors(self, problem: Problem, config: Config | None, bits: Mapping[str, int]) -> tuple[float, ...]:
        """Return the factor of the sum of absolute values."""
        widest_of(bits, (self.input,))  # an unknown input is an error
        count = count_of(self.terms, problem) + self.roundings
        return (sum_factor(count, precision(self.accumulate, problem, config), CUDA_CORE_BITS),)

    def magnitudes(
        self, problem: Problem, inputs: Inputs, result: torch.Tensor, reference: Reference
    ) -> tuple[torch.Tensor, ...]:
        """Return the reference on absolute values."""
        return (reference(absolute(inputs, (self.input,))).abs(),)

    def density(self, problem: Problem) -> float | None:
        """Return a density for which sums stay far below 2048."""
        return float(min(1.0, EXACT_SUM / 1.5 / count_of(self.terms, problem)))

    def intermediates(self, problem: Problem, config: Config | None) -> tuple[int, int]:
        """Return the number of terms, and of those that are accumulated in 16 bits."""
        count = count_of(self.terms, problem)
        return count, 1 if precision(self.accumulate, problem, config) in ("f32", "f64") else count


@dataclass(frozen=True)
class Mean(Sum):
    """Bound for means of the elements of one input: a sum, and a division or a product with the reciprocal."""

    roundings: int = 3

    def density(self, problem: Problem) -> float | None:
        """Return None: the division rounds."""
        return None


@dataclass(frozen=True)
class Elementwise(ErrorBound):
    """Bound for a function of single elements, computed in float32 or float64."""

    ulp: float = 4.0
    """Largest error of the function in units in the last place of `precision`; exact operations have 0.

    The CUDA C++ Programming Guide lists the errors of functions (appendix "Mathematical Functions")."""
    inputs: tuple[str, ...] = ()
    """Inputs that are added or subtracted: the error is relative to the result on their absolute values. Without
    them, it is relative to the result."""
    precision: PerCandidate = "f32"
    """Type of the arithmetic."""

    def __post_init__(self) -> None:
        if isinstance(self.ulp, bool) or not isinstance(self.ulp, (int, float)) or not 0 <= self.ulp < 2**20:
            raise KernelError(f"an error bound has {self.ulp!r} ulp; use a number from 0 to 2^20")

    def factors(self, problem: Problem, config: Config | None, bits: Mapping[str, int]) -> tuple[float, ...]:
        """Return the relative error."""
        widest_of(bits, self.inputs)
        return (2 * self.ulp * ROUNDOFF[precision(self.precision, problem, config)],)

    def magnitudes(
        self, problem: Problem, inputs: Inputs, result: torch.Tensor, reference: Reference
    ) -> tuple[torch.Tensor, ...]:
        """Return the absolute result, or the reference on absolute values."""
        return ((reference(absolute(inputs, self.inputs)) if self.inputs else result).abs(),)


@dataclass(frozen=True)
class Softmax(ErrorBound):
    """Bound for a softmax along the last axis of one input, in one pass or several."""

    terms: Count
    """Length of the axis."""
    input: str = "x"
    """Input of the softmax, with the shape of the output."""
    exponential: PerCandidate = "f32"
    """Type of the exponential."""

    def factors(self, problem: Problem, config: Config | None, bits: Mapping[str, int]) -> tuple[float, ...]:
        """Return the relative errors that do not grow, and those that grow with the inputs.

        Every exponential has two roundings and the 2 ulp of `ex2.approx` (PTX ISA, "ex2"). A pass in tiles rescales
        the sum at most once per element.
        """
        widest_of(bits, (self.input,))
        unit = ROUNDOFF[precision(self.exponential, problem, config)]
        return 2 * 6 * unit + 2 * count_of(self.terms, problem) * ROUNDOFF["f32"], 2 * 2 * ROUNDOFF["f32"]

    def magnitudes(
        self, problem: Problem, inputs: Inputs, result: torch.Tensor, reference: Reference
    ) -> tuple[torch.Tensor, ...]:
        """Return the result, and the result times the largest absolute input of its row in units of log2 e."""
        largest = inputs[self.input].abs().amax(-1, keepdim=True) * LOG2_E
        return result.abs(), result.abs() * largest

    def intermediates(self, problem: Problem, config: Config | None) -> tuple[int, int]:
        """Return the number of terms."""
        count = count_of(self.terms, problem)
        return count, 1


@dataclass(frozen=True)
class RmsNorm(ErrorBound):
    """Bound for `x / sqrt(mean(x^2) + eps) * weight` along the last axis, with statistics in float32."""

    terms: Count
    """Length of the axis."""
    normalised: PerCandidate = "f32"
    """Type to which the normalised row is rounded before the product with the weight."""
    row: PerCandidate = "f32"
    """Type to which some kernels round the row before they normalise it, and others do not."""

    def factors(self, problem: Problem, config: Config | None, bits: Mapping[str, int]) -> tuple[float, ...]:
        """Return the relative error: half of the error of the sum of squares, and six roundings."""
        half = (count_of(self.terms, problem) / 2 + 8) * ROUNDOFF["f32"]
        normalised, row = (precision(one, problem, config) for one in (self.normalised, self.row))
        return (half + ROUNDOFF[normalised] + 2 * ROUNDOFF[row],)

    def magnitudes(
        self, problem: Problem, inputs: Inputs, result: torch.Tensor, reference: Reference
    ) -> tuple[torch.Tensor, ...]:
        """Return the absolute result."""
        return (result.abs(),)

    def intermediates(self, problem: Problem, config: Config | None) -> tuple[int, int]:
        """Return the number of terms."""
        count = count_of(self.terms, problem)
        return count, 1


@dataclass(frozen=True)
class CustomBound(ErrorBound):
    """Bound computed by a function of the problem and the float64 inputs."""

    function: Callable[[Problem, Inputs], torch.Tensor]
    """Function that returns the largest absolute error of each element before rounding, in float64."""

    def factors(self, problem: Problem, config: Config | None, bits: Mapping[str, int]) -> tuple[float, ...]:
        """Return 1."""
        return (1.0,)

    def magnitudes(
        self, problem: Problem, inputs: Inputs, result: torch.Tensor, reference: Reference
    ) -> tuple[torch.Tensor, ...]:
        """Return the bound."""
        return (self.function(problem, inputs),)


def sum_factor(count: int, accumulate: Precision, bits: int) -> float:
    """Return the largest error of a sum of products relative to the sum of the absolute products.

    Any order of the additions satisfies it (Higham, lemma 3.1 and equation 4.4). On tensor cores, each product is
    aligned once and each step is truncated once.

    Args:
        count: number of products, and of roundings after the sum.
        accumulate: type of the accumulator.
        bits: bits of the widest input; tensor cores may add products of at most 16 bits.
    """
    if accumulate == "f64":
        return count * ROUNDOFF["f64"]
    if bits > TENSOR_CORE_BITS:
        return count * ROUNDOFF[accumulate]
    steps = -(-count // MMA_DEPTH)
    wide = count * (ALIGNMENT_FP8 if bits <= FP8_BITS else ALIGNMENT) + steps * STEP_ROUNDING
    return wide if accumulate == "f32" else wide + steps * ROUNDOFF[accumulate]


def absolute(inputs: Inputs, names: Sequence[str]) -> dict[str, torch.Tensor]:
    """Return the inputs, with the named ones replaced by their absolute values."""
    return {name: value.abs() if name in names else value for name, value in inputs.items()}


def widest_of(bits: Mapping[str, int], inputs: Sequence[str]) -> int:
    """Return the bits of the widest of some inputs."""
    for name in inputs:
        if name not in bits:
            raise KernelError(f"an error bound names {name!r}, which is not an input: {suggestion(name, bits)}")
    return max((bits[name] for name in inputs), default=CUDA_CORE_BITS)


def count_of(count: Count, problem: Problem) -> int:
    """Return the number of terms of a sum at a problem."""
    try:
        found = count(problem) if callable(count) else count
    except KERNEL_CODE_EXCEPTIONS as error:
        raise KernelError(f"the number of terms of an error bound raised {type(error).__name__}: {error}") from error
    if isinstance(found, bool) or not isinstance(found, int) or found < 1:
        raise KernelError(f"an error bound has {found!r} terms at {problem}; use a whole number of at least 1")
    return found


def precision(chosen: PerCandidate, problem: Problem, config: Config | None) -> Precision:
    """Return the type of an intermediate result; float32 if it depends on the candidate and none is given."""
    try:
        found = chosen if not callable(chosen) else "f32" if config is None else chosen(config, problem)
    except KERNEL_CODE_EXCEPTIONS as error:
        raise KernelError(f"a precision of an error bound raised {type(error).__name__}: {error}") from error
    if found not in ROUNDOFF:
        raise KernelError(f"unknown precision {found!r} in an error bound: {suggestion(str(found), ROUNDOFF)}")
    return found
