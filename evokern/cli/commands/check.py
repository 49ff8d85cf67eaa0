"""`evokern check KERNEL`: check a kernel folder."""

from __future__ import annotations

from evokern.cli._command import command
from evokern.cli._options import KernelArgument, TrustOption
from evokern.cli._output import Output
from evokern.wording import command as command_line
from evokern.wording import count_noun, low_priority_values_text, stage_label

_MARKS = {True: "ok", False: "FAILED", None: "-"}


@command(
    "check",
    examples="""
    evokern check attention
    evokern check kernels/my_kernel --json
    """,
)
def check(output: Output, kernel: KernelArgument, trust: TrustOption = False) -> int:
    """Check a kernel folder without a GPU.

    The checks cover entry points, macros, constraints and compilation for every architecture. They compare the Python
    reference with reference.h, and test whether rounding stays within the tolerance. They also simulate the default
    candidate on a small problem. The exit code is 1 if a check fails; warnings do not affect it.
    """
    from evokern.analysis.check.own_process import check_apart
    from evokern.study.discovery import find_kernel

    loaded = find_kernel(kernel, trust=trust)
    output.print_line(
        f"{loaded.name}: {loaded.folder}, {count_noun(len(loaded.genes), 'gene')}, "
        f"{loaded.space.size:,} combination{'' if loaded.space.size == 1 else 's'}"
    )
    marked = [text for gene in loaded.genes if (text := low_priority_values_text(gene))]
    if marked:
        output.print_line(f"low-priority values: {'; '.join(marked)}")
    findings = []
    for finding in check_apart(loaded):
        findings.append(finding)
        mark = "warning" if finding.warning else _MARKS[finding.ok]
        output.print_line(f"{mark:<8}{stage_label(finding.check):<19}{finding.detail}")
    failed = sum(finding.ok is False for finding in findings)
    if output.json:
        output.print_json(
            {"kernel": loaded.name, "sound": not failed, "checks": [vars(finding) for finding in findings]}
        )
    else:
        warnings = sum(finding.warning for finding in findings)
        noted = f"; {count_noun(warnings, 'warning')}" if warnings else ""
        output.print_line(f"{failed} of {len(findings)} checks failed{noted}" if failed else _sound(kernel) + noted)
    return 1 if failed else 0


def _sound(name: str) -> str:
    sanitize = command_line("sanitize", name, "--problem")
    return f"all checks passed; next, run other sizes with `{sanitize} PROBLEM`, or run `evokern search STUDY`"
