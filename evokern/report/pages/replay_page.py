"""HTML page of a replay: quality of each sampler's best result after each evaluation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

import numpy as np

from evokern.report.plots import Axis, Plot
from evokern.report.tables import TextTable
from evokern.sampler_benchmark import ReplayResult
from evokern.templating import environment

WIDTH, HEIGHT = 920, 460
COLOURS = 8
"""Number of series colours in the style sheet; further samplers reuse them."""
BAND = (10, 90)
"""Percentiles over the repeats shown as a shaded band."""


def replay_page(result: ReplayResult) -> str:
    """Return a self-contained HTML page without scripts.

    Args:
        result: Result of the replay.
    """
    return (
        environment("evokern.report")
        .get_template("replay.html.j2")
        .render(
            heading=f"Replay of {result.space}",
            about=f"{len(result.samplers[0].curves)} searches of {result.trials} evaluations per sampler",
            predicted=False,
            band=BAND,
            optimum=f"{result.optimum_us:.6g}",
            plot=_plot(result),
            table=_table(result),
            notes=result.notes,
        )
    )


def _plot(result: ReplayResult) -> Plot:
    low = _lowest(result)
    plot = Plot(
        "Optimum ÷ best found, after each evaluation",
        Axis("evaluations", 1, max(result.trials, 2)),
        Axis("optimum ÷ best found", low, 1.0),
        WIDTH,
        HEIGHT,
    )
    means = []
    for index, sampler in enumerate(result.samplers):
        kind = f"series{index % COLOURS}"
        each = np.array(sampler.curves)
        below, above = np.percentile(each, BAND, axis=0)
        plot.band(_numbered(below.tolist()), _numbered(above.tolist()), kind)
        means.append((f"series {kind}", sampler.sampler, each.mean(axis=0).tolist()))
    if result.random_curve:
        means.append(("cache", "random, expected", list(result.random_curve)))
    # Draw lines above all bands, and sort the legend by the lines' final values.
    for kind, name, mean in sorted(means, key=lambda one: -one[2][-1]):
        plot.line(_numbered(mean), kind)
        plot.name(kind, f"{name} {mean[-1]:.3f}")
    return plot


def _numbered(curve: Sequence[float]) -> list[tuple[float, float]]:
    return [(float(evaluation), value) for evaluation, value in enumerate(curve, 1)]


def _lowest(result: ReplayResult) -> float:
    """Return the lower end of the axis, which is below most curves after a tenth of the evaluations."""
    early = max(result.trials // 10, 1)
    seen = [np.percentile(sampler.at(early), BAND[0]) for sampler in result.samplers]
    return max(0.0, math.floor(10 * min([*map(float, seen), 0.9])) / 10)


def _table(result: ReplayResult) -> TextTable:
    """Return each sampler's means at the checkpoints, its worst repeat, and its score."""
    rows = []
    for sampler in result.samplers:
        means = [f"{fmean(sampler.at(n)):.3f}" for n in result.checkpoints]
        rows.append((sampler.sampler, *means, f"{min(sampler.at(result.trials)):.3f}", f"{sampler.score:.3f}"))
    head = ("sampler", *map(str, result.checkpoints), "worst", "score")
    return TextTable(head, rows, range(1, len(head)))
