"""What trials tell when they are counted: by value of a gene, by pair of values, by reason of failure."""

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
    """One value of one gene."""

    value: Value
    """The value."""
    tried: int
    """Trials that had it and ran to a verdict on their answers, or failed before."""
    right: int
    """Those that passed the gate and that no verification refuted, timed in full or not."""
    unchecked: int
    """Further trials, which were predicted to be slow and never checked."""
    best_us: float | None
    """Fastest of them that was timed in full, µs."""
    seen_us: float | None
    """What was seen of the fastest of them that were stopped as slow, µs, where it is less than `best_us`."""


def tunability(
    trials: Sequence[Trial], genes: Sequence[Gene], levels: Rows, refuted: Container[int] = ()
) -> dict[str, list[ValueFacts]]:
    """Return, for every gene, what became of the trials with each of its values.

    Args:
        trials: of a study.
        genes: its genes.
        levels: which of its values each gene has in each trial, trials × genes.
        refuted: numbers of trials that passed the gate and that their verification refuted: they are not right.
    """
    ran = np.array([trial.outcome is not Outcome.LOST for trial in trials], dtype=bool)
    passed = np.array([trial.evaluation.passed_gate for trial in trials], dtype=bool)
    slow = np.array([trial.outcome is Outcome.SLOW for trial in trials], dtype=bool)
    stands = np.array([trial.number not in refuted for trial in trials], dtype=bool)
    times = np.array([trial.evaluation.time_us or math.inf for trial in trials], dtype=float)
    in_full = np.array([trial.outcome is Outcome.MEASURED for trial in trials], dtype=bool) & stands
    in_part = slow & passed & stands
    unchecked = slow & ~passed
    told: dict[str, list[ValueFacts]] = {}
    for column, gene in zip(levels.T, genes, strict=True):
        count = len(gene.values)
        tried, right, unasked = (
            np.bincount(column[which], minlength=count).tolist()
            for which in (ran & ~unchecked, ran & passed & stands, ran & unchecked)
        )
        least, seen = (_least(column[which], times[which], count) for which in (in_full, in_part))
        seen[seen >= least] = np.inf
        counted = zip(gene.values, tried, right, unasked, least.tolist(), seen.tolist(), strict=True)
        told[gene.name] = [
            ValueFacts(value, had, fine, left, _or_none(best_us), _or_none(seen_us))
            for value, had, fine, left, best_us, seen_us in counted
        ]
    return told


def _or_none(time_us: float) -> float | None:
    return time_us if math.isfinite(time_us) else None


def _least(column: Rows, times: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.float64]:
    """Return the least time of each of so many values, infinite where there is none."""
    least = np.full(count, np.inf)
    np.minimum.at(least, column, times)
    return least


def pairs(measured: Iterable[Trial], one: str, two: str) -> dict[tuple[Value, Value], float]:
    """Return the fastest time of each pair of two genes' values, µs."""
    found: dict[tuple[Value, Value], float] = {}
    for trial in measured:
        key = (trial.config[one], trial.config[two])
        time_us = trial.evaluation.time_us or 0.0
        found[key] = min(found.get(key, time_us), time_us)
    return found


@dataclass(frozen=True)
class FailureReason:
    """Trials that failed for one reason, apart from its numbers."""

    outcome: str
    """How they ended."""
    example: str
    """The reason as the first of them has it."""
    trial: int
    """Which trial that is."""
    count: int
    """How many they are."""


def reasons(trials: Iterable[Trial], most: int | None = 12) -> list[FailureReason]:
    """Return the commonest reasons of failure, None for all, each with one real example."""
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


def _shortened(text: str) -> str:
    return text if len(text) <= _REASON_WIDTH else f"{text[:_REASON_WIDTH]} …"
