"""Choice of a few variants from times that were measured crosswise, and of the decision tree that dispatches to them.

All costs are logarithms of a time divided by the best known time for the shape. Ties are decided by index, so the same
times always give the same choice.

If the shapes are a sample of a distribution, other shapes will occur; `unseen` then adds samples with expected times.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations

import numpy as np

from evokern.pack.tree import CAPABILITY, MODE, Split, Tree, TreeLeaf, leaf_of

UNSERVED = math.log(10.0)
"""Cost of a shape that no chosen variant takes and for which no baseline was measured."""
MOST_SLOWER = 1.02
"""Largest upper end of a variant's time divided by the fastest baseline's; otherwise the baseline serves the shape."""
UNPAIRED = 1.02
"""Factor by which a ratio of times that were not measured in interleaved rounds may be wrong."""
REGRET = 10.0
"""Factor for the part of a variant's cost by which it is slower than the baseline."""
LEAST_REGRET = 0.01
"""Smallest such part of a variant that may be slower by more than the permitted factor."""
LEAST_GAIN = 0.001
"""Smallest decrease of the mean cost for which a variant is added."""
LEAST_SPLIT_GAIN = 0.0003
"""Smallest decrease of the mean cost for which a decision is added."""
MOST_DEPTH = 8
"""Largest number of decisions for one shape."""
DIGITS = 9
"""Decimals to which costs are compared, so that the order of additions does not decide between equal ones."""


@dataclass(frozen=True)
class Sample:
    """A shape with the times of everything that can serve it."""

    values: Mapping[str, int]
    """Fields, architecture and mode, by their names in a tree."""
    times: Mapping[int, float]
    """Variant → time in µs, for the variants that take the shape and passed the gate there."""
    baselines: Mapping[int, float]
    """Baseline → time in µs."""
    weight: float = 1.0
    """Weight of the shape."""
    ratios: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    """Variant → 95 % interval of its time divided by that of the fastest baseline, from interleaved rounds."""
    reference_us: float | None = None
    """Best time of other code that was measured at the shape."""

    @cached_property
    def baseline_us(self) -> float | None:
        """Time of the fastest baseline."""
        return min(self.baselines.values(), default=None)

    @cached_property
    def best_us(self) -> float | None:
        """Best time of all code that was measured at the shape."""
        others = [] if self.reference_us is None else [self.reference_us]
        return min([*self.times.values(), *self.baselines.values(), *others], default=None)

    def ratio(self, variant: int) -> tuple[float, float] | None:
        """Return the interval of a variant's time divided by that of the fastest baseline; None without baselines.

        Without interleaved rounds, the ratio of the times is not known better than by `UNPAIRED`.
        """
        if variant in self.ratios or self.baseline_us is None:
            return self.ratios.get(variant)
        found = self.times[variant] / self.baseline_us
        return found / UNPAIRED, found * UNPAIRED

    def slower(self, variant: int) -> bool:
        """Return whether a variant may be slower than the fastest baseline by more than the permitted factor."""
        found = self.ratio(variant)
        return found is not None and found[1] > MOST_SLOWER

    def only(self, variants: Iterable[int], numbers: Mapping[int, int] | None = None) -> Sample:
        """Return the sample with some variants only, perhaps with new numbers; the best time stays the same."""
        kept = {one: one if numbers is None else numbers[one] for one in variants}
        times = {kept[one]: time_us for one, time_us in self.times.items() if one in kept}
        ratios = {kept[one]: ratio for one, ratio in self.ratios.items() if one in kept}
        return replace(self, times=times, ratios=ratios, reference_us=self.best_us)

    def cost(self, variant: int | None, baseline: int = 0) -> float:
        """Return the cost if a variant or, for None, a baseline serves the shape."""
        if self.best_us is None:
            return 0.0
        return self._baseline_costs.get(baseline, UNSERVED) if variant is None else self._costs[variant]

    @cached_property
    def _baseline_costs(self) -> Mapping[int, float]:
        return {baseline: self._relative(time_us) for baseline, time_us in self.baselines.items()}

    @cached_property
    def _costs(self) -> Mapping[int, float]:
        costs = {variant: self._relative(time_us) for variant, time_us in self.times.items()}
        for variant in costs:
            if (ratio := self.ratio(variant)) is not None and ratio[1] > MOST_SLOWER:
                costs[variant] += REGRET * max(math.log(ratio[1]), LEAST_REGRET)
        return costs

    def _relative(self, time_us: float) -> float:
        """Return the logarithm of a time divided by the best time."""
        assert self.best_us is not None, "this time itself is a candidate for the best"
        return math.log(time_us / self.best_us)


class _Costs:
    """Costs of samples as arrays: a row for each sample."""

    def __init__(self, samples: Sequence[Sample], variants: Sequence[int]) -> None:
        self.baselines = sorted({baseline for sample in samples for baseline in sample.baselines}) or [0]
        self.weights = np.array([sample.weight for sample in samples])
        self.own = np.array([[s.cost(v) if v in s.times else math.inf for v in variants] for s in samples])
        """Cost of each variant; infinity if it does not take the shape."""
        self.other = np.array([[sample.cost(None, baseline) for baseline in self.baselines] for sample in samples])
        """Cost of each baseline."""


def chosen_variants(samples: Sequence[Sample], most: int) -> tuple[int, ...]:
    """Return at most `most` variants with a small weighted cost: added one by one, then exchanged while that helps.

    Each shape is assumed to get the best of the chosen variants and its baselines.
    """
    known = sorted({variant for sample in samples for variant in sample.times})
    if not known:
        return ()
    costs = _Costs(samples, known)
    total, least = costs.weights.sum(), costs.other.min(axis=1)

    def served(kept: Sequence[int]) -> np.ndarray:
        return np.asarray(np.minimum(least, costs.own[:, kept].min(axis=1, initial=math.inf)))

    def cost_of(kept: Sequence[int]) -> float:
        return float((served(kept) * costs.weights).sum())

    def added(kept: Sequence[int]) -> tuple[int, float]:
        """Return the best further variant, and the cost with it."""
        with_each = (np.minimum(served(kept)[:, None], costs.own) * costs.weights[:, None]).sum(axis=0)
        found = int(np.round(with_each, DIGITS).argmin())
        return found, float(with_each[found])

    chosen: list[int] = []
    while len(chosen) < most:
        one, cost = added(chosen)
        if cost_of(chosen) - cost < LEAST_GAIN * total:
            break
        chosen.append(one)
    improved = True
    while improved:
        improved = False
        for place in range(len(chosen)):
            one, cost = added([*chosen[:place], *chosen[place + 1 :]])
            if cost < cost_of(chosen) - 1e-9 * total:
                chosen[place], improved = one, True
    return tuple(sorted(known[one] for one in chosen))


def dispatch_tree(samples: Sequence[Sample], chosen: Sequence[int], fields: Sequence[str]) -> Tree:
    """Return a decision tree that sends each shape to one of the chosen variants, or to a baseline.

    Args:
        samples: shapes with their times.
        chosen: variants that may be used.
        fields: fields on which a decision may depend, in the order of preference. Products of up to three sizes follow
            them, because the number of blocks decides which variant is fastest more often than one size does.
    """
    varied = [n for n in sizes_of(samples, fields) if len({sample.values[n] for sample in samples}) > 1]
    products = [factors for count in (2, 3) for factors in combinations(varied, count)]
    return _Growth(samples, chosen, [*((name,) for name in fields), *products]).tree()


def sizes_of(samples: Sequence[Sample], fields: Iterable[str]) -> list[str]:
    """Return the fields that are positive at each shape. Other fields are flags, for example `causal`."""
    return [n for n in fields if n not in (CAPABILITY, MODE) and all(sample.values[n] > 0 for sample in samples)]


class _Growth:
    """Growth of a decision tree. Sets of samples are arrays of their numbers."""

    def __init__(self, samples: Sequence[Sample], chosen: Sequence[int], decisions: Sequence[tuple[str, ...]]) -> None:
        self._chosen, self._decisions = tuple(chosen), decisions
        self._costs = costs = _Costs(samples, chosen)
        self._gain = LEAST_SPLIT_GAIN * costs.weights.sum()
        self._runs = np.isfinite(costs.own)
        kinds, kind = np.unique(self._runs, axis=0, return_inverse=True)
        self._kind, self._kinds = kind.reshape(-1), range(len(kinds))  # numpy 2.0.0 returns a column
        """Numbers of equal sets of variants that take a shape."""
        self._weighted = np.hstack([costs.own, costs.other]) * costs.weights[:, None]
        self._sizes = {
            factors: np.array([math.prod(sample.values[name] for name in factors) for sample in samples], dtype=object)
            for factors in decisions
        }

    def tree(self) -> Tree:
        """Return the tree for all samples."""
        return self._grown(np.arange(len(self._kind)), (), MOST_DEPTH)[0]

    def _grown(self, rows: np.ndarray, above: tuple[int, ...], depth: int) -> tuple[Tree, float]:
        """Return the tree for some samples with its cost; `above` are the variants of a larger region around it."""
        order, baseline, cost = self._leaf(rows)
        order = self._extended(order, rows, above)
        whole = TreeLeaf(tuple(self._chosen[one] for one in order), self._costs.baselines[baseline])
        if depth == 0 or cost <= self._gain or (cut := self._cut(rows)) is None:
            return whole, cost
        factors, most = cut
        small = self._sizes[factors][rows] <= most
        (yes, yes_cost), (no, no_cost) = (self._grown(rows[part], order, depth - 1) for part in (small, ~small))
        together = yes_cost + no_cost
        return (whole, cost) if cost - together < self._gain else (Split(factors, most, yes, no), together)

    def _cut(self, rows: np.ndarray) -> tuple[tuple[str, ...], int] | None:
        """Return the decision after which the two parts cost least, if each kind of shapes gets its best code there."""
        best: tuple[float, tuple[str, ...], int] | None = None
        for factors in self._decisions:
            sizes = self._sizes[factors][rows]
            order = np.argsort(sizes, kind="stable")
            sizes, ordered = sizes[order], rows[order]
            ends = np.flatnonzero(sizes[:-1] < sizes[1:])
            if not len(ends):
                continue
            cost = np.zeros(len(ends))
            for kind in self._kinds:
                here = self._kind[ordered] == kind
                if here.any():
                    sums = np.cumsum(self._weighted[ordered[here]], axis=0)
                    sums = np.vstack([np.zeros(sums.shape[1]), sums])
                    before = sums[np.cumsum(here)[ends]]
                    possible = np.isfinite(sums[-1])
                    before, whole = before[:, possible], sums[-1][possible]
                    cost += before.min(axis=1) + (whole - before).min(axis=1)
            at = int(np.round(cost, DIGITS).argmin())
            if best is None or cost[at] < best[0] - 1e-12:
                low, high = int(sizes[ends[at]]), int(sizes[ends[at] + 1])
                best = float(cost[at]), factors, max(low, math.isqrt(low * high)) if low > 0 else low
        return None if best is None else best[1:]

    def _extended(self, order: tuple[int, ...], rows: np.ndarray, above: tuple[int, ...]) -> tuple[int, ...]:
        """Return the variants of a leaf with further ones from above it, for kinds of shapes that its samples lack.

        A causal shape, for example, needs other machine code. A region without a causal sample would otherwise send
        such shapes to a baseline.
        """
        for variant in above:
            lacking = ~self._runs[:, order].any(axis=1)
            new = variant not in order and bool((self._runs[:, variant] & lacking).any())
            if new and not (self._runs[rows, variant] & lacking[rows]).any():
                order = (*order, variant)
        return order

    def _leaf(self, rows: np.ndarray) -> tuple[tuple[int, ...], int, float]:
        """Return the variants, the baseline and the cost of the best leaf: variants are added while that helps."""
        weights, own = self._costs.weights[rows], self._costs.own[rows]
        runs = self._runs[rows]
        baseline = int(np.round((self._costs.other[rows] * weights[:, None]).sum(axis=0), DIGITS).argmin())

        def cost_of(order: Sequence[int]) -> float:
            served = self._costs.other[rows, baseline]
            for one in reversed(order):
                served = np.where(runs[:, one], own[:, one], served)
            return float((served * weights).sum())

        here: tuple[int, ...] = ()
        cost = cost_of(here)
        while True:
            longer = [
                (*here[:place], one, *here[place:])
                for one in range(len(self._chosen))
                if one not in here and runs[:, one].any()
                for place in range(len(here) + 1)
            ]
            found = min(longer, key=lambda order: (round(cost_of(order), DIGITS), order), default=None)
            if found is None or (least := cost_of(found)) >= cost - 1e-12:
                return here, baseline, cost
            here, cost = found, least


def served_by(tree: Tree, sample: Sample) -> int | None:
    """Return the variant that a tree selects for a shape; None for a baseline."""
    return next((variant for variant in leaf_of(tree, sample.values).variants if variant in sample.times), None)


def tree_cost(tree: Tree, samples: Iterable[Sample]) -> float:
    """Return the weighted cost of some shapes with a tree."""
    return sum(s.weight * s.cost(served_by(tree, s), leaf_of(tree, s.values).baseline) for s in samples)


@dataclass(frozen=True)
class Served:
    """Code that a dispatch selects for a shape."""

    variant: int | None
    """The variant; None for a baseline."""
    baseline: int
    """The baseline that runs if no variant does."""
    time_us: float | None
    """Time in µs; None if it was not measured."""
    loss: float | None
    """Time divided by the best time of all code measured at the shape, minus 1."""
    speedup: float | None
    """Time of the fastest baseline divided by the time."""
    slower: bool
    """Whether the variant may be slower than the fastest baseline by more than 2 %."""


def served_at(tree: Tree, sample: Sample) -> Served:
    """Return the code that a tree selects for a shape, with its time."""
    variant, baseline = served_by(tree, sample), leaf_of(tree, sample.values).baseline
    time_us = sample.baselines.get(baseline) if variant is None else sample.times[variant]
    best_us, other_us = sample.best_us, sample.baseline_us
    return Served(
        variant,
        baseline,
        time_us,
        None if time_us is None or best_us is None else time_us / best_us - 1,
        None if time_us is None or other_us is None else other_us / time_us,
        variant is not None and sample.slower(variant),
    )


@dataclass(frozen=True)
class Summary:
    """Costs of a dispatch on some shapes."""

    shapes: int
    """Number of shapes."""
    own_share: float
    """Share of the weight that own variants serve."""
    loss: float
    """Weighted geometric mean of the time divided by the best time of all code measured at the shape, minus 1."""
    worst_loss: float
    """Largest time divided by the best time, minus 1."""
    speedup: float | None
    """Weighted geometric mean of the fastest baseline's time divided by the time; None without baselines."""
    slower: int
    """Number of shapes at which a variant runs that may be more than 2 % slower than the fastest baseline."""
    to_baseline: int
    """Number of shapes that go to a baseline."""


def summary_of(tree: Tree, samples: Sequence[Sample]) -> Summary:
    """Return the costs of a tree on some shapes."""
    rows = [(sample.weight, served_at(tree, sample)) for sample in samples]

    def mean(values: Iterable[tuple[float, float]]) -> float | None:
        known = list(values)
        total = sum(weight for weight, _ in known)
        return math.exp(sum(weight * math.log(value) for weight, value in known) / total) if known else None

    own = sum(weight for weight, one in rows if one.variant is not None)
    return Summary(
        len(rows),
        own / sum(weight for weight, _ in rows) if rows else 0.0,
        (mean((weight, 1 + one.loss) for weight, one in rows if one.loss is not None) or 1.0) - 1,
        max((one.loss for _, one in rows if one.loss is not None), default=0.0),
        mean((weight, one.speedup) for weight, one in rows if one.speedup is not None),
        sum(one.slower for _, one in rows),
        sum(one.variant is None for _, one in rows),
    )
