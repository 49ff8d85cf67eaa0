"""`evokern profile [STUDY|KERNEL]`: where a candidate's time goes, line by line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from evokern.cli._command import command
from evokern.cli._options import DEFAULT_DB, DbOption, SetOption, TrialOption, TrustOption, parse_assignments
from evokern.cli._output import Output
from evokern.cli._text import microseconds, table

if TYPE_CHECKING:
    from evokern.explain.profile import CandidateProfile, LaunchProfile

WORST_BOUND = 0.02
"""Terms and lines below this share of the largest are left out of the text."""

SOURCE_WIDTH = 90
"""Characters of a source line that the text shows."""


def _complete(incomplete: str) -> list[str]:
    from evokern.discovery import kernel_folders, study_files

    return [name for name in (*study_files(), *kernel_folders()) if name.startswith(incomplete)]


@command(
    "profile",
    examples="""
    evokern profile --trial 42
    evokern profile attention-s512 --device sim:l4 --set BLOCK_M=64
    evokern profile attention --device sim:h200 --problem 2,8,512,64 --top 40 --json
    """,
)
def profile(
    output: Output,
    study: Annotated[
        str | None,
        typer.Argument(
            metavar="[STUDY|KERNEL]",
            help="A study's name or file, or a kernel. Default: the study searched last.",
            autocompletion=_complete,
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            metavar="sim:CHIP",
            help="Chip to simulate: sim:l4, sim:h200, sim:h100, sim:a100, sim:rtx4090. Default: the study's.",
        ),
    ] = None,
    trial: TrialOption = None,
    set_: SetOption = [],  # noqa: B006 (typer makes a new list for every call)
    problem: Annotated[
        str | None, typer.Option("--problem", metavar="P", help="Problem to run. Default: the study's first.")
    ] = None,
    top: Annotated[int, typer.Option("--top", metavar="N", min=1, help="Lines to show.")] = 16,
    trust: TrustOption = False,
    db: DbOption = DEFAULT_DB,
) -> None:
    """Count what a candidate issues and moves, per source line, and say which term bounds its predicted time.

    Sampled blocks of the problem run on the CPU as the target chip's compiler made them; nothing is measured. A line's
    time is what its instructions alone would take on the resource they load most; lines overlap.
    """
    from evokern.explain.profile import profile_simulated
    from evokern.explain.subject import Words, subject_of

    words = Words(study, db, trial, parse_assignments(set_), problem, device, trust)
    with subject_of(words) as subject:
        for remark in subject.remarks:
            output.remark(remark)
        found = profile_simulated(subject)
    if output.json:
        output.emit(found.as_dict())
        return
    for line in lines(found, top):
        output.say(line)


def lines(found: CandidateProfile, top: int) -> Iterator[str]:
    """Yield a profile's lines for people."""
    word = "predicted" if found.predicted else "measured"
    yield f"{found.title} at {found.problem} on {found.device}"
    yield f"{word} time {microseconds(found.time_us)} µs, {found.cause}: {_terms(found.terms_us)}"
    if found.fault:
        yield f"its results are wrong: {found.fault}"
    for launch in found.launches:
        yield ""
        yield from _launch(found, launch, top)


def _launch(found: CandidateProfile, launch: LaunchProfile, top: int) -> Iterator[str]:
    grid, block = ("×".join(map(str, extent)) for extent in (launch.grid, launch.block))
    used, blocks = launch.resources, launch.grid[0] * launch.grid[1] * launch.grid[2]
    yield f"{launch.entry}: {blocks:,} blocks ({grid}) of {block} threads"
    if len(found.launches) > 1:
        yield f"  time       {microseconds(launch.time_us)} µs: {_terms(launch.terms_us)}"
    yield (
        f"  resources  {used.registers} registers, {used.spill_bytes} bytes spilled, shared memory "
        f"{used.static_shared_bytes:,} static and {used.dynamic_shared_bytes:,} dynamic bytes"
    )
    yield f"  occupancy  {100 * used.occupancy:.0f} %, {launch.blocks_per_sm} blocks on an SM"
    waits = ", ".join(f"{cause.replace('_', ' ')} {clocks:,.0f}" for cause, clocks in launch.waits_clocks.items())
    yield f"  waits      {waits} clocks of a warp, its block alone on an SM"
    sampled = len(launch.sampled_blocks)
    yield f"  counted    {sampled} of {blocks:,} blocks" + (", scaled to all" if sampled < blocks else "")
    header = ("µs", "on", "warp instr.", "divergent", "wavefronts", "ideal", "sectors", "ideal", "line")
    least = WORST_BOUND * launch.lines[0].time_us if launch.lines else 0.0
    shown = [line for line in launch.lines if line.time_us >= least][:top]
    rows = [
        (
            microseconds(line.time_us),
            line.resource,
            _count(line.warp_instructions),
            _count(line.divergent),
            _count(line.shared_wavefronts),
            _count(line.ideal_wavefronts),
            _count(line.global_sectors),
            _count(line.ideal_sectors),
            f"{line.file or found.file}:{line.line}  {line.source[:SOURCE_WIDTH]}" if line.line else "(no line)",
        )
        for line in shown
    ]
    yield from table(header, rows)
    rest = len(launch.lines) - len(shown)
    if rest:
        yield f"and {rest} lines that cost less (--top N, --json)"


def _count(number: int) -> str:
    return f"{number:,}" if number else "-"


def _terms(terms: Mapping[str, float]) -> str:
    """Return the terms that matter, the largest first."""
    most = max(terms.values())
    shown = sorted(((us, name) for name, us in terms.items() if us >= WORST_BOUND * most), reverse=True)
    return ", ".join(f"{name} {microseconds(us)}" for us, name in shown)
