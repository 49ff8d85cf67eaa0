"""Baselines, checked by the same gate and timed in the same kind of graphs as candidates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from evokern.declaration.kernel import Baseline, Problem
from evokern.device.gpu.cuda import finish
from evokern.errors import KernelError
from evokern.gate.check import Call


@dataclass(frozen=True)
class BaselineRunner:
    """Runner that executes a baseline instead of a candidate and copies the outputs that it allocates."""

    baseline: Baseline
    """Baseline to run."""
    problem: Problem
    """Problem on which it runs."""
    hang_s: float
    """Seconds after which one call counts as hung."""

    def run(self, calls: Sequence[Call]) -> None:
        """Run every call of the baseline.

        Raises:
            KernelError: an output is missing or has a wrong shape.
        """
        for call in calls:
            with torch.no_grad():
                answer = self.baseline.run(self.problem, self.baseline.given(self.problem, call.arguments))
            for name, value in answer.items():
                if name not in call.arguments:
                    raise KernelError(f"baseline {self.baseline.name} returned {name!r}, which is not an output")
                call.arguments[name].copy_(value)
        finish(self.hang_s * len(calls), self.hang_s)


def baseline_call(
    baseline: Baseline, problem: Problem, arguments: Mapping[str, torch.Tensor]
) -> Callable[[], Mapping[str, torch.Tensor]]:
    """Return a function that runs one call, can be captured in a graph, and returns the outputs of the call.

    Prepared inputs live as long as the graph. So does the memory of the outputs, which the next call reuses. An output
    that is a view of an input is copied, because a candidate writes its outputs to memory.
    """
    with torch.no_grad():
        inputs = baseline.given(problem, arguments)
    given = {one.untyped_storage().data_ptr() for one in inputs.values()}

    def copied(value: torch.Tensor) -> torch.Tensor:
        is_view = value.untyped_storage().data_ptr() in given
        return value.clone(memory_format=torch.contiguous_format) if is_view else value

    def call() -> Mapping[str, torch.Tensor]:
        with torch.no_grad():
            return {name: copied(value) for name, value in baseline.run(problem, inputs).items()}

    return call
