"""Checks of declared error bounds: the share that rounding uses, and the smallest error that the gate still finds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from evokern.analysis.check.folder import Results, computed, inputs_of, workload_tensors
from evokern.declaration.kernel import Kernel, Problem
from evokern.study.settings import GateSettings, InputSet

SEED = 0
"""Seed of the inputs; a search uses a secret seed."""
LEAST_POWER = 0.5
"""Largest relative error that a bound may leave undetected: a result half as large as the correct one is found."""


@dataclass
class Power:
    """Power of the bound of one output, over all input sets and problems."""

    share: float = 0.0
    """Largest error of the reference in float32, divided by the bound."""
    share_on: str = ""
    """Inputs and problem of that error."""
    found: float = math.inf
    """Smallest relative error of a typical element that exceeds the bound on some inputs."""
    found_on: InputSet = "normal"
    """Inputs on which it does."""


def bound_results(kernel: Kernel, output: str, dtype: str, problems: Sequence[Problem]) -> Results:
    """Check the bound of an output: correct rounding stays below it, and a wrong result exceeds it.

    Args:
        kernel: the kernel.
        output: an output with a bound.
        dtype: its type.
        problems: small problems with this type.
    """
    power = power_of(kernel, output, problems)
    name = f"{output} in {dtype}"
    share = f"{power.share:.2g} of the bound" + (f" ({power.share_on})" if power.share_on else "")
    if power.share > 1:
        yield (
            False,
            f"{name}: the reference in float32 exceeds the bound: its error is {share}; "
            "correct candidates would fail; declare a larger number of terms or a less precise accumulator",
        )
    elif not power.found <= LEAST_POWER:
        least = "no error" if math.isinf(power.found) else f"only an error above {power.found:.2g} of an element"
        yield (
            False,
            f"{name}: the bound has no power: {least} is found on any inputs, and rounding uses {share}; "
            "declare a smaller number of terms or a more precise accumulator, or a Tolerance",
        )
    else:
        yield (
            True,
            f"{name}: rounding in float32 uses {share}; a relative error of {power.found:.2g} in one element is found "
            f"({power.found_on} inputs)",
        )


def power_of(kernel: Kernel, output: str, problems: Sequence[Problem]) -> Power:
    """Measure the power of the bound of an output on small problems."""
    import torch

    from evokern.gate.comparison import allowed_error, tolerances
    from evokern.gate.data import exact_kinds, largest_finite, torch_dtype
    from evokern.gate.references import answers_of

    found = Power()
    limits = tolerances(kernel, None, None)
    for problem in problems:
        tensors = workload_tensors(kernel, problem)
        for kind in exact_kinds(GateSettings().input_sets, tensors):
            inputs = inputs_of(tensors, kind, SEED)
            answers = answers_of(kernel, problem, tensors, limits, inputs, exact=kind == "exact")
            exact = answers[output]
            limit = largest_finite(tensors[output].dtype)
            judged = exact.abs() <= limit
            allowed = allowed_error(limits[output].for_tensor(tensors[output]), exact, answers.errors.get(output))
            got = computed(kernel, problem, inputs, output, torch.float32, exact)
            got = got.to(torch_dtype(tensors[output].dtype)).to(torch.float64)
            error = (got - exact).abs()
            shares = torch.where(error == 0, 0.0, error / allowed)[judged]
            if shares.numel() and float(shares.max()) > found.share:
                found.share, found.share_on = float(shares.max()), f"{kind} inputs at {problem}"
            relative = (allowed / exact.abs())[judged & (exact != 0)]
            if kind != "edges" and relative.numel() and float(relative.median()) < found.found:
                found.found, found.found_on = float(relative.median()), kind
    return found
