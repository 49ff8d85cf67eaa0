"""`evokern report [STUDY] -o report.html`: write or serve a report on a study."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from evokern.cli._command import command
from evokern.cli._options import DEFAULT_DB, DbOption, StoredStudyArgument
from evokern.cli._output import Output, save
from evokern.errors import UsageError
from evokern.events import step

NICENESS = 10
"""Increase of the report server's niceness (nice(2)), so that it does not slow down a running search."""


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
    study: StoredStudyArgument = None,
    file: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="File to write, or - for stdout. Default: report.html."),
    ] = None,
    serve: Annotated[
        int | None,
        typer.Option(
            "--serve",
            metavar="[PORT]",
            help="Serve the page on localhost, with live updates, instead of writing a file. Default port: any free "
            "port.",
        ),
    ] = None,
    db: DbOption = DEFAULT_DB,
) -> None:
    """Write an HTML report of a study.

    The report shows the champion, its speedup and verification, and the genes that determine the time. It lists all
    trials and can compare each trial with the champion. The page works offline; writing it needs neither the kernel
    folder nor a GPU.

    With --serve, the page can follow a running search: new trials appear within two seconds. The server accepts only
    connections from this machine, and only with the token in the printed address. Stop the server with Ctrl-C.
    """
    if serve is not None:
        if file is not None:
            raise UsageError(f"--serve writes no file; omit either --serve or -o {file}")
        _serve(output, db, study, serve)
        return
    from evokern.analysis.genes.importance import forest_process

    file = file or Path("report.html")
    with forest_process(db) as forests:  # starts before the slow imports
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
        output.print_json({"file": str(file), "study": facts.record.name, "bytes": size, "trials": len(facts.trials)})
        return
    output.print_line(f"wrote {file}: {facts.record.name}, {len(facts.trials)} trials, {size / 1e6:.2f} MB")


def _serve(output: Output, db: Path, study: str | None, port: int) -> None:
    from evokern.report.live import FollowedStudy
    from evokern.report.server import ReportServer

    # The server must not slow down the search that it shows.
    with suppress(OSError):
        os.nice(NICENESS)
    followed = FollowedStudy(db, study, on_message=output.print_line)
    server = ReportServer(followed, port)

    def end(_number: int, _frame: FrameType | None) -> None:
        # No exception here: if raised inside a finalizer, it would be ignored and the server would keep running.
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a second Ctrl-C stops at once
        server.shut_down()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    try:
        if output.json:
            output.print_json({"address": server.address, "study": followed.record.name})
        else:
            output.print_line(f"serving {followed.record.name} at {server.address}; stop with Ctrl-C")
        with step(None):
            server.serve()
        output.print_line("server stopped")
    finally:
        server.close()
