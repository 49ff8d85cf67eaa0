"""Choice of the problems on which the sanitizer runs a candidate."""

from __future__ import annotations

from evokern.analysis.check.folder import known_problems
from evokern.declaration.feasibility import check
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Kernel, Problem
from evokern.declaration.small_problems import gate_problems, small_problem
from evokern.errors import KernelError
from evokern.hardware.profiles import Profile


def small_or_given(kernel: Kernel, config: Config, text: str | None, chip: Profile) -> tuple[Problem, ...]:
    """Return the given problem, or the kernel's small problems that a candidate can run.

    Args:
        kernel: the kernel.
        config: the candidate.
        text: a problem such as `B=1 H=2 S=128 D=64`, or None.
        chip: chip with the resource limits.

    Raises:
        KernelError: the kernel does not accept the problem, or the candidate cannot run any small problem.
    """
    if text is not None:
        return (kernel.problem(text),)
    templates = known_problems(kernel)[:1]
    problems = gate_problems(kernel, config, templates, chip) if templates else ()
    if not problems:
        listed = "; ".join(kernel.workload.small_problems) or "none is declared"
        example = templates[0] if templates else " ".join(f"{name}=…" for name in kernel.field_names)
        remedy = f"set one with --problem, for example --problem '{example}'"
        if templates and check(kernel, config, templates, chip, essential=True) is not None:
            remedy = "change a gene with --set, or choose another problem with --problem"
        raise KernelError(
            f"this candidate of {kernel.name} cannot run any of its small problems on {chip.model} ({listed})"
            f"{_violated(kernel, config, templates, chip)}; {remedy}"
        )
    return problems


def _violated(kernel: Kernel, config: Config, templates: tuple[Problem, ...], chip: Profile) -> str:
    """Return a clause with the constraint that rejects the candidate on the kernel's first small problem."""
    for text in kernel.workload.small_problems if templates else ():
        violation = check(kernel, config, [small_problem(kernel, text, templates[0])], chip, essential=True)
        if violation is not None:
            return f", because it violates a constraint: {violation}"
    return ""
