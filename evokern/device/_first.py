"""The first candidate, which proves that a kernel folder works on this device before a search begins."""

from __future__ import annotations

from evokern.compile.build import tensors_of
from evokern.compile.records import Built
from evokern.declaration.feasibility import check, feasible_space
from evokern.declaration.genes import Config
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
    """Return what of the workload's operations and bytes contradicts its tensors.

    Raises:
        KernelError: a function of the workload raised, or its answer is no such number.
    """
    found = (contradictions(task.kernel, p, tensors_of(task.kernel, config, p)) for p in task.problems)
    return tuple(f"{doubt} (the limit is told by it)" for part in found for doubt in part)


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
