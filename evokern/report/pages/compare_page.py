"""Pages that commands write: the comparison of two runs, and the comparison of samplers on a recorded space."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

import numpy as np

from evokern.analysis.compare.compare import Comparison, ProblemComparison, changes
from evokern.report.plots import Axis, IntervalBar, Plot, interval_bars
from evokern.report.tables import TextTable
from evokern.report.times import sample_shares
from evokern.sampler_benchmark import ReplayResult
from evokern.templating import environment
from evokern.wording import microseconds

_KINDS = {"slower": "bad", "faster": "good", "same": "unasked"}
"""CSS class of the verdict's card."""
_WORDS = {"slower": "slower", "faster": "faster", "same": "no relevant difference"}
"""Text of the verdict."""


def compare_page(found: Comparison) -> str:
    """Return a self-contained HTML page without scripts.

    Args:
        found: Result of the comparison.
    """
    predicted = found.old.predicted
    unit = "predicted µs" if predicted else "µs"
    changed = [(name, _plain(old), _plain(new)) for name, (old, new) in changes(found.old, found.new).items()]
    return (
        environment("evokern.report")
        .get_template("compare.html.j2")
        .render(
            heading=f"{found.new.kernel} on {found.new.device}",
            about=f"{found.new.label} compared with {found.old.label}",
            predicted=predicted,
            kind=_KINDS[found.verdict],
            word=_WORDS[found.verdict],
            ratio=f"{found.ratio:.3f}",
            threshold=f"{100 * found.threshold:g} %",
            level=f"{found.level:g}",
            method=found.method,
            problems=[
                {"name": found.in_words(line), "bars": _bars(found, line, unit), "plot": _plot(found, line)}
                for line in found.lines
            ],
            table=TextTable(
                ("problem", f"old, {unit}", f"new, {unit}", "new / old", "95 % interval", "p-value", "Cliff's δ", ""),
                [_row(found.in_words(line), line) for line in found.lines],
                range(1, 7),
            ),
            changed=TextTable(("", "old", "new"), changed),
            remarks=found.remarks,
        )
    )


def _bars(found: Comparison, line: ProblemComparison, unit: str) -> list[IntervalBar]:
    rows = []
    for name, kind, run, time_us in (("old", "base", found.old, line.old_us), ("new", "own", found.new, line.new_us)):
        reading = run.readings.get(line.problem)
        # Paired runs were timed again, so the stored interval does not apply.
        stored = reading is not None and reading.time_us == time_us
        rows.append((name, kind, time_us, reading.ci95_us if reading is not None and stored else None))
    return interval_bars(rows, unit)


def _plot(found: Comparison, line: ProblemComparison) -> Plot | None:
    """Return the distributions of both runs' stored samples, or None if the verdict does not use them."""
    if line.chance is None:
        return None
    old, new = (run.readings[line.problem].samples_us for run in (found.old, found.new))
    return sample_shares([("old", "base-line", old), ("new", "own", new)])


def _row(problem: str, line: ProblemComparison) -> tuple[str, ...]:
    low, high = line.ratio_ci95 or (None, None)
    return (
        problem,
        microseconds(line.old_us),
        microseconds(line.new_us),
        f"{line.ratio:.3f}",
        f"{low:.3f} to {high:.3f}" if low is not None and high is not None else "–",
        f"{line.chance:.2g}" if line.chance is not None else "–",
        f"{line.delta:+.2f}" if line.delta is not None else "–",
        line.verdict,
    )


def _plain(value: object) -> str:
    return "–" if value is None else str(value)


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
            plot=_score_plot(result),
            table=_table(result),
            notes=result.notes,
        )
    )


def _score_plot(result: ReplayResult) -> Plot:
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
