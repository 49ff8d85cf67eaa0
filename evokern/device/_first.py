"""The first candidate, which proves that a kernel folder works on this device before a search begins."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from evokern.compile.build import tensors_of
from evokern.compile.records import Built
from evokern.declaration.feasibility import check, feasible_space
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Tensor
from evokern.device.contract import Task
from evokern.errors import KernelError
from evokern.gate.comparison import tolerances
from evokern.gate.data import torch_dtype
from evokern.hardware.profiles import Profile
from evokern.measurement.plausible import contradictions
from evokern.study.trial import Evaluation, Outcome
from evokern.wording import changed


def first_candidate(task: Task, profile: Profile) -> tuple[Config, tuple[str, ...]]:
    """Return the study's default candidate, or a feasible one near it; and notes on what its user should know.

    Args:
        task: the study's kernel, problems and narrowed genes.
        profile: the chip under the study's limits.

    Raises:
        KernelError: no feasible candidate was found, or the workload's operations or bytes are no numbers.
    """
    space = feasible_space(task.kernel, task.problems, profile, task.study.genes)
    default, config = space.default(), space.first_feasible()
    doubts = _doubts(task, config or default)
    if config == default:
        return default, doubts
    violation = check(task.kernel, default, task.problems, profile)
    why = f"the default candidate of {task.kernel.name} cannot run on {profile.model} at {_listed(task)}: {violation}"
    if config is None:
        raise KernelError(
            f"{why}; no feasible one was found either: give its genes other defaults, or narrow them in the study's "
            "[genes]"
        )
    return config, (f"{why}; the search begins with {changed(config, space.genes)}", *doubts)


def _doubts(task: Task, config: Config) -> tuple[str, ...]:
    """Return what of the workload's operations and bytes contradicts its tensors, and tolerances finer than rounding.

    Raises:
        KernelError: a function of the workload raised, or its answer is no such number.
    """
    tensors = [(p, tensors_of(task.kernel, config, p)) for p in task.problems]
    found = (contradictions(task.kernel, p, buffers) for p, buffers in tensors)
    limits = [f"{doubt} (the limit is told by it)" for part in found for doubt in part]
    # Several problems of one dtype say the same.
    finer = dict.fromkeys(doubt for _, buffers in tensors for doubt in _finer_than_rounding(task, buffers))
    return (*limits, *finer)


def _finer_than_rounding(task: Task, tensors: Mapping[str, Tensor]) -> list[str]:
    """Return for which outputs a study's own tolerance turns away exact answers, once they are rounded.

    Rounding y to a type of unit roundoff u is an error of up to u |y| (Higham, Accuracy and Stability of Numerical
    Algorithms, 2nd ed., theorem 2.2), which atol + rtol |y| allows up to |y| = atol / (u - rtol).
    """
    gate = task.study.gate
    if gate.atol is None and gate.rtol is None:
        return []  # `check` judges a kernel's own
    found = []
    for name, tolerance in tolerances(task.kernel, gate.atol, gate.rtol).items():
        dtype = torch_dtype(tensors[name].dtype)
        roundoff = torch.finfo(dtype).eps / 2 if dtype.is_floating_point else 0.0
        allowed = tolerance.holding(tensors[name])
        if allowed.rtol < roundoff:
            found.append(
                f"atol {allowed.atol:g} and rtol {allowed.rtol:g} turn right answers away: {tensors[name].dtype} "
                f"rounds {name} by up to {roundoff:.2g} of its size, which they allow up to "
                f"{allowed.atol / (roundoff - allowed.rtol):.2g} alone; leave gate.atol and gate.rtol out of the study "
                f"for the kernel's own tolerance, or give an rtol of at least {2 * roundoff:.2g}"
            )
    return found


def _listed(task: Task) -> str:
    return " and ".join(map(str, task.problems))


def require_built(task: Task, built: object) -> Built:
    """Return the default candidate's build.

    Args:
        task: the study's kernel.
        built: what the compile pool answered.

    Raises:
        KernelError: it does not compile, or its entry point is not in the source.
    """
    if isinstance(built, Built):
        return built
    reason = getattr(built, "reason", built)
    if isinstance(built, Evaluation) and built.outcome is Outcome.WRONG:
        raise KernelError(f"the default candidate of {task.kernel.name} is wrong: {reason}")
    raise KernelError(f"the default candidate of {task.kernel.name} does not compile: {reason}")
