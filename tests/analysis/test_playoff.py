"""The playoff on synthetic samples whose truth is known: drift, autocorrelation, outliers, offsets of each load."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_samples import SyntheticBench

from evokern.errors import UsageError
from evokern.measurement.playoff import Playoff, Rules, by_prediction, play
from evokern.measurement.statistics import cliffs_delta


def playoffs(times_us: Sequence[float], count: int = 100, **noise: float) -> list[Playoff]:
    return [play(SyntheticBench(times_us, seed, **noise), len(times_us)) for seed in range(count)]


@pytest.mark.thorough
@pytest.mark.parametrize("noise", [{}, {"noise": 0.02, "load": 0.005}, {"noise": 0.0005, "load": 0.0002}])
def test_identical_candidates_are_seldom_called_different(noise: dict[str, float]) -> None:
    """At the declared 0.01, of 100 playoffs of two identical candidates at most 5 call them different."""
    assert sum(one.decided for one in playoffs([5.43, 5.43], **noise)) <= 5


@pytest.mark.thorough
def test_many_identical_elites_are_seldom_called_different() -> None:
    """The error budget holds for the whole playoff, not for each pair: six identical elites."""
    found = playoffs([5.43] * 6)
    assert sum(any(f.result == "slower" for f in one.finalists) for one in found) <= 5


def test_true_differences_are_found() -> None:
    """A difference of 3 % is found in at least 95 of 100 playoffs, and the right one wins."""
    found = playoffs([5.43 * 1.03, 5.43])
    assert sum(one.decided and one.champion.index == 1 for one in found) >= 95


def test_differences_below_the_margin_are_ties() -> None:
    """Half a percent does not matter: a tie, even where it could be told apart."""
    found = playoffs([5.43, 5.43 * 1.004], noise=0.0005, load=0.0002, count=20)
    assert not any(one.decided for one in found)
    assert all(one.finalists[1].equivalent for one in found)


def test_slow_candidates_leave_early() -> None:
    """A candidate that is decided slower is not measured again, and one that is far slower leaves at the first look."""
    bench = SyntheticBench([5.0, 5.01, 9.0], seed=1)
    found = play(bench, 3)
    assert all(2 not in alive for alive in bench.asked[8:])
    assert [one.result for one in found.finalists].count("slower") == 1
    assert found.finalists[-1].index == 2
    assert found.finalists[-1].rounds == 8


def test_the_interval_covers_the_true_ratio() -> None:
    """The bootstrap interval of the ratio covers the truth about as often as it says, though rounds are few."""
    truth = 1.05
    found = playoffs([5.0, 5.0 * truth])
    covered = sum(one.finalists[1].ratio_ci95[0] <= truth <= one.finalists[1].ratio_ci95[1] for one in found)
    assert covered >= 80
    assert all(abs(one.finalists[1].ratio - truth) < 0.01 for one in found)


def test_the_error_budget_is_spent_once() -> None:
    """What the looks spend adds up to the level."""
    rules = Rules(level=0.02, looks=(5, 8, 20))
    assert sum(rules.error_share(look) for look in range(3)) == pytest.approx(0.02)


def test_predictions_are_compared_as_they_are() -> None:
    """Predicted times have no noise: beyond the margin they decide, within it they tie."""
    found = by_prediction([5.2, 5.0, 5.01])
    assert [(one.index, one.result) for one in found.finalists] == [(1, "champion"), (2, "tie"), (0, "slower")]
    assert found.predicted


@pytest.mark.parametrize("rules", [{"level": 0.0}, {"looks": (2,)}, {"looks": (9, 6)}, {"samples": 0}])
def test_rules_that_cannot_work_are_refused(rules: dict[str, object]) -> None:
    """Levels, looks and samples that make no test are the user's mistake."""
    with pytest.raises(UsageError):
        Rules(**rules)  # type: ignore[arg-type]


times = st.lists(st.floats(1, 100), min_size=1, max_size=30)


@given(times, times)
def test_cliffs_delta_counts_pairs(ours: list[float], theirs: list[float]) -> None:
    """It is the share of pairs in which ours is smaller minus the share in which it is larger; swapping negates it."""
    pairs = [(a < b) - (a > b) for a in ours for b in theirs]
    assert cliffs_delta(ours, theirs) == pytest.approx(sum(pairs) / len(pairs))
    assert cliffs_delta(theirs, ours) == pytest.approx(-cliffs_delta(ours, theirs))
