"""`evokern sweep run|show|export|report SWEEP`: many studies of one file."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evokern.cli._command import INTERRUPTED, app, command
from evokern.cli._options import (
    DeviceOption,
    NumCpusOption,
    NumGpusOption,
    RayAddressOption,
    StoredTrustOption,
    TrustOption,
)
from evokern.cli._output import Output, save
from evokern.cli._text import show_line, table
from evokern.cli.commands.search import GoOnOption
from evokern.cli.panel import Watcher
from evokern.errors import UsageError
from evokern.files import make_folder
from evokern.wording import command as command_line
from evokern.wording import duration

if TYPE_CHECKING:
    from evokern.sweep import StudyStanding, Sweep

group = typer.Typer(
    name="sweep",
    no_args_is_help=True,
    help="Search many studies of one file: kernels, problems, data types, devices.",
    short_help="Search many studies of one file",
)
app.add_typer(group)

SweepArgument = Annotated[Path, typer.Argument(metavar="SWEEP", help="The sweep's TOML file.")]
FolderOption = Annotated[
    Path | None,
    typer.Option(
        "--db",
        metavar="DIR",
        help="Folder with the studies' databases. Default: the file's name without its suffix, here.",
    ),
]


class WarmStart(StrEnum):
    """What a new study of a sweep begins with."""

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
        typer.Option("--budget", metavar="TIME", help="Total time of all studies over all runs: 6h, 1h30m, 90m, 45s."),
    ] = None,
    warm_start: Annotated[
        WarmStart,
        typer.Option(
            "--warm-start",
            metavar="auto|none",
            help="What a new study begins with: the nearest one of the folder that is searched to its end, or nothing.",
        ),
    ] = WarmStart.AUTO,
    go_on: GoOnOption = False,
    trust: TrustOption = False,
    ray_address: RayAddressOption = None,
    num_cpus: NumCpusOption = None,
    num_gpus: NumGpusOption = None,
    db: FolderOption = None,
) -> int:
    """Search each combination of a sweep as a study of its own, or go on where an earlier run stopped.

    Time goes to the studies in slices: each has two, then the one that improved fastest in its last slice goes on. A
    study is finished when its trials or its budget are used up and its champion is verified. Stop it with Ctrl-C, lose
    the machine, and give the same command again.
    """
    from evokern.cluster.request import ray_request
    from evokern.sweep import SweepRequest, read_sweep, run_sweep
    from evokern.sweep.standing import totals

    found = read_sweep(sweep, device)
    folder = db or found.folder
    cluster = ray_request(ray_address, num_cpus, num_gpus)
    request = SweepRequest(device, cluster, budget, warm_start.value, go_on, trust)
    with Watcher(output, lines=False) as watch:
        result = run_sweep(found, folder, request, output.remark, watch)
    failed = [one for one in result.standings if one.failed]
    code = INTERRUPTED if result.end == "interrupted" else 2 if result.refused else int(bool(failed))
    if output.json:
        output.emit({"sweep": str(sweep), "folder": str(folder), **result.as_dict()})
        return code
    _list(result.standings)
    output.say(totals(result.standings))
    where = (sweep, *(("--db", db) if db else ()))
    if result.end == "interrupted":
        output.say("interrupted; nothing is lost, the same command goes on")
    elif result.end == "budget":
        output.say("the sweep's budget is used up; a larger --budget goes on")
    for one in failed:
        output.say(f"{one.name}: every candidate failed; `{command_line('show', '--db', one.db)}` tells more")
    for name, why in result.refused.items():
        output.complain(f"{name} could not go on: {why}")
    output.say(command_line("sweep", "export", *where, "-o", "OUT"))
    return code


def _folder_of(sweep: Path, db: Path | None) -> tuple[Sweep, Path, tuple[StudyStanding, ...]]:
    """Return a sweep as it was last run, its folder, and how each of its studies stands."""
    from evokern.sweep import Journal, read_sweep, standing_of

    folder = db or read_sweep(sweep).folder
    found = read_sweep(sweep, Journal.of(folder).device)
    return found, folder, tuple(standing_of(one, folder) for one in found.studies)


@command(
    "show",
    group=group,
    examples="""
    evokern sweep show sweep.toml
    evokern sweep show sweep.toml --db runs --json
    """,
)
def show(output: Output, sweep: SweepArgument, db: FolderOption = None) -> None:
    """Show how each study of a sweep stands: trials, best time, whether it is verified.

    Works on any machine, also while a sweep runs, and needs no kernel folder.
    """
    from evokern.sweep.standing import totals

    found, folder, standings = _folder_of(sweep, db)
    if output.json:
        studies = [
            {**one.as_dict(), "problem": planned.problem, "weight": planned.weight}
            for one, planned in zip(standings, found.studies, strict=True)
        ]
        output.emit({"sweep": str(sweep), "folder": str(folder), "studies": studies})
        return
    _list(standings)
    output.say(totals(standings))
    if not folder.is_dir():
        output.say(f"{folder} is not there: no run has begun, or --db names another folder")


def _list(standings: tuple[StudyStanding, ...]) -> None:
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
        ("study".ljust(width), "state", "trials", "best µs", "time", "proof"),
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
    out: Annotated[Path, typer.Option("-o", "--output", metavar="OUT", help="Folder to write; it is made.")],
    trust: StoredTrustOption = False,
    db: FolderOption = None,
) -> int:
    """Write the champion of each study as one .cu that builds with nvcc alone, OUT/STUDY.cu.

    The exit code is 1 where a champion could not be written.
    """
    from evokern.export import export_trial
    from evokern.store import open_readonly

    _, _, standings = _folder_of(sweep, db)
    try:
        make_folder(out)
    except OSError as error:
        raise UsageError(f"cannot write into {out}: {error.strerror}; name another folder with -o") from error
    written, refused = [], {}
    for one in standings:
        if one.best_us is None:
            output.say(f"{one.name}: no champion ({one.in_words()})")
            continue
        file = out / f"{one.name}.cu"
        try:
            with open_readonly(one.db) as reader:
                made = export_trial(reader, one.name, None, file_name=file.name, trust=trust)
        except UsageError as error:
            refused[one.name] = str(error)
            output.complain(f"{one.name}: {error}")
            continue
        save(file, made.text, "-o")
        facts = {"trial": made.trial, "time_us": made.time_us, "predicted": made.predicted, **made.proof.as_dict()}
        written.append({"study": one.name, "file": str(file), **facts})
        output.say(f"wrote {file}: trial {made.trial}, {one.in_words()}")
    if output.json:
        output.emit({"files": written, "refused": refused})
    else:
        output.say(f"{len(written)} of {len(standings)} studies written")
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
    file: Annotated[Path, typer.Option("-o", "--output", metavar="OUT", help="File to write; - for stdout.")],
    db: FolderOption = None,
) -> None:
    """Write one HTML page about a sweep: how each study stands, what it found, and why time went where it did.

    `evokern report --db FILE` writes everything about one of its studies. The page needs no network.
    """
    from evokern.sweep.page import sweep_page

    found, folder, standings = _folder_of(sweep, db)
    text = sweep_page(found, folder, standings)
    if str(file) == "-":
        output.write(text + "\n")
        return
    save(file, text, "-o")
    if output.json:
        output.emit({"file": str(file), "studies": len(standings), "bytes": len(text.encode())})
    else:
        output.say(f"wrote {file}: {len(standings)} studies, {len(text.encode()) / 1e6:.2f} MB")
