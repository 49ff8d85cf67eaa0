"""Choice of a few variants from times that were measured crosswise, and of the decision tree that dispatches to them.

All costs are logarithms of a time divided by the best known time for the shape. Ties are decided by index, so the same
times always give the same choice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from evokern.pack.tree import Split, Tree, TreeLeaf, leaf_of

UNSERVED = math.log(10.0)
"""Cost of a shape that no chosen variant takes and for which no baseline was measured."""
REGRET = 10.0
"""Factor for the part of a variant's cost by which it is slower than the baseline."""
LEAST_GAIN = 0.001
"""Smallest decrease of the mean cost for which a variant or a decision is added."""
MOST_DEPTH = 8
"""Largest number of decisions for one shape."""


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

    @property
    def baseline_us(self) -> float | None:
        """Time of the fastest baseline."""
        return min(self.baselines.values(), default=None)

    @property
    def best_us(self) -> float | None:
        """Best time of all."""
        return min([*self.times.values(), *self.baselines.values()], default=None)

    def cost(self, variant: int | None, baseline: int = 0) -> float:
        """Return the cost if a variant or, for None, a baseline serves the shape."""
        if self.best_us is None:
            return 0.0
        if variant is None:
            time_us = self.baselines.get(baseline)
            return UNSERVED if time_us is None else math.log(time_us / self.best_us)
        cost = math.log(self.times[variant] / self.best_us)
        slower = 0.0 if self.baseline_us is None else max(0.0, math.log(self.times[variant] / self.baseline_us))
        return cost + REGRET * slower


def chosen_variants(samples: Sequence[Sample], most: int) -> tuple[int, ...]:
    """Return at most `most` variants with a small weighted cost: added one by one, then exchanged while that helps."""
    known = sorted({variant for sample in samples for variant in sample.times})
    chosen: list[int] = []
    total = sum(sample.weight for sample in samples)
    while len(chosen) < most:
        now = _served_cost(samples, chosen)
        found = min(
            (v for v in known if v not in chosen), key=lambda v: (_served_cost(samples, [*chosen, v]), v), default=None
        )
        if found is None or now - _served_cost(samples, [*chosen, found]) < LEAST_GAIN * total:
            break
        chosen.append(found)
    improved = True
    while improved:
        improved = False
        for place in range(len(chosen)):
            for other in known:
                changed = [*chosen[:place], other, *chosen[place + 1 :]]
                if (
                    other not in chosen
                    and _served_cost(samples, changed) < _served_cost(samples, chosen) - 1e-9 * total
                ):
                    chosen, improved = changed, True
    return tuple(sorted(chosen))


def _served_cost(samples: Sequence[Sample], chosen: Iterable[int]) -> float:
    """Return the weighted cost if each shape gets the best of the chosen variants and its baselines."""
    kept = set(chosen)
    total = 0.0
    for sample in samples:
        options = [sample.cost(variant) for variant in sample.times if variant in kept]
        baselines = [sample.cost(None, baseline) for baseline in sample.baselines] or [UNSERVED]
        total += sample.weight * min([*options, *baselines])
    return total


def dispatch_tree(samples: Sequence[Sample], chosen: Sequence[int], fields: Sequence[str]) -> Tree:
    """Return a decision tree that sends each shape to one of the chosen variants, or to a baseline.

    Args:
        samples: shapes with their times.
        chosen: variants that may be used.
        fields: fields on which a decision may depend, in the order of preference.
    """
    total = sum(sample.weight for sample in samples)
    return _grown(list(samples), tuple(chosen), tuple(fields), LEAST_GAIN * total, MOST_DEPTH)


def _grown(samples: list[Sample], chosen: tuple[int, ...], fields: tuple[str, ...], gain: float, depth: int) -> Tree:
    leaf, cost = _best_leaf(samples, chosen)
    if depth == 0 or cost <= gain:
        return leaf
    best: tuple[float, str, int] | None = None
    for field in fields:
        values = sorted({sample.values[field] for sample in samples})
        for low, high in pairwise(values):
            most = max(low, math.isqrt(low * high)) if low > 0 else low
            parts = [[s for s in samples if (s.values[field] <= most) == side] for side in (True, False)]
            split_cost = sum(_best_leaf(part, chosen)[1] for part in parts)
            if best is None or split_cost < best[0] - 1e-12:
                best = (split_cost, field, most)
    if best is None:
        return leaf
    _, field, most = best
    yes, no = ([s for s in samples if (s.values[field] <= most) == side] for side in (True, False))
    first, second = (_grown(part, chosen, fields, gain, depth - 1) for part in (yes, no))
    together = tree_cost(first, yes) + tree_cost(second, no)
    return leaf if cost - together < gain else Split(field, most, first, second)


def _best_leaf(samples: Sequence[Sample], chosen: Sequence[int]) -> tuple[TreeLeaf, float]:
    """Return the leaf with the least cost for some shapes: variants are appended while that lowers the cost."""
    names = sorted({baseline for sample in samples for baseline in sample.baselines}) or [0]
    baseline = min(names, key=lambda b: (sum(s.weight * s.cost(None, b) for s in samples), b))
    leaf = TreeLeaf((), baseline)
    cost = tree_cost(leaf, samples)
    while True:
        longer = [TreeLeaf((*leaf.variants, v), baseline) for v in chosen if v not in leaf.variants]
        found = min(longer, key=lambda one: (tree_cost(one, samples), one.variants), default=None)
        if found is None or tree_cost(found, samples) >= cost - 1e-12:
            return leaf, cost
        leaf, cost = found, tree_cost(found, samples)


def served_by(tree: Tree, sample: Sample) -> int | None:
    """Return the variant that a tree selects for a shape; None for a baseline."""
    leaf = leaf_of(tree, sample.values)
    return next((variant for variant in leaf.variants if variant in sample.times), None)


def tree_cost(tree: Tree, samples: Iterable[Sample]) -> float:
    """Return the weighted cost of some shapes with a tree."""
    return sum(s.weight * s.cost(served_by(tree, s), leaf_of(tree, s.values).baseline) for s in samples)


@dataclass(frozen=True)
class Summary:
    """Costs of a dispatch on some shapes."""

    own_share: float
    """Share of the weight that own variants serve."""
    loss: float
    """Geometric mean of the time divided by the best known time for each shape, minus 1."""
    speedup: float | None
    """Geometric mean of the baseline's time divided by the time, where both are known; None without baselines."""
    slower: int
    """Number of shapes at which the dispatch is more than 2 % slower than the fastest baseline."""


def summary_of(tree: Tree, samples: Sequence[Sample]) -> Summary:
    """Return the costs of a tree on some shapes."""
    weight = own = loss = gain = compared = 0.0
    slower = 0
    for sample in samples:
        variant = served_by(tree, sample)
        baseline = sample.baselines.get(leaf_of(tree, sample.values).baseline)
        time_us = baseline if variant is None else sample.times[variant]
        weight += sample.weight
        own += sample.weight * (variant is not None)
        if time_us is None or sample.best_us is None:
            continue
        loss += sample.weight * math.log(time_us / sample.best_us)
        if sample.baseline_us is not None:
            compared += sample.weight
            gain += sample.weight * math.log(sample.baseline_us / time_us)
            slower += time_us > 1.02 * sample.baseline_us
    return Summary(
        own / weight if weight else 0.0,
        math.exp(loss / weight) - 1 if weight else 0.0,
        math.exp(gain / compared) if compared else None,
        slower,
    )
