"""`evokern report [STUDY] -o report.html`: everything about a study on one page."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from evokern.cli._command import command
from evokern.cli._options import DEFAULT_DB, DbOption, StudyArgument
from evokern.cli._output import Output, save
from evokern.errors import UsageError

NICENESS = 10
"""How far behind a search the page that shows it stands for the processor (nice(2))."""


@command(
    "report",
    examples="""
    evokern report -o report.html
    evokern report attention-s512 --db runs.db -o attention.html
    evokern report --serve
    evokern report attention-s512 --serve 8123
    """,
    optional_values={"--serve": "0"},
)
def report(
    output: Output,
    study: StudyArgument = None,
    file: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="File to write; - for stdout. Default: report.html."),
    ] = None,
    serve: Annotated[
        int | None,
        typer.Option(
            "--serve",
            metavar="[PORT]",
            help="Show the page on this machine's own address while a search runs; a free port without PORT.",
        ),
    ] = None,
    db: DbOption = DEFAULT_DB,
) -> None:
    """Write one HTML page about a study: which variant, how fast, proved or not, how it came about, what decides.

    Every trial can be opened, filtered and held against the champion. The page needs no network, and making it needs
    neither the kernel folder nor a GPU. With --serve the same page shows a search while it runs, until Ctrl-C: new
    trials appear within two seconds. Only this machine reaches it, with the token that its address has, and nothing
    is written.
    """
    if serve is not None:
        if file is not None:
            raise UsageError(f"--serve writes no file; leave -o {file} away, or --serve")
        _serve(output, db, study, serve)
        return
    from evokern.analysis.genes.forest import forest_process

    file = file or Path("report.html")
    with forest_process(db) as forests:  # begins before the rest is imported
        from evokern.report import gather, render_page
        from evokern.store import open_readonly

        with open_readonly(db) as reader:
            facts = gather(reader, study, forests=forests)
        text = render_page(facts)
    if str(file) == "-":
        output.write(text + "\n")
        return
    save(file, text, "-o")
    size = len(text.encode())
    if output.json:
        output.emit({"file": str(file), "study": facts.record.name, "bytes": size, "trials": len(facts.trials)})
        return
    output.say(f"wrote {file}: {facts.record.name}, {len(facts.trials)} trials, {size / 1e6:.2f} MB")


def _serve(output: Output, db: Path, study: str | None, port: int) -> None:
    from evokern.report.live import FollowedStudy
    from evokern.report.server import ReportServer

    # What watches a search waits for it, not the other way round.
    with suppress(OSError):
        os.nice(NICENESS)
    followed = FollowedStudy(db, study, said=output.say)
    server = ReportServer(followed, port)

    def end(_number: int, _frame: FrameType | None) -> None:
        # Not an exception: one that comes up inside a finalizer is printed and forgotten, and the page stays.
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a second Ctrl-C does not wait
        server.shut_down()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    try:
        if output.json:
            output.emit({"address": server.address, "study": followed.record.name})
        else:
            output.say(f"{followed.record.name} is shown at {server.address} until Ctrl-C")
        server.serve()
        output.say("no longer shown")
    finally:
        server.close()
