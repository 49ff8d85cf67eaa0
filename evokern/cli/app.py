"""The application: its commands in the order of the help, and `--version`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import evokern

# The order of these imports is the order of the help.
from evokern.cli.commands import search, sweep, show, export, verify, evaluate, ablate, compare, report, replay  # isort: skip
from evokern.cli.commands import check, sanitize, profile, init, list_, doctor, selftest, cache  # isort: skip
from evokern.cli._command import INTERRUPTED, app, surroundings
from evokern.cli._environment import tolerate_words
from evokern.cli._output import Output
from evokern.errors import UsageError

__all__ = [
    "ablate",
    "app",
    "cache",
    "check",
    "compare",
    "doctor",
    "evaluate",
    "export",
    "init",
    "list_",
    "profile",
    "replay",
    "report",
    "run",
    "sanitize",
    "search",
    "selftest",
    "show",
    "sweep",
    "verify",
]


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"evokern {evokern.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    """Find the fastest provably right variant of a CUDA kernel inside a time budget."""


def run() -> None:
    """Run the command line and leave the process with its exit code."""
    tolerate_words()
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:  # of the help, or of a mistake in the options: commands put their own into words
        told = surroundings(error)
        if told is None:
            raise
        Output().complain(told)
        sys.exit(UsageError.exit_code)
