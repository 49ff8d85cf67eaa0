"""Sections about the search: convergence, fastest trials, and outcomes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

from evokern.analysis.no_success import hints_of, stop_text
from evokern.report.facts import Facts
from evokern.report.gene_values import decisive_choice
from evokern.report.plot_marks import CONTROL, MARKS, REFUTED, SLOW, mark_of, outcome_words
from evokern.report.plots import HEIGHT, WIDTH, Axis, Plot, bars, span
from evokern.report.tables import TextTable
from evokern.report.trial_counts import reasons
from evokern.store import bests
from evokern.study.trial import Outcome, Trial
from evokern.wording import changed_genes_text, count_noun, factor_text, microseconds, rejected_baselines_text

SHOWN = (1.5, 6.0)
"""Limits of the time axis as multiples of the shortest time, so that slow trials do not compress the plot."""

MIN_TRIALS_FOR_PROGRESS = 8
"""Minimum number of evaluated trials for a statement about progress."""

MIN_RECENT_GAIN = 0.01
"""Minimum gain in the last quarter of the trials for a search that is still improving."""
LATE = 0.1
"""Fraction of trials at the end in which a new best counts as late."""
COMMON = 3
"""A property of slow trials is mentioned if at least one in this many trials has it."""

UNCHECKED = f"{SLOW}, not checked"
"""Name of slow trials whose correctness was not checked."""


def convergence(facts: Facts) -> dict[str, Any]:
    """Return the section on the best time during the search, with the control, the baseline and other studies."""
    return {
        "about": "best time so far over minutes instead of trials, and a comparison with the control",
        "verdict": facts.verdict,
        "plot": convergence_plot(facts, over_time=True),
        "control": facts.control is not None,
    }


def convergence_plot(facts: Facts, *, over_time: bool, width: int = WIDTH, height: int = HEIGHT) -> Plot | None:
    """Return a plot of the best time so far and all trials, or None without trials.

    Trials without a time, and very slow ones, are shown in lanes above the times.

    Args:
        facts: Facts about the study.
        over_time: Whether the horizontal axis shows minutes instead of evaluated trials.
        width: Width in px.
        height: Height in px.
    """
    own = 2 if facts.control else 1  # the other curves belong to other studies with their own trial numbers
    curves = {
        label: bests(trials, facts.refuted if place < own else ())
        for place, (label, trials) in enumerate(facts.curves.items())
    }
    times = [t.evaluation.time_us for t in facts.measured if t.evaluation.time_us]
    times += [time_us for curve in curves.values() for _, time_us in curve]
    if not any(facts.curves.values()):
        return None
    # Without measured trials, the baseline sets the scale.
    scale = [*times, *([facts.baseline[1]] if facts.baseline else [])] or [1.0]
    low, high = span([min(scale), shown_up_to(facts, min(scale))], log=True)
    if over_time:
        longest = max([trials[-1].seconds for trials in facts.curves.values() if trials] + [1.0])
        axis = Axis("minutes of study", 0, longest / 60)
    else:
        most = max([sum(t.outcome.evaluated for t in trials) for trials in facts.curves.values()] + [2])
        axis = Axis("evaluated trials", 0, most)
    placed: dict[int, list[tuple[float, float | None]]] = {}
    for place, trials in enumerate(facts.curves.values()):
        if place == 0 or (place == 1 and facts.control):
            _place(trials, placed, facts.refuted, over_time=over_time)
    beyond = any(time_us is not None and time_us > high for found in placed.values() for _, time_us in found)
    lanes = [f"> {microseconds(high)}"] * beyond
    lanes += dict.fromkeys(MARKS[kind].lane for kind in sorted(placed) if MARKS[kind].lane)
    title = f"Best time so far over {axis.label}, with every trial"
    plot = Plot(title, axis, Axis(f"{facts.unit} per call", low, high, log=True), width, height, lanes=tuple(lanes))
    for kind, found in sorted(placed.items(), reverse=True):
        mark = MARKS[kind]
        places = [
            plot.in_lane(x, mark.lane or lanes[0]) if time_us is None or time_us > high else plot.at(x, time_us)
            for x, time_us in found
        ]
        plot.draw_marks(places, (mark.kind, mark.path, f"{mark.label_for(facts.record.predicted)}: {len(places):,}"))
    for place, (label, curve) in enumerate(curves.items()):
        line = f"control{place}" if place else "own"
        reached = [
            (when.elapsed_s / 60 if over_time else when.evaluated, time_us)
            for when, time_us in curve
            if time_us <= high
        ]
        plot.steps(reached, line)
        if reached:
            plot.name(line, f"best so far, {label}")
    if facts.baseline and low <= facts.baseline[1] <= high:
        plot.level(
            facts.baseline[1], f"{baseline_name(facts.baseline[0])}, {microseconds(facts.baseline[1])} µs", "base"
        )
    _mark_best(plot, facts, over_time=over_time)
    return plot


@dataclass(frozen=True)
class Gains:
    """Gains of the later trials of a study's sampler."""

    trial: int
    """Number of the sampler's best trial."""
    place: int
    """Position of the best trial among the sampler's evaluated trials, counted from 1."""
    evaluated: int
    """Number of evaluated trials."""
    half: float
    """Relative gain over the best of the first half; infinite if the first half has no time."""
    quarter: float
    """Relative gain over the best of the first three quarters."""

    @property
    def late(self) -> bool:
        """Whether the best trial is in the last tenth of the trials."""
        return self.quarter > 0 and self.place > (1 - LATE) * self.evaluated

    @property
    def improving(self) -> bool:
        """Whether a longer search is likely to help."""
        return self.quarter >= MIN_RECENT_GAIN or self.late

    @staticmethod
    def words(share: float) -> str:
        """Return a gain as a verb phrase, to complete a sentence."""
        if math.isinf(share):
            return "found the first valid time"
        return f"gained {100 * share:.1f} %" if share > 0 else "gained nothing"


def gains(facts: Facts) -> Gains | None:
    """Return the gains of the later trials; None if no time was measured or there are too few trials."""
    trials = next(iter(facts.curves.values()), ())
    found = bests(trials, facts.refuted)
    curve = [(when.evaluated, time_us) for when, time_us in found]
    evaluated = sum(trial.outcome.evaluated for trial in trials)
    if not curve or evaluated < MIN_TRIALS_FOR_PROGRESS:
        return None
    last, time_us = curve[-1]

    def gained(share: float) -> float:
        before = next((us for place, us in reversed(curve) if place <= evaluated * share), math.inf)
        return before / time_us - 1

    return Gains(found[-1][0].trial, last, evaluated, gained(0.5), gained(0.75))


def progress_text(facts: Facts) -> str:
    """Return, as text, when the best trial was found and how much the last trials gained; empty without a time."""
    recent = gains(facts)
    if recent is None:
        return ""
    if recent.quarter >= MIN_RECENT_GAIN:
        verdict = "the search was still improving"
    else:
        verdict = (
            "little gain, but the best trial came late"
            if recent.improving
            else "the search had almost stopped improving"
        )
    return (
        f"The sampler's best is trial {recent.trial} (its {_nth(recent.place)} "
        f"of {count_noun(recent.evaluated, 'evaluated trial')}); "
        f"the second half {recent.words(recent.half)}, the last quarter {recent.words(recent.quarter)}: {verdict}"
    )


def _nth(place: int) -> str:
    ending = "th" if 10 < place % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(place % 10, "th")
    return f"{place}{ending}"


def shown_up_to(facts: Facts, least: float) -> float:
    """Return the upper end of the time axis: the time of the baseline, or of the first trial if it is slower."""
    first = next((t.evaluation.time_us for t in facts.measured if t.evaluation.time_us), least)
    wanted = max(first, facts.baseline[1] if facts.baseline else least) * 1.1
    return min(max(wanted, SHOWN[0] * least), SHOWN[1] * least)


def baseline_name(name: str) -> str:
    """Return the label of a baseline in a plot."""
    return name if "baseline" in name.lower() else f"baseline {name}"


def _place(
    trials: Sequence[Trial],
    placed: dict[int, list[tuple[float, float | None]]],
    refuted: Container[int],
    *,
    over_time: bool,
) -> None:
    """Record the mark and position of each trial of a group: evaluated trials or minutes, and the time."""
    evaluated = 0
    for trial in trials:
        evaluated += trial.outcome.evaluated
        kind = mark_of(trial.outcome)
        if trial.outcome is Outcome.MEASURED and (trial.number in refuted or trial.control):
            kind = REFUTED if trial.number in refuted else CONTROL
        time_us = None if MARKS[kind].lane else trial.evaluation.time_us
        placed.setdefault(kind, []).append((trial.seconds / 60 if over_time else evaluated, time_us))


def _mark_best(plot: Plot, facts: Facts, *, over_time: bool) -> None:
    """Draw a ring around the champion."""
    best = facts.best
    if best is None or not best.evaluation.time_us:
        return
    evaluated = sum(t.outcome.evaluated for t in facts.trials if t.number <= best.number and t.control == best.control)
    if facts.control:
        mine = next(arm for arm in list(facts.curves.values())[best.control :])
        evaluated = sum(t.outcome.evaluated for t in mine if t.number <= best.number)
    place = plot.at(best.seconds / 60 if over_time else evaluated, best.evaluation.time_us)
    words = f"the champion, trial {best.number}"
    plot.draw_marks([place], ("best", "m-7 0a7 7 0 1 0 14 0a7 7 0 1 0-14 0", words))


def outcomes(facts: Facts) -> dict[str, Any]:
    """Return the section with the outcomes, the failure reasons, and the rejected proposals."""
    predicted = facts.record.predicted
    counted = Counter(_ended(trial, predicted) for trial in facts.trials)
    good = {outcome_words(Outcome.MEASURED, predicted), outcome_words(Outcome.DUPLICATE), SLOW}
    failed = [(one.outcome, one.example, str(one.trial), str(one.count)) for one in reasons(facts.trials)]
    turned_away = [(name, float(count), f"{count:,}") for name, count in list(facts.rejections.items())[:15]]
    failed_or_not = sum(count for name, count in counted.items() if name not in good)
    examples = "; most common reasons with examples" if failed else ""
    return {
        "about": f"{count_noun(failed_or_not, 'trial')} {'failed or were not' if failed else 'not'} checked{examples}; "
        "rejected proposals",
        "outcomes": bars(
            "Trials by outcome",
            [(name, float(n), str(n)) for name, n in counted.most_common()],
            lambda name: "own" if name in good else "dimmed" if name == UNCHECKED else "fault",
        ),
        "reasons": failed,
        "explained": _explained(facts),
        "slow": slow_trials(facts),
        "rejections": bars("Rejected proposals by constraint", turned_away, lambda name: "dimmed"),
    }


def _explained(facts: Facts) -> list[str]:
    """Return why the search stopped early, likely causes of failures, and the rejected baselines."""
    found = hints_of(facts.record, facts.trials)
    if facts.sessions and facts.sessions[-1].end_reason == "no_success":
        found.insert(0, f"{stop_text(facts.trials)}; to continue all the same, resume with `--keep-going`")
    return found + [text for text in (rejected_baselines_text(facts.rejected_baselines),) if text]


def slow_trials(facts: Facts) -> str:
    """Describe the slow trials: their number, origin and slowdown; empty if no trial is slow."""
    slow = [trial for trial in facts.trials if trial.outcome is Outcome.SLOW]
    if not slow:
        return ""
    drawn = sum(trial.control for trial in slow)
    record = facts.record
    control, sampler = f"{drawn} proposed by the control ({record.control})", f"{len(slow) - drawn} by the sampler"
    by = f", {control} and {sampler} ({record.sampler})"
    amount = (
        f"{len(slow)} of {count_noun(len(facts.trials), 'trial')} {'was' if len(slow) == 1 else 'were'} slow"
        f"{by if facts.control is not None else ''}"
    )
    return f"{amount}: {slow_meaning(facts)}{_common_slow_values(facts, slow)}"


def _common_slow_values(facts: Facts, slow: Sequence[Trial]) -> str:
    """Return the values of the most important gene that occur only in slow or failed trials, as text."""
    decisive = decisive_choice(facts)
    if decisive is None:
        return ""
    name = decisive[0]
    never = {one.value for one in facts.values[name] if one.best_us is None}
    found = Counter(trial.config[name] for trial in slow if trial.config[name] in never)
    among = sum(found.values())
    if len(slow) > COMMON * among:
        return ""
    values = " or ".join(str(value) for value, _ in found.most_common())
    return f"; {among} of them have {name}={values}, and no such trial was ever timed completely"


def slow_meaning(facts: Facts) -> str:
    """Return an explanation of `slow` in a study, with the observed slowdowns relative to the best time."""
    slow = [t.evaluation for t in facts.trials if t.outcome is Outcome.SLOW]
    limits = [
        (e["limit_us"], e["elite_us"]) for e in (t.evidence for t in slow) if e.get("limit_us") and e.get("elite_us")
    ]
    # A trial stopped after a few samples has no threshold above the best time.
    factors = [limit / elite for limit, elite in limits if limit > elite]
    shown = list(dict.fromkeys(factor_text(factor) for factor in (min(factors), max(factors)))) if factors else []
    factor = f"{' to '.join(shown)} times " if factors else ""
    # The sampler and the control are separate searches with their own best times.
    own = " (the control has its own best)" if facts.control is not None else ""
    if facts.record.predicted:
        first = "initially the default candidate's predicted time"  # not a trial of the study
        return (
            f"not timed completely, because predicted to be slower than {factor}the best time so far{own}, {first}; "
            "correctness not checked"
        )
    arms = " (the control has its own best, initially the default's time)" if facts.control is not None else ""
    unchecked = sum(not one.passed_gate for one in slow)
    if 0 < len(factors) < len(slow):
        checked = ", correctness not checked" * bool(unchecked)
        rest = f"; {len(factors)} stopped at their first launches (slower than {factor}that time{checked})"
        return f"not timed completely, because slower than the best time so far{arms}{rest}"
    rest = f"; {unchecked} stopped at their first launches, correctness not checked" if unchecked else ""
    return f"not timed completely, because slower than {factor}the best time so far{arms}{rest}"


def _ended(trial: Trial, predicted: bool) -> str:
    if trial.outcome is not Outcome.SLOW:
        return outcome_words(trial.outcome, predicted)
    return SLOW if trial.evaluation.passed_gate else UNCHECKED


def fastest_trials(facts: Facts, most: int = 15) -> dict[str, Any]:
    """Return the section with the fastest trials and their distinguishing properties; tied trials share a row."""
    groups = tied(facts.measured)
    rows = []
    for group in groups[:most]:
        first = group[0]
        time_us = first.evaluation.time_us or 1.0
        used = first.evaluation.resources
        rows.append(
            (
                _numbered(group),
                microseconds(time_us),
                f"{facts.baseline[1] / time_us:.2f}×" if facts.baseline else "–",
                str(max(r.registers for r in used)) if used else "–",
                f"{100 * min(r.occupancy for r in used):.0f} %" if used else "–",
                changed_genes_text(first.config, facts.record.genes),
            )
        )
    head = ("trial", facts.unit, "speedup", "registers", "occupancy", "changed genes (first trial)")
    return {
        "about": f"{count_noun(len(facts.trials), 'trial')}: {facts.ended}; sort, filter or open them",
        "trials": TextTable(head, rows, range(1, 5)),
        "tied": any(len(group) > 1 for group in groups[:most]),
    }


TIED = 1e-3
"""Relative difference below which times are equal: 0.1 %."""
_NAMED = 4


def tied(trials: Sequence[Trial]) -> list[list[Trial]]:
    """Return measured trials in groups, sorted by time; a group's times are within `TIED` of its first time."""
    groups: list[list[Trial]] = []
    for trial in sorted(trials, key=lambda t: (t.evaluation.time_us or 0.0, t.number)):
        first = (groups[-1][0].evaluation.time_us or 0.0) if groups else 0.0
        if groups and (trial.evaluation.time_us or 0.0) <= first * (1 + TIED):
            groups[-1].append(trial)
        else:
            groups.append([trial])
    return groups


def _numbered(group: Sequence[Trial]) -> str:
    names = [f"{t.number}{' control' if t.control else ''}" for t in group[:_NAMED]]
    more = f" and {len(group) - _NAMED} more" if len(group) > _NAMED else ""
    return ", ".join(names) + more
