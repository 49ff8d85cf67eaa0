"""Which extents of a problem can be taken apart, so that a long reference is run on a sample of them.

Rows of a product, rows to normalise, heads of attention: along such a field the reference of some indices is those
indices of the reference, which is tried with the Python reference on a small problem. An exported program then checks a
sample where the whole would take too long. Along other fields (keys of attention, the axis that is summed over) nothing
can be left out.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evokern.declaration.genes import Config
from evokern.declaration.kernel import Kernel, Problem, Tensor
from evokern.declaration.small_problems import small_problem
from evokern.errors import RAISED, EvokernError
from evokern.export.formula import simplified
from evokern.export.trace import Traces
from evokern.export.traced import formula_of

AGREEMENT = 1e-9
"""Largest difference between a sample's reference and the same part of the whole, relative to the largest value."""
_PROBLEMS, _TRIES = 2, 2
"""Small problems, and samples of each, on which a field must hold."""


@dataclass(frozen=True)
class SampledField:
    """A field along which the reference can be sampled."""

    name: str
    """Its name."""
    step: int
    """A sample has a multiple of so many of its indices."""
    axes: Mapping[str, int]
    """Input or output → the axis that it is the extent of; tensors without that axis are needed whole."""


def sampled_fields(kernel: Kernel, config: Config, problem: Problem, traces: Traces) -> tuple[SampledField, ...]:
    """Return the fields along which a kernel's reference can be sampled; none where it cannot be told.

    Args:
        kernel: the kernel.
        config: the candidate.
        problem: the study's problem: what small problems leave open is as there.
        traces: extents as formulas over the fields.
    """
    found: list[SampledField] = []
    for one in _candidates(kernel, traces):
        if _holds(kernel, config, problem, [*found, one]):
            found.append(one)
    return tuple(found)


def _candidates(kernel: Kernel, traces: Traces) -> list[SampledField]:
    """Return the fields that are the extent of one axis of every output, and of at most one of every input."""
    found = []
    for entry in kernel.fields:
        if entry.name not in traces.fields or entry.choices:
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
    """Whether samples of the reference are the reference of samples, as far as small problems show."""
    rng, shown = random.Random(0), False
    for text in kernel.workload.small_problems[:_PROBLEMS]:
        try:
            small = small_problem(kernel, text, problem)
        except EvokernError:
            continue
        # With an index or two nothing could be left out.
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
    except RAISED:  # a reference that cannot compute a part computes the whole
        return False
    return True


def _picked(extent: int, step: int, rng: random.Random) -> list[int]:
    """Return indices in order: a multiple of the step, fewer than all."""
    count = step * max(1, (extent - 1) // (2 * step))
    return sorted(rng.sample(range(extent), count))
