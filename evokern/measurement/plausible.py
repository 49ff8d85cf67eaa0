"""Whether a workload's operations and bytes can be those of its tensors: tenfold differences are mistakes of units."""

from __future__ import annotations

import math
from collections.abc import Mapping

from evokern.declaration.kernel import Kernel, Problem, Tensor
from evokern.errors import RAISED, KernelError

TENFOLD = 10.0
"""Differences below this may be meant: what is read twice, or only in part."""


def declared_work(kernel: Kernel, problem: Problem) -> tuple[float, float]:
    """Return the operations and the fewest bytes of one call, as the workload declares them.

    Raises:
        KernelError: a function of the workload raised, or its answer is no such number.
    """
    found = {}
    for name, function in (("flops", kernel.workload.flops), ("bytes", kernel.workload.bytes)):
        try:
            found[name] = float(function(problem))
        except RAISED as error:
            raise KernelError(
                f"kernel {kernel.name}: {name} raised {type(error).__name__}: {error} at {problem}"
            ) from error
    flops, moved = found["flops"], found["bytes"]
    if not (math.isfinite(flops) and flops >= 0 and math.isfinite(moved) and moved > 0):
        raise KernelError(
            f"kernel {kernel.name}: {flops:g} operations and {moved:g} bytes at {problem}; both are finite, the "
            "operations at least 0, the bytes above 0"
        )
    return flops, moved


def contradictions(kernel: Kernel, problem: Problem, tensors: Mapping[str, Tensor]) -> list[str]:
    """Return what of a workload's operations and bytes contradicts its tensors tenfold.

    Inputs are read and outputs written at least once, unless only a part of them is used; an output element takes at
    most each input element once for an operation or two, and an operation at least where there are any.

    Args:
        kernel: whose workload.
        problem: at which problem.
        tensors: its buffers there.

    Raises:
        KernelError: a function of the workload raised, or its answer is no such number.
    """
    flops, moved = declared_work(kernel, problem)
    passes = {"input": 1, "constant": 1, "output": 1, "inout": 2, "workspace": 0}
    total = sum(passes[tensor.role] * tensor.bytes for tensor in tensors.values())
    inputs = sum(tensor.elements for tensor in tensors.values() if tensor.given)
    outputs = sum(tensor.elements for tensor in tensors.values() if tensor.role in ("output", "inout"))
    found = []
    if moved > TENFOLD * total or TENFOLD * moved < total:
        found.append(
            f"bytes says {moved:.3g} at {problem}, and inputs and outputs are {total:.3g} bytes: "
            f"{_times(moved, total)}; it is the fewest bytes of one call, not elements, and not GB"
        )
    most = 2 * outputs * max(inputs, 1)
    if 0 < TENFOLD * flops < outputs:
        found.append(
            f"flops says {flops:.3g} at {problem}, and there are {outputs:.3g} output elements: "
            f"{_times(flops, outputs)}; it is the operations of one call, not GFLOP"
        )
    elif flops > TENFOLD * most:
        found.append(
            f"flops says {flops:.3g} at {problem}, and {outputs:.3g} output elements of {inputs:.3g} input elements "
            f"take {most:.3g} if each uses all of them: {_times(flops, most)}"
        )
    return found


def _times(said: float, expected: float) -> str:
    ratio = said / expected
    return f"{ratio:.3g} times as many" if ratio > 1 else f"{1 / ratio:.3g} times too few"
