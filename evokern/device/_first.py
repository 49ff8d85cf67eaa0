"""The default candidate, which proves that a kernel folder works on this device before a search begins."""

from __future__ import annotations

from evokern.compile.records import Built
from evokern.declaration.feasibility import check, narrowed
from evokern.declaration.space import Config
from evokern.device.contract import Task
from evokern.errors import KernelError
from evokern.hardware.profiles import Profile


def first_candidate(task: Task, profile: Profile) -> Config:
    """Return the study's default candidate.

    Args:
        task: the study's kernel, problems and narrowed genes.
        profile: the chip under the study's limits.

    Raises:
        KernelError: it is infeasible.
    """
    config = narrowed(task.kernel.space, task.study.genes).default()
    violation = check(task.kernel, config, task.problems, profile)
    if violation is not None:
        raise KernelError(
            f"the default candidate of {task.kernel.name} cannot run on {profile.model}: {violation}; "
            "give its genes other defaults, or narrow them in the study's [genes]"
        )
    return config


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
