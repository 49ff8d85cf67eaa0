"""The first candidate, which proves that a kernel folder works on this device before a search begins."""

from __future__ import annotations

from collections.abc import Mapping

from evokern.compile.build import tensors_of
from evokern.compile.records import Built
from evokern.declaration.feasibility import check, feasible_space
from evokern.declaration.genes import Config
from evokern.declaration.kernel import SIGNIFICAND_BITS, Tensor, unit_roundoff
from evokern.device.contract import Task
from evokern.errors import KernelError
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
    """Return from which size on a study's own tolerance turns exact answers away, once they are rounded.

    Rounding y is an error of up to u |y| (`unit_roundoff`), which atol + rtol |y| allows up to |y| = atol / (u - rtol).
    An output whose own rtol is below u has a rounded reference, as `rmsnorm`'s sum has: nothing is known of it.
    """
    gate = task.study.gate
    found = []
    for name, own in task.kernel.workload.tolerance.items():
        tensor = tensors.get(name)  # an optional output is not there at every problem
        if tensor is None or tensor.dtype not in SIGNIFICAND_BITS:
            continue
        roundoff, allowed = unit_roundoff(tensor.dtype), own.overridden(gate.atol, gate.rtol).holding(tensor)
        if allowed.rtol < roundoff <= own.holding(tensor).rtol:
            most = allowed.atol / (roundoff - allowed.rtol)
            found.append(
                f"the study's tolerance (atol {allowed.atol:g}, rtol {allowed.rtol:g}) turns right answers away where "
                f"{name} is above {most:.3g}: {tensor.dtype} rounds it by more than that allows; leave gate.atol and "
                f"gate.rtol out for the kernel's own tolerance, or give an rtol of at least {2 * roundoff:.3g}"
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
