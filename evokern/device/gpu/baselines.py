"""Baselines: what the user would run instead, through the same gate and the same graphs as candidates."""

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
    """Runs a baseline in a candidate's place: it allocates its outputs itself, and they are copied over."""

    baseline: Baseline
    """What to run."""
    problem: Problem
    """At which problem."""
    hang_s: float
    """Seconds after which one call counts as hung."""

    def run(self, calls: Sequence[Call]) -> None:
        """Run every call.

        Raises:
            KernelError: an output is missing, or has another shape.
        """
        for call in calls:
            with torch.no_grad():
                answer = self.baseline.run(self.problem, self.baseline.given(self.problem, call.arguments))
            for name, value in answer.items():
                if name not in call.arguments:
                    raise KernelError(f"baseline {self.baseline.name} returned {name!r}, which is no output")
                call.arguments[name].copy_(value)
        finish(self.hang_s * len(calls), self.hang_s)


def runs_as(
    baseline: Baseline, problem: Problem, arguments: Mapping[str, torch.Tensor]
) -> Callable[[], Mapping[str, torch.Tensor]]:
    """Return a call that a clock can capture, and that returns its outputs.

    Inputs that it prepares live as long as the graph, and so does the memory of its outputs, which its next call takes.
    """
    with torch.no_grad():
        inputs = baseline.given(problem, arguments)

    def call() -> Mapping[str, torch.Tensor]:
        with torch.no_grad():
            return baseline.run(problem, inputs)

    return call
