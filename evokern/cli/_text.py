"""Lines and tables for a terminal; control characters in untrusted names and messages are escaped."""

from __future__ import annotations

from collections.abc import Sequence

from evokern.escaping import visible


def show_line(text: str = "", end: str = "\n") -> None:
    """Print a line, or the first part of a line."""
    print(visible(text), end=end)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table; its columns are right-aligned, except the last one."""
    header, rows = [visible(cell) for cell in header], [[visible(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header) - 1)]
    lines = []
    for row in [header, *rows]:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=False)]
        lines.append("  ".join([*cells, row[-1]]).rstrip())
    return lines
