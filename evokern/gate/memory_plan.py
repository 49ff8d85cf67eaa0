"""Device memory needed to check and time one problem, computed before anything is allocated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evokern.declaration.kernel import DTYPE_BYTES, Kernel, Problem, Tensor
from evokern.gate.buffer_set import calls_of, kinds_of_sets
from evokern.gate.data import exact_kinds
from evokern.gate.renewal import is_large
from evokern.study.settings import GateSettings, InputSet, TimingSettings

FLOAT64_BYTES = 8
"""Bytes per element of a reference and of the float64 inputs it is computed from."""


def planned_bytes(
    kernel: Kernel, problem: Problem, tensors: Mapping[str, Tensor], gate: GateSettings, timing: TimingSettings
) -> int:
    """Return the bytes that a problem needs for buffers in the gate and in timed runs, and for computing one reference.

    Temporary memory of the reference function and of libraries is not included.

    Args:
        kernel: kernel with the workload.
        problem: the problem.
        tensors: a candidate's buffers for this problem.
        gate: settings with the input sets and runs of the gate.
        timing: settings with the input sets of the timed runs.
    """
    rotated: list[InputSet] = ["normal"] * (timing.rotate_sets if timing.cache == "rotate" else 1)
    checked = _bench_bytes(
        kernel, problem, tensors, kinds_of_sets(exact_kinds(gate.input_sets, tensors), tensors), gate.runs
    )
    timed = _bench_bytes(kernel, problem, tensors, rotated, 1)
    given = sum(tensor.elements for tensor in tensors.values() if tensor.given)
    results = sum(tensor.elements for tensor in tensors.values() if _is_result(tensor))
    return checked + timed + FLOAT64_BYTES * (given + results)


def _bench_bytes(
    kernel: Kernel, problem: Problem, tensors: Mapping[str, Tensor], kinds: Sequence[InputSet], runs: int
) -> int:
    """Return the bytes of inputs and their originals, of outputs and workspaces, and of stored references."""
    sets = len(kinds)
    given = sum(tensor.bytes for tensor in tensors.values() if tensor.given)
    written = sum(tensor.bytes for tensor in tensors.values() if not tensor.kept)
    results = sum(tensor.elements for tensor in tensors.values() if _is_result(tensor))
    kept = sets if is_large(kernel.workload, problem, tensors) else 0
    # Narrow outputs store 2 bytes for each magnitude of their bound (`evokern.gate.references`).
    bounded = sum(len(t.factors) * t.elements * (2 if DTYPE_BYTES[t.dtype] <= 2 else 8) for t in tensors.values())
    return (
        2 * sets * given + len(calls_of(runs, sets)) * written + kept * (FLOAT64_BYTES * results + -(-bounded // 8) * 8)
    )


def _is_result(tensor: Tensor) -> bool:
    return not tensor.kept and tensor.role != "workspace"
