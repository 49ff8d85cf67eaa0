"""Lines that state what a command is doing while it prints nothing else."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from evokern.events import current_step

FIRST_S = 3.0
"""Seconds after the last output until the first line."""
EVERY_S = 4.5
"""Seconds between two lines."""
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

    def broken(self, for_s: float | None = None) -> None:
        """Note that the command has printed something; the next line is due after `FIRST_S` or the given seconds."""
        self._until = time.monotonic() + (FIRST_S if for_s is None else for_s)

    @contextmanager
    def reported(self, tell: Callable[[str], None]) -> Iterator[None]:
        """Print lines from a thread whenever the command has printed nothing for some time."""
        ended, began = threading.Event(), time.monotonic()
        self.text = _UNKNOWN
        self.broken()

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


SILENCE = Silence()
"""Silence of the running command."""
