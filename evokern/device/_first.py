"""The first candidate, which proves that a kernel folder works on this device before a search begins."""

from __future__ import annotations

from evokern.compile.records import Built
from evokern.declaration.feasibility import check, feasible_space
from evokern.declaration.space import Config
from evokern.device.contract import Task
from evokern.errors import KernelError
from evokern.hardware.profiles import Profile
from evokern.wording import changed


def first_candidate(task: Task, profile: Profile) -> tuple[Config, tuple[str, ...]]:
    """Return the study's default candidate, or a feasible one near it; and a note where it is not the default.

    Args:
        task: the study's kernel, problems and narrowed genes.
        profile: the chip under the study's limits.

    Raises:
        KernelError: no feasible candidate was found.
    """
    space = feasible_space(task.kernel, task.problems, profile, task.study.genes)
    default, config = space.default(), space.first_feasible()
    if config == default:
        return default, ()
    violation = check(task.kernel, default, task.problems, profile)
    why = f"the default candidate of {task.kernel.name} cannot run on {profile.model} at {_listed(task)}: {violation}"
    if config is None:
        raise KernelError(
            f"{why}; no feasible one was found either: give its genes other defaults, or narrow them in the study's "
            "[genes]"
        )
    return config, (f"{why}; the search begins with {changed(config, space.genes)}",)


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
    raise KernelError(f"the default candidate of {task.kernel.name} does not compile: {reason}")
