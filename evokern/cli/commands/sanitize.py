"""`evokern check`, `evokern sanitize` and `evokern prove`: checks of a kernel that need no GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evokern.cli._command import command
from evokern.cli._options import (
    DEFAULT_DB,
    PROBLEM_FORMS,
    DbOption,
    KernelArgument,
    ReferenceOption,
    SetOption,
    StoredTrustOption,
    TrialOption,
    TrustOption,
    complete_kernels,
    parse_assignments,
    parse_extent,
)
from evokern.cli._output import Output
from evokern.errors import UsageError
from evokern.files import is_file
from evokern.wording import changed_genes_text, count_noun, counts, low_priority_values_text, stage_label
from evokern.wording import command as command_line

if TYPE_CHECKING:
    from evokern.analysis.sanitize.candidate import SanitizeReport
    from evokern.simt import Finding

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


COMPILED = (".ptx", ".cubin", ".fatbin", ".o", ".so")
"""File name suffixes of compiled code."""
SOURCES = (".cu", ".cuh", ".h", ".hpp", ".hxx")
"""File name suffixes of CUDA files; any other target is the name or folder of a kernel."""


@command(
    "sanitize",  # words: the examples are commands
    examples="""
    evokern sanitize attention --set BLOCK_M=64 --problem "B=1 H=2 S=128 D=64"
    evokern sanitize my.cu --entry my_kernel --block 128 --arg in:f32[1024] --arg out:f32[1024] --arg i32=1024
    evokern sanitize my.cu --entry 'reduce<float, 256>' --grid 4,2 --block 256 --smem 4096 -D TILE=64 -I include --json
    """,
)
def sanitize(
    output: Output,
    target: Annotated[
        str,
        typer.Argument(
            metavar="KERNEL|FILE.cu",
            help="Name or folder of a kernel, or a CUDA file.",
            autocompletion=complete_kernels,
        ),
    ],
    set_: SetOption = [],  # noqa: B006 (typer makes a new list for every call)
    problem: Annotated[
        str | None,
        typer.Option(
            "--problem",
            metavar="P",
            help=f"KERNEL only: problem to run, {PROBLEM_FORMS}. Default: the kernel's small problems.",
        ),
    ] = None,
    entry: Annotated[
        str | None,
        typer.Option("--entry", metavar="NAME", help="FILE only: kernel to run if the file contains several."),
    ] = None,
    grid: Annotated[
        str | None,
        typer.Option(
            "--grid",
            metavar="X,Y,Z",
            help="FILE only: number of blocks. Default: enough to have one thread per element of the largest output.",
        ),
    ] = None,
    block: Annotated[
        str | None, typer.Option("--block", metavar="X,Y,Z", help="FILE only: threads per block; required.")
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            metavar="X,Y,Z",
            help="FILE only: blocks per cluster, at most 8; needs --arch sm_90 or sm_90a. "
            "Default: from __cluster_dims__.",
        ),
    ] = None,
    smem: Annotated[
        int | None,
        typer.Option("--smem", metavar="BYTES", min=0, help="FILE only: dynamic shared memory per block. Default: 0."),
    ] = None,
    arg: Annotated[
        list[str],
        typer.Option(
            "--arg",
            metavar="ARG",
            help="FILE only: one kernel argument; repeat the option for each parameter, in order. Buffers: "
            "in:f16[2,128,64] "
            "(random, read-only), in:i32[64]=0..9 (random within a range), out:f32[64] (the kernel must write it), "
            "inout:f32[64] (random, writable), zero:f32[64] (zeros, writable); in:f32[64]+3 points to element 3. "
            "By value: i32=128, f32=0.5, bool=1, null, struct:[i32=4,f32[3]=0] (members). table:[in:f32[8],in:f32[8]] "
            "is an array of pointers.",
        ),
    ] = [],  # noqa: B006
    define: Annotated[
        list[str],
        typer.Option("--define", "-D", metavar="NAME=VALUE", help="FILE only: define a macro; may be repeated."),
    ] = [],  # noqa: B006
    include: Annotated[
        list[Path],
        typer.Option("--include", "-I", metavar="DIR", help="FILE only: add an include folder; may be repeated."),
    ] = [],  # noqa: B006
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", min=0, help="FILE only: random seed of the inputs. Default: 0.")
    ] = None,
    arch: Annotated[
        str,
        typer.Option("--arch", metavar="SM", help="Target architecture: sm_80, sm_86, sm_89, sm_90 or sm_90a."),
    ] = "sm_89",
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            metavar="N",
            min=1,
            help="Stop a launch after N warp instructions. Default: 20 million.",
        ),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with code 1 even if there are only warnings.")] = False,
    trust: TrustOption = False,
) -> int:
    """Run a kernel on the CPU and check every memory access, barrier, shuffle and asynchronous copy.

    Each finding states the kind of error, source line, block, thread, address and usual cause. Results are not compared
    with a reference. Races within a warp, and invalid reads whose value is never used, are only warnings. The exit
    code is 1 if there is an error or if a launch does not end within --limit. With --strict, a warning also counts.
    """
    from evokern.analysis.sanitize.candidate import INSTRUCTION_LIMIT, chip_for_architecture, sanitize_kernel

    chip = chip_for_architecture(arch)
    candidate = ""  # a plain file has no genes
    of_files = {
        "--entry": entry, "--grid": grid, "--block": block, "--smem": smem, "--arg": arg, "-D": define, "-I": include,
        "--seed": seed, "--cluster": cluster,
    }  # fmt: skip
    if Path(target).suffix in SOURCES:
        _refuse("a CUDA file", {"--set": set_, "--problem": problem, "--trust": trust})
        from evokern.analysis.sanitize.arguments import parse_argument
        from evokern.analysis.sanitize.file import FileLaunch, sanitize_file

        wanted = FileLaunch(
            Path(target),
            entry,
            parse_extent("--grid", grid),
            parse_extent("--block", block),
            smem or 0,
            tuple(parse_argument(text) for text in arg),
            tuple(define),
            tuple(include),
            limit or INSTRUCTION_LIMIT,
            seed or 0,
            "a" if arch.strip().lower().endswith("a") else "",
            parse_extent("--cluster", cluster),
        )
        report = sanitize_file(wanted, chip)
    else:
        _require_kernel(target)
        _refuse("a kernel folder", of_files)
        from evokern.analysis.check.folder import known_problems
        from evokern.analysis.sanitize.repeats import small_or_given
        from evokern.study.discovery import find_kernel

        kernel = find_kernel(target, trust=trust)
        changes = parse_assignments(set_)
        config = kernel.space.with_changes(kernel.space.default(), changes)
        for remark in kernel.space.without_effect(config, changes):
            output.note(remark)
        problems = small_or_given(kernel, config, problem, chip)
        studied = [one for one in known_problems(kernel)[:1] if one not in problems] if problem is None else None
        report = sanitize_kernel(kernel, config, problems, chip, limit or INSTRUCTION_LIMIT, studied)
        candidate = changed_genes_text(config, kernel.genes)
    if output.json:
        output.print_json(report.as_dict())
    else:
        for remark in report.remarks:
            output.note(remark)
        if candidate:
            output.print_line(f"candidate: {candidate}")
        for line in lines(report):
            output.print_line(line)
    return 1 if report.errors or report.over_limit or (strict and not report.clean) else 0


def _require_kernel(target: str) -> None:
    """Reject a file that is neither a kernel folder nor CUDA source."""
    path = Path(target)
    named = ", ".join(SOURCES)
    if path.suffix in COMPILED:
        raise UsageError(f"{target} is compiled code; sanitize reads CUDA source ({named}), so pass the source file")
    if is_file(path):
        raise UsageError(f"{target} is not a CUDA file ({named}); rename it if it contains CUDA source")


def _refuse(what: str, options: Mapping[str, object]) -> None:
    """Reject options that do not apply to this kind of target."""
    for name, value in options.items():
        if value not in (None, [], False):
            other = "a kernel folder" if what == "a CUDA file" else "a CUDA file"
            raise UsageError(f"{name} applies only to {other}, but the target is {what}; omit {name}")


def lines(report: SanitizeReport) -> Iterator[str]:
    """Yield the lines of a report."""
    for run in report.runs:
        yield run.title
        yield from (f"  printed: {line}" for line in run.printed.splitlines())
        if not run.completed:
            yield "  the run ended early; the rest of the run was not checked"
    for number, finding in enumerate(report.findings, 1):
        yield ""
        yield from _finding(report, number, finding)
    yield ""
    if report.clean:
        yield "clean: nothing was found"
    else:
        kinds: dict[str, int] = {}
        for finding in report.findings:
            kinds[finding.kind.replace("_", " ")] = kinds.get(finding.kind.replace("_", " "), 0) + 1
        total = len(report.findings)
        yield f"{total} finding{'s' if total > 1 else ''}: {counts(kinds)}"
        if warnings := total - len(report.errors):
            what = "are warnings" if warnings > 1 else "is a warning"
            yield f"{warnings} of them {what}; with --strict, warnings also fail"
    if report.over_limit:
        yield "not finished: a launch reached the limit; run a smaller problem, or raise --limit"


def _finding(report: SanitizeReport, number: int, finding: Finding) -> Iterator[str]:
    from evokern.analysis.sanitize.candidate import UNWRITTEN

    place = _place(report, finding.file, finding.line)
    level = "" if finding.matters else f"{finding.level}: "
    if finding.kind == UNWRITTEN:
        yield f"{number}. {level}unwritten output {finding.allocation}"
        yield f"   first byte    {finding.offset:,}"
        yield f"   elements      {finding.count:,}"
        yield f"   usual cause   {finding.hint}"
        return
    yield f"{number}. {level}{finding.kind.replace('_', ' ')} at {place}"
    if finding.source:
        yield f"     {finding.source}"
    block, thread = (",".join(map(str, at)) for at in (finding.block, finding.thread))
    yield f"   first in      block {block}, thread {thread}"
    if finding.allocation:
        yield f"   memory        {finding.allocation}, byte {finding.offset:,} (address {finding.address:#x})"
    if finding.other_line:
        yield f"   other access  {_place(report, finding.other_file, finding.other_line)}"
        text = report.text(finding.other_file, finding.other_line)
        if text:
            yield f"     {text}"
        yield from (f"     called from {_place(report, file, line)}" for file, line in finding.other_called_from)
    yield from (f"   called from   {_place(report, file, line)}" for file, line in finding.called_from)
    yield f"   instruction   {finding.instruction}"
    yield f"   occurrences   {finding.count:,}"
    yield f"   usual cause   {finding.hint}"


def _place(report: SanitizeReport, file: str, line: int) -> str:
    return f"{file or report.file}:{line}" if line else f"unknown line of {report.file}"


@command(
    "prove",  # words: the examples are commands
    examples="""
    evokern prove
    evokern prove attention-s512 --trial 42 --json
    evokern prove rmsnorm --set ROW_SUM=every_block
    evokern prove matmul --set STAGES=3 --problem "M=130 N=128 K=328 layout=nt"
    """,
)
def prove(
    output: Output,
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="STUDY|KERNEL",
            help="Name of a study in the database, or name or folder of a kernel. Default: the study searched last.",
            autocompletion=complete_kernels,
        ),
    ] = None,
    trial: TrialOption = None,
    set_: SetOption = [],  # noqa: B006 (typer makes a new list for every call)
    problem: Annotated[
        str | None,
        typer.Option(
            "--problem",
            metavar="P",
            help=f"Problem to run, {PROBLEM_FORMS}. Default: the small problems, and problems at which loops repeat.",
        ),
    ] = None,
    limit: Annotated[
        str,
        typer.Option("--limit", metavar="TIME", help="Time limit, such as 5m; comparisons beyond it are not finished."),
    ] = "2m",
    arch: Annotated[
        str | None,
        typer.Option("--arch", metavar="SM", help="KERNEL only: sm_80, sm_86, sm_89, sm_90 or sm_90a. Default: sm_89."),
    ] = None,
    reference: ReferenceOption = None,
    trust: StoredTrustOption = False,
    db: DbOption = DEFAULT_DB,
) -> int:
    """Show in exact arithmetic that a candidate computes the same expression as the default candidate.

    The PTX of both runs on the CPU. Random elements of a finite field take the place of floating-point values, so
    neither rounding nor the order of additions matters. The default candidate is compared with the reference in the
    same way, if the reference consists of operations with a rule. Each output is the same, different, not finished, or
    not comparable, with the instruction that leaves the field. The exit code is 1 unless every output is the same as
    the default candidate's or equal to the reference. The result of a trial is stored.
    """
    from evokern.analysis.prove import ProofRequest, proof_subject, prove_candidate, store_proof
    from evokern.study.options import parse_duration
    from evokern.tuning.reference import register_reference

    if reference:
        register_reference(reference)
    seconds = parse_duration(limit)
    request = ProofRequest(target, db, trial, parse_assignments(set_), problem, arch, trust)
    with proof_subject(request) as subject:
        for remark in subject.remarks:
            output.note(remark)
        report = prove_candidate(subject, seconds, alone=problem is not None, note=output.note)
        store_proof(db, subject, report)
    if output.json:
        output.print_json(report.as_dict())
        return 0 if report.proved else 1
    output.print_line(f"candidate: {subject.title}")
    for proof in report.proofs:
        output.print_line(f"{report.name} at {proof.problem}")
        for verdict in proof.verdicts:
            output.print_line(f"  {verdict}")
    for remark in report.remarks:
        output.note(remark)
    return 0 if report.proved else 1
