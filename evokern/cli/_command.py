"""Common parts of all commands: the options `--json --quiet -v --log FILE`, exit codes, and error messages.

0    success
1    negative result: a finding, a regression, a failed check
2    usage error: one message with the value and the remedy
3    internal error: one line with the path of the traceback
130  interrupted
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
import typer.core

from evokern.cli._environment import (
    WRITE_ERRORS,
    escape_unencodable_text,
    file_error_message,
    missing_home_message,
    missing_working_directory_message,
    not_utf8_message,
    out_of_memory_message,
    redirect_to_null,
)
from evokern.cli._options import option_parameters, with_current_names, with_whole_problem
from evokern.cli._output import Output, crash_log, escaping_streams
from evokern.cli._silence import SILENCE
from evokern.errors import EvokernError, UsageError
from evokern.workers.shadowing import shadowing_advice

INTERRUPTED = 130

app = typer.Typer(
    name="evokern",
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help keeps the line breaks of examples and avoids importing rich
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
"""The application. Each command registers itself when `evokern.cli.app` imports its module."""

_COMMON = {
    "json_": (
        bool,
        False,
        typer.Option("--json", help="Print the result as one JSON object, and hide progress and notes."),
    ),
    "quiet": (bool, False, typer.Option("--quiet", "-q", help="Hide progress and notes.")),
    "verbose": (
        int,
        0,
        typer.Option(
            "--verbose",
            "-v",
            count=True,
            show_default=False,
            help="Print log messages; -vv also prints debug messages.",
        ),
    ),
    "log": (
        Path | None,
        None,
        typer.Option("--log", metavar="FILE", dir_okay=False, help="Append one JSON line per event to FILE."),
    ),
}


def command(
    name: str,
    *,
    examples: str,
    options: type | None = None,
    optional_values: Mapping[str, str] | None = None,
    group: typer.Typer = app,
) -> Callable[[Callable[..., int | None]], Callable[..., None]]:
    """Register a function as a command.

    The first parameter of the function is an `Output`; the others are declared as for Typer. The function returns the
    exit code, or None for 0. The command also gets the common options, and its help ends with the examples.

    Args:
        name: name of the command.
        examples: example command lines, one per line.
        options: record whose fields are further options, which the function takes as keyword arguments.
        optional_values: default integer of each option whose value may be omitted, by option name.
        group: application or command group to register with.
    """
    values_left_out = optional_values or {}

    class Command(typer.core.TyperCommand):
        """Command with optional option values, unquoted problems and deprecated option names."""

        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            filled = with_whole_problem(args)
            for place in reversed(range(len(filled))):
                following = filled[place + 1 : place + 2]
                if filled[place] in values_left_out and not (following and following[0].lstrip("-").isdigit()):
                    filled.insert(place + 1, values_left_out[filled[place]])
            options = [one for one in self.params if isinstance(one, typer.core.TyperOption)]
            known = {name for one in options for name in (*one.opts, *one.secondary_opts)}
            takes_none = {
                name for one in options if one.is_flag or one.count for name in (*one.opts, *one.secondary_opts)
            }
            return super().parse_args(ctx, with_current_names(filled, known, known - takes_none, _warn))

    def register(function: Callable[..., int | None]) -> Callable[..., None]:
        hints = get_type_hints(function, include_extras=True)
        own = list(inspect.signature(function).parameters.values())[1:]

        @wraps(function)
        def run(**given: Any) -> None:
            output = Output(given.pop("json_"), given.pop("quiet"), given.pop("verbose"), given.pop("log"))
            code = run_command(output, lambda: function(output, **given))
            if code:
                raise typer.Exit(code)

        named = [one for one in own if one.kind is not inspect.Parameter.VAR_KEYWORD]
        parameters = [parameter.replace(annotation=hints[parameter.name]) for parameter in named]
        place = sum(one.kind is not inspect.Parameter.KEYWORD_ONLY for one in named)
        parameters[place:place] = option_parameters(options) if options else []
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


def _warn(text: str) -> None:
    """Print one line on stderr; options are parsed before the command has its own `Output`."""
    Output().tell(f"evokern: {text}")


def run_command(output: Output, work: Callable[[], int | None]) -> int:
    """Run a command, report every exception, and return the exit code; show tracebacks only with `-v`."""
    escape_unencodable_text()
    gone = missing_working_directory_message()
    if gone:
        return report_usage_error(output, UsageError(gone))
    try:
        reported = SILENCE.reported(output.tell) if output.remarks else contextlib.nullcontext()
        with escaping_streams(), output.logging(), reported:
            return _run_reporting_errors(output, work)
    except EvokernError as error:  # the log itself cannot be written
        return report_usage_error(output, error)


def _run_reporting_errors(output: Output, work: Callable[[], int | None]) -> int:
    """Run the command and turn exceptions into messages and exit codes."""
    try:
        code = work()
        sys.stdout.flush()
    except EvokernError as error:
        return report_usage_error(output, error)
    except KeyboardInterrupt:
        output.print_error("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        redirect_to_null(sys.stdout, 1)  # the reader (head, less) has closed the pipe
        return 0
    except typer.Exit as leave:
        return int(leave.exit_code)
    except SystemExit as leave:  # commands raise typer.Exit instead
        called = leave.code if isinstance(leave.code, str) else f"sys.exit({leave.code!r})"
        return report_usage_error(output, UsageError(f"kernel code called {called}; remove that call"))
    except Exception as error:
        message = environment_error_message(error)
        return (
            report_internal_error(output, error) if message is None else report_usage_error(output, UsageError(message))
        )
    return int(code or 0)


def environment_error_message(error: Exception) -> str | None:
    """Return a message if the environment caused the error (disk space, memory, a file), or None for a bug."""
    if isinstance(error, ValueError) and getattr(sys.stdout, "closed", False):
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 (flushed at exit)
        return "kernel code closed sys.stdout, so nothing can be printed; remove that call"
    message = out_of_memory_message(error) or missing_home_message(error) or not_utf8_message(error)
    if message is not None or not isinstance(error, OSError):
        return message
    if error.filename is None and error.errno in WRITE_ERRORS:
        redirect_to_null(sys.stdout, 1)  # most likely stdout failed; flushing it at exit would fail again
        return f"cannot write: {error.strerror}; redirect stdout to another file, or free disk space"
    return file_error_message(error)


def report_usage_error(output: Output, error: EvokernError) -> int:
    """Print the message of an error and return its exit code."""
    if not isinstance(error, UsageError):
        message = out_of_memory_message(error)
        return (
            report_internal_error(output, error) if message is None else report_usage_error(output, UsageError(message))
        )
    if output.verbose:
        output.tell("".join(traceback.format_exception(error)).rstrip("\n"))
    output.print_error(str(error))
    return error.exit_code


def report_internal_error(output: Output, error: Exception) -> int:
    """Report an internal error in one line, save its traceback, and return the exit code."""
    text = "".join(traceback.format_exception(error))
    path = crash_log(text)
    if output.verbose:
        output.tell(text.rstrip("\n"))
    summary, hidden = str(error).strip().splitlines(), shadowing_advice(text)
    output.print_error(
        f"internal error: {type(error).__name__}: {summary[0] if summary else 'no message'}; "
        f"{f'{hidden}; ' if hidden else ''}the traceback is in {path} (-v shows it)"
    )
    return 3
