"""Advice on the bound of an output: the derived bound, or a ready-made one that fits the measured rounding errors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING

from evokern.analysis.check.bounds_check import LEAST_POWER, power_of
from evokern.analysis.check.reference_check import workload_tensors
from evokern.declaration.bounds import CustomBound, Elementwise, ErrorBound, Inputs, Sum, SumOfProducts
from evokern.declaration.bounds.derived import derived_bound
from evokern.declaration.kernel import SIGNIFICAND_BITS, Kernel, Problem
from evokern.errors import KernelError

if TYPE_CHECKING:
    import torch

MOST_SHARE = 0.5
"""Largest share of a proposed bound that rounding may use; other orders of the additions round differently."""
ULPS = (1, 4, 16)
"""Errors of functions of single elements that are tried."""


def bound_advice(kernel: Kernel, output: str, problems: Sequence[Problem]) -> str:
    """Return how to replace the tolerance of an output by a bound.

    Args:
        kernel: the kernel.
        output: a floating-point output.
        problems: small problems.
    """
    if (reason := underivable(kernel, output, problems)) is None:
        return f"remove {output!r} from `tolerance`, so that its bound is derived from the reference"
    return f"declare error={{{output!r}: {proposed_bound(kernel, output, problems)}}} instead ({reason})"


def underivable(kernel: Kernel, output: str, problems: Sequence[Problem]) -> str | None:
    """Return why no bound of an output can be derived from the reference; None if one can."""
    try:
        derived_bound(kernel, kernel.space.default(), problems[0], output)
    except KernelError as error:
        return str(error)
    return None


def proposed_bound(kernel: Kernel, output: str, problems: Sequence[Problem]) -> str:
    """Return the text of the tightest ready-made bound that fits the rounding errors of the reference in float32.

    Its number of terms is a formula of the problem, so that it grows with the shape.

    Args:
        kernel: the kernel; its declared limit of the output is ignored.
        output: a floating-point output.
        problems: small problems.
    """
    for text, bound in _candidates(kernel, problems):
        limits = {name: one for name, one in kernel.workload.tolerance.items() if name != output and one.bound is None}
        error = {name: one for name, one in kernel.workload.error.items() if name != output} | {output: bound}
        workload = replace(kernel.workload, tolerance=limits, error=error)
        try:
            power = power_of(replace(kernel, workload=workload), output, problems)
        except KernelError:
            continue  # the reference does not support absolute values of these inputs
        if power.share <= MOST_SHARE and power.found <= LEAST_POWER:
            return text
    return f"Elementwise(ulp={ULPS[-1]})"  # none fits, so the text is only a start


def _candidates(kernel: Kernel, problems: Sequence[Problem]) -> Iterator[tuple[str, ErrorBound]]:
    """Yield bounds with their texts, from functions of single elements to sums of many products."""
    tensors = workload_tensors(kernel, problems[0])
    given = [name for name, tensor in tensors.items() if tensor.given and tensor.dtype in SIGNIFICAND_BITS]
    for ulp in ULPS:
        yield f"Elementwise(ulp={ulp})", Elementwise(ulp)
    if given:
        yield f"Elementwise(ulp=1, inputs={tuple(given)!r})", Elementwise(1, tuple(given))
    fields = [field.name for field in kernel.fields if isinstance(problems[-1][field.name], int)]
    products = [(), *combinations(fields, 1), *combinations(fields, 2)]
    for names in products[1:]:
        terms = f"lambda p: {_written(names)}"
        for name in given:
            yield f"Sum(terms={terms}, input={name!r})", Sum(partial(_count, names), name)
        if len(given) > 1:
            yield (
                f"SumOfProducts(terms={terms}, inputs={tuple(given)!r})",
                SumOfProducts(partial(_count, names), tuple(given)),
            )
    for names in products if given else ():  # relative to the largest inputs
        factors = [f"t[{name!r}].abs().max()" for name in given]
        text = " * ".join(["2**-22", *([_written(names)] if names else []), *factors])
        yield f"lambda p, t: {text}", CustomBound(partial(_largest, names, given))


def _written(names: Sequence[str]) -> str:
    return " * ".join(f"p.{name}" for name in names)


def _count(names: Sequence[str], p: Problem) -> int:
    return math.prod(int(p[name]) for name in names)


def _largest(names: Sequence[str], given: Sequence[str], p: Problem, t: Inputs) -> torch.Tensor:
    found = t[given[0]].abs().max()
    for name in given[1:]:
        found = found * t[name].abs().max()
    return 2.0**-22 * _count(names, p) * found
