"""Plausibility check of a workload's declared operations and bytes: a tenfold error usually means wrong units."""

from __future__ import annotations

import math
from collections.abc import Mapping

from evokern.declaration.as_data.words import is_call
from evokern.declaration.kernel import Kernel, Problem, Tensor
from evokern.errors import KERNEL_CODE_EXCEPTIONS, KernelError

IMPLAUSIBLE_FACTOR = 10.0
"""Factor up to which differences may be intended, for example if data is read twice or in part."""


def declared_work(kernel: Kernel, problem: Problem) -> tuple[float, float]:
    """Return the declared number of operations and minimum number of bytes of one call.

    Raises:
        KernelError: a function of the workload raised an exception or returned an invalid number.
    """
    found = {}
    for name, function in (("flops", kernel.workload.flops), ("bytes", kernel.workload.bytes)):
        try:
            found[name] = float(function(problem))
        except KernelError as error:
            raise KernelError(f"kernel {kernel.name}: {error} ({problem})") from error
        except KERNEL_CODE_EXCEPTIONS as error:
            raise KernelError(
                f"kernel {kernel.name}: {name} raised {type(error).__name__}: {error} ({problem})"
            ) from error
    flops, moved = found["flops"], found["bytes"]
    if not (math.isfinite(flops) and flops >= 0 and math.isfinite(moved) and moved > 0):
        raise KernelError(
            f"kernel {kernel.name}: {flops:g} operations and {moved:g} bytes at {problem} are invalid; return "
            "finite numbers, with at least 0 operations and more than 0 bytes"
        )
    return flops, moved


def contradictions(kernel: Kernel, problem: Problem, tensors: Mapping[str, Tensor]) -> list[str]:
    """Return a note if a workload's operations or bytes contradict its tensors by more than a factor of ten.

    Inputs are read and outputs written at least once, unless only part of them is used. An output element uses each
    input element at most once, with one or two operations each. A workload with operations needs at least one per
    output element.

    Args:
        kernel: kernel with the workload.
        problem: the problem.
        tensors: buffers of the problem.

    Raises:
        KernelError: a function of the workload raised an exception or returned an invalid number.
    """
    flops, moved = declared_work(kernel, problem)
    if is_call(field.name for field in kernel.fields):
        return []  # the user wrote neither number
    passes = {"input": 1, "constant": 1, "output": 1, "inout": 2, "workspace": 0}
    total = sum(passes[tensor.role] * tensor.bytes for tensor in tensors.values())
    inputs = sum(tensor.elements for tensor in tensors.values() if tensor.given)
    outputs = sum(tensor.elements for tensor in tensors.values() if tensor.role in ("output", "inout"))
    found = []
    if moved > IMPLAUSIBLE_FACTOR * total or IMPLAUSIBLE_FACTOR * moved < total:
        found.append(
            f"bytes returns {moved:.3g} at {problem}, but inputs and outputs have {total:.3g} bytes: "
            f"{_times(moved, total)}; return the minimum number of bytes per call, not elements or GB"
        )
    most = 2 * outputs * max(inputs, 1)
    if 0 < IMPLAUSIBLE_FACTOR * flops < outputs:
        found.append(
            f"flops returns {flops:.3g} at {problem}, but there are {outputs:.3g} output elements: "
            f"{_times(flops, outputs)}; return the operations per call, not GFLOP"
        )
    elif flops > IMPLAUSIBLE_FACTOR * most:
        found.append(
            f"flops returns {flops:.3g} at {problem}, but {outputs:.3g} output elements need at most {most:.3g} if "
            f"each uses all {inputs:.3g} input elements: {_times(flops, most)}"
        )
    return found


def _times(declared: float, expected: float) -> str:
    ratio = declared / expected
    return f"too high by a factor of {ratio:.3g}" if ratio > 1 else f"too low by a factor of {1 / ratio:.3g}"
