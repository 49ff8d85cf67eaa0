"""At which problems a candidate is looked at: the one that was asked for, or those of its kernel that suit."""

from __future__ import annotations

from evokern.analysis.check.folder import known_problems
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Kernel, Problem
from evokern.declaration.small_problems import gate_problems
from evokern.errors import KernelError
from evokern.hardware.profiles import Profile


def small_or_given(kernel: Kernel, config: Config, text: str | None, chip: Profile) -> tuple[Problem, ...]:
    """Return the problem that was named, or the kernel's small ones that a candidate can run.

    Args:
        kernel: the kernel.
        config: the candidate.
        text: a problem such as `B=1 H=2 S=128 D=64`, or None.
        chip: limits to keep.

    Raises:
        KernelError: the kernel does not take the problem, or has no small one that this candidate can run.
    """
    if text is not None:
        return (kernel.problem(text),)
    templates = known_problems(kernel)[:1]
    problems = gate_problems(kernel, config, templates, chip) if templates else ()
    if not problems:
        listed = "; ".join(kernel.workload.small_problems) or "none is declared"
        example = templates[0] if templates else " ".join(f"{name}=…" for name in kernel.field_names)
        raise KernelError(
            f"this candidate of {kernel.name} can run none of its small problems on {chip.model} ({listed}); name one "
            f"with --problem, for example --problem '{example}'"
        )
    return problems
