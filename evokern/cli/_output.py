"""Output of a command: results on stdout, notes on stderr, and all messages in the log file.

Control characters are escaped in all printed text, because names and messages may come from untrusted files.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

from evokern.cli._environment import redirect_to_null, shortened
from evokern.cli._silence import SILENCE
from evokern.errors import UsageError
from evokern.escaping import json_text, visible, visible_lines
from evokern.events import FIELDS
from evokern.files import why_not_own, write_text, write_whole

if TYPE_CHECKING:
    from rich.console import Console


class _EscapingStream:
    """Text stream that escapes control characters and writes the result to another stream."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write text and return its length."""
        self.stream.write(visible_lines(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def unwrapped(stream: TextIO) -> TextIO:
    """Return the wrapped stream, for code that writes escape sequences and escapes all other text itself."""
    return stream.stream if isinstance(stream, _EscapingStream) else stream


@contextlib.contextmanager
def escaping_streams() -> Iterator[None]:
    """Replace stdout and stderr with escaping streams, as a second safeguard."""
    before = sys.stdout, sys.stderr
    # A stream that was closed before the start is None.
    sys.stdout, sys.stderr = (stream and cast(TextIO, _EscapingStream(unwrapped(stream))) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


LOGGER = logging.getLogger("evokern")
LOGGER.addHandler(logging.NullHandler())
_SHOWN = "shown"
"""Attribute that marks a log record whose message was already printed, so that `-v` does not print it again."""


class _JsonLine(logging.Formatter):
    """Formatter for JSON lines without control characters, because logs are also read on terminals."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": "message",
            "message": record.getMessage(),
            **getattr(record, FIELDS, {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json_text(line, indent=None)


@dataclass(frozen=True)
class Output:
    """Output settings of one command, and functions that print."""

    json: bool = False
    """Whether the command prints exactly one JSON object on stdout."""
    quiet: bool = False
    """Whether notes and progress are hidden."""
    verbose: int = 0
    """Verbosity: 1 prints log messages and tracebacks; 2 also prints debug messages."""
    log: Path | None = None
    """Log file, to which each message and event is appended as a JSON line."""

    @property
    def remarks(self) -> bool:
        """Whether to print progress and notes."""
        return not (self.quiet or self.json)

    def console(self, *, stderr: bool = False) -> Console:
        """Return a rich console, which neither wraps lines nor uses colour if its output is not a terminal."""
        from rich.console import Console

        stream = unwrapped(sys.stderr if stderr else sys.stdout)  # a console writes its own escape sequences
        width = None if stream.isatty() else 160
        return Console(file=stream, width=width, highlight=False, soft_wrap=not stream.isatty())

    def print_line(self, text: str) -> None:
        """Print a line of the result and flush it, unless `--json` is given."""
        if not self.json:
            SILENCE.broken()
            print(visible(text), flush=True)

    def note(self, text: str, *, logged: bool = False) -> None:
        """Print a note on stderr, unless `--quiet` or `--json` is given.

        Args:
            text: the line.
            logged: whether the log already has an event with this message.
        """
        if not logged:
            LOGGER.info(text, extra={_SHOWN: self.remarks})
        if self.remarks:
            self.tell(visible(text))

    def print_error(self, text: str) -> None:
        """Print and log an error message."""
        LOGGER.error(text, extra={_SHOWN: True})
        self.tell(f"evokern: {shortened(visible(text))}")

    def tell(self, text: str) -> None:
        """Print text with its line breaks on stderr. If stderr fails, the command continues."""
        SILENCE.broken()
        try:
            print(visible_lines(text), file=sys.stderr, flush=True)
        except OSError:
            redirect_to_null(sys.stderr, 2)

    def print_json(self, record: Any) -> None:
        """Print a record as JSON, and escape characters that the encoding of stdout lacks."""
        unicode = (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "") == "utf8"
        print(json_text(record, ascii_only=not unicode), flush=True)

    def write(self, text: str) -> None:
        """Write the content of a file to stdout: unchanged as UTF-8, or escaped if stdout is a terminal."""
        stream = unwrapped(sys.stdout)
        if stream.isatty():
            stream.write(visible_lines(text))  # the stream escapes characters that the terminal's encoding lacks
        else:
            stream.flush()
            stream.buffer.write(text.encode("utf-8", errors="backslashreplace"))
        stream.flush()

    @contextlib.contextmanager
    def logging(self) -> Iterator[None]:
        """Send log messages to `--log FILE`, and to stderr with `-v`, while a command runs.

        Raises:
            UsageError: the log file cannot be written.
        """
        handlers: list[logging.Handler] = []
        if self.log is not None:
            try:
                if why := why_not_own(self.log):
                    raise UsageError(f"cannot write the log {self.log}: {why}; choose another file with --log")
                handlers.append(_LogFile(self.log, self))
            except OSError as error:
                raise UsageError(
                    f"cannot write the log {self.log}: {error.strerror}; choose another file with --log"
                ) from error
            handlers[0].setFormatter(_JsonLine())
            handlers[0].setLevel(logging.DEBUG)
        handlers.append(_Terminal(self))
        before = (LOGGER.level, LOGGER.propagate)
        LOGGER.setLevel(logging.DEBUG if self.verbose or self.log else logging.WARNING)
        LOGGER.propagate = False
        for handler in handlers:
            LOGGER.addHandler(handler)
        try:
            yield
        finally:
            for handler in handlers:
                LOGGER.removeHandler(handler)
                handler.close()
            LOGGER.level, LOGGER.propagate = before


def save(file: Path, content: str | bytes, option: str) -> None:
    """Write a file whose path is the value of an option, completely or not at all.

    Raises:
        UsageError: the file cannot be written; the message names the reason and the option.
    """
    try:
        write_whole(file, content.encode(errors="backslashreplace") if isinstance(content, str) else content)
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}; choose another file with {option}") from error


class _LogFile(logging.FileHandler):
    """Log handler for `--log FILE`; if the file cannot be written, for example on a full disk, it says so once."""

    def __init__(self, file: Path, output: Output) -> None:
        super().__init__(file, encoding="utf-8", errors="backslashreplace")
        self._file, self._output, self._failed = file, output, False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (the name in logging)
        """Report the first failed write; later messages are lost."""
        self._report(sys.exc_info()[1])

    def close(self) -> None:
        """Close the file."""
        try:
            super().close()
        except OSError as error:  # what could not be written before is tried again
            self._report(error)

    def _report(self, error: BaseException | None) -> None:
        if not self._failed:
            self._failed = True
            why = error.strerror if isinstance(error, OSError) else str(error)
            self._output.tell(f"evokern: cannot write the log {self._file}: {why}; the log is incomplete")


class _Terminal(logging.Handler):
    """Log handler for the terminal: prints warnings; with `-v` also messages, and with `-vv` also debug messages."""

    def __init__(self, output: Output) -> None:
        super().__init__((logging.WARNING, logging.INFO, logging.DEBUG)[min(output.verbose, 2)])
        self._output = output

    def emit(self, record: logging.LogRecord) -> None:
        """Print a message unless it was already printed."""
        progress = hasattr(record, FIELDS) and record.levelno == logging.INFO  # commands print progress themselves
        if progress or getattr(record, _SHOWN, False):
            return
        text = record.getMessage()
        self._output.tell(f"evokern: {shortened(text)}" if record.levelno >= logging.WARNING else text)


def crash_log(text: str) -> Path:
    """Save the traceback of an unexpected exception and return the path of the file.

    The file is in the user's state folder (`XDG_STATE_HOME`), or in the temporary folder if that is read-only.
    """
    import tempfile

    name = time.strftime("crash-%Y%m%d-%H%M%S.log")
    for place in (_state_folder, tempfile.gettempdir):
        try:
            folder = Path(place())
            folder.mkdir(parents=True, exist_ok=True)
            write_text(folder / name, visible_lines(text))
        except (OSError, RuntimeError):  # no disk space, or no home folder
            continue
        return folder / name
    return Path(os.devnull)


def _state_folder() -> Path:
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "evokern"


def show_line(text: str = "", end: str = "\n") -> None:
    """Print a line, or the first part of a line."""
    print(visible(text), end=end)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table; its columns are right-aligned, except the last one."""
    header, rows = [visible(cell) for cell in header], [[visible(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header) - 1)]
    lines = []
    for row in [header, *rows]:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=False)]
        lines.append("  ".join([*cells, row[-1]]).rstrip())
    return lines
