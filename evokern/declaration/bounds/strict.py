"""Strict bounds: all candidates are judged as if they computed in float32 (`gate.precision = "f32"`)."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from evokern.declaration.bounds import ErrorBound
from evokern.declaration.kernel import Kernel
from evokern.errors import KernelError


def judged_in(kernel: Kernel, precision: str) -> Kernel:
    """Return the kernel with the bounds that a study's `gate.precision` selects.

    Args:
        kernel: the kernel.
        precision: `declared`, or `f32` for bounds of float32 arithmetic.

    Raises:
        KernelError: the strict bounds of a kernel without bounds are requested.
    """
    if precision == "declared":
        return kernel
    limits = kernel.workload.tolerance
    bounds = {name: limit.bound for name, limit in limits.items() if limit.bound is not None}
    if not bounds:
        raise KernelError(
            f'gate.precision = "{precision}" needs bounds, but kernel {kernel.name} declares tolerances; remove '
            "`tolerance` from its workload or gate.precision from the study (docs/proof.md)"
        )
    plain = {name: limit for name, limit in limits.items() if name not in bounds}
    strict = {name: _strict(bound) for name, bound in bounds.items()}
    return replace(kernel, workload=replace(kernel.workload, tolerance=plain, error=strict))


def _strict(bound: ErrorBound) -> ErrorBound:
    """Return a bound with float32 in place of each precision that depends on the candidate."""
    changed: dict[str, Any] = {}
    for field in fields(bound):  # type: ignore[arg-type]
        if callable(getattr(bound, field.name)) and field.type in ("PerCandidate", PER_CANDIDATE_BITS):
            changed[field.name] = "f32" if field.type == "PerCandidate" else None
    return replace(bound, **changed)  # type: ignore[type-var]


PER_CANDIDATE_BITS = "Callable[[Config, Problem], int] | None"
"""Type of a field with the bits of operands, which `None` replaces by those of the inputs."""
