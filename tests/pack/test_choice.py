"""Choice of variants and dispatch from given times."""

from __future__ import annotations

import itertools
import random

import pytest

from evokern.pack.choice import Sample, chosen_variants, dispatch_tree, served_by, summary_of, tree_cost
from evokern.pack.tree import CAPABILITY, MODE, Split, TreeLeaf, regions

FIELDS = (CAPABILITY, MODE, "S")


def sample(size: int, times: dict[int, float], baseline: float | None = None, weight: float = 1.0) -> Sample:
    """Return a shape of one size."""
    baselines = {} if baseline is None else {0: baseline}
    return Sample({CAPABILITY: 90, MODE: 0, "S": size}, times, baselines, weight)


def test_a_tree_separates_regions_with_different_winners() -> None:
    """Two variants, each best in its region, are separated by one decision between the regions."""
    samples = [sample(s, {0: 1.0, 1: 2.0} if s <= 512 else {0: 4.0, 1: 2.0}, 8.0) for s in (64, 128, 512, 1024, 4096)]
    tree = dispatch_tree(samples, chosen_variants(samples, 8), FIELDS)
    assert isinstance(tree, Split)
    assert (tree.fields, tree.yes, tree.no) == (("S",), TreeLeaf((0,)), TreeLeaf((1,)))
    assert 512 <= tree.most < 1024
    assert summary_of(tree, samples).loss == pytest.approx(0.0)


def test_a_decision_may_depend_on_a_product() -> None:
    """Where the number of rows times their length decides, one decision separates the winners."""

    def shape(rows: int, size: int) -> Sample:
        times = {0: 1.0, 1: 1.5} if rows * size <= 4096 else {0: 1.5, 1: 1.0}
        return Sample({CAPABILITY: 90, MODE: 0, "B": rows, "S": size}, times, {0: 8.0})

    samples = [shape(rows, size) for rows in (1, 4, 16, 64) for size in (64, 256, 1024, 4096)]
    tree = dispatch_tree(samples, (0, 1), (CAPABILITY, MODE, "B", "S"))
    assert isinstance(tree, Split)
    assert (tree.fields, tree.yes, tree.no) == (("B", "S"), TreeLeaf((0,)), TreeLeaf((1,)))
    assert served_by(tree, shape(2, 2000)) == 0
    assert served_by(tree, shape(100, 100)) == 1


def test_a_region_serves_kinds_of_shapes_that_it_has_not_seen() -> None:
    """A variant runs causal shapes only; where no causal shape was sampled, it still serves them."""

    def shape(size: int, causal: int) -> Sample:
        own = 2 + (size > 512) if causal else size > 512
        return Sample({CAPABILITY: 90, MODE: 0, "S": size, "causal": causal}, {int(own): 1.0}, {0: 8.0})

    samples = [shape(64, 0), shape(128, 0), shape(256, 0), shape(1024, 0), shape(1024, 1), shape(2048, 1)]
    tree = dispatch_tree(samples, (0, 1, 3), (CAPABILITY, MODE, "S", "causal"))
    unseen = Sample({CAPABILITY: 90, MODE: 0, "S": 100, "causal": 1}, {3: 1.0}, {0: 8.0})
    assert served_by(tree, unseen) == 3


def test_a_shape_with_a_faster_baseline_goes_to_the_baseline() -> None:
    """A variant that loses to the baseline somewhere is kept away from there, even if it wins on average."""
    samples = [sample(64, {0: 1.0}, 10.0), sample(128, {0: 1.0}, 10.0), sample(4096, {0: 12.0}, 10.0)]
    tree = dispatch_tree(samples, chosen_variants(samples, 8), FIELDS)
    assert [served_by(tree, one) for one in samples] == [0, 0, None]
    found = summary_of(tree, samples)
    assert (found.slower, round(found.own_share, 2)) == (0, 0.67)
    assert found.speedup == pytest.approx(100 ** (1 / 3))


def test_without_a_faster_variant_none_is_chosen() -> None:
    """The baseline is the best at every shape."""
    assert chosen_variants([sample(64, {0: 2.0, 1: 3.0}, 1.0)], 8) == ()


def test_few_variants_are_those_with_the_least_weighted_cost() -> None:
    """Greedy choice with exchange finds the best pair of six variants in most random cases, and never a bad one."""
    exact = 0
    for seed in range(40):
        rng = random.Random(seed)
        samples = []
        for size in range(1, 11):
            times = {v: rng.uniform(1, 4) for v in range(6) if rng.random() < 0.8}
            samples.append(sample(size, times, 5.0, rng.uniform(0.5, 3)))
        found = chosen_variants(samples, 2)

        def cost(chosen: tuple[int, ...], samples: list[Sample] = samples) -> float:
            served = [min([s.cost(v) for v in chosen if v in s.times] + [s.cost(None)]) for s in samples]
            return sum(s.weight * c for s, c in zip(samples, served, strict=True))

        best = min(map(cost, itertools.combinations(range(6), 2)))
        assert len(found) == 2
        assert cost(found) <= 1.1 * best
        exact += cost(found) <= best + 1e-9
    assert exact >= 36


def test_the_choice_does_not_depend_on_the_order_of_the_shapes() -> None:
    """The same times in another order give the same variants and the same tree."""
    rng = random.Random(3)
    samples = [sample(size, {v: rng.uniform(1, 3) for v in range(5)}, 2.5) for size in (1, 7, 64, 100, 1000, 5000)]
    trees = set()
    for _ in range(5):
        rng.shuffle(samples)
        chosen = chosen_variants(samples, 3)
        trees.add((chosen, repr(dispatch_tree(samples, chosen, FIELDS))))
    assert len(trees) == 1


def test_a_leaf_names_a_second_variant_for_shapes_that_the_first_does_not_take() -> None:
    """Variants that take different shapes of one region share a leaf."""
    samples = [
        sample(64, {0: 1.0}, 9.0),
        sample(65, {1: 1.0}, 9.0),
        sample(66, {0: 1.0}, 9.0),
        sample(67, {1: 1.0}, 9.0),
    ]
    tree = dispatch_tree(samples, (0, 1), FIELDS)
    assert [leaf.variants for _, leaf in regions(tree)] == [(0, 1)]
    assert tree_cost(tree, samples) == pytest.approx(0.0)


def test_a_leaf_has_the_region_of_its_decisions() -> None:
    """Regions have the limits of the decisions on their way, and cover each shape once."""
    tree = Split("S", 512, TreeLeaf((0,)), Split("S", 1024, TreeLeaf((1,)), TreeLeaf()))
    assert [box["S"] for box, _ in regions(tree)] == [(None, 512), (513, 1024), (1025, None)]


def test_the_upper_end_of_the_interval_decides_against_a_variant() -> None:
    """A variant that may be 3 % slower leaves the shape to the baseline, even if its own time is the shortest."""
    near = Sample({CAPABILITY: 90, MODE: 0, "S": 64}, {0: 0.99}, {0: 1.0}, 1.0, {0: (0.95, 1.03)})
    sure = Sample({CAPABILITY: 90, MODE: 0, "S": 512}, {0: 0.99}, {0: 1.0}, 1.0, {0: (0.97, 1.01)})
    unpaired = Sample({CAPABILITY: 90, MODE: 0, "S": 4096}, {0: 0.99}, {0: 1.0})
    assert [one.slower(0) for one in (near, sure, unpaired)] == [True, False, False]
    tree = dispatch_tree([near, sure, unpaired], (0,), FIELDS)
    assert [served_by(tree, one) for one in (near, sure, unpaired)] == [None, 0, 0]
    found = summary_of(tree, [near])
    assert (found.own_share, found.to_baseline, found.slower) == (0.0, 1, 0)
