"""The champion's playoff: is the best candidate of a search really the best, or only the luckiest?

A search picks the smallest of many medians, and the smallest of many is smaller than it should be. So the elites are
measured again, in rounds. Each round loads modules and buffers anew, draws new inputs, and takes samples of all
candidates in turn, so that whatever drifts (clock, temperature, another process) drifts for all of them; one number
comes out of a round and a pair: the median of log(theirs / ours) over the paired samples. Rounds are nearly independent
where samples are not, so that a t interval over rounds is honest about noise that is correlated within one; what is
left of correlation from round to round widens the interval.

The test is sequential. It looks at the intervals after a few numbers of rounds that are fixed beforehand; the error
budget is spread over the looks by Lan and DeMets' spending function of Pocock's type (Biometrika 70 (1983), 659) and
over the pairs of candidates by Bonferroni. Each look uses only what its increment of the budget allows, and a union
bound over looks and pairs keeps the total, whatever their dependence. A pair is decided when its interval leaves zero
out and the difference is at least the equivalence margin; it is a tie when the interval lies inside the margin, or when
the rounds are over.
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
"""One round: candidates' indices and the number of samples → samples of each in µs a call, paired by position."""

_RESAMPLES = 4000


@dataclass(frozen=True)
class Rules:
    """How a playoff decides."""

    level: float = 0.01
    """Probability that any pair of equally fast candidates is called different, in the whole playoff."""
    margin: float = 0.01
    """Differences below this share do not matter."""
    looks: tuple[int, ...] = (8, 12, 18, 27, 40)
    """Rounds after which the intervals are looked at."""
    samples: int = 7
    """Samples of each candidate in a round."""

    def __post_init__(self) -> None:
        if not 0 < self.level < 1 or not 0 < self.margin < 1:
            raise UsageError(f"level = {self.level}, margin = {self.margin}: both lie between 0 and 1")
        if not self.looks or self.looks[0] < 3 or list(self.looks) != sorted(set(self.looks)):
            raise UsageError(f"looks = {self.looks}: give rising numbers of rounds, the first at least 3")
        if self.samples < 1:
            raise UsageError(f"samples = {self.samples}: give at least 1")

    def spent(self, look: int) -> float:
        """Return the share of the error budget that a look (from 0) may spend."""
        ends = [math.log1p((math.e - 1) * rounds / self.looks[-1]) for rounds in (0, *self.looks)]
        return self.level * (ends[look + 1] - ends[look])


Standing = Literal["champion", "tie", "slower"]


@dataclass(frozen=True)
class Finalist:
    """One candidate of a playoff, compared with the champion."""

    index: int
    """Its place in the list that was given."""
    standing: Standing
    """`tie`: not told apart from the champion, or not different by more than the margin."""
    equivalent: bool
    """Of a tie: its interval lies inside the margin. False says that the rounds did not suffice to tell."""
    time_us: float
    """Median over all its samples."""
    ci95_us: tuple[float, float]
    """95 % interval of that median by bootstrap over rounds."""
    ratio: float
    """Its time over the champion's."""
    ratio_ci95: tuple[float, float]
    """95 % interval of the ratio by bootstrap over rounds."""
    delta: float
    """Cliff's delta of its samples against the champion's: -1 when each of its samples is slower."""
    rounds: int
    """Rounds it took part in."""
    samples_us: tuple[float, ...]
    """All its samples, in the order taken."""


@dataclass(frozen=True)
class Playoff:
    """What a playoff decided."""

    finalists: tuple[Finalist, ...]
    """The champion first, then by time."""
    rounds: int
    """Rounds played."""
    rules: Rules
    """How it was decided."""
    predicted: bool = False
    """Times were predicted, which have no noise: they were compared as they are."""

    @property
    def champion(self) -> Finalist:
        """The fastest; among ties the one with the smallest median."""
        return self.finalists[0]

    @property
    def decided(self) -> bool:
        """Whether every other candidate is slower."""
        return all(one.standing == "slower" for one in self.finalists[1:])

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
                    "standing": one.standing,
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
    """Return a two-sided t interval of the mean, each side wrong with probability `tail`.

    Args:
        differences: one number per round, in order.
        tail: probability of being wrong on one side.
    """
    from scipy.special import stdtrit

    count = len(differences)
    middle = math.fsum(differences) / count
    error = statistics.stdev(differences) / math.sqrt(count * _independence(differences))
    reach = float(stdtrit(count - 1, 1 - tail)) * error
    return middle - reach, middle + reach


def _independence(values: Sequence[float]) -> float:
    """Return how much an independent value's worth each of these is: 1 where neighbours are not correlated.

    For a first-order autoregressive process with correlation r it is (1 - r) / (1 + r) (Bartlett, J. R. Stat. Soc. 98
    (1935), 536). The estimate of r is too small in short series, by about (1 + 3 r) / n (Kendall, Biometrika 41 (1954),
    403), which is added.
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
    """Play until every pair with the leader is decided or a tie, at most to the last look.

    Args:
        measure: plays one round.
        count: number of candidates, in any order.
        rules: error budget, margin, looks.

    Raises:
        UsageError: there are fewer than two candidates.
    """
    rules = rules or Rules()
    if count < 2:
        raise UsageError(f"a playoff needs two candidates, not {count}")
    board = _Board(count, rules)
    for look, rounds in enumerate(rules.looks):
        while board.rounds < rounds:
            board.record(measure(board.alive, rules.samples))
        if board.look(look):
            break
    return board.result()


@dataclass(frozen=True)
class Effect:
    """One candidate's time against that of candidate 0."""

    time_us: float
    """Median over all its samples, µs."""
    ratio: float
    """Its time over candidate 0's."""
    ratio_ci95: tuple[float, float]
    """95 % interval of the ratio by bootstrap over rounds."""


def effects(measure: Measure, count: int, *, rounds: int = 8, samples: int = 7) -> list[Effect]:
    """Measure candidates in a fixed number of rounds, the playoff's way, and compare each with candidate 0."""
    board = _Board(count, Rules(looks=(rounds,), samples=samples))
    for _ in range(rounds):
        board.record(measure(range(count), samples))
    return [board.effect(index) for index in range(count)]


class _Board:
    """Samples of every candidate by round, and who is still in."""

    def __init__(self, count: int, rules: Rules) -> None:
        self._rules = rules
        self._pairs = count * (count - 1) // 2
        self.alive = list(range(count))
        self.rounds = 0
        self._taken: list[list[tuple[float, ...]]] = [[] for _ in range(count)]
        self._standing: dict[int, Standing] = {}
        self._equivalent: dict[int, bool] = {}

    def record(self, samples: Sequence[Sequence[float]]) -> None:
        for index, mine in zip(self.alive, samples, strict=True):
            self._taken[index].append(tuple(mine))
        self.rounds += 1

    def leader(self) -> int:
        """Return the candidate with the smallest mean over rounds of the logarithm of its median."""
        return min(self.alive, key=lambda i: math.fsum(math.log(statistics.median(r)) for r in self._taken[i]))

    def look(self, look: int) -> bool:
        """Compare everybody with the leader; True when nothing is left to decide."""
        leader, open_pairs = self.leader(), 0
        tail = self._rules.spent(look) / (2 * self._pairs)
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
        """Compare a candidate with candidate 0."""
        differences = self._differences(0, index)
        low, high = _bootstrap(differences)
        middle = statistics.median(sample for taken in self._taken[index] for sample in taken)
        return Effect(middle, math.exp(math.fsum(differences) / len(differences)), (math.exp(low), math.exp(high)))

    def result(self) -> Playoff:
        champion = self.leader()
        rest = [index for index in range(len(self._taken)) if index != champion]
        finalists = [self._finalist(champion, champion), *(self._finalist(index, champion) for index in rest)]
        order = sorted(finalists[1:], key=lambda one: (one.standing == "slower", one.ratio))
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

    The plain percentile interval is too narrow for few values: its levels are moved out to what a t interval reaches
    (expanded percentile interval, Hesterberg, The American Statistician 69 (2015), 371), and further where neighbouring
    rounds are correlated.
    """
    import numpy as np
    from scipy.special import ndtr, stdtrit

    taken, count = np.asarray(values), len(values)
    reach = float(stdtrit(count - 1, 0.975)) * math.sqrt(count / (count - 1) / _independence(values))
    tail = float(ndtr(-reach))
    # A fixed seed: the same samples give the same interval.
    drawn = np.random.default_rng(0).integers(0, count, (_RESAMPLES, count))
    low, high = np.quantile(taken[drawn].mean(axis=1), [tail, 1 - tail])
    return float(low), float(high)


def by_prediction(times_us: Sequence[float], rules: Rules | None = None) -> Playoff:
    """Rank predicted times: they have no noise, so that a difference above the margin decides.

    Raises:
        UsageError: there are fewer than two candidates.
    """
    rules = rules or Rules()
    if len(times_us) < 2:
        raise UsageError(f"a playoff needs two candidates, not {len(times_us)}")
    order = sorted(range(len(times_us)), key=lambda index: times_us[index])
    best = times_us[order[0]]
    finalists = []
    for place, index in enumerate(order):
        time_us, ratio = times_us[index], times_us[index] / best
        slower = ratio >= 1 + rules.margin
        standing: Standing = "champion" if place == 0 else "slower" if slower else "tie"
        delta = 0.0 if ratio == 1 else -1.0
        finalists.append(
            Finalist(index, standing, standing == "tie", time_us, (time_us, time_us), ratio, (ratio, ratio), delta, 0,
                     (time_us,))
        )  # fmt: skip
    return Playoff(tuple(finalists), 0, rules, predicted=True)
