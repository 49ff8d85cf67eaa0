"""Check before a search that the gate can distinguish correct from wrong results on this workload.

Three trivial kernels must fail: one does nothing, one writes zeros, one copies an input. They are operations on the
buffers and need no compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from evokern.declaration.as_data.words import call_words
from evokern.declaration.kernel import Launch, Tensor
from evokern.errors import KernelError
from evokern.gate.check import Call, Gate
from evokern.gate.comparison import tolerances


@dataclass(frozen=True)
class _TrivialKernel:
    """A runner that fills the buffers instead of launching anything."""

    fill: Callable[[Mapping[str, torch.Tensor]], None]

    def run(self, calls: Sequence[Call]) -> None:
        for call in calls:
            self.fill(call.arguments)


def prove_power(gate: Gate, launches: Sequence[Launch], tensors: Mapping[str, Tensor]) -> None:
    """Check that the gate rejects every trivial kernel.

    Raises:
        KernelError: a trivial kernel passes; the message names the tolerance that is too wide.
    """
    for name, degenerate in _degenerate_kernels(tensors):
        verdict = gate.check(degenerate, launches, tensors)
        if not verdict.passed or (name.startswith("copies") and _is_exact(gate, degenerate, launches, tensors)):
            continue
        limits = tolerances(gate.kernel, gate.settings.atol, gate.settings.rtol)
        own = {output: one.for_tensor(tensors[output]) for output, one in limits.items()}
        listed = "; ".join(f"{output}: atol = {t.atol:g}, rtol = {t.rtol:g}" for output, t in own.items())
        message = (
            "the correctness check cannot distinguish correct from wrong results: "
            f"a kernel that {name} passes at {gate.problem} with the tolerance {listed}. "
            "Lower the tolerance (in kernel.py, or gate.atol and gate.rtol in the study file), or generate inputs "
            "whose correct results differ more from that kernel's output"
        )
        raise KernelError(call_words(message, gate.problem))


def _is_exact(
    gate: Gate, degenerate: _TrivialKernel, launches: Sequence[Launch], tensors: Mapping[str, Tensor]
) -> bool:
    """Return whether a trivial kernel's output equals the reference exactly: the workload is then a copy."""
    settings = replace(gate.settings, atol=0.0, rtol=0.0)
    return Gate(gate.kernel, gate.problem, settings, gate.generator.device).check(degenerate, launches, tensors).passed


def _degenerate_kernels(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, _TrivialKernel]]:
    outputs = [name for name, tensor in tensors.items() if tensor.role in ("output", "inout")]
    inputs = [name for name, tensor in tensors.items() if tensor.given]

    def nothing(arguments: Mapping[str, torch.Tensor]) -> None:
        return

    def zeros(arguments: Mapping[str, torch.Tensor]) -> None:
        for name in outputs:
            arguments[name].view(torch.uint8).zero_()

    yield "does nothing", _TrivialKernel(nothing)
    yield "writes zeros", _TrivialKernel(zeros)
    for source in inputs:

        def copy(arguments: Mapping[str, torch.Tensor], source: str = source) -> None:
            given = arguments[source].clone().view(torch.uint8).flatten()
            for name in outputs:
                taken = arguments[name].view(torch.uint8).flatten()
                length = min(len(given), len(taken))
                taken[:length].copy_(given[:length])

        yield f"copies its input {source!r}", _TrivialKernel(copy)
