"""Sections about the search: convergence, the fastest trials, outcomes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

from evokern.report.facts import Facts
from evokern.report.gene_values import decisive_choice
from evokern.report.marks import CONTROL, MARKS, REFUTED, SLOW, mark_of, outcome_words
from evokern.report.plots import HEIGHT, WIDTH, Axis, Plot, bars, span
from evokern.report.tables import TextTable
from evokern.report.trial_counts import reasons
from evokern.store import bests
from evokern.study.trial import Outcome, Trial
from evokern.wording import changed, factor_text, microseconds, several

SHOWN = (1.5, 6.0)
"""Multiples of the least time up to which the axis of times reaches: far slower ones would press the others flat."""

LEAST_TOLD = 8
"""Evaluated trials below which it is not told how a search went on."""

STILL = 0.01
"""A search whose last quarter of trials brought less has all but stopped improving."""
LATE = 0.1
"""Part of the trials, the last ones, among which a best came late."""
COMMON = 3
"""A reason is told of slow trials that at least one in so many shares."""

UNCHECKED = f"{SLOW}, not checked"
"""What it is called where it was not asked either whether it is right."""


def convergence(facts: Facts) -> dict[str, Any]:
    """Return the best so far over time, beside the control, the baseline and other samplers' studies."""
    return {
        "about": "the same over time instead of trials, and whether the sampler earned its keep",
        "verdict": facts.verdict,
        "plot": convergence_plot(facts, over_time=True),
        "control": facts.control is not None,
    }


def convergence_plot(facts: Facts, *, over_time: bool, width: int = WIDTH, height: int = HEIGHT) -> Plot | None:
    """Return the best so far and every trial as the mark of how it ended; None without a trial.

    Trials without a time, and those far slower than the best, lie in lanes above the times.

    Args:
        facts: the study.
        over_time: over minutes instead of evaluated trials.
        width: px.
        height: px.
    """
    own = 2 if facts.control else 1  # the others are of other studies, whose trials have numbers of their own
    curves = {
        label: bests(trials, facts.refuted if place < own else ())
        for place, (label, trials) in enumerate(facts.curves.items())
    }
    times = [t.evaluation.time_us for t in facts.measured if t.evaluation.time_us]
    times += [time_us for curve in curves.values() for _, time_us in curve]
    if not any(facts.curves.values()):
        return None
    # A baseline sets the scale where nothing is measured; without either there are only the lanes.
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
    plot = Plot(title, axis, Axis(f"{facts.unit} a call", low, high, log=True), width, height, lanes=tuple(lanes))
    for kind, found in sorted(placed.items(), reverse=True):
        mark = MARKS[kind]
        places = [
            plot.in_lane(x, mark.lane or lanes[0]) if time_us is None or time_us > high else plot.at(x, time_us)
            for x, time_us in found
        ]
        plot.draw_marks(places, (mark.kind, mark.path, f"{mark.told(facts.record.predicted)}: {len(places):,}"))
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
    """What the later trials of a study's sampler brought."""

    trial: int
    """The sampler's best."""
    place: int
    """Which of its evaluated trials that is, from 1 on."""
    evaluated: int
    """How many it has."""
    half: float
    """By how much the best of the first half is slower than the best, a share; infinite where there was none."""
    quarter: float
    """The same of the first three quarters."""

    @property
    def late(self) -> bool:
        """Whether the best came among the last tenth of the trials, faster than what was best before."""
        return self.quarter > 0 and self.place > (1 - LATE) * self.evaluated

    @property
    def improving(self) -> bool:
        """Whether a longer search promises more, as far as its last trials tell."""
        return self.quarter >= STILL or self.late

    @staticmethod
    def words(share: float) -> str:
        """Return what trials brought, in words."""
        return "the first time" if math.isinf(share) else f"{100 * share:.1f} %" if share > 0 else "nothing"


def gains(facts: Facts) -> Gains | None:
    """Return what the later trials brought; None without a time, or of too few trials."""
    trials = next(iter(facts.curves.values()), ())
    found = bests(trials, facts.refuted)
    curve = [(when.evaluated, time_us) for when, time_us in found]
    evaluated = sum(trial.outcome.evaluated for trial in trials)
    if not curve or evaluated < LEAST_TOLD:
        return None
    last, time_us = curve[-1]

    def gained(share: float) -> float:
        before = next((us for place, us in reversed(curve) if place <= evaluated * share), math.inf)
        return before / time_us - 1

    return Gains(found[-1][0].trial, last, evaluated, gained(0.5), gained(0.75))


def improvement(facts: Facts) -> str:
    """Return when the best came and what the sampler's last trials brought, in words; nothing without a time."""
    told = gains(facts)
    if told is None:
        return ""
    if told.quarter >= STILL:
        verdict = "it was still improving"
    else:
        verdict = "little, but its best came late" if told.improving else "it had all but stopped improving"
    return (
        f"The sampler's best is trial {told.trial}, its {_nth(told.place)} "
        f"of {several(told.evaluated, 'evaluated trial')}; "
        f"the second half brought {told.words(told.half)}, the last quarter {told.words(told.quarter)}: {verdict}"
    )


def _nth(place: int) -> str:
    ending = "th" if 10 < place % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(place % 10, "th")
    return f"{place}{ending}"


def shown_up_to(facts: Facts, least: float) -> float:
    """Return the time that the axis reaches to: the baseline's, or that of the first trial where it is slower."""
    first = next((t.evaluation.time_us for t in facts.measured if t.evaluation.time_us), least)
    wanted = max(first, facts.baseline[1] if facts.baseline else least) * 1.1
    return min(max(wanted, SHOWN[0] * least), SHOWN[1] * least)


def baseline_name(name: str) -> str:
    """Return what to call a baseline in a plot."""
    return name if "baseline" in name.lower() else f"baseline {name}"


def _place(
    trials: Sequence[Trial],
    placed: dict[int, list[tuple[float, float | None]]],
    refuted: Container[int],
    *,
    over_time: bool,
) -> None:
    """Note of each trial of an arm which mark it has and where it lies: evaluated trials or minutes, and its time."""
    evaluated = 0
    for trial in trials:
        evaluated += trial.outcome.evaluated
        kind = mark_of(trial.outcome)
        if trial.outcome is Outcome.MEASURED and (trial.number in refuted or trial.control):
            kind = REFUTED if trial.number in refuted else CONTROL
        time_us = None if MARKS[kind].lane else trial.evaluation.time_us
        placed.setdefault(kind, []).append((trial.seconds / 60 if over_time else evaluated, time_us))


def _mark_best(plot: Plot, facts: Facts, *, over_time: bool) -> None:
    """Ring the champion."""
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
    """Return how trials ended, why they failed, and what was turned away before."""
    predicted = facts.record.predicted
    counted = Counter(_ended(trial, predicted) for trial in facts.trials)
    good = {outcome_words(Outcome.MEASURED, predicted), outcome_words(Outcome.DUPLICATE), SLOW}
    failed = [(one.outcome, one.example, str(one.trial), str(one.count)) for one in reasons(facts.trials)]
    turned_away = [(name, float(count), f"{count:,}") for name, count in list(facts.rejections.items())[:15]]
    failed_or_not = sum(count for name, count in counted.items() if name not in good)
    examples = "; the commonest reasons, each with an example" if failed else ""
    return {
        "about": f"{several(failed_or_not, 'trial')} {'failed or were' if failed else 'were'} not checked{examples}; "
        "what was turned away before",
        "outcomes": bars(
            "Trials by outcome",
            [(name, float(n), str(n)) for name, n in counted.most_common()],
            lambda name: "own" if name in good else "dimmed" if name == UNCHECKED else "fault",
        ),
        "reasons": failed,
        "slow": slow_trials(facts),
        "rejections": bars("Proposals turned away by constraint", turned_away, lambda name: "dimmed"),
    }


def slow_trials(facts: Facts) -> str:
    """Return how many trials were slow, who drew them, and what slow means; nothing without any."""
    slow = [trial for trial in facts.trials if trial.outcome is Outcome.SLOW]
    if not slow:
        return ""
    drawn = sum(trial.control for trial in slow)
    record = facts.record
    by = f", {drawn} drawn by the control ({record.control}) and {len(slow) - drawn} by the sampler ({record.sampler})"
    told = (
        f"{len(slow)} of {several(len(facts.trials), 'trial')} {'was' if len(slow) == 1 else 'were'} slow"
        f"{by if facts.control is not None else ''}"
    )
    return f"{told}: {slow_meaning(facts)}{_in_common(facts, slow)}"


def _in_common(facts: Facts, slow: Sequence[Trial]) -> str:
    """Return how many slow trials have a value of the gene that decides most with which none was ever timed."""
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
    return f"; {among} of them have {name}={values}, with which none was ever fast enough to be timed"


def slow_meaning(facts: Facts) -> str:
    """Return what slow means in a study, with the factor of the best so far that its trials' evidence gives."""
    slow = [t.evaluation for t in facts.trials if t.outcome is Outcome.SLOW]
    limits = [
        (e["limit_us"], e["elite_us"]) for e in (t.evidence for t in slow) if e.get("limit_us") and e.get("elite_us")
    ]
    # A few samples that lose against the best so far end a trial, too: those have no limit beyond its time.
    factors = [limit / elite for limit, elite in limits if limit > elite]
    shown = list(dict.fromkeys(factor_text(factor) for factor in (min(factors), max(factors)))) if factors else []
    factor = f"{' to '.join(shown)} times " if factors else ""
    # Each arm is a search of its own: it races its own elites.
    own = " (the control has a best of its own)" if facts.control is not None else ""
    if facts.record.predicted:
        first = "at first the default candidate's predicted time"  # which is no trial of the study
        return (
            f"not timed to the end because predicted slower than {factor}the best so far{own}, {first}; "
            "answer not checked"
        )
    arms = " (the control has a best of its own, which begins with the default's)" if facts.control is not None else ""
    unchecked = sum(not one.passed_gate for one in slow)
    if 0 < len(factors) < len(slow):
        rest = f"; {len(factors)} at their first launches, slower than {factor}that" + ", answer not checked" * bool(
            unchecked
        )
        return f"not timed to the end because measured slower than the best so far{arms}{rest}"
    rest = f"; answer not checked of {unchecked}, stopped at their first launches" if unchecked else ""
    return f"not timed to the end because measured slower than {factor}the best so far{arms}{rest}"


def _ended(trial: Trial, predicted: bool) -> str:
    if trial.outcome is not Outcome.SLOW:
        return outcome_words(trial.outcome, predicted)
    return SLOW if trial.evaluation.passed_gate else UNCHECKED


def fastest_trials(facts: Facts, most: int = 15) -> dict[str, Any]:
    """Return the fastest trials, those that no clock tells apart in one row, with what distinguishes them."""
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
                changed(first.config, facts.record.genes),
            )
        )
    head = ("trial", facts.unit, "speedup", "registers", "occupancy", "changed genes of the first")
    return {
        "about": f"{several(len(facts.trials), 'trial')}: {facts.ended}; sorted, filtered and opened one by one",
        "trials": TextTable(head, rows, range(1, 5)),
        "tied": any(len(group) > 1 for group in groups[:most]),
    }


TIED = 1e-3
"""Share of a time below which a difference is no difference: a tenth of a per cent."""
_NAMED = 4


def tied(trials: Sequence[Trial]) -> list[list[Trial]]:
    """Return measured trials by time, those within `TIED` of the first of a group in one group."""
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
