"""Lines that state what a command is doing while it prints nothing else."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from evokern.events import current_step

FIRST_S = 3.0
"""Seconds after the last output until the first line."""
EVERY_S = 3.5
"""Seconds between two lines; on a busy machine, the thread that prints them may wait a second for its turn."""
_POLL_S = 0.25
_UNKNOWN = "still working"


class Silence:
    """State of the silence of a command, shared by all its output."""

    def __init__(self) -> None:
        self._until = float("inf")
        self.paused = False
        """Whether a panel shows the progress."""
        self.text = _UNKNOWN
        """Text of the lines while no step is named."""
        self.started_s = 0.0
        """Seconds for which the process had been silent before the command, because it imported the command."""

    def broken(self, for_s: float | None = None) -> None:
        """Note that the command has printed something; the next line is due after `FIRST_S` or the given seconds."""
        self._until = time.monotonic() + (FIRST_S if for_s is None else for_s)

    @contextmanager
    def reported(self, tell: Callable[[str], None]) -> Iterator[None]:
        """Print lines from a thread whenever the command has printed nothing for some time."""
        ended, began = threading.Event(), time.monotonic() - self.started_s
        self.text = _UNKNOWN
        self.broken(max(0.0, FIRST_S - self.started_s))

        def run() -> None:
            while not ended.wait(_POLL_S):
                step = current_step()
                if self.paused or step is None or time.monotonic() < self._until:
                    continue
                text, since = step
                tell(f"{text or self.text} … ({time.monotonic() - (since or began):.0f} s)")
                self.broken(EVERY_S)

        thread = threading.Thread(target=run, name="evokern-silence", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def process_age_s() -> float:
    """Return the seconds since this process started; 0 if unknown."""
    try:
        fields = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        started_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")  # proc(5): field 22; two fields precede the bracket
    except (OSError, ValueError, IndexError):
        return 0.0
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started_s)


SILENCE = Silence()
"""Silence of the running command."""
