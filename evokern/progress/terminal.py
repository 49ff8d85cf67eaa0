"""Display of a running search that a Python program starts: a bar in a terminal, or a panel below a notebook cell."""

from __future__ import annotations

import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from evokern.progress.rows import ProgressRow, baseline_text, best_text, progress_rows, sparkline

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


REFRESH_S = 0.5
"""Minimum time between two updates in seconds; each update is a message to the browser."""
_ENDED = {
    "budget": "the budget is used up",
    "trials": "the trial limit is reached",
    "exhausted": "every candidate has been tried",
    "no_success": "no candidate was right; correct the kernel or its declaration, and repeat the call with fresh=True",
    "interrupted": "interrupted; repeat the call to resume",
    "paused": "paused before the end; repeat the call to resume",
}
"""Reason why the search ended, for each value of `Progress.end`."""


def notebook_panel() -> NotebookPanel | None:
    """Return a panel if this process is a notebook kernel, else None.

    A notebook kernel has always imported IPython, so this function does not import it. In a terminal, IPython's shell
    has no kernel.
    """
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    return None if getattr(shell, "kernel", None) is None else NotebookPanel()


class NotebookPanel:
    """Panel in a notebook; it is called with each `Progress`."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._drawn = float("-inf")

    def __call__(self, progress: Progress) -> None:
        """Show one event; events between start and end are drawn at most once every `REFRESH_S` seconds."""
        passing = progress.event in ("trial", "idle")
        if passing and time.monotonic() - self._drawn < REFRESH_S:
            return
        from IPython.display import HTML, display

        shown = HTML(panel_html(progress))
        if self._handle is None:
            self._handle = display(shown, display_id=True)
        else:
            self._handle.update(shown)
        self._drawn = time.monotonic()


def panel_html(progress: Progress) -> str:
    """Return the panel as HTML with all text escaped."""
    from evokern.templating import environment

    rows = progress_rows(progress)
    if progress.event == "opening":
        rows = [row for row in rows if row.kind == "step" or row.share is not None]
    if progress.set_aside:
        rows.append(ProgressRow("old study", f"the earlier study is now {progress.set_aside}"))
    rows += [ProgressRow("note", note) for note in progress.notes]
    if progress.end:
        rows.append(ProgressRow("ended", _ENDED[progress.end]))
    template = environment(__package__).get_template("panel.html.j2")
    return template.render(
        title=f"{progress.study} on {progress.device}", rows=rows, sparkline=partial(sparkline, width=32)
    )
