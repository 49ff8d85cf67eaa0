"""Where a command's words go: results to stdout, remarks to stderr, everything to the log file."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evokern.cli._terminal import bare
from evokern.errors import UsageError
from evokern.escaping import json_text, visible, visible_lines

if TYPE_CHECKING:
    from rich.console import Console

LOGGER = logging.getLogger("evokern")
LOGGER.addHandler(logging.NullHandler())
_SHOWN = "shown"
"""Marks a message that stands on the terminal already, so that `-v` does not repeat it there."""


class _Shown(logging.Formatter):
    """Messages whose names and compilers' words no terminal obeys: a log is read on one as well."""

    def format(self, record: logging.LogRecord) -> str:
        return visible_lines(super().format(record))


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
    """File that gets every message, with times."""

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
        """Print a line of the answer, unless JSON was asked for."""
        if not self.json:
            print(visible(text))

    def remark(self, text: str) -> None:
        """Print a line that is about the work and not its result; `--quiet` and `--json` leave it out."""
        LOGGER.info(text, extra={_SHOWN: self.remarks})
        if self.remarks:
            print(visible(text), file=sys.stderr, flush=True)

    def complain(self, text: str) -> None:
        """Print a line that says what went wrong."""
        LOGGER.error(text, extra={_SHOWN: True})
        print(f"evokern: {visible(text)}", file=sys.stderr)

    def emit(self, record: Any) -> None:
        """Print a record as JSON."""
        print(json_text(record))

    @contextlib.contextmanager
    def logging(self) -> Iterator[None]:
        """Send log messages to `--log FILE`, and to stderr with `-v`, while a command runs.

        Raises:
            UsageError: the log file cannot be written.
        """
        handlers: list[logging.Handler] = []
        if self.log is not None:
            try:
                handlers.append(logging.FileHandler(self.log, encoding="utf-8"))
            except OSError as error:
                raise UsageError(f"cannot write the log {self.log}: {error.strerror}") from error
            handlers[0].setFormatter(_Shown("%(asctime)s %(levelname)s %(name)s: %(message)s"))
            handlers[0].setLevel(logging.DEBUG)
        if self.verbose:
            terminal = logging.StreamHandler(sys.stderr)
            terminal.setFormatter(_Shown("%(message)s"))
            terminal.setLevel(logging.DEBUG if self.verbose > 1 else logging.INFO)
            terminal.addFilter(lambda record: not getattr(record, _SHOWN, False))
            handlers.append(terminal)
        elif not self.quiet:
            # What may matter to the user and no command tells: a folder that hides the package's.
            warnings = logging.StreamHandler(sys.stderr)
            warnings.setFormatter(_Shown("evokern: %(message)s"))
            warnings.setLevel(logging.WARNING)
            warnings.addFilter(lambda record: not getattr(record, _SHOWN, False))
            handlers.append(warnings)
        before = (LOGGER.level, LOGGER.propagate)
        LOGGER.setLevel(logging.DEBUG if handlers else logging.WARNING)
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


def crash_log(text: str) -> Path:
    """Keep the traceback of an unexpected exception and return where it is.

    The file stands in the user's state folder (`XDG_STATE_HOME`), or in the temporary folder where that is read-only.
    """
    import tempfile

    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    name = time.strftime("crash-%Y%m%d-%H%M%S.log")
    for folder in (Path(state) / "evokern", Path(tempfile.gettempdir())):
        path = folder / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(visible_lines(text), encoding="utf-8")
        except OSError:
            continue
        return path
    return Path(os.devnull)
