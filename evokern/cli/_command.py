"""What every command shares: `--json --quiet -v --log FILE`, the exit codes, and one place where errors become words.

0    done
1    the answer is no: a finding, a regression, a failed check
2    the user's mistake: one message with the value and the remedy
3    evokern broke: one line, and where the traceback was kept
130  interrupted
"""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
import typer.core

from evokern.cli._environment import (
    NO_WRITE,
    hold_back,
    misplaced,
    no_home,
    no_working_directory,
    out_of_memory,
    tolerate_words,
)
from evokern.cli._options import with_whole_problem
from evokern.cli._output import Output, crash_log
from evokern.cli._terminal import shown_text
from evokern.errors import EvokernError, UsageError
from evokern.workers.shadowing import shadowed

INTERRUPTED = 130

app = typer.Typer(
    name="evokern",
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help: the examples keep their lines, and rich need not be imported
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
"""The application; `evokern.cli.app` imports every command, which puts itself in here."""

_COMMON = {
    "json_": (
        bool,
        False,
        typer.Option("--json", help="Print one JSON object instead of text."),
    ),
    "quiet": (bool, False, typer.Option("--quiet", "-q", help="No progress and no remarks.")),
    "verbose": (
        int,
        0,
        typer.Option("--verbose", "-v", count=True, help="Say what is done; -vv every detail."),
    ),
    "log": (
        Path | None,
        None,
        typer.Option("--log", metavar="FILE", dir_okay=False, help="Append a JSON line per event to FILE."),
    ),
}


def command(
    name: str, *, examples: str, optional_values: Mapping[str, str] | None = None, group: typer.Typer = app
) -> Callable[[Callable[..., int | None]], Callable[..., None]]:
    """Register a function as a command.

    The function's first parameter is an `Output`; the others are typer's. It returns the exit code, None for 0. The
    options of every command are added, and examples stand below its help.

    Args:
        name: the command's name.
        examples: command lines, one per line.
        optional_values: option that may stand without its value, which is a whole number → the value it then has.
        group: the commands that it is one of.
    """
    values_left_out = optional_values or {}

    class Command(typer.core.TyperCommand):
        """A command with what typer has no word for: an option without its value, a problem in several arguments."""

        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            filled = with_whole_problem(args)
            for place in reversed(range(len(filled))):
                following = filled[place + 1 : place + 2]
                if filled[place] in values_left_out and not (following and following[0].lstrip("-").isdigit()):
                    filled.insert(place + 1, values_left_out[filled[place]])
            return super().parse_args(ctx, filled)

    def register(function: Callable[..., int | None]) -> Callable[..., None]:
        hints = get_type_hints(function, include_extras=True)
        own = list(inspect.signature(function).parameters.values())[1:]

        @wraps(function)
        def run(**given: Any) -> None:
            output = Output(given.pop("json_"), given.pop("quiet"), given.pop("verbose"), given.pop("log"))
            code = guarded(output, lambda: function(output, **given))
            if code:
                raise typer.Exit(code)

        parameters = [parameter.replace(annotation=hints[parameter.name]) for parameter in own]
        for key, (kind, default, option) in _COMMON.items():
            parameters.append(
                inspect.Parameter(
                    key, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option]
                )
            )
        parameters.sort(key=lambda parameter: parameter.kind)
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        shown = "\n".join(f"  {line.strip()}" for line in examples.strip().splitlines())
        text = inspect.cleandoc(function.__doc__ or "")
        group.command(name, cls=Command, short_help=text.splitlines()[0], help=f"{text}\n\n\b\nExamples:\n{shown}")(run)
        return run

    return register


def guarded(output: Output, work: Callable[[], int | None]) -> int:
    """Do a command's work and return its exit code; no exception leaves, and no traceback is shown unless asked for."""
    tolerate_words()
    gone = no_working_directory()
    if gone:
        return report(output, UsageError(gone))
    try:
        with shown_text(), output.logging():
            return _worded(output, work)
    except EvokernError as error:  # the log itself cannot be written
        return report(output, error)


def _worded(output: Output, work: Callable[[], int | None]) -> int:
    """Do the work, and put into words what ended it."""
    try:
        code = work()
        sys.stdout.flush()
    except EvokernError as error:
        return report(output, error)
    except KeyboardInterrupt:
        output.complain("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        hold_back(sys.stdout, 1)  # the reader (head, less) has seen enough
        return 0
    except typer.Exit as leave:
        return int(leave.exit_code)
    except SystemExit as leave:  # no command leaves so
        return report(output, UsageError(f"the code of a kernel called sys.exit({leave.code!r}); take that out of it"))
    except Exception as error:
        told = surroundings(error)
        return broke(output, error) if told is None else report(output, UsageError(told))
    return int(code or 0)


def surroundings(error: Exception) -> str | None:
    """Return what to say of an error whose cause lies around evokern: no room, no memory, a file. None for a defect."""
    told = out_of_memory(error) or no_home(error)
    if told is not None or not isinstance(error, OSError):
        return told
    if error.filename is None and error.errno in NO_WRITE:
        hold_back(sys.stdout, 1)  # most likely it was stdout; what it still holds would fail again as Python leaves
        return f"cannot write: {error.strerror}; send stdout where there is room, or free space on the disk"
    return misplaced(error)


def report(output: Output, error: EvokernError) -> int:
    """Say what the user should change, and return the exit code of that kind of error."""
    if error.exit_code != 2:
        told = out_of_memory(error)
        return broke(output, error) if told is None else report(output, UsageError(told))
    if output.verbose:
        output.tell("".join(traceback.format_exception(error)).rstrip("\n"))
    output.complain(str(error))
    return error.exit_code


def broke(output: Output, error: Exception) -> int:
    """Say in one line that evokern itself failed, and keep the traceback."""
    text = "".join(traceback.format_exception(error))
    path = crash_log(text)
    if output.verbose:
        output.tell(text.rstrip("\n"))
    summary, hidden = str(error).strip().splitlines(), shadowed(text)
    output.complain(
        f"internal error: {type(error).__name__}: {summary[0] if summary else 'no message'}; "
        f"{f'{hidden}; ' if hidden else ''}the traceback is in {path} (-v shows it)"
    )
    return 3
