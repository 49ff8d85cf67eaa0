"""Errors of results over what a kernel allows for them."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from evokern.declaration.kernel import Kernel, Problem
from evokern.gate.comparison import allowed_error, error_over_tolerance, tolerances
from evokern.gate.references import answers_of


def share_of_allowed(
    kernel: Kernel, problem: Problem, inputs: Mapping[str, torch.Tensor], output: str, got: torch.Tensor
) -> torch.Tensor:
    """Return each element's error over the error that the default candidate may have."""
    tensors = kernel.workload.buffers(problem, kernel.space.default())
    limits = tolerances(kernel, None, None)
    answers = answers_of(kernel, problem, tensors, limits, inputs, exact=False)
    allowed = allowed_error(limits[output].for_tensor(tensors[output]), answers[output], answers.errors.get(output))
    return error_over_tolerance(got.double(), answers[output], allowed)
