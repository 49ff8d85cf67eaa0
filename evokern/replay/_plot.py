"""A replay as one HTML file without scripts: how good each sampler's best was after each evaluation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from statistics import fmean

import numpy as np

from evokern.replay._results import ReplayResult

WIDTH, HEIGHT = 920, 460
LEFT, RIGHT, TOP, BOTTOM = 56, 150, 20, 44
COLOURS = ("#0b6e4f", "#c1440e", "#3b5bdb", "#8f3985", "#b08900", "#5c677d", "#0c8599", "#a61e4d")
"""Line colours, in the order of the samplers; readable on white and on black."""
BAND = (10, 90)
"""Percentiles over the repeats that the shaded band spans."""

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
svg { width: 100%; height: auto; } svg text { font: 13px system-ui, sans-serif; fill: currentColor; }
table { border-collapse: collapse; } th, td { padding: .2rem .8rem .2rem 0; text-align: right; }
th:first-child, td:first-child { text-align: left; }
"""


def html(result: ReplayResult) -> str:
    """Return the page."""
    title = escape(f"Replay of {result.space}")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}</style></head>\n<body><h1>{title}</h1>\n"
        f"<p>Optimum ÷ best found, after each evaluation: the mean over the repeats, and a band from the {BAND[0]}th "
        f"to the {BAND[1]}th percentile. Optimum: {result.optimum_us:.6g} µs.</p>\n"
        f"{_figure(result)}\n{_table(result)}\n</body></html>\n"
    )


def _figure(result: ReplayResult) -> str:
    low = _lowest(result)
    parts = [_axes(result.trials, low)]
    ends: list[tuple[float, str, str]] = []
    if result.random_curve:
        points = _points(result.random_curve, low)
        parts.append(f'<polyline points="{points}" fill="none" stroke="currentColor" stroke-dasharray="3 4"/>')
        ends.append((result.random_curve[-1], "random, expected", "currentColor"))
    for index, sampler in enumerate(result.samplers):
        colour = COLOURS[index % len(COLOURS)]
        curves = np.array(sampler.curves)
        below, above = np.percentile(curves, BAND, axis=0)
        outline = f"{_points(above, low)} {' '.join(reversed(_points(below, low).split()))}"
        mean = curves.mean(axis=0)
        parts.append(f'<polygon points="{outline}" fill="{colour}" opacity="0.13"/>')
        parts.append(f'<polyline points="{_points(mean, low)}" fill="none" stroke="{colour}" stroke-width="2"/>')
        ends.append((float(mean[-1]), sampler.sampler, colour))
    parts += _labels(ends, low)
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="optimum over best by evaluations">'
        + "".join(parts)
        + "</svg>"
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


def _axes(trials: int, low: float) -> str:
    parts = []
    for fraction in np.arange(low, 1.0 + 1e-9, 0.1 if low < 0.8 else 0.05):
        y = _y(fraction, low)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#8886"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{fraction:.2f}</text>')
    for n in sorted({1, *(round(trials * part / 4) for part in (1, 2, 3, 4))} - {0}):
        parts.append(f'<text x="{_x(n, trials):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{n}</text>')
    middle = LEFT + (WIDTH - LEFT - RIGHT) / 2
    parts.append(f'<text x="{middle:.0f}" y="{HEIGHT - 6}" text-anchor="middle">evaluations</text>')
    return "".join(parts)


def _labels(ends: list[tuple[float, str, str]], low: float) -> list[str]:
    """Return the names at the curves' ends, moved apart where they would overlap."""
    parts, above = [], TOP - 16.0
    for fraction, name, colour in sorted(ends, reverse=True):
        above = max(_y(fraction, low), above + 16)
        place = f'x="{WIDTH - RIGHT + 8}" y="{above + 4:.1f}" style="fill:{colour}"'
        parts.append(f"<text {place}>{escape(name)} {fraction:.3f}</text>")
    return parts


def _table(result: ReplayResult) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in ("sampler", *map(str, result.checkpoints), "worst", "score"))
    rows = []
    for sampler in result.samplers:
        cells = [f"{fmean(sampler.at(n)):.3f}" for n in result.checkpoints]
        cells += [f"{min(sampler.at(result.trials)):.3f}", f"{sampler.score:.3f}"]
        rows.append(f"<tr><td>{escape(sampler.sampler)}</td>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>"
