"""How a running search stands, as labelled rows of text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from evokern.wording import counts, duration, microseconds, several, uncounted

if TYPE_CHECKING:
    from evokern.search import Progress

SHOWN_CONSTRAINTS = 4
"""Constraints that are named, those that turned away most."""
SHOWN_FAILURES = 4
"""Failures that are shown, the last ones."""


@dataclass(frozen=True)
class ProgressRow:
    """One row."""

    label: str
    """What it is about; empty where it goes on about the row above."""
    text: str = ""
    """What it shows."""
    kind: Literal["plain", "best", "faster", "failure"] = "plain"
    """How it stands out: the champion, one that beats the baseline, a failure."""
    share: float | None = None
    """Length of a bar that is drawn instead of text, 0 to 1."""


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


def progress_rows(progress: Progress) -> list[ProgressRow]:
    """Return everything that a panel shows of a search."""
    rows = [ProgressRow("elapsed", f"{spent_text(progress)}, {progress.in_flight} in flight")]
    if progress.budget_s:
        rows.append(ProgressRow("", share=min(max(progress.elapsed_s / progress.budget_s, 0.0), 1.0)))
    rows.append(ProgressRow("baseline", baseline_text(progress)))
    rows.append(ProgressRow("best", best_text(progress), "faster" if (progress.speedup or 0) > 1 else "best"))
    if progress.arms:
        rows.append(ProgressRow("control", ", ".join(arm_texts(progress)) + " trials"))
    busy = f"device busy {100 * progress.busy_share:.0f} %"
    rows.append(ProgressRow("speed", f"{progress.trials_per_minute:.0f} trials a minute, {busy}"))
    rows.append(ProgressRow("outcomes", counts(progress.outcomes)))
    if progress.rejections:
        most = sorted(progress.rejections.items(), key=lambda pair: -pair[1])[:SHOWN_CONSTRAINTS]
        others = " …" if len(progress.rejections) > SHOWN_CONSTRAINTS else ""
        rows.append(ProgressRow("turned away", counts(dict(most)) + others))
    if progress.best is not None:
        choices = " ".join(f"{name}={value}" for name, value in progress.best.config.items())
        rows.append(ProgressRow("champion", choices))
    for index, failure in enumerate(progress.last_failures[:SHOWN_FAILURES]):
        rows.append(ProgressRow("last failures" if index == 0 else "", failure, "failure"))
    return rows
