"""`evokern check KERNEL`: is this kernel folder sound?"""

from __future__ import annotations

from evokern.cli._command import command
from evokern.cli._options import KernelArgument, TrustOption
from evokern.cli._output import Output
from evokern.wording import command as command_line
from evokern.wording import marks, several

_MARKS = {True: "ok", False: "FAILED", None: "-"}


@command(
    "check",
    examples="""
    evokern check attention
    evokern check kernels/my_kernel --json
    """,
)
def check(output: Output, kernel: KernelArgument, trust: TrustOption = False) -> int:
    """Check that a kernel folder is sound: everything that can be known without a GPU.

    Its entry points and macros are in the source, the default candidate is feasible and compiles for every
    architecture, its functions raise for no candidate, both references agree, rounding stays within the tolerance, and
    the default candidate is right on its smallest problem, simulated. Exits with 1 when a check fails; a warning does
    not count.
    """
    from evokern.analysis.check.soundness import check_kernel
    from evokern.study.discovery import find_kernel

    loaded = find_kernel(kernel, trust=trust)
    output.say(f"{loaded.name}: {loaded.folder}, {len(loaded.genes)} genes, {loaded.space.size:,} combinations")
    marked = [text for gene in loaded.genes if (text := marks(gene))]
    if marked:
        output.say(f"values that evo tries late: {'; '.join(marked)}")
    findings = []
    for finding in check_kernel(loaded):
        findings.append(finding)
        mark = "warning" if finding.warning else _MARKS[finding.ok]
        output.say(f"{mark:<8}{finding.check:<19}{finding.detail}")
    failed = sum(finding.ok is False for finding in findings)
    if output.json:
        output.emit({"kernel": loaded.name, "sound": not failed, "checks": [vars(finding) for finding in findings]})
    else:
        warnings = sum(finding.warning for finding in findings)
        noted = f"; {several(warnings, 'warning')}" if warnings else ""
        output.say(f"{failed} of {len(findings)} checks failed{noted}" if failed else _sound(kernel) + noted)
    return 1 if failed else 0


def _sound(name: str) -> str:
    sanitize = command_line("sanitize", name)
    return f"the folder is sound; `{sanitize}` runs it at other sizes, `evokern search` compares candidates"
