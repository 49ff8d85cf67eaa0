"""Frame of lines at the bottom of a terminal, redrawn in place below all other output.

The cursor is never hidden and no terminal mode changes, so nothing must be restored if the process is killed. The
cursor stays in the first column below the frame, so echoed characters (`^C`) do not shift the frame. A thread writes
each frame with one call, so signals cannot interrupt it.
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
from evokern.cli._silence import SILENCE

REFRESH_S = 0.25
"""Seconds between two frames."""
_CLOSE_TIMEOUT_S = 5.0
"""Maximum wait for the last frame on a slow terminal, in seconds."""


class LiveScreen:
    """Live display of the lines that a function returns."""

    def __init__(self, stream: TextIO, render: Callable[[int, int], Sequence[str]]) -> None:
        """Start drawing.

        Args:
            stream: the terminal, without a wrapper that escapes text.
            render: called with the columns and lines of the terminal. It returns fewer lines than the terminal has,
                each shorter than the width of the terminal. The lines may contain escape sequences.
        """
        self._stream = stream
        self._render = render
        self._lock = threading.RLock()
        self._widths: list[int] = []
        self._within_line = False
        self._ended = threading.Event()
        SILENCE.paused = True
        self._before = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = (
            cast(TextIO, _AboveFrame(one, self)) if one is not None and one.isatty() else one for one in self._before
        )
        self._handler: Any = None
        if threading.current_thread() is threading.main_thread():
            # While this process was stopped, a shell wrote below the frame.
            self._handler = signal.signal(signal.SIGCONT, lambda *_: self._widths.clear())
        self._thread = threading.Thread(target=self._run, name="evokern-screen", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Remove the frame and restore the streams; repeated calls have no effect."""
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
        SILENCE.paused = False
        self._thread.join(_CLOSE_TIMEOUT_S)
        sys.stdout, sys.stderr = self._before
        with self._lock, suppress(OSError, ValueError):  # the terminal is gone
            self._write(self._erase_sequence())
        if self._handler is not None:
            signal.signal(signal.SIGCONT, self._handler)
            self._handler = None

    @contextmanager
    def above(self, ends_line: bool) -> Iterator[None]:
        """Remove the frame while other text is printed in its place.

        Args:
            ends_line: whether the text ends with a newline; the frame is not drawn in an unfinished line.
        """
        with self._lock:
            if not self._within_line:
                self._write(self._erase_sequence())
            self._within_line = not ends_line
            yield

    def _run(self) -> None:
        while self._draw_or_give_up() and not self._ended.wait(REFRESH_S):
            pass

    def _draw_or_give_up(self) -> bool:
        """Draw a frame; return False if that is no longer possible, in which case the search continues without it."""
        try:
            self._draw()
        except OSError:  # the terminal is gone
            return False
        except Exception:
            if not self._stream.closed:
                LOGGER.exception("cannot draw the panel any more; the search continues")
            return False
        return True

    def _draw(self) -> None:
        with self._lock:
            if self._within_line or self._ended.is_set():
                return
            if not _in_foreground(self._stream):
                self._widths.clear()  # a shell uses the terminal
                return
            columns, height = terminal_size(self._stream)
            lines = self._render(columns, height)
            back = self._to_top_sequence(columns, height)
            self._widths = [columns - 1] * len(lines)
            # Overwrite the old lines; clearing the frame first would make it flicker.
            self._write(back + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J")

    def _erase_sequence(self) -> str:
        back = self._to_top_sequence(*terminal_size(self._stream))
        drawn, self._widths = bool(self._widths), []
        return f"{back}\x1b[J" if drawn else ""

    def _to_top_sequence(self, columns: int, height: int) -> str:
        """Return the escape sequence that moves the cursor to the top of the frame.

        The lines of the frame are wrapped if the terminal became narrower.
        """
        rows = min(sum(max(1, -(-width // columns)) for width in self._widths), height - 1)
        return f"\r\x1b[{rows}A" if rows else "\r" if self._widths else ""

    def _write(self, text: str) -> None:
        if text:
            self._stream.write(text)
            self._stream.flush()


class _AboveFrame:
    """Stream that prints above the frame."""

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
    """Return the columns and lines of a terminal; COLUMNS and LINES can reduce them, or replace an unknown size."""
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
    """Return whether this process is in the foreground; background jobs must not draw on the shell's terminal."""
    try:
        return os.tcgetpgrp(stream.fileno()) == os.getpgrp()
    except (OSError, ValueError, AttributeError):  # not the controlling terminal, or without process groups
        return True
