"""Expected times at shapes that were not sampled, from given times."""

from __future__ import annotations

import math
import random
from statistics import fmean

import pytest

from evokern.pack.choice import Sample, dispatch_tree, served_by
from evokern.pack.tree import CAPABILITY, MODE
from evokern.pack.unseen import expected_samples, recombined

FIELDS = (CAPABILITY, MODE, "B", "S")


def shape(batch: int, size: int, times: dict[int, float], mode: int = 0, weight: float = 1.0) -> Sample:
    """Return a shape with two sizes."""
    return Sample({CAPABILITY: 90, MODE: mode, "B": batch, "S": size}, times, {0: 9.0}, weight)


def test_recombined_shapes_have_the_fields_of_sampled_ones() -> None:
    """Each field has a sampled value, no shape occurs twice, and the order of the samples does not matter."""
    samples = [shape(2**n, 100 * (n + 1), {}, mode=n % 2, weight=1.0 if n < 6 else 1000.0) for n in range(8)]
    found = [*recombined(samples)]
    known = {tuple(one.values.items()) for one in samples}
    assert len({tuple(one.items()) for one, _ in found} | known) == len(found) + len(known)
    for one, _ in found:
        same = [sample.values for sample in samples if sample.values[MODE] == one[MODE]]
        assert all(any(value == other[name] for other in same) for name, value in one.items())
    assert [*recombined(samples[::-1])] == found
    assert {(one["B"], weight) for one, weight in found if one[MODE] == 0} >= {(1, 1.0), (64, 1.0)}


@pytest.mark.parametrize("distance", [1.2, 100])
def test_a_variant_that_runs_one_sampled_shape_has_no_expected_time(distance: float) -> None:
    """The machine code of variant 1 contains its shape, so it will not run other ones, however far they are."""
    sizes = [round(64 * distance**n) for n in range(3)]
    samples = [shape(1, size, {0: 2.0, 1: 1.0} if size == 64 else {0: 2.0}) for size in sizes]
    found = expected_samples(samples, [])
    assert [set(one.times) for one in found] == [{0}] * 3
    assert [one.weight for one in found] == [1.0] * 3


def test_a_lucky_time_is_not_expected_again() -> None:
    """Variant 1 is the fastest at one of nine similar shapes only; variant 0 is expected to be faster there."""
    samples = [shape(1, 100 + n, {0: 1.0, 1: 0.95 if n == 4 else 1.5}) for n in range(9)]
    lucky = expected_samples(samples, [])[4]
    assert lucky.times[0] < lucky.times[1]
    assert lucky.times[1] / lucky.times[0] == pytest.approx(1.5, rel=0.1)


def test_no_time_is_expected_far_from_all_samples() -> None:
    """Variant 1 was measured at short rows only, so nothing is known about long ones."""
    samples = [shape(1, size, {0: 2.0, 1: 1.0} if size < 200 else {0: 2.0}) for size in (64, 80, 100, 9000, 10000)]
    (found,) = expected_samples(samples, [({CAPABILITY: 90, MODE: 0, "B": 1, "S": 9500}, 1.0, {0, 1})])[5:]
    assert set(found.times) == {0}


def test_other_shapes_get_the_times_of_variants_that_run_there() -> None:
    """The further shapes weigh as much as the sampled ones; a mode that was not sampled has no expected time."""
    samples = [shape(1, 64, {0: 1.0, 1: 2.0}), shape(1, 4096, {0: 2.0, 1: 1.0})]
    others = [({CAPABILITY: 90, MODE: mode, "B": 1, "S": 80}, 1.0, {0}) for mode in (0, 7)]
    *_, found = expected_samples(samples, others)
    assert (found.values["S"], set(found.times), found.weight) == (80, {0}, 1.0)
    assert found.best_us is not None
    assert found.best_us <= found.times[0] < 1.4 * found.best_us


def test_expected_times_decrease_the_loss_at_other_shapes() -> None:
    """Three variants with costs of each start and of each round of 132 blocks; the measured times are 10 % off."""

    def measured(rng: random.Random) -> Sample:
        batch, size = round(math.exp(rng.uniform(0, 5))), round(math.exp(rng.uniform(4, 8)))
        times = {}
        for variant, (rows, start, speed) in enumerate(((16, 1.0, 1.0), (64, 2.0, 0.6), (128, 4.0, 0.5))):
            rounds = math.ceil(batch * math.ceil(size / rows) / 132)
            times[variant] = (start + rounds * rows * size * speed / 3e4) * rng.uniform(0.9, 1.1)
        return shape(batch, size, times)

    losses: dict[bool, list[float]] = {False: [], True: []}
    for seed in range(6):
        rng = random.Random(seed)
        samples, unseen = [measured(rng) for _ in range(30)], [measured(rng) for _ in range(60)]
        others = [(one, weight, {0, 1, 2}) for one, weight in recombined(samples)]
        for more, found in losses.items():
            tree = dispatch_tree([*samples, *(expected_samples(samples, others) if more else ())], (0, 1, 2), FIELDS)
            served = [(one, served_by(tree, one)) for one in unseen]
            found += [one.cost(variant) for one, variant in served]
    assert fmean(losses[True]) < 0.8 * fmean(losses[False])
