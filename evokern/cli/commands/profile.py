"""`evokern profile [STUDY|KERNEL]`: profile a candidate with GPU counters or on the simulator."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evokern.cli._command import command
from evokern.cli._options import (
    DEFAULT_DB,
    PROBLEM_FORMS,
    DbOption,
    ReferenceOption,
    SetOption,
    TrialOption,
    completions,
    parse_assignments,
)
from evokern.cli._output import LOGGER, Output, save, table
from evokern.errors import StoreError, UsageError
from evokern.wording import count_noun, microseconds

if TYPE_CHECKING:
    from evokern.analysis.profile.bound import Bottleneck
    from evokern.analysis.profile.counters import CountedCandidate
    from evokern.analysis.profile.simulated import CandidateProfile, LaunchProfile, LineProfile
    from evokern.analysis.profile.subject import ProfileSubject

WORST_BOUND = 0.02
"""Components and lines below this fraction of the largest one are omitted from the text."""

WIDTH = 120
"""Width of the text in columns. Longer text is wrapped, and longer source lines are cut, except with `--json`."""
_CALLS_SHOWN = 3


def _complete(incomplete: str) -> list[str]:
    from evokern.study.discovery import kernel_folders, study_files

    return completions((*study_files(), *kernel_folders()), incomplete)


@command(
    "profile",  # words: the examples are commands
    examples="""
    evokern profile --trial 42
    evokern profile attention-s512 --device cuda:0 --keep best.ncu-rep
    evokern profile attention-s512 --device sim:l4 --set BLOCK_M=64
    evokern profile attention-s512 --device sim:l4 --html profile.html
    evokern profile attention --device sim:h200 --problem "B=2 H=8 S=512 D=64" --top 40 --json
    """,
)
def profile(
    output: Output,
    study: Annotated[
        str | None,
        typer.Argument(
            metavar="STUDY|KERNEL",
            help="Name or TOML file of a study, or name or folder of a kernel. Default: the study searched last.",
            autocompletion=_complete,
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            metavar="DEVICE",
            help="Device: cuda:N for GPU counters; sim:l4, sim:h200, sim:h100, sim:a100 or sim:rtx4090 for simulation. "
            "Default: the study's GPU if this machine has it, otherwise a simulation of that chip.",
        ),
    ] = None,
    trial: TrialOption = None,
    set_: SetOption = [],  # noqa: B006 (typer makes a new list for every call)
    problem: Annotated[
        str | None,
        typer.Option(
            "--problem", metavar="P", help=f"Problem to run, {PROBLEM_FORMS}. Default: the study's first problem."
        ),
    ] = None,
    top: Annotated[
        int, typer.Option("--top", metavar="N", min=1, help="Number of source lines to show (simulation only).")
    ] = 5,
    all_: Annotated[bool, typer.Option("--all", help="Show every source line (simulation only).")] = False,
    keep: Annotated[
        Path | None,
        typer.Option(
            "--keep",
            metavar="FILE",
            help="Save the Nsight Compute report to FILE; .ncu-rep is appended if missing (GPU only).",
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html", metavar="FILE", help="Write an HTML page with the source and the cost of each line to FILE."
        ),
    ] = None,
    reference: ReferenceOption = None,
    trust: Annotated[
        bool,
        typer.Option(
            "--trust",
            help="For a study in the database: allow the database's copy of kernel.py to run if the kernel folder is "
            "missing, changed or not trusted. For a study file or kernel: trust the kernel folder, now and in later "
            "commands.",
        ),
    ] = False,
    db: DbOption = DEFAULT_DB,
) -> None:
    """Show what limits the speed of a candidate, and which genes to try next.

    On a GPU, Nsight Compute (ncu) profiles one call. Without a GPU, sampled blocks run on the CPU, which gives counters
    per source line and a predicted time. The time of a line is the time for which its instructions occupy their busiest
    resource. Lines overlap, so these times do not add up to the total. The profile of a trial is stored in the
    database.
    """
    from evokern.analysis.profile.counters import profile_counted, why_no_profiler
    from evokern.analysis.profile.simulated import profile_simulated
    from evokern.analysis.profile.subject import ProfileRequest, subject_of
    from evokern.tuning.reference import register_reference

    if reference:
        register_reference(reference)
    request = ProfileRequest(study, db, trial, parse_assignments(set_), problem, device, trust)
    with subject_of(request) as subject:
        notes = list(subject.remarks)
        lacking = why_no_profiler() if subject.gpu else None
        if keep is not None and (subject.gpu is None or lacking):
            raise UsageError(
                f"--keep {keep}: {lacking or 'there is no Nsight Compute report for a simulated chip; omit --keep'}"
            )
        notes += [lacking] if lacking else []
        for note in notes:
            output.note(note)
        found: CountedCandidate | CandidateProfile
        if subject.gpu is None or lacking:
            found = profile_simulated(subject)
            output_lines = lines(found, None if all_ else top)
        else:
            found = profile_counted(subject, keep, LOGGER.info)
            output_lines = counted_lines(found)
        notes += _store_profile(subject, db, found.as_dict())
        if html is not None:
            _page(subject, found, html)
            notes.append(f"wrote {html}")
        for note in notes[len(subject.remarks) + bool(lacking) :]:
            output.note(note)
    if output.json:
        output.print_json({**found.as_dict(), "notes": notes})
        return
    for line in output_lines:
        output.print_line(line)


def _page(subject: ProfileSubject, found: CountedCandidate | CandidateProfile, html: Path) -> None:
    """Write the profile as an HTML page."""
    from evokern.declaration.render import render
    from evokern.report.pages.profile_page import profile_page

    rendered = render(subject.kernel, subject.config, subject.problem)
    sources = {"": rendered.source, **rendered.headers}
    save(html, profile_page(found, sources, subject.kernel.source), "--html")


def _store_profile(subject: ProfileSubject, db: Path, result: Mapping[str, Any]) -> list[str]:
    """Store the profile with its trial; return notes for the user."""
    from evokern.store import add_profile

    if subject.record is None or subject.trial is None:
        return []
    try:
        add_profile(db, subject.record, subject.trial.number, result)
    except StoreError as error:
        return [f"could not store the profile with the trial: {error}"]
    return []


def counted_lines(found: CountedCandidate) -> Iterator[str]:
    """Yield the lines of a GPU profile."""
    from evokern.analysis.profile.nsight import METRICS

    yield f"{found.title} at {found.in_words} on {found.device}, profiled by Nsight Compute"
    searched = f"{microseconds(found.time_us)} µs in the search, " if found.time_us else ""
    yield f"time {searched}{microseconds(found.duration_us)} µs under Nsight Compute"
    yield from _bottleneck(found.verdict)
    yield ""
    several = len(found.launches) > 1
    for launch in found.launches:
        grid, block = ("×".join(map(str, extent)) for extent in (launch.grid, launch.block))
        blocks = launch.grid[0] * launch.grid[1] * launch.grid[2]
        yield f"{launch.entry}: {blocks:,} blocks ({grid}) of {block} threads"
    header = ("counter", "value", *(("per launch",) if several else ("unit",)))
    rows = []
    for metric in METRICS:
        parts = " ".join(_value(launch.counters[metric.key], metric.unit) for launch in found.launches)
        rows.append((metric.label, _value(found.counters[metric.key], metric.unit), parts if several else metric.unit))
    yield from table(header, rows)
    if found.report:
        yield f"report     {found.report}"


def _value(value: float | None, unit: str) -> str:
    if value is None:
        return "n/a"
    return f"{value:,.0f}" if unit in ("ns", "") else f"{value:.1f}"


def _bottleneck(bottleneck: Bottleneck) -> Iterator[str]:
    yield from _wrapped(f"{bottleneck.bound}: {'; '.join(bottleneck.evidence)}")
    if bottleneck.advice:
        yield from _wrapped(f"advice: {bottleneck.advice}")
    for index, suggestion in enumerate(bottleneck.suggestions):
        yield from _wrapped(f"{'try next: ' if index == 0 else '          '} {suggestion.text}")
    if bottleneck.advice and not bottleneck.suggestions:
        how = f'add it in kernel.py, for example Parameter(…, relieves=("{bottleneck.bound.removesuffix("-bound")}",))'
        none = "no gene of this kernel relieves this bottleneck"
        yield from _wrapped(
            f"this kernel's genes do not declare which bottlenecks they relieve; {how}"
            if bottleneck.undeclared
            else none
        )


def _wrapped(text: str, indent: int = 11) -> list[str]:
    begin = text[: len(text) - len(text.lstrip())]
    return textwrap.wrap(
        text.lstrip(), WIDTH, initial_indent=begin, subsequent_indent=" " * indent, break_on_hyphens=False
    )


def lines(found: CandidateProfile, top: int | None) -> Iterator[str]:
    """Yield the lines of a simulated profile, with the `top` most expensive source lines; None shows all of them."""
    word = "predicted" if found.predicted else "measured"
    yield f"{found.title} at {found.in_words} on {found.device}"
    yield from _wrapped(f"{word} time {microseconds(found.time_us)} µs: {_components(found.terms_us)}")
    if found.fault:
        yield f"the results are wrong: {found.fault}"
    yield from _bottleneck(found.verdict)
    for launch in found.launches:
        yield ""
        yield from _launch(found, launch, top)


def _launch(found: CandidateProfile, launch: LaunchProfile, top: int | None) -> Iterator[str]:
    grid, block = ("×".join(map(str, extent)) for extent in (launch.grid, launch.block))
    used, blocks = launch.resources, launch.grid[0] * launch.grid[1] * launch.grid[2]
    yield f"{launch.entry}: {blocks:,} blocks ({grid}) of {block} threads"
    if len(found.launches) > 1:
        yield f"  time       {microseconds(launch.time_us)} µs: {_components(launch.terms_us)}"
    yield (
        f"  resources  {used.registers} registers, {used.spill_bytes} bytes spilled, shared memory "
        f"{used.static_shared_bytes:,} static and {used.dynamic_shared_bytes:,} dynamic bytes"
    )
    yield f"  occupancy  {100 * used.occupancy:.0f} %, {count_noun(launch.blocks_per_sm, 'block')} per SM"
    waits = ", ".join(f"{cause.replace('_', ' ')} {clocks:,.0f}" for cause, clocks in launch.waits_clocks.items())
    yield from _wrapped(f"  waits      {waits} clocks (mean per warp)", 13)
    sampled = len(launch.sampled_blocks)
    yield f"  sampled    {sampled} of {blocks:,} blocks" + (", scaled to all" if sampled < blocks else "")
    header = ("µs", "resource", "warp instr.", "divergent", "wavefronts", "ideal", "sectors", "ideal", "line")
    least = WORST_BOUND * launch.lines[0].time_us if launch.lines and top is not None else 0.0
    shown = [line for line in launch.lines if line.time_us >= least][:top]
    rows = [
        [
            microseconds(line.time_us),
            line.resource,
            _count(line.warp_instructions),
            _count(line.divergent),
            _count(line.shared_wavefronts),
            _count(line.ideal_wavefronts),
            _count(line.global_sectors),
            _count(line.ideal_sectors),
            f"{line.file or found.file}:{line.line}  {line.source}" if line.line else "(no line)",
        ]
        for line in shown
    ]
    width = None if top is None else WIDTH
    head, *body = table(header, rows)
    yield head
    for line, text in zip(shown, body, strict=True):
        yield _cut(text, width)
        yield from _calls(found, line, width)
    rest = len(launch.lines) - len(shown)
    if rest:
        yield f"{count_noun(rest, 'cheaper line')} not shown (use --all, --top N or --json)"


def _calls(found: CandidateProfile, line: LineProfile, width: int | None) -> Iterator[str]:
    """Yield the cost of a line in an inline function per call site, if the function has several call sites.

    Each of the most expensive call sites has its own line; the others share one line. The times of all call sites add
    up to the time of the source line.
    """
    if len(line.calls) < 2:
        return
    shown = None if width is None else _CALLS_SHOWN
    for share in line.calls[:shown]:
        (file, number), *outer = share.calls
        chain = [f" < {name or found.file}:{at}" for name, at in outer]
        head = f"      {microseconds(share.time_us)} µs, {_count(share.warp_instructions)} warp instr."
        place = f"{head}  from {file or found.file}:{number}  "
        if width is None:
            yield place + share.source + "".join(chain)
            continue
        through = "".join(chain if len(chain) < 3 else [chain[0], " < …", chain[-1]])
        yield _cut(place + share.source, max(width - len(through), len(place))) + through
    rest = () if shown is None else line.calls[shown:]
    if rest:
        time_us = microseconds(sum(share.time_us for share in rest))
        yield f"      {time_us} µs, {_count(sum(share.warp_instructions for share in rest))} warp instr." + (
            f"  from {count_noun(len(rest), 'other call site')}"
        )


def _cut(text: str, width: int | None) -> str:
    return text if width is None or len(text) <= width else text[: width - 1] + "…"


def _count(number: int) -> str:
    return f"{number:,}" if number else "-"


def _components(terms: Mapping[str, float]) -> str:
    """Return the significant components of a time, largest first."""
    most = max(terms.values())
    shown = sorted(((us, name) for name, us in terms.items() if us >= WORST_BOUND * most), reverse=True)
    return ", ".join(f"{name} {microseconds(us)}" for us, name in shown)
