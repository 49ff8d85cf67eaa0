"""Plots: axes, points, steps and lines as inline SVG, bars as tables.

Colours come from the page's style sheet, light or dark.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH, HEIGHT = 560, 300
LEFT, RIGHT, TOP, BOTTOM = 62, 22, 12, 46


@dataclass(frozen=True)
class Axis:
    """One axis."""

    label: str
    """What it shows, with the unit."""
    low: float
    """Smallest value."""
    high: float
    """Largest value."""
    log: bool = False
    """Whether it is logarithmic."""

    def share(self, value: float) -> float:
        """Return where a value lies between the ends, 0 to 1."""
        low, high, at = (math.log10(max(v, 1e-12)) if self.log else v for v in (self.low, self.high, value))
        return min(max((at - low) / (high - low), 0.0), 1.0) if high > low else 0.5

    def ticks(self) -> list[float]:
        """Return round values to label, about five."""
        if self.log and self.high / max(self.low, 1e-12) >= 8:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            steps = (1, 2, 5) if last - first <= 3 else (1,)
            values = [step * 10.0**power for power in range(first, last + 1) for step in steps]
        else:
            raw = (self.high - self.low) / 5 or 1.0
            power = 10.0 ** math.floor(math.log10(raw))
            step = next(s * power for s in (1, 2, 5, 10) if s * power >= raw * 0.99)
            begin = math.ceil(self.low / step)
            values = [(begin + n) * step for n in range(12)]
        slack = 1e-9 * abs(self.high)
        return [v for v in values if self.low - slack <= v <= self.high + slack]


def number(value: float) -> str:
    """Return a number with the digits that matter."""
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{min(digits, 6)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def microseconds(value: float) -> str:
    """Return a time with three digits, zeros at the end kept, so that a column of them lines up."""
    digits = max(0, 2 - math.floor(math.log10(abs(value)))) if value else 0
    return f"{value:,.{min(digits, 6)}f}"


@dataclass
class Plot:
    """A plot with two axes, drawn piece by piece."""

    title: str
    """Told to screen readers."""
    x: Axis
    """Horizontal axis."""
    y: Axis
    """Vertical axis."""
    height: int = HEIGHT
    """Height, px."""
    parts: list[str] = field(default_factory=list)
    """SVG elements."""
    legend: list[tuple[str, str]] = field(default_factory=list)
    """Class and words of each series."""

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return a point's place, px."""
        return (
            LEFT + self.x.share(x) * (WIDTH - LEFT - RIGHT),
            self.height - BOTTOM - self.y.share(y) * (self.height - TOP - BOTTOM),
        )

    def points(self, values: Sequence[tuple[float, float, str]], kind: str, radius: float = 3.0) -> None:
        """Draw points, each with words that show on hovering."""
        for x, y, words in values:
            left, top = self.at(x, y)
            told = f"<title>{escape(words)}</title>"
            self.parts.append(f'<circle class="{kind}" cx="{left:.1f}" cy="{top:.1f}" r="{radius}">{told}</circle>')

    def steps(self, values: Sequence[tuple[float, float]], kind: str) -> None:
        """Draw a line that changes in steps and goes on to the right edge."""
        if not values:
            return
        path = []
        before: float | None = None
        for x, y in values:
            left, top = self.at(x, y)
            path += [f"M{left:.1f} {top:.1f}"] if before is None else [f"H{left:.1f}", f"V{top:.1f}"]
            before = top
        path.append(f"H{WIDTH - RIGHT}")
        self.parts.append(f'<path class="line {kind}" d="{"".join(path)}"/>')

    def line(self, values: Sequence[tuple[float, float]], kind: str) -> None:
        """Draw straight lines from point to point."""
        places = " ".join("{:.1f},{:.1f}".format(*self.at(x, y)) for x, y in values)
        self.parts.append(f'<polyline class="line {kind}" points="{places}"/>')

    def level(self, y: float, words: str, kind: str) -> None:
        """Draw a horizontal line with words at its right end."""
        _, top = self.at(self.x.low, y)
        above = top - 5 if top > TOP + 16 else top + 14
        self.parts.append(
            f'<line class="line {kind}" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{top:.1f}" y2="{top:.1f}"/>'
            f'<text class="note" x="{WIDTH - RIGHT - 4}" y="{above:.1f}" text-anchor="end">{escape(words)}</text>'
        )

    def name(self, kind: str, words: str) -> None:
        """Add a series to the legend."""
        self.legend.append((kind, words))

    def svg(self) -> str:
        """Return the figure."""
        bottom = self.height - BOTTOM
        axes = [f'<rect class="frame" x="{LEFT}" y="{TOP}" width="{WIDTH - LEFT - RIGHT}" height="{bottom - TOP}"/>']
        for value in self.x.ticks():
            left, _ = self.at(value, self.y.low)
            axes.append(
                f'<line class="grid" x1="{left:.1f}" x2="{left:.1f}" y1="{TOP}" y2="{bottom}"/>'
                f'<text x="{left:.1f}" y="{bottom + 16}" text-anchor="middle">{number(value)}</text>'
            )
        for value in self.y.ticks():
            _, top = self.at(self.x.low, value)
            axes.append(
                f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{top:.1f}" y2="{top:.1f}"/>'
                f'<text x="{LEFT - 6}" y="{top + 4:.1f}" text-anchor="end">{number(value)}</text>'
            )
        middle, centre = (TOP + bottom) / 2, (LEFT + WIDTH - RIGHT) / 2
        axes.append(
            f'<text x="{centre}" y="{self.height - 8}" text-anchor="middle">{escape(self.x.label)}</text>'
            f'<text transform="translate(14 {middle}) rotate(-90)" text-anchor="middle">{escape(self.y.label)}</text>'
        )
        body = "".join([*axes, *self.parts])
        return figure(self.title, WIDTH, self.height, body, self.legend)


def figure(title: str, width: float, height: float, body: str, legend: Sequence[tuple[str, str]] = ()) -> str:
    """Return an SVG with its legend."""
    keys = "".join(f'<span class="key"><i class="{kind}"></i>{escape(words)}</span>' for kind, words in legend)
    return (
        f'<figure><svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title, quote=True)}">'
        f"<title>{escape(title)}</title>{body}</svg>{f'<figcaption>{keys}</figcaption>' if keys else ''}</figure>"
    )


def bars(title: str, rows: Sequence[tuple[str, float, str]], kind: Callable[[str], str] = lambda name: "own") -> str:
    """Return horizontal bars: a table, so that names wrap on a narrow page.

    Args:
        title: told above them to screen readers.
        rows: name, length, and words at the bar's end.
        kind: name → class of its colour.
    """
    longest = max((abs(length) for _, length, _ in rows), default=0.0) or 1.0
    body = "".join(
        f'<tr><th scope="row">{_breakable(name)}</th><td><i class="bar {kind(name)}" '
        f'style="--share:{abs(length) / longest:.4f}"></i><span>{escape(words)}</span></td></tr>'
        for name, length, words in rows
    )
    return f'<table class="bars"><caption>{escape(title)}</caption><tbody>{body}</tbody></table>'


def _breakable(name: str) -> str:
    """Return a name, escaped, that may be broken where its words end."""
    return re.sub(r"([_=])", r"\1<wbr>", escape(name))


def span(values: Sequence[float], *, log: bool = False, pad: float = 0.06) -> tuple[float, float]:
    """Return the ends of an axis that shows all values with a little room."""
    low, high = min(values), max(values)
    if log:
        ratio = (high / low) ** pad if high > low else 1.1
        return low / ratio, high * ratio
    room = (high - low) * pad or abs(high) * pad or 1.0
    return low - room, high + room
