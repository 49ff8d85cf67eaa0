"""Where a command's words go: results to stdout, remarks to stderr, everything to the log file."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evokern.cli._environment import hold_back, shortened
from evokern.cli._terminal import bare
from evokern.errors import UsageError
from evokern.escaping import json_text, visible, visible_lines
from evokern.events import FIELDS
from evokern.files import write_bytes, write_text

if TYPE_CHECKING:
    from rich.console import Console

LOGGER = logging.getLogger("evokern")
LOGGER.addHandler(logging.NullHandler())
_SHOWN = "shown"
"""Marks a message that stands on the terminal already, so that `-v` does not repeat it there."""


class _JsonLine(logging.Formatter):
    """A record as a line of JSON, which no terminal obeys: a log is read on one as well."""

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
    """How one command was asked to speak."""

    json: bool = False
    """Print one JSON object on stdout and nothing else there."""
    quiet: bool = False
    """Leave remarks and progress out."""
    verbose: int = 0
    """1 shows what is done and tracebacks, 2 every detail."""
    log: Path | None = None
    """File that gets a JSON line for every message and event, with times."""

    @property
    def remarks(self) -> bool:
        """Whether progress and remarks are wanted."""
        return not (self.quiet or self.json)

    def console(self, *, stderr: bool = False) -> Console:
        """Return a rich console; piped output is as wide as it needs to be and has no colour."""
        from rich.console import Console

        stream = bare(sys.stderr if stderr else sys.stdout)  # a console writes escape sequences of its own
        width = None if stream.isatty() else 160
        return Console(file=stream, width=width, highlight=False, soft_wrap=not stream.isatty())

    def say(self, text: str) -> None:
        """Print a line of the answer, unless JSON was asked for; it is there at once, also for who reads a pipe."""
        if not self.json:
            print(visible(text), flush=True)

    def remark(self, text: str, *, logged: bool = False) -> None:
        """Print a line that is about the work and not its result; `--quiet` and `--json` leave it out.

        Args:
            text: the line.
            logged: whether an event says the same in the log.
        """
        if not logged:
            LOGGER.info(text, extra={_SHOWN: self.remarks})
        if self.remarks:
            self.tell(visible(text))

    def complain(self, text: str) -> None:
        """Print a line that says what went wrong."""
        LOGGER.error(text, extra={_SHOWN: True})
        self.tell(f"evokern: {shortened(visible(text))}")

    def tell(self, text: str) -> None:
        """Print text on stderr, its lines as they are; where nobody can read it, the work goes on all the same."""
        try:
            print(visible_lines(text), file=sys.stderr, flush=True)
        except OSError:
            hold_back(sys.stderr, 2)

    def emit(self, record: Any) -> None:
        """Print a record as JSON, with escapes for what the encoding of stdout may lack."""
        unicode = (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "") == "utf8"
        print(json_text(record, ascii_only=not unicode), flush=True)

    def write(self, text: str) -> None:
        """Write a file's content to stdout: as it is and in UTF-8 into a pipe or a file, shown on a terminal."""
        stream = bare(sys.stdout)
        if stream.isatty():
            stream.write(visible_lines(text))  # with escapes for what the terminal's encoding lacks
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
                if self.log.exists() and not self.log.is_file():
                    raise UsageError(f"cannot write the log {self.log}: it is no file; name one with --log")
                handlers.append(logging.FileHandler(self.log, encoding="utf-8", errors="backslashreplace"))
            except OSError as error:
                raise UsageError(f"cannot write the log {self.log}: {error.strerror}; name another file") from error
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
    """Write a file that a user named with an option.

    Raises:
        UsageError: it cannot be written; the message says why, and with which option another one is named.
    """
    try:
        if isinstance(content, str):
            write_text(file, content)
        else:
            write_bytes(file, content)
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}; name another file with {option}") from error


class _Terminal(logging.Handler):
    """Shows warnings, with `-v` what is done, with `-vv` every detail."""

    def __init__(self, output: Output) -> None:
        super().__init__((logging.WARNING, logging.INFO, logging.DEBUG)[min(output.verbose, 2)])
        self._output = output

    def emit(self, record: logging.LogRecord) -> None:
        """Show a message that does not stand on the terminal already."""
        progress = hasattr(record, FIELDS) and record.levelno == logging.INFO  # which a command shows in its own words
        if progress or getattr(record, _SHOWN, False):
            return
        text = record.getMessage()
        self._output.tell(f"evokern: {shortened(text)}" if record.levelno >= logging.WARNING else text)


def crash_log(text: str) -> Path:
    """Keep the traceback of an unexpected exception and return where it is.

    The file stands in the user's state folder (`XDG_STATE_HOME`), or in the temporary folder where that is read-only.
    """
    import tempfile

    name = time.strftime("crash-%Y%m%d-%H%M%S.log")
    for place in (_state_folder, tempfile.gettempdir):
        try:
            folder = Path(place())
            folder.mkdir(parents=True, exist_ok=True)
            write_text(folder / name, visible_lines(text))
        except (OSError, RuntimeError):  # no room, or no home
            continue
        return folder / name
    return Path(os.devnull)


def _state_folder() -> Path:
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "evokern"
