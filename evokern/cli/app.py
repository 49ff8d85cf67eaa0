"""The application: all commands, in the order in which the help lists them, and `--version`."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

import evokern

# ruff: noqa: F401 (each command registers itself; the help lists them in the order of these imports)
from evokern.cli.commands import search, sweep, show, export, verify, evaluate, compare, report, replay, sanitize  # isort: skip
from evokern.cli.commands import profile, init, list_, doctor  # isort: skip
from evokern.cli._command import INTERRUPTED, app, environment_error_message
from evokern.cli._environment import escape_unencodable_text
from evokern.cli._output import Output
from evokern.cli._silence import SILENCE, process_age_s
from evokern.declaration.loading import report_end_of
from evokern.errors import UsageError

__all__ = ["app", "run"]


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"evokern {evokern.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Find the fastest provably right variant of a CUDA kernel within a time budget."""


def run() -> None:
    """Run the command line and exit with the command's exit code."""
    escape_unencodable_text()
    SILENCE.started_s = process_age_s()
    report_end_of(os.getpid())
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:  # raised by the help or by option parsing; commands report their own errors
        message = environment_error_message(error)
        if message is None:
            raise
        Output().print_error(message)
        sys.exit(UsageError.exit_code)
