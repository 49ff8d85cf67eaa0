"""`evokern sweep run|show|export|report SWEEP` and `evokern pack SWEEP`: search many studies, and pack the results."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evokern.cli._command import INTERRUPTED, app, command
from evokern.cli._options import (
    AllowChangesOption,
    DeviceOption,
    InputsOption,
    KeepGoingOption,
    NumCpusOption,
    NumGpusOption,
    RayAddressOption,
    StoredTrustOption,
)
from evokern.cli._output import Output, save, show_line, table
from evokern.cli.panel import Watcher
from evokern.errors import InternalError, UsageError
from evokern.files import link_outside, make_folder
from evokern.wording import command as command_line
from evokern.wording import count_noun, duration

if TYPE_CHECKING:
    from evokern.sweep import StudyState, Sweep

group = typer.Typer(
    name="sweep",
    no_args_is_help=True,
    help="Search many studies defined by one file: combinations of kernels, problems, data types and devices.",
    short_help="Search many studies defined by one file",
)
app.add_typer(group)

SweepArgument = Annotated[Path, typer.Argument(metavar="SWEEP", help="TOML file of the sweep.")]
FolderOption = Annotated[
    Path | None,
    typer.Option(
        "--db",
        metavar="DIR",
        help="Folder of the studies' databases. Default: ./NAME for NAME.toml.",
    ),
]


class WarmStart(StrEnum):
    """Warm start of new studies in a sweep."""

    AUTO = "auto"
    NONE = "none"


@command(
    "run",
    group=group,
    examples="""
    evokern sweep run sweep.toml
    evokern sweep run sweep.toml --device sim:h200 --budget 6h
    evokern sweep run sweep.toml --db runs --warm-start none
    """,
)
def run(
    output: Output,
    sweep: SweepArgument,
    device: DeviceOption = None,
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            metavar="TIME",
            help="Total time for all studies over all runs, such as 6h, 1h30m or 45s. Default: no overall limit.",
        ),
    ] = None,
    warm_start: Annotated[
        WarmStart,
        typer.Option(
            "--warm-start",
            metavar="auto|none",
            help="Earlier results that seed a new study: auto (the nearest completed study in the folder) or none.",
        ),
    ] = WarmStart.AUTO,
    inputs: InputsOption = None,
    keep_going: KeepGoingOption = False,
    no_verify: Annotated[
        bool,
        typer.Option(
            "--no-verify", help="Skip verification of champions; `evokern pack` verifies the variants that it packs."
        ),
    ] = False,
    allow_changes: AllowChangesOption = False,
    trust: Annotated[
        bool,
        typer.Option(
            "--trust",
            help="Trust the sweep's kernel folders: allow their kernel.py files to run, now and in later commands.",
        ),
    ] = False,
    ray_address: RayAddressOption = None,
    num_cpus: NumCpusOption = None,
    num_gpus: NumGpusOption = None,
    db: FolderOption = None,
) -> int:
    """Search each combination of a sweep as a separate study, or resume an earlier run.

    The first study of each kernel and device runs to completion, because its results seed the other studies. The other
    studies then get two time slices each. After that, the study that improved fastest in its last slice gets the next
    slice. A study is finished when it has reached its trial limit or budget and its champion is verified. To resume
    after Ctrl-C or a crash, run the same command again.
    """
    from evokern.cluster.request import ray_request
    from evokern.sweep import SweepRequest, read_sweep, run_sweep
    from evokern.sweep.study_state import totals

    found = read_sweep(sweep, device)
    folder = db or found.folder
    if db is None and (why := link_outside(folder)):
        raise UsageError(f"{why}; remove the link, or choose the folder with --db")
    if found.held_out:
        output.note(f"{count_noun(len(found.held_out), 'held-out shape')} of {sweep} will not be searched")
    cluster = ray_request(ray_address, num_cpus, num_gpus)
    request = SweepRequest(
        device, cluster, budget, warm_start.value, allow_changes, trust, inputs, keep_going, verify=not no_verify
    )
    with Watcher(output, lines=False) as watch:
        result = run_sweep(found, folder, request, output.note, watch)
    failed = [one for one in result.states if one.failed]
    code = INTERRUPTED if result.end == "interrupted" else 2 if result.refused else int(bool(failed))
    if output.json:
        output.print_json({"sweep": str(sweep), "folder": str(folder), **result.as_dict()})
        return code
    _list(result.states)
    output.print_line(totals(result.states))
    where = (sweep, *(("--db", db) if db else ()))
    if result.end == "interrupted":
        output.print_line("interrupted; all results are saved. To resume, repeat the command")
    elif result.end == "budget":
        output.print_line("the sweep's budget is used up; to continue, increase --budget")
    for one in failed:
        details = command_line("show", "--db", one.db)
        output.print_line(f"{one.name}: every candidate failed; for details, run `{details}`")
    for name, why in result.refused.items():
        output.print_error(f"cannot continue {name}: {why}")
    output.print_line(f"next: {command_line('sweep', 'export', *where, '-o', 'OUT')}")
    return code


def _folder_of(sweep: Path, db: Path | None) -> tuple[Sweep, Path, tuple[StudyState, ...]]:
    """Return the sweep with the device of its last run, the folder of the sweep, and the state of each study."""
    from evokern.sweep import Journal, read_sweep, state_of

    folder = db or read_sweep(sweep).folder
    found = read_sweep(sweep, Journal.of(folder).device)
    return found, folder, tuple(state_of(one, folder) for one in found.studies)


@command(
    "show",
    group=group,
    examples="""
    evokern sweep show sweep.toml
    evokern sweep show sweep.toml --db runs --json
    """,
)
def show(output: Output, sweep: SweepArgument, db: FolderOption = None) -> None:
    """Show the state of each study of a sweep: trials, best time and verification.

    The command works on any machine, even while the sweep runs, and needs no kernel folder.
    """
    from evokern.sweep.study_state import totals

    found, folder, standings = _folder_of(sweep, db)
    if output.json:
        studies = [
            {**one.as_dict(), "problem": planned.problem, "weight": planned.weight}
            for one, planned in zip(standings, found.studies, strict=True)
        ]
        output.print_json({"sweep": str(sweep), "folder": str(folder), "studies": studies})
        return
    _list(standings)
    output.print_line(totals(standings))
    if not folder.is_dir():
        output.print_line(
            f"folder {folder} does not exist: the sweep has not run yet, or its results are elsewhere (see --db)"
        )


def _list(standings: tuple[StudyState, ...]) -> None:
    rows = [
        (
            one.name,
            one.state,
            str(one.trials),
            one.best,
            duration(one.elapsed_s),
            "" if one.best_us is None else "verified" if one.verified else "not verified",
        )
        for one in standings
    ]
    width = max(len(name) for name, *_ in rows)
    for line in table(
        ("study".ljust(width), "state", "trials", "best µs", "time", "verification"),
        [(name.ljust(width), *rest) for name, *rest in rows],
    ):
        show_line(line)


@command(
    "export",
    group=group,
    examples="""
    evokern sweep export sweep.toml -o OUT
    evokern sweep export sweep.toml -o OUT --db runs
    """,
)
def export(
    output: Output,
    sweep: SweepArgument,
    out: Annotated[Path, typer.Option("-o", "--output", metavar="OUT", help="Output folder; created if missing.")],
    trust: StoredTrustOption = False,
    db: FolderOption = None,
) -> int:
    """Export the champion of each study as a stand-alone CUDA program, OUT/STUDY.cu.

    Each program builds with nvcc alone. The exit code is 1 if a champion cannot be exported.
    """
    from evokern.export import export_trial
    from evokern.store import open_readonly

    _, _, standings = _folder_of(sweep, db)
    try:
        make_folder(out)
    except OSError as error:
        raise UsageError(f"cannot write to {out}: {error.strerror}; choose another folder with -o") from error
    written, refused = [], {}
    for one in standings:
        if one.best_us is None:
            output.print_line(f"{one.name}: no champion ({one.in_words()})")
            continue
        file = out / f"{one.name}.cu"
        try:
            with open_readonly(one.db) as reader:
                made = export_trial(reader, one.name, None, file_name=file.name, trust=trust, report=output.note)
        except (UsageError, InternalError) as error:
            refused[one.name] = str(error)
            output.print_error(f"{one.name}: {error}")
            continue
        save(file, made.text, "-o")
        facts = {"trial": made.trial, "time_us": made.time_us, "predicted": made.predicted, **made.proof.as_dict()}
        facts |= {"checks": made.checks.passed, "checks_omitted": made.checks.omitted}
        written.append({"study": one.name, "file": str(file), **facts})
        output.print_line(f"wrote {file}: trial {made.trial}, {one.in_words()}; {made.checks.in_words()}")
    if output.json:
        output.print_json({"files": written, "refused": refused})
    else:
        output.print_line(f"exported {len(written)} of {len(standings)} studies")
    return int(bool(refused))


@command(
    "report",
    group=group,
    examples="""
    evokern sweep report sweep.toml -o sweep.html
    evokern sweep report sweep.toml -o sweep.html --db runs
    """,
)
def report(
    output: Output,
    sweep: SweepArgument,
    file: Annotated[Path, typer.Option("-o", "--output", metavar="OUT", help="File to write, or - for stdout.")],
    db: FolderOption = None,
) -> None:
    """Write an HTML page about a sweep: the state and result of each study, and the time spent on each.

    The page works offline. For the full report on one study, use `evokern report --db FILE`.
    """
    from evokern.sweep.page import sweep_page

    found, folder, standings = _folder_of(sweep, db)
    text = sweep_page(found, folder, standings)
    if str(file) == "-":
        output.write(text + "\n")
        return
    save(file, text, "-o")
    if output.json:
        output.print_json({"file": str(file), "studies": len(standings), "bytes": len(text.encode())})
    else:
        output.print_line(f"wrote {file}: {len(standings)} studies, {len(text.encode()) / 1e6:.2f} MB")


@command(
    "pack",
    examples="""
    evokern pack sweep.toml -o my_attention/
    evokern pack sweep.toml -o my_attention/ --variants 4 --db runs
    """,
)
def pack(
    output: Output,
    sweep: SweepArgument,
    folder: Annotated[
        Path,
        typer.Option("-o", "--output", metavar="FOLDER", help="Folder of the package; its name is the package's name."),
    ],
    variants: Annotated[
        int, typer.Option("--variants", metavar="N", min=1, max=256, help="Maximum number of kernels in the package.")
    ] = 8,
    candidates: Annotated[
        int,
        typer.Option(
            "--candidates",
            metavar="N",
            min=1,
            max=256,
            help="Maximum number of candidates that are measured crosswise.",
        ),
    ] = 16,
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            metavar="TIME",
            help="Begin no measurement after this time, such as 8m; repeat the command to continue. Default: no limit.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Also pack variants that are not verified.")] = False,
    trust: StoredTrustOption = False,
    db: FolderOption = None,
) -> int:
    """Write the best kernels of a sweep as an installable Python package with one operator for torch.

    The command measures champions and further fast trials at the shapes of the sweep and at the held-out shapes. The
    times are stored in the folder of the sweep. The command then chooses at most N kernels, and a decision tree that
    selects a kernel for each shape. Other shapes run a torch function. `pip install` needs no compiler. The exit code
    is 1 if the budget ended before all times were measured.
    """
    from evokern.pack import PackRequest, packed_sweep
    from evokern.pack.crosswise import OverBudgetError
    from evokern.pack.from_sweep import in_words
    from evokern.study.options import parse_duration
    from evokern.sweep import Journal, read_sweep

    databases = db or read_sweep(sweep).folder
    found = read_sweep(sweep, Journal.of(databases).device)
    request = PackRequest(variants, candidates, None if budget is None else parse_duration(budget), trust, force)
    try:
        made = packed_sweep(found, databases, folder, request, output.note)
    except OverBudgetError as error:
        output.print_error(f"{error}; the times so far are stored. To continue, repeat the command")
        return 1
    except KeyboardInterrupt:
        output.print_error("interrupted; the results so far are stored. To continue, repeat the command")
        return INTERRUPTED
    if output.json:
        facts: dict[str, Any] = {
            "folder": str(made.written.folder),
            "operator": made.operator,
            "variants": made.variants,
        }
        facts |= {"launch": made.written.launch, "without_champion": made.without}
        facts |= {**asdict(made.summary), "held_out": asdict(made.held_out), "gains": made.gains}
        output.print_json({**facts, "files": list(made.written.files)})
        return 0
    output.print_line(f"wrote {made.written.folder}: operator {made.operator}({made.schema})")
    output.print_line(f"{count_noun(len(made.variants), 'variant')}: {', '.join(made.variants)}")
    for line in in_words(made):
        output.print_line(line)
    if made.without:
        output.print_line(f"without a champion, so the baseline serves them: {', '.join(made.without)}")
    output.print_line(f"launched by {made.written.launch}")
    output.print_line(f"install: {made.written.install}")
    return 0
