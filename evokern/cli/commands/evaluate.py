"""`evokern evaluate KERNEL --source candidate.cu`: check and time external sources."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evokern.cli._command import command
from evokern.cli._options import (
    PROBLEM_FORMS,
    KernelArgument,
    SetOption,
    TrustOption,
    complete_devices,
    parse_assignments,
    parse_extent,
)
from evokern.cli._output import Output, table
from evokern.errors import UsageError
from evokern.wording import microseconds

if TYPE_CHECKING:
    from evokern.analysis.evaluate import Evaluator, SourceResult


@command(
    "evaluate",  # words: the examples are commands
    examples="""
    evokern evaluate rmsnorm --source candidate.cu --problem "ROWS=64 COLS=1024"
    evokern evaluate rmsnorm --source candidates/ --problem 8192,8192 --device cuda:0 --json
    evokern evaluate kernels/task --source a.cu --source b.cu --grid 64 --block 16,16 --smem 4096
    """,
)
def evaluate(
    output: Output,
    kernel: KernelArgument,
    source: Annotated[
        list[Path],
        typer.Option(
            "--source",
            metavar="FILE.cu|FOLDER",
            help="CUDA file with the kernel's signature, or a folder of such files; may be repeated.",
        ),
    ] = [],  # noqa: B006 (typer makes a new list for every call)
    problem: Annotated[
        str | None,
        typer.Option(
            "--problem",
            metavar="P",
            help=f"Problem to run, {PROBLEM_FORMS}. Default: the first problem of the kernel's first study, or a small "
            "problem if the kernel has no study.",
        ),
    ] = None,
    device: Annotated[
        str,
        typer.Option(
            "--device",
            metavar="DEVICE",
            help="Device: auto (a GPU, otherwise a simulated L4), cuda:N or sim:CHIP (see `evokern list`).",
            autocompletion=complete_devices,
        ),
    ] = "auto",
    set_: SetOption = [],  # noqa: B006
    grid: Annotated[
        str | None,
        typer.Option("--grid", metavar="X,Y,Z", help="Number of blocks. Default: from the kernel's declaration."),
    ] = None,
    block: Annotated[
        str | None,
        typer.Option("--block", metavar="X,Y,Z", help="Threads per block. Default: from the kernel's declaration."),
    ] = None,
    smem: Annotated[
        int | None,
        typer.Option(
            "--smem",
            metavar="BYTES",
            min=0,
            help="Dynamic shared memory per block. Default: from the kernel's declaration.",
        ),
    ] = None,
    trust: TrustOption = False,
) -> int:
    """Check and time external CUDA sources.

    Each source replaces the kernel's own source file. The kernel's macros, headers, buffers, reference, tolerance and
    launches are kept. Sources are compiled, checked and timed against the baseline in separate processes. Nothing is
    written to a database. The exit code is 1 if a source is not correct.
    """
    from evokern.analysis.evaluate import Evaluator, sources_of

    if not source:
        raise UsageError("nothing to evaluate; use --source to name a CUDA file or a folder of CUDA files")
    sources = list(sources_of(source))
    judge = Evaluator(
        kernel,
        problem=problem,
        device=device,
        genes=dict(parse_assignments(set_)),
        grid=parse_extent("--grid", grid),
        block=parse_extent("--block", block),
        shared_bytes=smem,
        trust=trust,
    )
    done: list[SourceResult] = []

    def report_one(result: SourceResult) -> None:
        done.append(result)
        if len(sources) > 1:
            output.note(f"{len(done)} of {len(sources)}: {result.source} {result.outcome}")

    with judge:
        for note in judge.notes:
            output.note(note)
        results = judge.evaluate_all(sources, report_one)
        facts = judge.facts()
    right = sum(result.right for result in results)
    if output.json:
        listed = [result.as_dict() for result in results]
        output.print_json({**facts, "total": len(results), "right": right, "results": listed})
    else:
        for line in lines(judge, results):
            output.print_line(line)
    return 0 if right == len(results) else 1


def lines(judge: Evaluator, results: Sequence[SourceResult]) -> Iterator[str]:
    """Yield the lines of the text output: one line with problem, device and baseline, then one line per source."""
    unit = "predicted µs" if judge.predicted else "µs"
    against = f", {judge.baseline[0]} takes {microseconds(judge.baseline[1])} µs" if judge.baseline else ""
    yield f"{judge.kernel.name} at {judge.problem} on {judge.device}{against}"
    header = ("source", "outcome", unit, "95 % interval", "speedup", "check: reason")
    rows = [
        (
            result.source,
            result.outcome,
            microseconds(result.time_us) if result.time_us else "-",
            " to ".join(map(microseconds, result.ci95_us)) if result.ci95_us else "-",
            f"{result.speedup:.2f}×" if result.speedup else "-",
            _why(result),
        )
        for result in results
    ]
    yield from table(header, rows)
    if len(results) > 1:
        yield f"{sum(result.right for result in results)} of {len(results)} sources are correct"


def _why(result: SourceResult) -> str:
    if result.right and result.duplicate_of is None:
        return result.doubt
    return result.reason if not result.check or result.check in result.reason else f"{result.check}: {result.reason}"
