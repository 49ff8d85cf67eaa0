"""The panel of a running search below a notebook's cell, updated in place."""

from __future__ import annotations

import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from evokern.progress.rows import ProgressRow, progress_rows, sparkline

if TYPE_CHECKING:
    from evokern.search import Progress

REFRESH_S = 0.5
"""Least time between two updates, seconds: each is a message to the notebook's page."""
_ENDED = {
    "budget": "its budget is used up",
    "trials": "its trials are done",
    "exhausted": "nothing is left to try",
    "interrupted": "interrupted; the same call goes on",
    "paused": "paused before its end; the same call goes on",
}
"""`Progress.end` → why a search ended."""


def notebook_panel() -> NotebookPanel | None:
    """Return a panel where this process is the kernel of a notebook, else None.

    Whoever runs in a notebook's kernel was started by IPython, so IPython is asked only where it is imported already.
    A terminal's IPython has a shell without a kernel.
    """
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    return None if getattr(shell, "kernel", None) is None else NotebookPanel()


class NotebookPanel:
    """Shows each `Progress` that it is called with."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._drawn = float("-inf")

    def __call__(self, progress: Progress) -> None:
        """Show one event; begin and end are always drawn, what happens between as often as a page can follow."""
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
    """Return the panel as HTML, every text escaped."""
    from evokern.templating import environment

    rows = progress_rows(progress)
    if progress.event == "opening":
        rows = [row for row in rows if row.kind == "step" or row.share is not None]
    if progress.set_aside:
        rows.append(ProgressRow("set aside", f"the earlier study is now {progress.set_aside}"))
    rows += [ProgressRow("note", note) for note in progress.notes]
    if progress.end:
        rows.append(ProgressRow("ended", _ENDED[progress.end]))
    template = environment(__package__).get_template("panel.html.j2")
    return template.render(
        title=f"{progress.study} on {progress.device}", rows=rows, sparkline=partial(sparkline, width=32)
    )
