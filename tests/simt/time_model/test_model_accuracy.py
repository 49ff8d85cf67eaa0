"""The figures by which the time model is judged, on numbers that can be worked out by hand."""

from __future__ import annotations

import math

import pytest
from model_accuracy import BARS, accuracy


def test_a_model_that_ranks_right_and_is_a_fifth_too_slow() -> None:
    """Order alone decides the correlation, the ratio alone the error, and the best is found."""
    measured = [10.0, 20.0, 30.0, 40.0, 50.0, 60.0]
    found = accuracy(measured, [1.2 * time for time in measured], [True] * 3 + [False] * 3)
    assert (found.spearman, found.spearman_within, found.within) == (1.0, 1.0, 3)
    assert (round(found.median_error, 6), found.top_behind, found.missed()) == (0.2, 0.0, [])


def test_a_model_that_ranks_backwards_misses_every_bar() -> None:
    """Correlations are negative, errors large, and the best measured is not among the five predicted fastest."""
    measured = [10.0, 20.0, 30.0, 40.0, 50.0, 60.0]
    found = accuracy(measured, [100.0, 90.0, 80.0, 70.0, 60.0, 50.0], [True] * 6)
    assert found.spearman == found.spearman_within == pytest.approx(-1.0)
    assert found.top_behind == pytest.approx(1.0)
    assert set(found.missed()) == set(BARS)


def test_candidates_without_a_prediction_are_counted_and_left_out() -> None:
    """The best measured stays the measure, even where the PTX machine could not run it."""
    found = accuracy([8.0, 10.0, 20.0, 30.0], [None, 10.0, 20.0, 30.0], [False] * 4)
    assert (found.candidates, found.unpredicted, found.median_error) == (4, 1, 0.0)
    assert found.top_behind == pytest.approx(0.25)
    assert math.isnan(found.spearman_within)
    assert found.missed() == ["top_behind"]
