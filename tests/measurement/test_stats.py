"""Medians, their intervals and bounds, and geometric means."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import stdtrit

from evokern.measurement.statistics import (
    enough_for_interval,
    geometric_mean,
    lower_rank,
    median,
    median_interval,
    median_lower_bound,
    student_quantile,
)


def test_quantiles_of_student_are_scipys() -> None:
    """From two degrees of freedom on; with one the expansion is of no use."""
    assert student_quantile(2) == pytest.approx(stdtrit(2, 0.975), rel=1e-12)
    for freedom in (*range(3, 200), 1000, 100_000):
        assert student_quantile(freedom) == pytest.approx(stdtrit(freedom, 0.975), rel=1.3e-3)
    with pytest.raises(ValueError, match="1 degrees of freedom are too few"):
        student_quantile(1)


@pytest.mark.parametrize(("count", "rank"), [(5, 0), (6, 1), (8, 1), (9, 2), (20, 6), (50, 18)])
def test_ranks_are_those_of_the_binomial_table(count: int, rank: int) -> None:
    """Two-sided 95 % ranks equal the published table (Conover, table A3 and its use in section 3.2)."""
    assert lower_rank(count, 0.025) == rank
    assert enough_for_interval(count) == (rank > 0)


@given(st.lists(st.floats(0.1, 1e6), min_size=1, max_size=60))
def test_interval_holds_the_median_and_only_samples(samples: list[float]) -> None:
    """Both ends are samples, and the median lies between them."""
    low, high = median_interval(samples)
    assert low in samples
    assert high in samples
    assert low <= median(samples) <= high
    bound = median_lower_bound(samples)
    assert (bound is None) == (len(samples) < 5)
    assert bound is None or bound <= median(samples)


def test_interval_covers_the_true_median_as_often_as_it_says() -> None:
    """Over many skewed series the interval misses the true median about 5 % of the time at most, the bound too."""
    rng = random.Random(5)
    misses = bounds = 0
    for _ in range(2000):
        samples = [rng.lognormvariate(0.0, 0.4) for _ in range(12)]
        low, high = median_interval(samples)
        misses += not low <= 1.0 <= high
        bound = median_lower_bound(samples)
        bounds += bound is not None and bound > 1.0
    assert misses / 2000 <= 0.055
    assert bounds / 2000 <= 0.055


def test_geometric_mean_orders_as_products_do() -> None:
    """The geometric mean of times is the n-th root of their product."""
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)
    assert geometric_mean([3.0]) == pytest.approx(3.0)
    assert math.isfinite(geometric_mean([1e300, 1e300]))
