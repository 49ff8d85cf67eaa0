"""Choice of a search's first candidate, which shows that the kernel folder works on the device."""

from __future__ import annotations

import re
from collections.abc import Mapping

from evokern.compile.build import tensors_of
from evokern.compile.failure_cause import cause_of, genes_reaching
from evokern.compile.records import Built
from evokern.declaration.as_data.words import call_words
from evokern.declaration.feasibility import check, feasible_space
from evokern.declaration.genes import Config
from evokern.declaration.kernel import SIGNIFICAND_BITS, Tensor, unit_roundoff
from evokern.device.contract import Task
from evokern.errors import KernelError
from evokern.hardware.profiles import Profile
from evokern.measurement.plausible import contradictions
from evokern.study.trial import Evaluation, Outcome
from evokern.wording import changed_genes_text


def first_candidate(task: Task, profile: Profile) -> tuple[Config, tuple[str, ...]]:
    """Return the study's default candidate, or a feasible one near it, and notes for the user.

    Args:
        task: kernel, problems and gene restrictions of the study.
        profile: the chip with the study's resource limits.

    Raises:
        KernelError: no feasible candidate was found, or the workload's operations or bytes are not numbers.
    """
    space = feasible_space(task.kernel, task.problems, profile, task.study.genes)
    default, config = space.default(), space.first_feasible()
    doubts = _plausibility_notes(task, config or default)
    if config == default:
        return default, doubts
    violation = check(task.kernel, default, task.problems, profile)
    why = f"the default candidate of {task.kernel.name} cannot run on {profile.model} at {_listed(task)}: {violation}"
    if config is None:
        raise KernelError(
            f"{why}; no feasible candidate was found; change the default values of the genes, or restrict the genes in "
            "[genes] of the study"
        )
    return config, (f"{why}; the search starts with {changed_genes_text(config, space.genes)}", *doubts)


def _plausibility_notes(task: Task, config: Config) -> tuple[str, ...]:
    """Return notes on operations and bytes that contradict the tensors, and on tolerances tighter than rounding.

    Raises:
        KernelError: a function of the workload raised an exception or returned an invalid number.
    """
    tensors = [(p, tensors_of(task.kernel, config, p)) for p in task.problems]
    found = (contradictions(task.kernel, p, buffers) for p, buffers in tensors)
    limits = [f"{doubt} (this number determines the roofline bound)" for part in found for doubt in part]
    # Problems with the same dtypes produce identical notes.
    finer = dict.fromkeys(doubt for _, buffers in tensors for doubt in _finer_than_rounding(task, buffers))
    return (*limits, *finer)


def _finer_than_rounding(task: Task, tensors: Mapping[str, Tensor]) -> list[str]:
    """Return notes on study tolerances that reject correctly rounded results, with the affected magnitude.

    Rounding y causes an error of up to u |y| (`unit_roundoff`), which atol + rtol |y| allows up to |y| = atol / (u -
    rtol). An output whose own rtol is below u has a rounded reference, such as the sum in `rmsnorm`. It is skipped.
    """
    gate = task.study.gate
    found = []
    for name, own in task.kernel.workload.tolerance.items():
        tensor = tensors.get(name)  # an optional output exists only for some problems
        if tensor is None or tensor.dtype not in SIGNIFICAND_BITS:
            continue
        roundoff, allowed = unit_roundoff(tensor.dtype), own.overridden(gate.atol, gate.rtol).for_tensor(tensor)
        if allowed.rtol < roundoff <= own.for_tensor(tensor).rtol:
            most = allowed.atol / (roundoff - allowed.rtol)
            found.append(
                f"the study's tolerance (atol {allowed.atol:g}, rtol {allowed.rtol:g}) rejects correct values of "
                f"{name} above {most:.3g}, because rounding to {tensor.dtype} changes them by more than the tolerance; "
                "omit gate.atol and gate.rtol to use the kernel's tolerance, or set gate.rtol to at least "
                f"{2 * roundoff:.3g}"
            )
    return found


def _listed(task: Task) -> str:
    return " and ".join(map(str, task.problems))


def require_built(task: Task, built: object) -> Built:
    """Return the build of the default candidate.

    Args:
        task: task with the kernel.
        built: result from the compile pool.

    Raises:
        KernelError: the candidate cannot be built, or its entry point is missing from the source.
    """
    if isinstance(built, Built):
        return built
    raise KernelError(_why_unbuilt(task, built))


def unbuilt_note(task: Task, built: object, profile: Profile) -> str:
    """Return a note if only the values of its genes may keep the default candidate from being built, else nothing.

    Args:
        task: task with the kernel.
        built: result from the compile pool.
        profile: the chip with the study's resource limits.
    """
    if not isinstance(built, Evaluation) or built.outcome not in (Outcome.OVER_RESOURCES, Outcome.COMPILE_ERROR):
        return ""
    space = feasible_space(task.kernel, task.problems, profile, task.study.genes)
    cause = cause_of(built)
    if cause is None or not genes_reaching(task.kernel, space, task.problems[0], cause):
        return ""
    return f"{_why_unbuilt(task, built)}; other values of its genes may change this, so the search continues"


def _why_unbuilt(task: Task, built: object) -> str:
    name, reason = task.kernel.name, getattr(built, "reason", built)
    outcome = built.outcome if isinstance(built, Evaluation) else None
    if outcome is Outcome.WRONG:
        return f"the default candidate of {name} returns wrong results: {reason}"
    if outcome is Outcome.OVER_RESOURCES:
        return f"the default candidate of {name} exceeds a limit: {reason}"
    unknown = re.search(r'identifier "(\w+)" is undefined', str(reason))
    hint = f"; if {unknown[1]} is a gene, declare it in kernel.py" if unknown else ""
    message = f"the default candidate of {name} does not compile: {reason}{hint}"
    return call_words(message, (field.name for field in task.kernel.fields))
