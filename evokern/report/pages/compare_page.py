"""HTML page that compares two runs: verdict, times with intervals, and sample distributions."""

from __future__ import annotations

from evokern.analysis.compare.compare import Comparison, ProblemComparison, changes
from evokern.report.plots import IntervalBar, Plot, interval_bars
from evokern.report.tables import TextTable
from evokern.report.times import sample_shares
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
