"""Display of a running search: a live panel on a terminal, or one line every few seconds elsewhere."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING

from evokern.cli._layout import ASCII, UNICODE, panel
from evokern.cli._output import Output, unwrapped
from evokern.cli._screen import LiveScreen
from evokern.cli._silence import SILENCE
from evokern.progress import arm_texts, baseline_text, best_text, busy_text, spent_text, time_unit
from evokern.wording import count_noun, counts, duration, microseconds, rejected_baselines_text

if TYPE_CHECKING:
    from rich.console import Console

    from evokern.search import Progress

__all__ = ["Watcher", "line", "panel"]

LINE_EVERY_S = 3.5
"""Seconds between two progress lines if the output is not a terminal."""
FAILURE_EVERY_S = 15.0
"""Minimum time in seconds between two reported failures if the output is not a terminal."""
_FAILURE_WIDTH = 160
_NO_CURSOR = ("dumb", "unknown")
"""Values of TERM for terminals that cannot redraw in place; they get lines instead of a panel."""


class Watcher:
    """Display of a running search: a context manager that is called with each `Progress`."""

    def __init__(self, output: Output, *, lines: bool = True) -> None:
        """Create a display.

        Args:
            output: output of the command.
            lines: also print notes as lines, and progress as lines if no panel can be drawn.
        """
        self._output = output
        self._lines = lines
        self._screen: LiveScreen | None = None
        self._console: Console | None = None
        self._latest: tuple[Progress, float] | None = None
        self._step = ("", 0.0)
        self._drawn = float("-inf")
        self._best: int | None = None
        self._opened = False
        self._noted = 0
        self._failure = ("", float("-inf"))

    def __enter__(self) -> Watcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def __call__(self, progress: Progress) -> None:
        """Show one event."""
        if self._lines:
            self._print_notes(progress)
        if progress.event == "end":
            self._close()
            return
        if not self._output.remarks:
            return
        if _has_cursor():
            self._draw(progress)
        elif self._lines and progress.event != "opening":
            self._line(progress)

    def _print_notes(self, progress: Progress) -> None:
        if progress.event == "opening" and not self._opened:
            self._output.note(_opening(progress))
            self._opened = True
        if progress.event == "opening" and progress.step and not _has_cursor():
            self._output.note(f"{progress.step.text} …", logged=True)
            SILENCE.text = progress.step.text
        for note in progress.notes[self._noted :]:
            self._output.note(f"note: {note}", logged=True)
        self._noted = max(self._noted, len(progress.notes))
        if progress.event == "start":
            self._output.note(_start(progress))
            SILENCE.text = "searching"

    def _draw(self, progress: Progress) -> None:
        step = progress.step.text if progress.step else ""
        if step != self._step[0]:
            self._step = step, time.monotonic()
        self._latest = progress, self._step[1]
        if self._screen is None:
            self._console = self._output.console(stderr=True)
            self._screen = LiveScreen(unwrapped(sys.stderr), self._frame)

    def _frame(self, columns: int, height: int) -> list[str]:
        """Return the lines of the panel, which leaves one column and one line free so that the cursor is visible."""
        assert self._latest is not None and self._console is not None
        progress, since = self._latest
        passed = time.monotonic() - since if progress.step else 0.0
        if passed:  # during start-up no further events arrive while a step runs
            progress = replace(progress, elapsed_s=progress.elapsed_s + passed)
        glyphs = ASCII if self._console.options.ascii_only else UNICODE
        shown = panel(progress, columns - 1, height - 1, glyphs, passed)
        with self._console.capture() as capture:
            self._console.print(shown, width=columns - 1, no_wrap=True, overflow="crop", crop=True)
        return capture.get().splitlines()[: height - 1]

    def _line(self, progress: Progress) -> None:
        number = progress.best.number if progress.best else None
        if number == self._best and time.monotonic() - self._drawn < LINE_EVERY_S:
            return
        # Print each new best immediately, but at most one line per second.
        if time.monotonic() - self._drawn < 1.0:
            return
        self._output.note(line(progress))
        SILENCE.broken(LINE_EVERY_S + 0.5)
        self._best, self._drawn = number, time.monotonic()
        shown, when = self._failure
        failure = next(iter(progress.last_failures), shown)
        if failure != shown and self._drawn - when >= FAILURE_EVERY_S:
            short = failure if len(failure) <= _FAILURE_WIDTH else f"{failure[:_FAILURE_WIDTH]} …"
            self._output.note(f"  last failure: {short}")
            self._failure = failure, self._drawn

    def _close(self) -> None:
        if self._screen is not None:
            self._screen.close()
            self._screen = None


def _has_cursor() -> bool:
    """Return whether the terminal can show a panel; the panel also shows the start-up steps."""
    return sys.stderr.isatty() and os.environ.get("TERM", "").lower() not in _NO_CURSOR


def _opening(progress: Progress) -> str:
    renamed = f"; the earlier study is now {progress.set_aside}" if progress.set_aside else ""
    return f"{progress.study} on {progress.device}{renamed}"


def _start(progress: Progress) -> str:
    left = f"{duration(max(0.0, progress.budget_s - progress.elapsed_s))} left" if progress.budget_s else "no budget"
    if progress.trials_limit is not None:
        left += f", {count_noun(max(0, progress.trials_limit - progress.evaluated), 'trial')} left"
    if progress.resumed:
        time_us = progress.best.evaluation.time_us if progress.best else None
        found = f"best {microseconds(time_us)} {time_unit(progress)}" if time_us else "nothing measured yet"
        return f"resuming: {count_noun(progress.resumed, 'trial')}, {found}, {left}"
    failed = rejected_baselines_text(progress.rejected_baselines)
    baseline = f"baseline {baseline_text(progress)}, " if progress.baseline else "no baseline, "
    baseline = f"{failed}, " if failed and not progress.baseline else baseline
    ends = "; stop with Ctrl-C, all results are saved" if not progress.budget_s and not progress.trials_limit else ""
    return f"searching: {baseline}{left}{ends}"


def line(progress: Progress) -> str:
    """Return the progress as one line."""
    parts = [
        spent_text(progress),
        f"best {best_text(progress)}" if progress.best else best_text(progress),
        *arm_texts(progress),
        f"{progress.trials_per_minute:.0f} trials/min",
        *([busy] if (busy := busy_text(progress)) else []),
        *([counts(progress.outcomes)] if any(progress.outcomes.values()) else []),
    ]
    return " | ".join(parts)
