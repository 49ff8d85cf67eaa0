"""`evokern check KERNEL`: is this kernel folder sound?"""

from __future__ import annotations

from evokern.cli._command import command
from evokern.cli._options import KernelArgument, TrustOption
from evokern.cli._output import Output
from evokern.wording import command as command_line

_MARKS = {True: "ok", False: "FAILED", None: "-"}


@command(
    "check",
    examples="""
    evokern check attention
    evokern check kernels/my_kernel --json
    """,
)
def check(output: Output, kernel: KernelArgument, trust: TrustOption = False) -> int:
    """Check that a kernel folder is sound: everything that can be known without running the kernel.

    Its entry points and macros are in the source, the default candidate is feasible and compiles for every
    architecture, its functions raise for no candidate, and both references agree. Exits with 1 when a check fails.
    """
    from evokern.analysis.check.soundness import check_kernel
    from evokern.study.discovery import find_kernel

    loaded = find_kernel(kernel, trust=trust)
    output.say(f"{loaded.name}: {loaded.folder}, {len(loaded.genes)} genes, {loaded.space.size:,} combinations")
    findings = []
    for finding in check_kernel(loaded):
        findings.append(finding)
        output.say(f"{_MARKS[finding.ok]:<8}{finding.check:<19}{finding.detail}")
    failed = sum(finding.ok is False for finding in findings)
    if output.json:
        output.emit({"kernel": loaded.name, "sound": not failed, "checks": [vars(finding) for finding in findings]})
    else:
        output.say(f"{failed} of {len(findings)} checks failed" if failed else _sound(kernel))
    return 1 if failed else 0


def _sound(name: str) -> str:
    sanitize = command_line("sanitize", name)
    return f"the folder is sound; `{sanitize}` runs the kernel, `evokern search` compares its answers"
