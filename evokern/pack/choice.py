"""Choice of a few variants from times that were measured crosswise, and of the decision tree that dispatches to them.

All costs are logarithms of a time divided by the best known time for the shape. Ties are decided by index, so the same
times always give the same choice.

If the shapes are a sample of a distribution, other shapes will occur. Half of a shape's cost is then that of a shape
like it that was not sampled: variants whose machine code runs no other sampled shape cannot serve it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import combinations, pairwise

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
"""Smallest decrease of the mean cost for which a variant or a decision is added."""
UNSEEN = 0.5
"""Part of the cost that is for shapes that were not sampled, if there are any."""
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
    ratios: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    """Variant → 95 % interval of its time divided by that of the fastest baseline, from interleaved rounds."""
    reference_us: float | None = None
    """Best time of other code that was measured at the shape."""
    special: frozenset[int] | None = None
    """Variants that run no other sampled shape; None if only the sampled shapes will occur."""

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
        special = None if self.special is None else frozenset(kept[one] for one in self.special if one in kept)
        return replace(self, times=times, ratios=ratios, reference_us=self.best_us, special=special)

    def expected(self, cost: Callable[[Mapping[int, float]], float]) -> float:
        """Return the weighted cost, expected over the shape itself and shapes like it.

        Args:
            cost: function of the times of the variants that can run a shape.
        """
        if not self.special:
            return self.weight * cost(self.times)
        others = {one: time_us for one, time_us in self.times.items() if one not in self.special}
        return self.weight * ((1 - UNSEEN) * cost(self.times) + UNSEEN * cost(others))

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

    def cost(sample: Sample, times: Mapping[int, float]) -> float:
        options = [sample.cost(variant) for variant in times if variant in kept]
        return min([*options, *(sample.cost(None, baseline) for baseline in sample.baselines or [-1])])

    return sum(sample.expected(partial(cost, sample)) for sample in samples)


def dispatch_tree(samples: Sequence[Sample], chosen: Sequence[int], fields: Sequence[str]) -> Tree:
    """Return a decision tree that sends each shape to one of the chosen variants, or to a baseline.

    Args:
        samples: shapes with their times.
        chosen: variants that may be used.
        fields: fields on which a decision may depend, in the order of preference. Products of up to three sizes follow
            them, because the number of blocks decides which variant is fastest more often than one size does.
    """
    sizes = [n for n in fields if n not in (CAPABILITY, MODE) and all(sample.values[n] > 0 for sample in samples)]
    varied = [n for n in sizes if len({sample.values[n] for sample in samples}) > 1]
    products = [factors for count in (2, 3) for factors in combinations(varied, count)]
    return _Growth(samples, chosen, [*((name,) for name in fields), *products]).tree()


class _Growth:
    """Growth of a decision tree."""

    def __init__(self, samples: Sequence[Sample], chosen: Sequence[int], decisions: Sequence[tuple[str, ...]]) -> None:
        self._all, self._chosen = list(samples), tuple(chosen)
        self._gain = LEAST_GAIN * sum(sample.weight for sample in samples)
        self._sizes = {
            (id(sample), factors): math.prod(sample.values[name] for name in factors)
            for sample in samples
            for factors in decisions
        }
        self._decisions = decisions

    def tree(self) -> Tree:
        """Return the tree for all samples."""
        return self._grown(self._all, (), MOST_DEPTH)

    def _grown(self, samples: list[Sample], above: tuple[int, ...], depth: int) -> Tree:
        """Return the tree for some samples; `above` are the variants that would serve a larger region around it."""
        leaf, cost = _best_leaf(samples, self._chosen)
        whole = self._extended(leaf, samples, above)
        if depth == 0 or cost <= self._gain:
            return whole
        best: tuple[float, tuple[str, ...], int] | None = None
        for factors in self._decisions:
            values = sorted({self._sizes[id(sample), factors] for sample in samples})
            for low, high in pairwise(values):
                most = max(low, math.isqrt(low * high)) if low > 0 else low
                split_cost = sum(_best_leaf(part, self._chosen)[1] for part in self._parts(samples, factors, most))
                if best is None or split_cost < best[0] - 1e-12:
                    best = (split_cost, factors, most)
        if best is None:
            return whole
        _, factors, most = best
        yes, no = self._parts(samples, factors, most)
        first, second = (self._grown(part, whole.variants, depth - 1) for part in (yes, no))
        together = tree_cost(first, yes) + tree_cost(second, no)
        return whole if cost - together < self._gain else Split(factors, most, first, second)

    def _parts(self, samples: list[Sample], factors: tuple[str, ...], most: int) -> tuple[list[Sample], list[Sample]]:
        sides = [self._sizes[id(sample), factors] <= most for sample in samples]
        yes = [sample for sample, side in zip(samples, sides, strict=True) if side]
        return yes, [sample for sample, side in zip(samples, sides, strict=True) if not side]

    def _extended(self, leaf: TreeLeaf, samples: list[Sample], above: tuple[int, ...]) -> TreeLeaf:
        """Return a leaf with further variants from above it, for kinds of shapes that none of its samples has.

        A causal shape, for example, needs other machine code. A region without a causal sample would otherwise send
        such shapes to a baseline.
        """
        for variant in above:
            longer = replace(leaf, variants=(*leaf.variants, variant))
            new = any(variant in s.times and not s.times.keys() & set(leaf.variants) for s in self._all)
            if variant not in leaf.variants and new and tree_cost(longer, samples) <= tree_cost(leaf, samples) + 1e-12:
                leaf = longer
        return leaf


def _best_leaf(samples: Sequence[Sample], chosen: Sequence[int]) -> tuple[TreeLeaf, float]:
    """Return the leaf with the least cost for some shapes: variants are inserted while that lowers the cost."""
    names = sorted({baseline for sample in samples for baseline in sample.baselines}) or [0]
    baseline = min(names, key=lambda b: (sum(s.weight * s.cost(None, b) for s in samples), b))
    leaf = TreeLeaf((), baseline)
    cost = tree_cost(leaf, samples)
    while True:
        here = leaf.variants
        longer = [
            TreeLeaf((*here[:place], v, *here[place:]), baseline)
            for v in chosen
            if v not in here
            for place in range(len(here) + 1)
        ]
        found = min(longer, key=lambda one: (tree_cost(one, samples), one.variants), default=None)
        if found is None or tree_cost(found, samples) >= cost - 1e-12:
            return leaf, cost
        leaf, cost = found, tree_cost(found, samples)


def served_by(tree: Tree, sample: Sample) -> int | None:
    """Return the variant that a tree selects for a shape; None for a baseline."""
    return _first(leaf_of(tree, sample.values), sample.times)


def _first(leaf: TreeLeaf, times: Mapping[int, float]) -> int | None:
    return next((variant for variant in leaf.variants if variant in times), None)


def tree_cost(tree: Tree, samples: Iterable[Sample]) -> float:
    """Return the weighted cost of some shapes with a tree."""

    def cost(sample: Sample, leaf: TreeLeaf, times: Mapping[int, float]) -> float:
        return sample.cost(_first(leaf, times), leaf.baseline)

    return sum(s.expected(partial(cost, s, leaf_of(tree, s.values))) for s in samples)


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
