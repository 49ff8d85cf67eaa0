"""Sections about the search: convergence, the fastest trials, outcomes."""

from __future__ import annotations

from collections import Counter
from typing import Any

from evokern.analysis.control_verdict import control_verdict
from evokern.report.facts import Facts, reasons
from evokern.report.plots import Axis, Plot, bars, microseconds, span
from evokern.report.tables import TextTable
from evokern.store import bests
from evokern.study.trial import Outcome, Trial

SHOWN_ABOVE = 6.0
"""Times above this multiple of the least one are left out of the plots, whose other points would lie on one line."""

UNCHECKED = "slow, not checked"
"""What a candidate is called that was predicted to be slow: whether it is right was not asked."""


def convergence(facts: Facts) -> dict[str, Any]:
    """Return the best so far, over trials and time, beside the control, the baseline and other samplers' studies."""
    return {
        "verdict": control_verdict(facts.control, facts.unit, microseconds) if facts.control else "",
        "plots": [_curve(facts, over_time=False), _curve(facts, over_time=True)],
        "control": facts.control is not None,
    }


def _curve(facts: Facts, *, over_time: bool) -> Plot:
    curves = {label: bests(trials) for label, trials in facts.curves.items()}
    times = [t.evaluation.time_us for t in facts.measured if t.evaluation.time_us]
    times += [time_us for curve in curves.values() for _, time_us in curve]
    times += [facts.baseline[1]] if facts.baseline else []
    low, high = span([min(times), min(max(times), SHOWN_ABOVE * min(times))], log=True)
    if over_time:
        longest = max([trials[-1].seconds for trials in facts.curves.values() if trials] + [1.0])
        axis = Axis("minutes of study", 0, longest / 60)
    else:
        most = max([sum(t.outcome.evaluated for t in trials) for trials in facts.curves.values()] + [2])
        axis = Axis("evaluated trials", 0, most)
    plot = Plot(f"Best time so far over {axis.label}", axis, Axis(facts.unit, low, high, log=True))
    for place, (label, trials) in enumerate(facts.curves.items()):
        kind = f"control{place}" if place else "own"
        if place == 0 or (place == 1 and facts.control):
            plot.points(_dots(trials, high, over_time=over_time), f"dot {kind}-dot", 2.2)
        reached = [
            (when.elapsed_s / 60 if over_time else when.evaluated, time_us)
            for when, time_us in curves[label]
            if time_us <= high
        ]
        plot.steps(reached, kind)
        plot.name(kind, f"best so far, {label}")
    if facts.baseline and low <= facts.baseline[1] <= high:
        plot.level(facts.baseline[1], f"baseline {facts.baseline[0]}", "base")
    return plot


def _dots(trials: tuple[Trial, ...], high: float, *, over_time: bool) -> list[tuple[float, float, str]]:
    found, evaluated = [], 0
    for trial in trials:
        evaluated += trial.outcome.evaluated
        time_us = trial.evaluation.time_us
        if trial.outcome is Outcome.MEASURED and time_us and time_us <= high:
            at = trial.seconds / 60 if over_time else evaluated
            found.append((at, time_us, f"trial {trial.number}: {microseconds(time_us)} µs"))
    return found


def outcomes(facts: Facts) -> dict[str, Any]:
    """Return how trials ended, why they failed, and what was turned away before."""
    counts = Counter(_ended(trial) for trial in facts.trials)
    good = {"measured", "duplicate", "slow"}
    failed = [(one.outcome, one.example, str(one.trial), str(one.count)) for one in reasons(facts.trials)]
    turned_away = [(name, float(count), f"{count:,}") for name, count in list(facts.rejections.items())[:15]]
    return {
        "outcomes": bars(
            "Trials by outcome",
            [(name.replace("_", " "), float(n), str(n)) for name, n in counts.most_common()],
            lambda name: "own" if name in good else "dimmed" if name == UNCHECKED else "fault",
        ),
        "reasons": TextTable(("outcome", "reason, as one trial has it", "trial", "trials"), failed, (2, 3)),
        "rejections": bars("Proposals turned away by constraint", turned_away, lambda name: "dimmed"),
    }


def _ended(trial: Trial) -> str:
    unchecked = trial.outcome is Outcome.SLOW and not trial.evaluation.passed_gate
    return UNCHECKED if unchecked else trial.outcome.value


def elites(facts: Facts, most: int = 15) -> dict[str, Any]:
    """Return the fastest trials, with what distinguishes them from the default."""
    ordered: list[Trial] = sorted(facts.measured, key=lambda t: (t.evaluation.time_us or 0.0, t.number))
    rows = []
    for trial in ordered[:most]:
        changed = [f"{g.name}={trial.config[g.name]}" for g in facts.record.genes if trial.config[g.name] != g.default]
        used = trial.evaluation.resources
        rows.append(
            (
                f"{trial.number}{' control' if trial.control else ''}",
                microseconds(trial.evaluation.time_us or 0.0),
                f"{facts.baseline[1] / (trial.evaluation.time_us or 1.0):.2f}×" if facts.baseline else "–",
                str(max(r.registers for r in used)) if used else "–",
                f"{100 * min(r.occupancy for r in used):.0f} %" if used else "–",
                " ".join(changed) or "the default candidate",
            )
        )
    head = ("trial", facts.unit, "speedup", "registers", "occupancy", "changed genes")
    return {"trials": TextTable(head, rows, range(1, 5))}
