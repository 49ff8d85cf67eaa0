"""A replay as one HTML file without scripts: how good each sampler's best was after each evaluation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from evokern.sampler_benchmark.results import ReplayResult
from evokern.templating import environment

WIDTH, HEIGHT = 920, 460
LEFT, RIGHT, TOP, BOTTOM = 56, 150, 20, 44
FRAME = {"width": WIDTH, "height": HEIGHT, "left": LEFT, "right": WIDTH - RIGHT, "bottom": HEIGHT - BOTTOM}
"""Where the template draws, px."""
COLOURS = ("#0b6e4f", "#c1440e", "#3b5bdb", "#8f3985", "#b08900", "#5c677d", "#0c8599", "#a61e4d")
"""Line colours, in the order of the samplers; readable on white and on black."""
BAND = (10, 90)
"""Percentiles over the repeats that the shaded band spans."""


@dataclass(frozen=True)
class DrawnCurve:
    """One sampler's curve, as points of SVG."""

    mean: str
    """Mean over the repeats."""
    band: str
    """Outline of the band."""
    colour: str
    """Colour of both."""


def html(result: ReplayResult) -> str:
    """Return the page."""
    low = _lowest(result)
    curves: list[DrawnCurve] = []
    ends: list[tuple[float, str, str]] = []
    if result.random_curve:
        ends.append((result.random_curve[-1], "random, expected", "currentColor"))
    for index, sampler in enumerate(result.samplers):
        colour = COLOURS[index % len(COLOURS)]
        each = np.array(sampler.curves)
        below, above = np.percentile(each, BAND, axis=0)
        outline = f"{_points(above, low)} {' '.join(reversed(_points(below, low).split()))}"
        mean = each.mean(axis=0)
        curves.append(DrawnCurve(_points(mean, low), outline, colour))
        ends.append((float(mean[-1]), sampler.sampler, colour))
    return (
        environment(__package__)
        .get_template("plot.html.j2")
        .render(
            title=f"Replay of {result.space}",
            band=BAND,
            optimum=f"{result.optimum_us:.6g}",
            frame=FRAME,
            levels=_levels(low),
            ticks=_ticks(result.trials),
            random=_points(result.random_curve, low) if result.random_curve else "",
            curves=curves,
            labels=_labels(ends, low),
            head=("sampler", *result.checkpoints, "worst", "score"),
            rows=_rows(result),
        )
    )


def _lowest(result: ReplayResult) -> float:
    """Return the lower end of the axis: below what most curves have after a tenth of the evaluations."""
    early = max(result.trials // 10, 1)
    seen = [np.percentile(sampler.at(early), BAND[0]) for sampler in result.samplers]
    return max(0.0, math.floor(10 * min([*map(float, seen), 0.9])) / 10)


def _x(evaluation: float, trials: int) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * (evaluation - 1) / max(trials - 1, 1)


def _y(fraction: float, low: float) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (1 - (max(fraction, low) - low) / (1 - low))


def _points(curve: Sequence[float] | np.ndarray[tuple[int, ...], np.dtype[np.float64]], low: float) -> str:
    return " ".join(f"{_x(n, len(curve)):.1f},{_y(float(value), low):.1f}" for n, value in enumerate(curve, 1))


def _levels(low: float) -> list[tuple[float, str]]:
    """Return the height and text of each line of the grid."""
    fractions = np.arange(low, 1.0 + 1e-9, 0.1 if low < 0.8 else 0.05)
    return [(round(_y(float(fraction), low), 1), f"{fraction:.2f}") for fraction in fractions]


def _ticks(trials: int) -> list[tuple[float, int]]:
    """Return the place and number of each evaluation that is named below the frame."""
    named = sorted({1, *(round(trials * part / 4) for part in (1, 2, 3, 4))} - {0})
    return [(round(_x(n, trials), 1), n) for n in named]


def _labels(ends: list[tuple[float, str, str]], low: float) -> list[tuple[float, str, str]]:
    """Return the names at the curves' ends, moved apart where they would overlap: height, colour, text."""
    placed, above = [], TOP - 16.0
    for fraction, name, colour in sorted(ends, reverse=True):
        above = max(_y(fraction, low), above + 16)
        placed.append((round(above, 1), colour, f"{name} {fraction:.3f}"))
    return placed


def _rows(result: ReplayResult) -> list[list[str]]:
    """Return the table's rows: each sampler's mean after so many evaluations, its worst repeat, and its score."""
    rows = []
    for sampler in result.samplers:
        means = [f"{fmean(sampler.at(n)):.3f}" for n in result.checkpoints]
        rows.append([sampler.sampler, *means, f"{min(sampler.at(result.trials)):.3f}", f"{sampler.score:.3f}"])
    return rows
