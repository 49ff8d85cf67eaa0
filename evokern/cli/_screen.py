"""Lines at the bottom of a terminal that are drawn again in place, below whatever else is printed.

The cursor is never hidden and no mode of the terminal is changed, so that nothing has to be undone by a process that is
killed. It stands below the last line, in the first column: what the terminal echoes there (`^C`) moves nothing. A frame
is written at once, by a thread that no signal interrupts.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

from evokern.cli._output import LOGGER

REFRESH_S = 0.25
"""Time between two drawings, seconds."""
_PATIENCE_S = 5.0
"""Longest wait for a frame that a slow terminal still takes, seconds."""


class LiveScreen:
    """Draws what a function returns, until it is closed."""

    def __init__(self, stream: TextIO, render: Callable[[int, int], Sequence[str]]) -> None:
        """Begin to draw.

        Args:
            stream: the terminal, as it is below all that escapes texts.
            render: takes columns and lines of the terminal; returns fewer lines than it has, each shorter than it is
                wide, with the escape sequences that the terminal understands.
        """
        self._stream = stream
        self._render = render
        self._lock = threading.RLock()
        self._widths: list[int] = []
        self._within_line = False
        self._ended = threading.Event()
        self._before = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = (
            cast(TextIO, _Above(one, self)) if one is not None and one.isatty() else one for one in self._before
        )
        self._handler: Any = None
        if threading.current_thread() is threading.main_thread():
            # A shell has written below the frame while this process was stopped.
            self._handler = signal.signal(signal.SIGCONT, lambda *_: self._widths.clear())
        self._thread = threading.Thread(target=self._run, name="evokern-screen", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Take the frame away, and leave the terminal as it was; safe to call twice."""
        if self._ended.is_set():
            return
        interrupted: KeyboardInterrupt | None = None
        while True:
            try:
                self._close()
                break
            except KeyboardInterrupt as again:
                interrupted = again
        if interrupted is not None:
            raise interrupted

    def _close(self) -> None:
        self._ended.set()
        self._thread.join(_PATIENCE_S)
        sys.stdout, sys.stderr = self._before
        with self._lock, suppress(OSError, ValueError):  # the terminal is gone
            self._write(self._taken_away())
        if self._handler is not None:
            signal.signal(signal.SIGCONT, self._handler)
            self._handler = None

    @contextmanager
    def above(self, ends_line: bool) -> Iterator[None]:
        """Take the frame away while something is printed where it stands.

        Args:
            ends_line: whether what is printed ends its line; until something does, no frame is drawn.
        """
        with self._lock:
            if not self._within_line:
                self._write(self._taken_away())
            self._within_line = not ends_line
            yield

    def _run(self) -> None:
        while self._draw_or_give_up() and not self._ended.wait(REFRESH_S):
            pass

    def _draw_or_give_up(self) -> bool:
        """Draw, and tell whether that can be done again: a search goes on without its panel."""
        try:
            self._draw()
        except OSError:  # the terminal is gone
            return False
        except Exception:
            if not self._stream.closed:
                LOGGER.exception("the panel cannot be drawn any more")
            return False
        return True

    def _draw(self) -> None:
        with self._lock:
            if self._within_line or self._ended.is_set():
                return
            if not _in_foreground(self._stream):
                self._widths.clear()  # a shell writes there
                return
            columns, height = terminal_size(self._stream)
            lines = self._render(columns, height)
            back = self._back(columns, height)
            self._widths = [columns - 1] * len(lines)
            # Each line overwrites the one that stood there: cleared first, the frame would flicker.
            self._write(back + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J")

    def _taken_away(self) -> str:
        back = self._back(*terminal_size(self._stream))
        drawn, self._widths = bool(self._widths), []
        return f"{back}\x1b[J" if drawn else ""

    def _back(self, columns: int, height: int) -> str:
        """Return what moves the cursor to where the frame begins: terminals wrap its lines where they were narrowed."""
        rows = min(sum(max(1, -(-width // columns)) for width in self._widths), height - 1)
        return f"\r\x1b[{rows}A" if rows else "\r" if self._widths else ""

    def _write(self, text: str) -> None:
        if text:
            self._stream.write(text)
            self._stream.flush()


class _Above:
    """A stream whose text goes above the frame."""

    def __init__(self, stream: TextIO, screen: LiveScreen) -> None:
        self._stream = stream
        self._screen = screen

    def write(self, text: str) -> int:
        if not text:
            return 0
        with self._screen.above(text.endswith("\n")):
            done = self._stream.write(text)
            self._stream.flush()
        return done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def terminal_size(stream: TextIO) -> tuple[int, int]:
    """Return columns and lines of a terminal; COLUMNS and LINES make it smaller, or tell what it does not know."""
    try:
        known = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError, AttributeError):
        known = os.terminal_size((0, 0))
    sizes = []
    for name, value, default in (("COLUMNS", known.columns, 80), ("LINES", known.lines, 24)):
        given = os.environ.get(name, "")
        asked = int(given) if given.isascii() and given.isdecimal() else 0
        sizes.append(min(value or asked, asked or value) or default)
    return sizes[0], sizes[1]


def _in_foreground(stream: TextIO) -> bool:
    """Tell whether this process may write to its terminal: a shell has it while a job runs in the background."""
    try:
        return os.tcgetpgrp(stream.fileno()) == os.getpgrp()
    except (OSError, ValueError, AttributeError):  # not the controlling terminal, or none that knows of groups
        return True
