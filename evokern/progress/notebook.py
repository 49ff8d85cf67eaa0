"""Panel of a running search below a notebook cell, updated in place."""

from __future__ import annotations

import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from evokern.progress.rows import ProgressRow, progress_rows, sparkline

if TYPE_CHECKING:
    from evokern.search import Progress

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
