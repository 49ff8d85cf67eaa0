"""Playoff of the best candidates: it decides whether the best trial of a search is really the fastest.

A search selects the smallest of many medians, which is too optimistic. So the playoff measures the elites again in
rounds. Each round loads new modules and buffers and generates new inputs. It interleaves the samples of all candidates,
so drift (clock, temperature, another process) affects all alike. A round yields one number per pair: the median of
log(theirs / ours) over the paired samples. Rounds are nearly independent although samples are not, so a t interval over
rounds is valid. The remaining correlation between rounds widens the interval.

The test is sequential, with looks at the intervals after fixed numbers of rounds. Lan and DeMets' spending function of
Pocock's type (Biometrika 70 (1983), 659) distributes the error budget over the looks, and Bonferroni over the pairs.
Each look uses only its own increment of the budget. A union bound over looks and pairs keeps the total under any
dependence. A pair is decided if its interval excludes zero and the difference is at least the equivalence margin. It is
a tie if the interval is inside the margin, or after the last round.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from evokern.errors import UsageError
from evokern.measurement.statistics import cliffs_delta

Measure = Callable[[Sequence[int], int], Sequence[Sequence[float]]]
"""Measurement of one round: candidate indices and number of samples → samples of each in µs per call, paired by
position."""

_RESAMPLES = 4000


@dataclass(frozen=True)
class Rules:
    """Decision rules of a playoff."""

    level: float = 0.01
    """Probability that the whole playoff declares any pair of equally fast candidates different."""
    margin: float = 0.01
    """Relative difference below which candidates count as equal."""
    looks: tuple[int, ...] = (8, 12, 18, 27, 40)
    """Numbers of rounds after which the intervals are examined."""
    samples: int = 7
    """Samples of each candidate per round."""

    def __post_init__(self) -> None:
        if not 0 < self.level < 1 or not 0 < self.margin < 1:
            raise UsageError(f"level = {self.level}, margin = {self.margin}; use values between 0 and 1")
        if not self.looks or self.looks[0] < 3 or list(self.looks) != sorted(set(self.looks)):
            raise UsageError(f"looks = {self.looks}; use increasing numbers of rounds, the first at least 3")
        if self.samples < 1:
            raise UsageError(f"samples = {self.samples}; use at least 1")

    def error_share(self, look: int) -> float:
        """Return the share of the error budget that one look uses; looks are counted from 0."""
        ends = [math.log1p((math.e - 1) * rounds / self.looks[-1]) for rounds in (0, *self.looks)]
        return self.level * (ends[look + 1] - ends[look])


FinalistResult = Literal["champion", "tie", "slower"]


@dataclass(frozen=True)
class Finalist:
    """Candidate of a playoff, compared with the champion."""

    index: int
    """Index in the list of candidates."""
    result: FinalistResult
    """Result; `tie` if the difference is not significant or not above the margin."""
    equivalent: bool
    """For a tie, whether the interval is inside the margin; False means too few rounds for a decision."""
    time_us: float
    """Median of all samples in µs."""
    ci95_us: tuple[float, float]
    """95 % interval of the median by bootstrap over rounds."""
    ratio: float
    """Ratio of its time to the champion's."""
    ratio_ci95: tuple[float, float]
    """95 % interval of the ratio by bootstrap over rounds."""
    delta: float
    """Cliff's delta of its samples and the champion's: -1 if each of its samples is slower."""
    rounds: int
    """Number of rounds in which it took part."""
    samples_us: tuple[float, ...]
    """All samples in µs, in the order of measurement."""


@dataclass(frozen=True)
class Playoff:
    """Result of a playoff."""

    finalists: tuple[Finalist, ...]
    """Champion first, then the others by time."""
    rounds: int
    """Number of measured rounds."""
    rules: Rules
    """Decision rules of the playoff."""
    predicted: bool = False
    """Whether times are predicted. Such times have no noise and are compared directly."""

    @property
    def champion(self) -> Finalist:
        """Fastest candidate; among tied candidates, the candidate with the smallest median."""
        return self.finalists[0]

    @property
    def decided(self) -> bool:
        """Whether every other candidate is slower."""
        return all(one.result == "slower" for one in self.finalists[1:])

    def as_dict(self) -> dict[str, Any]:
        """Return the result as JSON values, without the samples."""
        return {
            "decided": self.decided,
            "predicted": self.predicted,
            "rounds": self.rounds,
            "level": self.rules.level,
            "margin": self.rules.margin,
            "finalists": [
                {
                    "index": one.index,
                    "standing": one.result,
                    "equivalent": one.equivalent,
                    "time_us": one.time_us,
                    "ci95_us": list(one.ci95_us),
                    "ratio": one.ratio,
                    "ratio_ci95": list(one.ratio_ci95),
                    "cliffs_delta": one.delta,
                    "samples": len(one.samples_us),
                }
                for one in self.finalists
            ],
        }


def interval(differences: Sequence[float], tail: float) -> tuple[float, float]:
    """Return a two-sided t interval of the mean with error probability `tail` on each side.

    Args:
        differences: one number per round, in order.
        tail: one-sided error probability.
    """
    from scipy.special import stdtrit

    count = len(differences)
    middle = math.fsum(differences) / count
    error = statistics.stdev(differences) / math.sqrt(count * _independence(differences))
    reach = float(stdtrit(count - 1, 1 - tail)) * error
    return middle - reach, middle + reach


def _independence(values: Sequence[float]) -> float:
    """Return the ratio of the effective to the actual sample size; 1 without correlation of neighbours.

    For a first-order autoregressive process with correlation r it is (1 - r) / (1 + r) (Bartlett, J. R. Stat. Soc. 98
    (1935), 536). In short series r is underestimated by about (1 + 3 r) / n, which is added (Kendall, Biometrika 41
    (1954), 403).
    """
    middle, count = math.fsum(values) / len(values), len(values)
    deviations = [value - middle for value in values]
    total = math.fsum(value * value for value in deviations)
    if total == 0:
        return 1.0
    found = math.fsum(a * b for a, b in itertools.pairwise(deviations)) / total
    correlation = min(max(found + (1 + 3 * found) / count, 0.0), 0.9)
    return (1 - correlation) / (1 + correlation)


def play(measure: Measure, count: int, rules: Rules | None = None) -> Playoff:
    """Measure rounds until the leader beats or ties with every other candidate, or until the last look.

    Args:
        measure: function that measures one round.
        count: number of candidates, in any order.
        rules: error budget, margin, looks.

    Raises:
        UsageError: there are fewer than two candidates.
    """
    rules = rules or Rules()
    if count < 2:
        raise UsageError(f"a playoff needs at least two candidates, got {count}")
    board = _Scores(count, rules)
    for look, rounds in enumerate(rules.looks):
        while board.rounds < rounds:
            board.record(measure(board.alive, rules.samples))
        if board.look(look):
            break
    return board.result()


@dataclass(frozen=True)
class Effect:
    """Comparison of a candidate with candidate 0."""

    time_us: float
    """Median of all samples in µs."""
    ratio: float
    """Ratio of its time to candidate 0's."""
    ratio_ci95: tuple[float, float]
    """95 % interval of the ratio by bootstrap over rounds."""


def effects(measure: Measure, count: int, *, rounds: int = 8, samples: int = 7) -> list[Effect]:
    """Compare candidates with candidate 0 in a fixed number of interleaved rounds."""
    board = _Scores(count, Rules(looks=(rounds,), samples=samples))
    for _ in range(rounds):
        board.record(measure(range(count), samples))
    return [board.effect(index) for index in range(count)]


class _Scores:
    """Samples of every candidate by round, and the remaining candidates."""

    def __init__(self, count: int, rules: Rules) -> None:
        self._rules = rules
        self._pairs = count * (count - 1) // 2
        self.alive = list(range(count))
        self.rounds = 0
        self._taken: list[list[tuple[float, ...]]] = [[] for _ in range(count)]
        self._standing: dict[int, FinalistResult] = {}
        self._equivalent: dict[int, bool] = {}

    def record(self, samples: Sequence[Sequence[float]]) -> None:
        for index, mine in zip(self.alive, samples, strict=True):
            self._taken[index].append(tuple(mine))
        self.rounds += 1

    def leader(self) -> int:
        """Return the candidate with the smallest mean logarithm of its round medians."""
        return min(self.alive, key=lambda i: math.fsum(math.log(statistics.median(r)) for r in self._taken[i]))

    def look(self, look: int) -> bool:
        """Compare all candidates with the leader; return True if every comparison is decided."""
        leader, open_pairs = self.leader(), 0
        tail = self._rules.error_share(look) / (2 * self._pairs)
        margin = math.log1p(self._rules.margin)
        for other in [index for index in self.alive if index != leader]:
            low, high = interval(self._differences(leader, other), tail)
            if low > 0 and (low + high) / 2 >= margin:
                self._standing[other] = "slower"
                self.alive.remove(other)
                continue
            self._standing[other], self._equivalent[other] = "tie", -margin < low and high < margin
            open_pairs += not self._equivalent[other]
        self._standing[leader] = "champion"
        return open_pairs == 0

    def _differences(self, ours: int, theirs: int) -> list[float]:
        """Return, per round, the median of log(theirs / ours) over the paired samples."""
        return [
            statistics.median(math.log(b / a) for a, b in zip(mine, other, strict=True))
            for mine, other in zip(self._taken[ours], self._taken[theirs], strict=False)
        ]

    def effect(self, index: int) -> Effect:
        """Return the comparison of a candidate with candidate 0."""
        differences = self._differences(0, index)
        low, high = _bootstrap(differences)
        middle = statistics.median(sample for taken in self._taken[index] for sample in taken)
        return Effect(middle, math.exp(math.fsum(differences) / len(differences)), (math.exp(low), math.exp(high)))

    def result(self) -> Playoff:
        champion = self.leader()
        rest = [index for index in range(len(self._taken)) if index != champion]
        finalists = [self._finalist(champion, champion), *(self._finalist(index, champion) for index in rest)]
        order = sorted(finalists[1:], key=lambda one: (one.result == "slower", one.ratio))
        return Playoff((finalists[0], *order), self.rounds, self._rules)

    def _finalist(self, index: int, champion: int) -> Finalist:
        mine = [sample for taken in self._taken[index] for sample in taken]
        theirs = [sample for taken in self._taken[champion] for sample in taken]
        differences = self._differences(champion, index)
        low, high = _bootstrap(differences)
        medians = [math.log(statistics.median(taken)) for taken in self._taken[index]]
        first, last = _bootstrap(medians)
        return Finalist(
            index,
            "champion" if index == champion else self._standing[index],
            index != champion and self._standing[index] == "tie" and self._equivalent.get(index, False),
            statistics.median(mine),
            (math.exp(first), math.exp(last)),
            math.exp(math.fsum(differences) / len(differences)),
            (math.exp(low), math.exp(high)),
            cliffs_delta(mine, theirs),
            len(self._taken[index]),
            tuple(mine),
        )


def _bootstrap(values: Sequence[float]) -> tuple[float, float]:
    """Return a 95 % bootstrap interval of the mean over resampled rounds.

    The plain percentile interval is too narrow for few values. Its levels are widened to match a t interval (expanded
    percentile interval, Hesterberg, The American Statistician 69 (2015), 371). Correlation of neighbouring rounds
    widens them further.
    """
    import numpy as np
    from scipy.special import ndtr, stdtrit

    taken, count = np.asarray(values), len(values)
    reach = float(stdtrit(count - 1, 0.975)) * math.sqrt(count / (count - 1) / _independence(values))
    tail = float(ndtr(-reach))
    # A fixed seed makes the interval reproducible.
    drawn = np.random.default_rng(0).integers(0, count, (_RESAMPLES, count))
    low, high = np.quantile(taken[drawn].mean(axis=1), [tail, 1 - tail])
    return float(low), float(high)


def by_prediction(times_us: Sequence[float], rules: Rules | None = None) -> Playoff:
    """Rank predicted times; they have no noise, so a difference above the margin decides.

    Raises:
        UsageError: there are fewer than two candidates.
    """
    rules = rules or Rules()
    if len(times_us) < 2:
        raise UsageError(f"a playoff needs at least two candidates, got {len(times_us)}")
    order = sorted(range(len(times_us)), key=lambda index: times_us[index])
    best = times_us[order[0]]
    finalists = []
    for place, index in enumerate(order):
        time_us, ratio = times_us[index], times_us[index] / best
        slower = ratio >= 1 + rules.margin
        result: FinalistResult = "champion" if place == 0 else "slower" if slower else "tie"
        delta = 0.0 if ratio == 1 else -1.0
        finalists.append(
            Finalist(index, result, result == "tie", time_us, (time_us, time_us), ratio, (ratio, ratio), delta, 0,
                     (time_us,))
        )  # fmt: skip
    return Playoff(tuple(finalists), 0, rules, predicted=True)
