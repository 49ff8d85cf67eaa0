"""Plots and bars as shapes and relative lengths; the page's templates draw them as inline SVG and tables.

The colours are defined in the page's style sheet (light or dark).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from evokern.wording import microseconds

WIDTH, HEIGHT = 560, 300
LEFT, RIGHT, TOP, BOTTOM = 76, 22, 12, 46
LANE = 15
"""Height of a lane in px."""


@dataclass(frozen=True)
class Axis:
    """One axis of a plot."""

    label: str
    """Label with the unit."""
    low: float
    """Smallest value of the axis."""
    high: float
    """Largest value of the axis."""
    log: bool = False
    """Whether the axis is logarithmic."""

    def share(self, value: float) -> float:
        """Return the position of a value between the ends, from 0 to 1."""
        low, high = self._ends
        share = (self._scaled(value) - low) / (high - low) if high > low else 0.5
        return 0.0 if share < 0.0 else min(share, 1.0)

    def _scaled(self, value: float) -> float:
        return math.log10(max(value, 1e-12)) if self.log else value

    @cached_property
    def _ends(self) -> tuple[float, float]:
        """Ends of the axis as used for positions; cached because a page computes tens of thousands of positions."""
        return self._scaled(self.low), self._scaled(self.high)

    def ticks(self) -> list[float]:
        """Return three to ten round values to label."""
        if self.log and self.high / max(self.low, 1e-12) >= 8:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            steps = (1, 1.5, 2, 3, 4, 5, 7) if self.high / self.low < 20 else (1, 2, 5) if last - first <= 3 else (1,)
            values = [step * 10.0**power for power in range(first, last + 1) for step in steps]
        else:
            raw = (self.high - self.low) / 7 or 1.0
            power = 10.0 ** math.floor(math.log10(raw))
            step = next(s * power for s in (1, 2, 5, 10) if s * power >= raw * 0.99)
            begin = math.ceil(self.low / step)
            values = [(begin + n) * step for n in range(12)]
        slack = 1e-9 * abs(self.high)
        return [v for v in values if self.low - slack <= v <= self.high + slack]


def number(value: float) -> str:
    """Return a number as text with its significant digits."""
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{min(digits, 6)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


@dataclass(frozen=True)
class Shape:
    """An SVG element."""

    tag: str
    """Tag name."""
    attributes: Mapping[str, object]
    """Attributes of the element."""
    text: str = ""
    """Text content."""
    tip: str = ""
    """Tooltip."""


@dataclass
class Plot:
    """A plot with two axes."""

    title: str
    """Title for screen readers."""
    x: Axis
    """Horizontal axis."""
    y: Axis
    """Vertical axis."""
    width: int = WIDTH
    """Width in px."""
    height: int = HEIGHT
    """Height in px."""
    shapes: list[Shape] = field(default_factory=list)
    """Drawn shapes, lowest first."""
    legend: list[tuple[str, str]] = field(default_factory=list)
    """CSS class and text of each series in the legend."""
    marks: list[tuple[str, str, str]] = field(default_factory=list)
    """CSS class, path and text of each kind of mark in the legend."""
    lanes: tuple[str, ...] = ()
    """Names of the lanes above the vertical axis, lowest first; they hold points without a value."""

    @property
    def top(self) -> float:
        """Upper end of the vertical axis in px."""
        return TOP + LANE * len(self.lanes)

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return the position of a point in px."""
        return self._left(x), self.height - BOTTOM - self.y.share(y) * (self.height - self.top - BOTTOM)

    def _left(self, x: float) -> float:
        return LEFT + self.x.share(x) * (self.width - LEFT - RIGHT)

    def in_lane(self, x: float, lane: str) -> tuple[float, float]:
        """Return the position of a point in a lane in px."""
        return self._left(x), self.top - LANE * (self.lanes.index(lane) + 0.5)

    def draw_marks(self, places: Sequence[tuple[float, float]], mark: tuple[str, str, str]) -> None:
        """Draw all marks of one kind (class, path, text) as one shape, at positions in px."""
        kind, path, words = mark
        drawn = "".join(f"M{left:.1f} {top:.1f}{path}" for left, top in places)
        if drawn:
            self.shapes.append(Shape("path", {"class": f"mark {kind}", "d": drawn}))
            self.marks.append((kind, f"M9 8{path}", words))

    def points(self, values: Sequence[tuple[float, float, str]], kind: str, radius: float = 3.0) -> None:
        """Draw points with tooltips."""
        for x, y, words in values:
            left, top = self.at(x, y)
            place = {"class": kind, "cx": f"{left:.1f}", "cy": f"{top:.1f}", "r": radius}
            self.shapes.append(Shape("circle", place, tip=words))

    def steps(self, values: Sequence[tuple[float, float]], kind: str) -> None:
        """Draw a step line that continues to the right edge."""
        if not values:
            return
        path = []
        before: float | None = None
        for x, y in values:
            left, top = self.at(x, y)
            path += [f"M{left:.1f} {top:.1f}"] if before is None else [f"H{left:.1f}", f"V{top:.1f}"]
            before = top
        path.append(f"H{self.width - RIGHT}")
        self.shapes.append(Shape("path", {"class": f"line {kind}", "d": "".join(path)}))

    def line(self, values: Sequence[tuple[float, float]], kind: str) -> None:
        """Draw straight lines from point to point."""
        self.shapes.append(Shape("polyline", {"class": f"line {kind}", "points": self._places(values)}))

    def band(self, low: Sequence[tuple[float, float]], high: Sequence[tuple[float, float]], kind: str) -> None:
        """Fill the area between two lines."""
        outline = self._places([*high, *reversed(low)])
        self.shapes.append(Shape("polygon", {"class": f"band {kind}", "points": outline}))

    def _places(self, values: Sequence[tuple[float, float]]) -> str:
        return " ".join("{:.1f},{:.1f}".format(*self.at(x, y)) for x, y in values)

    def level(self, y: float, words: str, kind: str) -> None:
        """Draw a horizontal line with a label at its right end."""
        _, top = self.at(self.x.low, y)
        above = top - 5 if top > self.top + 16 else top + 14
        self.shapes += [
            _line(f"line {kind}", LEFT, self.width - RIGHT, top, top),
            Shape(
                "text",
                {"class": "note", "x": self.width - RIGHT - 4, "y": f"{above:.1f}", "text-anchor": "end"},
                words,
            ),
        ]

    def name(self, kind: str, words: str) -> None:
        """Add a series to the legend."""
        self.legend.append((kind, words))

    def drawn(self) -> list[Shape]:
        """Return all shapes; the axes come first, so that they are drawn below the others."""
        right, bottom = self.width - RIGHT, self.height - BOTTOM
        frame = {"class": "frame", "x": LEFT, "y": TOP, "width": right - LEFT, "height": bottom - TOP}
        shapes = [Shape("rect", frame)]
        for place, name in enumerate(self.lanes):
            middle = self.top - LANE * (place + 0.5)
            shapes.append(_line("grid", LEFT, right, middle + LANE / 2, middle + LANE / 2))
            note = {"class": "note lane", "x": LEFT - 6, "y": f"{middle + 4:.1f}", "text-anchor": "end"}
            shapes.append(Shape("text", note, name))
        for value in self.x.ticks():
            left, _ = self.at(value, self.y.low)
            shapes.append(_line("grid", left, left, self.top, bottom))
            shapes.append(Shape("text", {"x": f"{left:.1f}", "y": bottom + 16, "text-anchor": "middle"}, number(value)))
        for value in self.y.ticks():
            _, top = self.at(self.x.low, value)
            shapes.append(_line("grid", LEFT, right, top, top))
            if not self.lanes or top > self.top + 8:  # avoid the name of the lane above
                ends = {"x": LEFT - 6, "y": f"{top + 4:.1f}", "text-anchor": "end"}
                shapes.append(Shape("text", ends, number(value)))
        turned = f"translate(14 {(self.top + bottom) / 2}) rotate(-90)"
        shapes += [
            Shape("text", {"x": (LEFT + right) / 2, "y": self.height - 8, "text-anchor": "middle"}, self.x.label),
            Shape("text", {"transform": turned, "text-anchor": "middle"}, self.y.label),
        ]
        return shapes + self.shapes


def _line(kind: str, left: float, right: float, top: float, bottom: float) -> Shape:
    """Return a line between two positions in px."""
    ends = {"x1": left, "x2": right, "y1": top, "y2": bottom}
    return Shape("line", {"class": kind, **{name: f"{place:.1f}" for name, place in ends.items()}})


@dataclass(frozen=True)
class Bar:
    """One horizontal bar."""

    name: str
    """Label of the bar."""
    share: str
    """Length relative to the longest bar, from 0 to 1."""
    words: str
    """Text at the end of the bar."""
    kind: str
    """CSS class of the colour."""

    @property
    def name_parts(self) -> list[str]:
        """Parts of the name between which a line break is allowed."""
        return re.split(r"(?<=[_=])", self.name)


@dataclass(frozen=True)
class Bars:
    """A chart of horizontal bars."""

    title: str
    """Title for screen readers."""
    rows: tuple[Bar, ...]
    """The bars, top to bottom."""


def bars(title: str, rows: Sequence[tuple[str, float, str]], kind: Callable[[str], str] = lambda name: "own") -> Bars:
    """Return horizontal bars scaled to the longest one.

    Args:
        title: Title for screen readers.
        rows: Name, length and end text of each bar.
        kind: Function that maps a name to the CSS class of its colour.
    """
    longest = max((abs(length) for _, length, _ in rows), default=0.0) or 1.0
    return Bars(
        title, tuple(Bar(name, f"{abs(length) / longest:.4f}", words, kind(name)) for name, length, words in rows)
    )


@dataclass(frozen=True)
class IntervalBar:
    """A bar with an interval; several bars share one scale."""

    name: str
    """Label of the bar."""
    kind: str
    """CSS class of the colour."""
    words: str
    """Text at the end of the bar."""
    share: str
    """Length relative to the largest value of all bars, from 0 to 1."""
    low: str = ""
    """Lower end of the interval on the same scale; empty without an interval."""
    high: str = ""
    """Upper end of the interval."""
    tip: str = ""
    """Tooltip."""


def interval_bars(rows: Sequence[tuple[str, str, float, tuple[float, float] | None]], unit: str) -> list[IntervalBar]:
    """Return times as bars on one scale.

    Args:
        rows: Name, CSS class, time in µs, and interval (or None) of each bar.
        unit: Unit of the times; empty if shown elsewhere.
    """
    longest = max((max(time_us, between[1] if between else 0.0) for *_, time_us, between in rows), default=1.0)
    found = []
    for name, kind, time_us, between in rows:
        words = f"{microseconds(time_us)} {unit}".rstrip()
        if between is None:
            found.append(IntervalBar(name, kind, words, f"{time_us / longest:.4f}"))
            continue
        words += f" [{text}]" if (text := interval_text(*between)) else ""
        ends = [f"{end / longest:.4f}" for end in between]
        found.append(IntervalBar(name, kind, words, f"{time_us / longest:.4f}", *ends))
    return found


def change(ratio: float) -> str:
    """Return the difference between a ratio and 1, such as `+3.1 %`; a rounded zero has no sign."""
    percents = round(100 * (ratio - 1), 1)
    return f"{percents:+.1f} %" if percents else "0.0 %"


def span(values: Sequence[float], *, log: bool = False, pad: float = 0.06) -> tuple[float, float]:
    """Return axis ends that show all values with some margin."""
    low, high = min(values), max(values)
    if log:
        ratio = (high / low) ** pad if high > low else 1.1
        return low / ratio, high * ratio
    room = (high - low) * pad or abs(high) * pad or 1.0
    return low - room, high + room


def percent(share: float) -> str:
    """Return a share in percent with its significant digits, such as 0.4 % or 19 %."""
    value = 100 * share
    return f"{value:.0f} %" if abs(value) >= 1 or value == 0 else f"{value:.1g} %"


def interval_text(low: float, high: float) -> str:
    """Return an interval as text, with enough digits to distinguish its ends; empty if they are equal."""
    for more in range(4):
        digits = max(0, 2 + more - math.floor(math.log10(abs(high) or 1.0)))
        one, two = (f"{value:,.{min(digits, 6)}f}" for value in (low, high))
        if one != two:
            return f"{one} to {two}"
    return ""
