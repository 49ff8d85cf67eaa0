"""Bar of a running search in a terminal, for searches that a Python program starts."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from evokern.progress.rows import baseline_text, best_text

if TYPE_CHECKING:
    from evokern.search import Progress


INTERVAL_S = 10.0
"""Seconds between lines if stderr is a file or a pipe."""


def terminal_bar() -> TerminalBar | TextLines:
    """Return a bar if stderr is a terminal, else an object that prints a line every 10 s."""
    return TerminalBar() if sys.stderr.isatty() else TextLines()


class TextLines:
    """Lines in a log file; it is called with each `Progress`."""

    def __init__(self) -> None:
        self._last_s = 0.0
        self._noted = 0

    def __call__(self, progress: Progress) -> None:
        """Print one event, unless a line was printed in the last 10 s; always print the start and the end."""
        now = time.monotonic()
        for note in progress.notes[self._noted :]:
            print(f"evokern: note: {note}", file=sys.stderr, flush=True)
        self._noted = max(self._noted, len(progress.notes))
        if progress.event in ("start", "end") or now - self._last_s >= INTERVAL_S:
            self._last_s = now
            print(f"evokern: {progress.study}: {_shown(progress)}", file=sys.stderr, flush=True)


class TerminalBar:
    """Bar in a terminal; it is called with each `Progress`."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._task: Any = None
        self._noted = 0

    def __call__(self, progress: Progress) -> None:
        """Show one event."""
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        if self._bar is None:
            columns = (TextColumn("{task.fields[study]}", markup=False), BarColumn(20), TimeElapsedColumn(),
                       TextColumn("{task.description}", markup=False))  # fmt: skip
            self._bar = Bar(*columns, console=Console(stderr=True))
            self._bar.start()
            self._task = self._bar.add_task("", total=None, study=progress.study)
        for note in progress.notes[self._noted :]:
            self._bar.console.print(f"note: {note}", markup=False, highlight=False)
        self._noted = max(self._noted, len(progress.notes))
        share = share_of(progress)
        total, text = None if share is None else 1.0, _shown(progress)
        self._bar.update(self._task, total=total, completed=share or 0.0, description=text)
        if progress.event == "end":
            self._bar.stop()
            self._bar = None


def share_of(progress: Progress) -> float | None:
    """Return the finished share of a search, by its trials or its budget; None if it has no limit."""
    shares = []
    if progress.trials_limit:
        shares.append(progress.evaluated / progress.trials_limit)
    if progress.budget_s:
        shares.append(progress.elapsed_s / progress.budget_s)
    return min(1.0, max(shares)) if shares else None


def _shown(progress: Progress) -> str:
    if progress.event == "start" and (progress.baseline or progress.rejected_baselines):
        return f"{'baseline ' if progress.baseline else ''}{baseline_text(progress)}"
    return progress.step.text if progress.event == "opening" and progress.step else _text(progress)


def _text(progress: Progress) -> str:
    return f"{progress.evaluated} trials, best {best_text(progress)}" if progress.best else f"{progress.trials} trials"
