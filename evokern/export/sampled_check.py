"""Search for problem fields along which the reference can be computed for a sample of the indices.

Examples are rows of a matrix product, rows to normalise, and heads of attention: the elements do not depend on other
indices of the field. This is tested with the Python reference on small problems. An exported program then checks a
sample if the complete reference would take too long. Other fields, such as keys of attention or a summed axis, cannot
be sampled.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evokern.declaration.genes import Config
from evokern.declaration.kernel import Kernel, Problem, Tensor
from evokern.declaration.small_problems import small_problem
from evokern.errors import KERNEL_CODE_EXCEPTIONS, EvokernError
from evokern.export.formula import simplified
from evokern.export.trace import Traces
from evokern.export.traced import formula_of

AGREEMENT = 1e-9
"""Largest difference between a sample's reference and the complete reference, relative to the largest value."""
_PROBLEMS, _TRIES = 2, 2
"""Number of small problems, and of samples per problem, that test a field."""


@dataclass(frozen=True)
class SampledField:
    """A field along which the reference can be sampled."""

    name: str
    """Name of the field."""
    step: int
    """Number of sampled indices must be a multiple of this."""
    axes: Mapping[str, int]
    """Tensor → the axis with this field as its extent; other tensors are used completely."""


def sampled_fields(kernel: Kernel, config: Config, problem: Problem, traces: Traces) -> tuple[SampledField, ...]:
    """Return the fields along which a kernel's reference can be sampled.

    Args:
        kernel: the kernel.
        config: the candidate.
        problem: the study's problem; it fills fields that small problems leave open.
        traces: extents as formulas over the fields.
    """
    found: list[SampledField] = []
    for one in _candidates(kernel, traces):
        if _holds(kernel, config, problem, [*found, one]):
            found.append(one)
    return tuple(found)


def _candidates(kernel: Kernel, traces: Traces) -> list[SampledField]:
    """Return the fields that are the extent of one axis in every output, and of at most one axis in every input."""
    found = []
    for entry in kernel.free_fields:
        if entry.name not in traces.fields:
            continue
        axes: dict[str, list[int]] = {}
        for name, tensor in traces.tensors.items():
            extents = [simplified(formula_of(extent), {}) for extent in tensor.shape]
            axes[name] = [axis for axis, extent in enumerate(extents) if extent == ("field", entry.name)]
        given = {n: a for n, a in axes.items() if traces.tensors[n].role != "workspace"}
        outputs = [a for n, a in given.items() if traces.tensors[n].role in ("output", "inout")]
        if all(len(a) == 1 for a in outputs) and all(len(a) <= 1 for a in given.values()):
            found.append(SampledField(entry.name, entry.multiple_of, {n: a[0] for n, a in given.items() if a}))
    return found


def _holds(kernel: Kernel, config: Config, problem: Problem, fields: Sequence[SampledField]) -> bool:
    """Return whether the reference of a sample equals the sample of the reference, on small problems."""
    rng, shown = random.Random(0), False
    for text in kernel.workload.small_problems[:_PROBLEMS]:
        try:
            small = small_problem(kernel, text, problem)
        except EvokernError:
            continue
        # Make the extents large enough for a proper sample.
        small = small.changed({one.name: max(int(small[one.name]), 3 * one.step) for one in fields})
        for _ in range(_TRIES):
            if not _agrees(kernel, config, small, fields, rng):
                return False
        shown = True
    return shown


def _agrees(
    kernel: Kernel, config: Config, problem: Problem, fields: Sequence[SampledField], rng: random.Random
) -> bool:
    import torch

    from evokern.analysis.check.reference_check import draw_inputs

    tensors = kernel.workload.tensors(problem, config)
    picked = {one.name: _picked(int(problem[one.name]), one.step, rng) for one in fields}
    part = problem.changed({name: len(indices) for name, indices in picked.items()})

    def sampled(name: str, values: torch.Tensor) -> torch.Tensor:
        for one in fields:
            if name in one.axes:
                values = values.index_select(one.axes[name], torch.tensor(picked[one.name]))
        return values

    inputs = draw_inputs(tensors, rng.getrandbits(30))
    try:
        smaller: Mapping[str, Tensor] = kernel.workload.tensors(part, config)
        given = {name: sampled(name, values) for name, values in inputs.items()}
        if any(tuple(values.shape) != smaller[name].shape for name, values in given.items()):
            return False
        whole, got = kernel.workload.reference(problem, inputs), kernel.workload.reference(part, given)
        for name, values in whole.items():
            wanted = sampled(name, values)
            scale = max(float(wanted.abs().max()), 1e-300)
            if got[name].shape != wanted.shape or not float((got[name] - wanted).abs().max()) <= AGREEMENT * scale:
                return False
    except KERNEL_CODE_EXCEPTIONS:  # the reference cannot compute a part
        return False
    return True


def _picked(extent: int, step: int, rng: random.Random) -> list[int]:
    """Return sorted random indices, fewer than all; their number is a multiple of the step."""
    count = step * max(1, (extent - 1) // (2 * step))
    return sorted(rng.sample(range(extent), count))
