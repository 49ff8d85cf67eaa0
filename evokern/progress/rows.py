"""Progress of a running search as labelled rows of text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from evokern.wording import (
    changed_genes_text,
    count_noun,
    counts,
    duration,
    microseconds,
    rejected_baselines_text,
    uncounted_trials_text,
)

if TYPE_CHECKING:
    from evokern.device.contract import ExecutorState
    from evokern.search import Progress

SHOWN_CONSTRAINTS = 4
"""Maximum number of constraints to show; those with the most rejections are chosen."""
SHOWN_FAILURES = 6
"""Maximum number of kinds of failures to show, most recent first."""
LEVELS = "▁▂▃▄▅▆▇█"
"""Characters of a sparkline, from low to high."""


@dataclass(frozen=True)
class ProgressRow:
    """One row of a progress panel."""

    label: str
    """Label of the row; empty if the row continues the row above."""
    text: str = ""
    """Text of the row."""
    kind: Literal["plain", "best", "faster", "failure", "step"] = "plain"
    """Kind of content, which determines the style: champion, champion faster than the baseline, failure, or step."""
    share: float | None = None
    """Filled fraction of the bar that replaces the text, 0 to 1."""
    points: tuple[tuple[float, float], ...] = ()
    """Points (seconds, µs) of the sparkline that precedes the text."""
    tail: str = ""
    """Text that follows `text` and is kept when `text` is cut."""
    priority: int = 0
    """Priority; if space is short, rows with the highest numbers are dropped first."""
    most: int = 1
    """Maximum number of lines."""


def time_unit(progress: Progress) -> str:
    """Return `µs`, or `µs predicted` for a simulated device."""
    return "µs predicted" if progress.predicted else "µs"


def busy_text(progress: Progress) -> str:
    """Return the share of the time in which the device was busy, as text; empty if it rounds to zero."""
    device, percent = "simulator" if progress.predicted else "device", f"{100 * progress.busy_share:.0f}"
    return f"{device} busy {percent} %" if percent != "0" else ""


def baseline_text(progress: Progress) -> str:
    """Return the name and time of the baseline."""
    if progress.baseline is None:
        return rejected_baselines_text(progress.rejected_baselines) or "not measured"
    return f"{progress.baseline[0]} {microseconds(progress.baseline[1])} {time_unit(progress)}"


def best_text(progress: Progress) -> str:
    """Return the champion's time, trial number, power limit, speedup and verification."""
    if progress.best is None:
        return "nothing measured yet"
    times = f", {progress.speedup:.2f}× speedup" if progress.speedup else ""
    time_us, number = progress.best.evaluation.time_us, progress.best.number
    proof = {True: ", verified", False: ", refuted", None: ""}[progress.proofs.get(number)]
    limit = ", at the power limit" if progress.best.evaluation.evidence.get("bound") == "power-bound" else ""
    return f"{microseconds(time_us)} {time_unit(progress)} (trial {number}){limit}{times}{proof}"


def spent_text(progress: Progress) -> str:
    """Return the time and the trials used so far, with their limits."""
    budget = f" of {duration(progress.budget_s)}" if progress.budget_s else ""
    return f"{duration(progress.elapsed_s)}{budget}, {_trials(progress)}"


def _trials(progress: Progress) -> str:
    """Return the number of trials; with a limit, the trials that do not count towards it are listed separately."""
    if not progress.trials_limit:
        return count_noun(progress.trials, "trial")
    uncounted_ones = uncounted_trials_text(progress.outcomes)
    if progress.evaluated > progress.trials_limit:  # trials in flight under a larger limit are still evaluated
        asked = f" (limit {progress.trials_limit}; more were already in flight)"
        return f"{progress.evaluated} trials evaluated{uncounted_ones}{asked}"
    return f"{progress.evaluated} of {progress.trials_limit} trials evaluated{uncounted_ones}"


def arm_texts(progress: Progress) -> list[str]:
    """Return the results of the sampler's and the control's trials; empty for a study without a control."""
    texts = []
    for arm in progress.arms:
        time_us = arm.best.evaluation.time_us if arm.best else None
        found = f"{microseconds(time_us)} {time_unit(progress)}" if time_us else "nothing measured"
        texts.append(f"{arm.sampler}{' (control)' if arm.control else ''} {found} in {arm.trials}")
    return texts


def step_text(progress: Progress) -> str:
    """Return the current step of a session, or an empty string after the session's first result."""
    if progress.event == "opening":
        return progress.step.text if progress.step else "opening the device"
    if progress.trials > progress.resumed or progress.end:
        return ""
    if progress.stages is None:
        return f"first candidates: {progress.in_flight} on the device"
    compiling, compiled = progress.stages
    return f"first candidates: {compiling} compiling, {compiled} compiled and on the device"


def _flight(progress: Progress) -> str:
    if not progress.in_flight:
        return ""
    compiling = f" ({progress.stages[0]} compiling)" if progress.stages else ""
    return f", {progress.in_flight} in flight{compiling}"


def progress_rows(progress: Progress) -> list[ProgressRow]:
    """Return all rows of a progress panel."""
    rows = [ProgressRow("elapsed", spent_text(progress) + _flight(progress), most=2)]
    if progress.sweep:
        rows.append(ProgressRow("sweep", progress.sweep, priority=1, most=2))
    if progress.budget_s:
        share = min(max(progress.elapsed_s / progress.budget_s, 0.0), 1.0)
        rows.append(ProgressRow("", share=share, priority=5))
    step = step_text(progress)
    if step:
        rows.append(ProgressRow("now", step, "step", most=2))
        if progress.step is not None:
            rows.append(ProgressRow("", share=progress.step.done / max(progress.step.of, 1), priority=2))
    rows.append(ProgressRow("baseline", baseline_text(progress), priority=1, most=1 if progress.baseline else 3))
    kind: Literal["best", "faster"] = "faster" if (progress.speedup or 0) > 1 else "best"
    rows.append(ProgressRow("best", best_text(progress), kind, most=2))
    if progress.improvements:
        points = (*sorted(progress.improvements), (progress.elapsed_s, progress.improvements[-1][1]))
        rows.append(ProgressRow("best so far", _improved(progress), priority=2, points=points))
    if progress.arms:
        rows.append(ProgressRow("control", ", ".join(arm_texts(progress)) + " trials", priority=2, most=2))
    if progress.best is not None:
        choices = (
            changed_genes_text(progress.best.config, progress.genes)
            if progress.genes
            else " ".join(f"{name}={value}" for name, value in progress.best.config.items())
        )
        rows.append(ProgressRow("champion", choices, priority=2, most=6))
    if progress.trials > progress.resumed:
        speed = [f"{progress.trials_per_minute:.0f} trials/min", busy_text(progress)]
        rows.append(ProgressRow("speed", ", ".join(filter(None, speed)), priority=4))
    if progress.executors:
        rows.append(ProgressRow("executors", _executors(progress.executors), priority=3, most=3))
    if progress.trials:
        rows.append(ProgressRow("outcomes", counts(progress.outcomes), priority=3, most=2))
    if progress.rejections:
        most = sorted(progress.rejections.items(), key=lambda pair: -pair[1])[:SHOWN_CONSTRAINTS]
        others = " …" if len(progress.rejections) > SHOWN_CONSTRAINTS else ""
        rows.append(ProgressRow("rejected", counts(dict(most)) + others, priority=7, most=3))
    numbers = progress.failure_counts or (1,) * len(progress.last_failures)
    found = zip(progress.last_failures[:SHOWN_FAILURES], numbers, strict=False)
    for index, (failure, number) in enumerate(found):
        like = f" ({number} similar)" if number > 1 else ""
        label = "failures" if index == 0 else ""
        rows.append(ProgressRow(label, failure, "failure", priority=4 if index == 0 else 6, tail=like))
    return rows


def _executors(all_: Sequence[ExecutorState]) -> str:
    """Return the number and rates of the working executors, followed by the faulty executors."""
    rates = sorted(one.per_minute for one in all_ if not one.state)
    each = f"{rates[0]:.0f} to {rates[-1]:.0f} trials/min each" if rates else ""
    parts = [f"{len(rates)} of {len(all_)} working", each]
    return "; ".join([", ".join(filter(None, parts)), *(f"{one.name} {one.state}" for one in all_ if one.state)])


def _improved(progress: Progress) -> str:
    """Return the first and the latest best time, and how long ago the last improvement was."""
    first, (when, last) = progress.improvements[0][1], progress.improvements[-1]
    unit = time_unit(progress)
    if len(progress.improvements) == 1:
        return f"{microseconds(last)} {unit}"
    since = duration(max(0.0, progress.elapsed_s - when))
    return f"{microseconds(first)} to {microseconds(last)} {unit}, last {since} ago"


def sparkline(points: Sequence[tuple[float, float]], width: int, levels: str = LEVELS) -> str:
    """Return a text plot of the best time so far, on a logarithmic scale.

    Args:
        points: (seconds, µs) of each improvement in order; the last point is at the current time.
        width: number of characters.
        levels: characters from low (fast) to high (slow).
    """
    begin, end = points[0][0], points[-1][0]
    logs = [math.log(max(time_us, 1e-9)) for _, time_us in points]
    low, high = min(logs), max(logs)
    drawn, at = [], 0
    for cell in range(width):
        until = begin + (end - begin) * cell / max(width - 1, 1)
        while at + 1 < len(points) and points[at + 1][0] <= until:
            at += 1
        share = (logs[at] - low) / (high - low) if high > low else 0.0
        drawn.append(levels[round(share * (len(levels) - 1))])
    return "".join(drawn)
