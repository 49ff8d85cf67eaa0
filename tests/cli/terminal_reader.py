"""A terminal as its user sees it: a small reader of what a program sends to one, and programs run on a pseudo-terminal.

It knows what evokern sends, and raises on anything else: text, line feeds, carriage returns, colours, cursor up, erase
to the end of the line and of the screen. Lines wrap at the right edge as on a VT100 (the cursor waits beyond the last
column), and where the terminal is narrowed they are wrapped again, as VTE, kitty, iTerm and tmux do it.
"""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
import traceback
from collections.abc import Callable, Mapping
from typing import NoReturn
from unicodedata import east_asian_width

_PART = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|([\r\n\b\x07])|([^\x00-\x1f\x7f]+)")
_UNFINISHED = re.compile(r"\x1b(\[[0-9;?]*)?")


class Screen:
    """What a terminal shows."""

    def __init__(self, columns: int, lines: int, *, reflows: bool = True) -> None:
        self.columns, self.height, self._reflows = columns, lines, reflows
        self.rows: list[str] = [""]
        self.history: list[str] = []
        """Lines that went off the top."""
        self.row, self.column = 0, 0
        self.hidden = False
        """Whether the cursor is hidden."""
        self._rest = ""

    def feed(self, text: str) -> None:
        """Take in what was sent."""
        text, self._rest = self._rest + text, ""
        at = 0
        while at < len(text):
            if _UNFINISHED.fullmatch(text, at):
                self._rest = text[at:]
                return
            part = _PART.match(text, at)
            assert part is not None, f"this terminal does not know {text[at : at + 12]!r}"
            at = part.end()
            if part[4]:
                for character in part[4]:
                    self._put(character)
            elif part[3]:
                self._control(part[3])
            else:
                self._sequence(part[1], part[2])

    def _put(self, character: str) -> None:
        assert east_asian_width(character) not in "WF", "this terminal knows no wide characters"
        if self.column >= self.columns:
            self._line_feed()
            self.column = 0
        line = self.rows[self.row].ljust(self.column)
        self.rows[self.row] = line[: self.column] + character + line[self.column + 1 :]
        self.column += 1

    def _control(self, character: str) -> None:
        if character == "\r":
            self.column = 0
        elif character == "\n":
            self._line_feed()
        elif character == "\b":
            self.column = max(self.column - 1, 0)

    def _line_feed(self) -> None:
        self.row += 1
        if self.row == len(self.rows):
            self.rows.append("")
        while len(self.rows) > self.height:
            self.history.append(self.rows.pop(0))
            self.row -= 1

    def _sequence(self, values: str, what: str) -> None:
        if what == "A":
            self.row, self.column = max(self.row - int(values or 1), 0), min(self.column, self.columns - 1)
        elif what == "J" and values in ("", "0"):
            self.rows[self.row] = self.rows[self.row][: self.column]
            del self.rows[self.row + 1 :]
        elif what == "K" and values in ("", "0"):
            self.rows[self.row] = self.rows[self.row][: self.column]
        elif what == "K" and values == "2":
            self.rows[self.row] = ""
        elif what in "hl" and values == "?25":
            self.hidden = what == "l"
        elif what != "m":
            raise AssertionError(f"this terminal does not know ESC [ {values} {what}")

    def resize(self, columns: int, lines: int) -> None:
        """Change the size as a user does with a window."""
        rows: list[str] = []
        at = 0
        for number, row in enumerate(self.rows):
            if number == self.row:
                at = len(rows) + (self.column // columns if self._reflows else 0)
            text = row.rstrip() if self._reflows else row[:columns]
            rows += [text[i : i + columns] for i in range(0, len(text), columns)] or [""]
        self.rows, self.row, self.columns, self.height = rows, at, columns, lines
        self.column = min(self.column, columns - 1)
        while len(self.rows) > self.height:
            self.history.append(self.rows.pop(0))
            self.row -= 1

    @property
    def text(self) -> str:
        """Return what is shown, blanks at the ends of lines apart."""
        return "\n".join(row.rstrip() for row in self.rows)


class Session:
    """Some work in a process of its own on a pseudo-terminal, and what stands on its screen."""

    def __init__(self, work: Callable[[], int], columns: int, lines: int, **environment: str) -> None:
        """Begin the work, the terminal being the controlling one, so that `^C` reaches it.

        Args:
            work: returns the exit code; it runs in a fork of this process, where all modules are imported already.
            columns: of the terminal.
            lines: of the terminal.
            environment: variables to set.
        """
        self.screen = Screen(columns, lines)
        self.sent = b""
        """All that was written."""
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self.pid, self._leader = pty.fork()
        if self.pid == 0:
            _as_a_command(work, environment)
        self._size(columns, lines)

    def _size(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._leader, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def resize(self, columns: int, lines: int) -> None:
        """Change the size of the window."""
        self.read(0.0)
        self.screen.resize(columns, lines)
        self._size(columns, lines)

    def type(self, keys: bytes) -> None:
        """Press keys."""
        os.write(self._leader, keys)

    def read(self, seconds: float) -> bool:
        """Take in what comes within so many seconds; returns whether the program still has its terminal."""
        end = time.monotonic() + seconds
        while True:
            ready, _, _ = select.select([self._leader], [], [], max(end - time.monotonic(), 0))
            if not ready:
                return True
            try:
                chunk = os.read(self._leader, 65536)
            except OSError:
                return False
            if not chunk:
                return False
            self.sent += chunk
            self.screen.feed(self._decoder.decode(chunk))
            if seconds and time.monotonic() >= end:
                return True

    def wait_for(self, holds: Callable[[str], bool], seconds: float = 30.0) -> None:
        """Read until the screen shows something."""
        end = time.monotonic() + seconds
        while not holds(self.screen.text):
            if not self.read(0.1) and not holds(self.screen.text):
                raise AssertionError(f"the program ended; its screen:\n{self.screen.text}")
            assert time.monotonic() < end, f"it is not shown:\n{self.screen.text}"

    def kill(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def ended(self, seconds: float = 30.0) -> int:
        """Read to the end, and return the exit code."""
        end = time.monotonic() + seconds
        while self.read(0.1):
            assert time.monotonic() < end, f"it does not end; its screen:\n{self.screen.text}"
        os.close(self._leader)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def _as_a_command(work: Callable[[], int], environment: Mapping[str, str]) -> NoReturn:
    """Do the work in a forked child as a command that a shell began, and leave without what pytest does at exit."""
    code = 70
    try:
        for name in ("COLUMNS", "LINES", "NO_COLOR"):
            os.environ.pop(name, None)
        os.environ |= {"TERM": "xterm-256color", **environment}
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        encoding = environment.get("PYTHONIOENCODING", "utf-8")
        sys.stdout, sys.stderr = (os.fdopen(n, "w", encoding=encoding, closefd=False) for n in (1, 2))
        time.sleep(0.02)  # until the terminal has its size
        code = work()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
