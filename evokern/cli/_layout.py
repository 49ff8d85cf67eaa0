"""Layout of the search panel on a terminal: unimportant rows are dropped, and long rows are wrapped or cut."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from evokern.escaping import visible
from evokern.progress import ProgressRow, progress_rows, sparkline
from evokern.progress.rows import LEVELS

if TYPE_CHECKING:
    from rich.console import Console
    from rich.panel import Panel
    from rich.text import Text

    from evokern.search import Progress

WIDTH, HEIGHT = 80, 24
"""Columns and lines to assume if the size of the terminal is unknown."""
_STYLES = {"plain": "", "best": "bold", "faster": "bold green", "failure": "yellow", "step": "bold"}
"""Style of each kind of row."""
_KINDS_WITH_LABEL = ("best", "faster", "step")
"""Kinds of rows whose label precedes the text if there is no column of labels."""
_LABEL = 13
"""Width of the labels in columns."""
_BORDER = 4
"""Width of the border in columns, including the blanks inside it."""
_MIN_WIDTH = 24
"""Width in columns below which the panel has neither border nor labels."""
_MOST_BAR, _MOST_SPARKLINE = 60, 72
_ASCII = {"µ": "u", "×": "x", "…": "~", "→": ">", "–": "-", "█": "="}


@dataclass(frozen=True)
class Glyphs:
    """Characters for drawing that the encoding of the terminal supports."""

    levels: str = LEVELS
    """Characters of a sparkline, from low to high."""
    bar: str = "━─"
    """Characters of the full and the empty part of a bar."""
    more: str = "…"
    """Mark where text is cut."""
    ascii: bool = False
    """Whether only ASCII may be printed."""

    def escaped(self, text: str) -> str:
        """Escape control characters in a text; if only ASCII may be printed, escape all other characters too."""
        text = visible(text)
        if not self.ascii:
            return text
        return "".join(_ASCII.get(c, c) for c in text).encode("ascii", "backslashreplace").decode()


UNICODE = Glyphs()
ASCII = Glyphs(".:-=+*#%", "=-", "~", ascii=True)


def panel(
    progress: Progress, width: int = WIDTH, height: int = HEIGHT, glyphs: Glyphs = UNICODE, since_s: float = 0.0
) -> Panel | Text:
    """Return the progress as a panel of limited size.

    Args:
        progress: progress of the search.
        width: maximum number of columns.
        height: maximum number of lines.
        glyphs: characters for drawing.
        since_s: seconds since the start of the current step.
    """
    from rich import box
    from rich.panel import Panel
    from rich.text import Text

    title = glyphs.escaped(f"{progress.study} on {progress.device}")
    rows = progress_rows(progress)
    if width - _BORDER < _MIN_WIDTH or height < 4:
        found = _fitted(rows, max(width, 1), max(height, 1), 0, glyphs, since_s)
        return Text("\n").join(found)
    label = _LABEL if width - _BORDER >= 2 * _MIN_WIDTH else 0
    found = _fitted(rows, width - _BORDER, height - 2, label, glyphs, since_s)
    head = _cut(Text(title), width - _BORDER - 2, glyphs)
    edge = box.ASCII if glyphs.ascii else box.ROUNDED
    return Panel(Text("\n").join(found), title=head, title_align="left", width=width, box=edge)


def _fitted(
    rows: Sequence[ProgressRow], width: int, height: int, label: int, glyphs: Glyphs, since_s: float
) -> list[Text]:
    """Return the lines that fit, by priority; the first line of every row precedes all continuation lines."""
    wrapped = [_lines(row, width, label, glyphs, since_s) for row in rows]
    order = sorted((depth > 0, row.priority, index, depth) for index, row in enumerate(rows)
                   for depth in range(len(wrapped[index])))  # fmt: skip
    kept = {(index, depth) for _, _, index, depth in order[:height]}
    shown = []
    for index, lines in enumerate(wrapped):
        here = [line for depth, line in enumerate(lines) if (index, depth) in kept]
        if here and len(here) < len(lines):
            here[-1] = _cut(here[-1], width, glyphs, force=True)
        shown += here
    return shown


def _lines(row: ProgressRow, width: int, label: int, glyphs: Glyphs, since_s: float) -> list[Text]:
    """Return the lines of a row, with the label before the first one."""
    from rich.text import Text

    room = max(width - label, 1)
    style = _STYLES[row.kind]
    text = glyphs.escaped(row.text if label or row.kind not in _KINDS_WITH_LABEL else f"{row.label} {row.text}")
    if row.kind == "step" and since_s >= 1:
        text += f" ({since_s:.0f} s)"
    tail = glyphs.escaped(row.tail)
    if row.share is not None:
        length = min(room, _MOST_BAR)
        full = round(length * row.share)
        lines = [Text(glyphs.bar[0] * full + glyphs.bar[1] * (length - full))]
    elif row.points:
        length = min(max(room - len(text) - 1, 0), _MOST_SPARKLINE)
        drawn = sparkline(row.points, length, glyphs.levels) + " " if length >= 8 else ""
        lines = [_cut(Text.assemble((drawn, "cyan"), text), room, glyphs)]
    elif row.most > 1:
        lines = list(Text(text, style).wrap(_console(), room))
        if len(lines) > row.most:
            lines = lines[: row.most]
            lines[-1] = _cut(lines[-1], room, glyphs, force=True)
    else:
        lines = [_cut(Text(text, style), room - len(tail), glyphs) + Text(tail, style)]
    for line in lines:
        line.rstrip()
    if not label:
        return lines
    heads = [glyphs.escaped(row.label), *[""] * (len(lines) - 1)]
    return [Text.assemble((head.ljust(label)[:label], "dim"), line) for head, line in zip(heads, lines, strict=True)]


def _cut(text: Text, width: int, glyphs: Glyphs, *, force: bool = False) -> Text:
    """Cut a line to the width and mark the cut; with `force`, mark it even if it fits."""
    if not force and text.cell_len <= width:
        return text
    text = text.copy()
    text.truncate(max(width - 1, 0), overflow="crop")
    text.append(glyphs.more)
    return text


@cache
def _console() -> Console:
    """Return the console that `Text.wrap` requires but uses only for justified text."""
    from rich.console import Console

    return Console(file=io.StringIO())
