"""Progress of a running search as text rows, for the panels in terminals and notebooks."""

from evokern.progress.rows import (
    ProgressRow,
    arm_texts,
    baseline_text,
    best_text,
    busy_text,
    progress_rows,
    sparkline,
    spent_text,
    time_unit,
)
from evokern.progress.terminal import NotebookPanel, TerminalBar, notebook_panel, terminal_bar

__all__ = [
    "NotebookPanel", "ProgressRow", "TerminalBar", "arm_texts", "baseline_text", "best_text", "busy_text",
    "notebook_panel", "progress_rows", "sparkline", "spent_text", "terminal_bar", "time_unit",
]  # fmt: skip
