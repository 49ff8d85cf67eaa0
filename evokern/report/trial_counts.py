"""Counts of trials by gene value, by pair of values, and by failure reason."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evokern.declaration.genes import Gene, Value
from evokern.samplers.genome import Rows
from evokern.study.trial import Outcome, Trial

_NO_FAILURE = (Outcome.MEASURED, Outcome.DUPLICATE, Outcome.SLOW)
_REASON_WIDTH = 160


@dataclass(frozen=True)
class ValueFacts:
    """Results for one value of one gene."""

    value: Value
    """The value."""
    tried: int
    """Number of trials that were checked, or failed before the check."""
    right: int
    """Number of correct trials that were not refuted, including incompletely timed ones."""
    unchecked: int
    """Number of further trials that were predicted slow and not checked."""
    best_us: float | None
    """Shortest complete time in µs, or None."""
    seen_us: float | None
    """Shortest partial time of a slow trial in µs, if shorter than `best_us`."""


def results_by_value(
    trials: Sequence[Trial], genes: Sequence[Gene], levels: Rows, refuted: Container[int] = ()
) -> dict[str, list[ValueFacts]]:
    """Return the results of the trials with each value, by gene name.

    Args:
        trials: Trials of a study.
        genes: Genes of the study.
        levels: Value index of each gene in each trial, shape trials × genes.
        refuted: Numbers of trials refuted by verification; they do not count as correct.
    """
    ran = np.array([trial.outcome is not Outcome.LOST for trial in trials], dtype=bool)
    passed = np.array([trial.evaluation.passed_gate for trial in trials], dtype=bool)
    slow = np.array([trial.outcome is Outcome.SLOW for trial in trials], dtype=bool)
    stands = np.array([trial.number not in refuted for trial in trials], dtype=bool)
    times = np.array([trial.evaluation.time_us or math.inf for trial in trials], dtype=float)
    in_full = np.array([trial.outcome is Outcome.MEASURED for trial in trials], dtype=bool) & stands
    in_part = slow & passed & stands
    unchecked = slow & ~passed
    results: dict[str, list[ValueFacts]] = {}
    for column, gene in zip(levels.T, genes, strict=True):
        count = len(gene.values)
        tried, right, unasked = (
            np.bincount(column[which], minlength=count).tolist()
            for which in (ran & ~unchecked, ran & passed & stands, ran & unchecked)
        )
        least, seen = (_least(column[which], times[which], count) for which in (in_full, in_part))
        seen[seen >= least] = np.inf
        counted = zip(gene.values, tried, right, unasked, least.tolist(), seen.tolist(), strict=True)
        results[gene.name] = [
            ValueFacts(value, had, fine, left, _or_none(best_us), _or_none(seen_us))
            for value, had, fine, left, best_us, seen_us in counted
        ]
    return results


def _or_none(time_us: float) -> float | None:
    return time_us if math.isfinite(time_us) else None


def _least(column: Rows, times: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.float64]:
    """Return the shortest time for each value index, infinite if there is none."""
    least = np.full(count, np.inf)
    np.minimum.at(least, column, times)
    return least


def pairs(measured: Iterable[Trial], one: str, two: str) -> dict[tuple[Value, Value], float]:
    """Return the shortest time for each combination of the values of two genes, in µs."""
    found: dict[tuple[Value, Value], float] = {}
    for trial in measured:
        key = (trial.config[one], trial.config[two])
        time_us = trial.evaluation.time_us or 0.0
        found[key] = min(found.get(key, time_us), time_us)
    return found


@dataclass(frozen=True)
class FailureReason:
    """Trials with the same failure reason; numbers in the reason are ignored."""

    outcome: str
    """Outcome of the trials."""
    example: str
    """Reason of the first such trial."""
    trial: int
    """Number of that trial."""
    count: int
    """Number of such trials."""


def reasons(trials: Iterable[Trial], most: int | None = 12) -> list[FailureReason]:
    """Return the most common failure reasons with examples; `most=None` returns all of them."""
    found: Counter[tuple[str, str]] = Counter()
    first: dict[tuple[str, str], Trial] = {}
    for trial in trials:
        if trial.outcome in _NO_FAILURE:
            continue
        text = re.sub(r"\[[\d, ]+\]", "[…]", trial.evaluation.reason)
        key = trial.outcome.value, re.sub(r"(?<!line )(?<![\d.])-?(\d+(\.\d+)?(e[+-]?\d+)?|\bnan\b|\binf\b)", "#", text)
        found[key] += 1
        if key not in first or trial.number < first[key].number:
            first[key] = trial
    return [
        FailureReason(key[0], _shortened(first[key].evaluation.reason), first[key].number, count)
        for key, count in found.most_common(most)
    ]


def reason_lines(trials: Iterable[Trial], most: int) -> list[str]:
    """Return the most common failure reasons, one line each, most frequent first."""
    found = reasons(trials, most)
    return [f"{one.count} {one.outcome.replace('_', ' ')}: {one.example} (trial {one.trial})" for one in found]


def _shortened(text: str) -> str:
    return text if len(text) <= _REASON_WIDTH else f"{text[:_REASON_WIDTH]} …"
