"""`evokern prove KERNEL`: compare a candidate with the default candidate in exact arithmetic."""

from __future__ import annotations

from typing import Annotated

import typer

from evokern.cli._command import command
from evokern.cli._options import PROBLEM_FORMS, KernelArgument, SetOption, TrustOption, parse_assignments
from evokern.cli._output import Output
from evokern.wording import changed_genes_text


@command(
    "prove",  # words: the examples are commands
    examples="""
    evokern prove rmsnorm --set ROW_SUM=every_block
    evokern prove matmul --set STAGES=3 --problem "M=130 N=128 K=328 layout=nt" --json
    """,
)
def prove(
    output: Output,
    kernel: KernelArgument,
    set_: SetOption = [],  # noqa: B006 (typer makes a new list for every call)
    problem: Annotated[
        str | None,
        typer.Option(
            "--problem",
            metavar="P",
            help=f"Problem to run, {PROBLEM_FORMS}. Default: the kernel's small problems.",
        ),
    ] = None,
    arch: Annotated[
        str, typer.Option("--arch", metavar="SM", help="Target architecture: sm_80, sm_86, sm_89 or sm_90.")
    ] = "sm_89",
    trust: TrustOption = False,
) -> int:
    """Show in exact arithmetic that a candidate computes the same expression as the default candidate.

    The candidate's PTX runs on the CPU with random elements of a finite field in place of floating-point values, so
    that neither rounding nor the order of additions matters. Each output is the same, different, or not comparable,
    with the instruction that leaves the field. The exit code is 1 unless every output is the same.
    """
    from evokern.analysis.prove import SAME, prove_candidate
    from evokern.analysis.sanitize.candidate import chip_for_architecture
    from evokern.analysis.sanitize.problems import small_or_given
    from evokern.study.discovery import find_kernel

    chip, found = chip_for_architecture(arch), find_kernel(kernel, trust=trust)
    changes = parse_assignments(set_)
    config = found.space.with_changes(found.space.default(), changes)
    for remark in found.space.without_effect(config, changes):
        output.note(remark)
    proofs = [
        prove_candidate(found, config, one, chip, output.note) for one in small_or_given(found, config, problem, chip)
    ]
    if output.json:
        output.print_json({"proofs": [proof.as_dict() for proof in proofs]})
    else:
        output.print_line(f"candidate: {changed_genes_text(config, found.genes)}")
        for proof in proofs:
            output.print_line(proof.title)
            for verdict in proof.verdicts:
                output.print_line(f"  {verdict}")
            for remark in proof.remarks:
                output.note(remark)
    return 0 if all(verdict.verdict == SAME for proof in proofs for verdict in proof.verdicts) else 1
