"""How a running search stands, as labelled rows of text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from evokern.wording import changed, counts, duration, microseconds, several, uncounted

if TYPE_CHECKING:
    from evokern.device.contract import ExecutorState
    from evokern.search import Progress

SHOWN_CONSTRAINTS = 4
"""Constraints that are named, those that turned away most."""
SHOWN_FAILURES = 6
"""Kinds of failures that are shown, those that happened last."""
LEVELS = "▁▂▃▄▅▆▇█"
"""Heights of a sparkline."""


@dataclass(frozen=True)
class ProgressRow:
    """One row."""

    label: str
    """What it is about; empty where it goes on about the row above."""
    text: str = ""
    """What it shows."""
    kind: Literal["plain", "best", "faster", "failure", "step"] = "plain"
    """How it stands out: the champion, one that beats the baseline, a failure, what happens now."""
    share: float | None = None
    """Length of a bar that is drawn instead of text, 0 to 1."""
    points: tuple[tuple[float, float], ...] = ()
    """Of the best over time, as `sparkline` draws it before the text."""
    tail: str = ""
    """What follows the text and stays where the text is cut."""
    priority: int = 0
    """Which rows are left out first where there is little room: those of the highest."""
    most: int = 1
    """Lines that it may take."""


def time_unit(progress: Progress) -> str:
    """Return `µs`, or `µs predicted` for a simulated device."""
    return "µs predicted" if progress.predicted else "µs"


def baseline_text(progress: Progress) -> str:
    """Return name and time of the baseline."""
    if progress.baseline is None:
        return "not measured"
    return f"{progress.baseline[0]} {microseconds(progress.baseline[1])} {time_unit(progress)}"


def best_text(progress: Progress) -> str:
    """Return time, trial and speedup of the champion, and what its verification said."""
    if progress.best is None:
        return "nothing measured yet"
    times = f", {progress.speedup:.2f}× the baseline" if progress.speedup else ""
    time_us, number = progress.best.evaluation.time_us, progress.best.number
    proof = {True: ", verified", False: ", refuted", None: ""}[progress.proofs.get(number)]
    return f"{microseconds(time_us)} {time_unit(progress)} (trial {number}){times}{proof}"


def spent_text(progress: Progress) -> str:
    """Return time and trials spent, of how many."""
    budget = f" of {duration(progress.budget_s)}" if progress.budget_s else ""
    return f"{duration(progress.elapsed_s)}{budget}, {_trials(progress)}"


def _trials(progress: Progress) -> str:
    """Return how many trials there were; under a limit those that it counts, the others apart."""
    if not progress.trials_limit:
        return several(progress.trials, "trial")
    uncounted_ones = uncounted(progress.outcomes)
    if progress.evaluated > progress.trials_limit:  # what was in flight under a larger limit is still evaluated
        asked = f"; {progress.trials_limit} were asked for, and more had begun"
        return f"{progress.evaluated} trials evaluated{uncounted_ones}{asked}"
    return f"{progress.evaluated} of {progress.trials_limit} trials evaluated{uncounted_ones}"


def arm_texts(progress: Progress) -> list[str]:
    """Return what each arm found, where there is a control."""
    texts = []
    for arm in progress.arms:
        time_us = arm.best.evaluation.time_us if arm.best else None
        found = f"{microseconds(time_us)} {time_unit(progress)}" if time_us else "nothing measured"
        texts.append(f"{arm.sampler}{' (control)' if arm.control else ''} {found} in {arm.trials}")
    return texts


def step_text(progress: Progress) -> str:
    """Return what happens before the first result of a session, empty once there is one."""
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
    """Return everything that a panel shows of a search."""
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
    rows.append(ProgressRow("baseline", baseline_text(progress), priority=1))
    kind: Literal["best", "faster"] = "faster" if (progress.speedup or 0) > 1 else "best"
    rows.append(ProgressRow("best", best_text(progress), kind, most=2))
    if progress.improvements:
        points = (*sorted(progress.improvements), (progress.elapsed_s, progress.improvements[-1][1]))
        rows.append(ProgressRow("best so far", _improved(progress), priority=2, points=points))
    if progress.arms:
        rows.append(ProgressRow("control", ", ".join(arm_texts(progress)) + " trials", priority=2, most=2))
    if progress.best is not None:
        choices = changed(progress.best.config, progress.genes) if progress.genes else _listed(progress.best.config)
        rows.append(ProgressRow("champion", choices, priority=2, most=6))
    busy = f", device busy {100 * progress.busy_share:.0f} %" if progress.busy_share else ""
    if progress.trials > progress.resumed:
        speed = f"{progress.trials_per_minute:.0f} trials a minute{busy}"
        rows.append(ProgressRow("speed", speed, priority=4))
    if progress.executors:
        rows.append(ProgressRow("executors", _executors(progress.executors), priority=3, most=3))
    if progress.trials:
        rows.append(ProgressRow("outcomes", counts(progress.outcomes), priority=3, most=2))
    if progress.rejections:
        most = sorted(progress.rejections.items(), key=lambda pair: -pair[1])[:SHOWN_CONSTRAINTS]
        others = " …" if len(progress.rejections) > SHOWN_CONSTRAINTS else ""
        rows.append(ProgressRow("turned away", counts(dict(most)) + others, priority=7, most=3))
    numbers = progress.failure_counts or (1,) * len(progress.last_failures)
    found = zip(progress.last_failures[:SHOWN_FAILURES], numbers, strict=False)
    for index, (failure, number) in enumerate(found):
        like = f" ({number} such)" if number > 1 else ""
        label = "failures" if index == 0 else ""
        rows.append(ProgressRow(label, failure, "failure", priority=4 if index == 0 else 6, tail=like))
    return rows


def _executors(all_: Sequence[ExecutorState]) -> str:
    """Return how many work at which rates, then whatever is worth a word."""
    rates = sorted(one.per_minute for one in all_ if not one.state)
    each = f"{rates[0]:.0f} to {rates[-1]:.0f} trials a minute each" if rates else ""
    parts = [f"{len(rates)} of {len(all_)} work without a fault", each]
    return "; ".join([", ".join(filter(None, parts)), *(f"{one.name} {one.state}" for one in all_ if one.state)])


def _listed(config: Mapping[str, object]) -> str:
    return " ".join(f"{name}={value}" for name, value in config.items())


def _improved(progress: Progress) -> str:
    """Return from where to where the best came, and how long ago it last did."""
    first, (when, last) = progress.improvements[0][1], progress.improvements[-1]
    unit = time_unit(progress)
    if len(progress.improvements) == 1:
        return f"{microseconds(last)} {unit}"
    since = duration(max(0.0, progress.elapsed_s - when))
    return f"{microseconds(first)} to {microseconds(last)} {unit}, last {since} ago"


def sparkline(points: Sequence[tuple[float, float]], width: int, levels: str = LEVELS) -> str:
    """Return the best over time as a line of blocks, the lower the faster, on a logarithmic scale.

    Args:
        points: seconds and µs of each improvement in order; the last one is now.
        width: characters.
        levels: characters from the lowest to the highest.
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
