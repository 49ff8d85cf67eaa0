"""Tail risk: what a sample of errors says about a whole problem, on distributions whose truth is known."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from evokern.gate.comparison import error_over_tolerance, independent_errors
from evokern.gate.verdict import LIMIT, TailRisk, tail_risk, undecided

Draw = Callable[[int, torch.Generator], torch.Tensor]
OF = 8192


def exponential(scale: float) -> Draw:
    return lambda count, g: -scale * torch.rand(count, generator=g, dtype=torch.float64).log()


def rounding(most: float) -> Draw:
    """Errors of one rounding: even up to an end point."""
    return lambda count, g: most * torch.rand(count, generator=g, dtype=torch.float64)


def rate(expected: float) -> Draw:
    """Exponential errors of which so many of 8,192 are beyond the tolerance."""
    return exponential(1 / math.log(OF / expected))


def tail_risks(draw: Draw, count: int, times: int = 200) -> list[TailRisk]:
    made = [tail_risk(draw(count, torch.Generator().manual_seed(seed)), OF) for seed in range(times)]
    return [one for one in made if one is not None]


@pytest.mark.parametrize("expected", [0.003, 0.8])
def test_the_whole_problem_and_a_sample_give_the_same_verdict(expected: float) -> None:
    """Rates of a failure in 300 draws and of more than one in two are told apart, by all rows and by a sample."""
    whole, sample = tail_risks(rate(expected), OF), tail_risks(rate(expected), 2048)
    right = expected > -math.log1p(-LIMIT)
    assert sum(one.excessive == right for one in whole) >= 0.9 * len(whole)
    assert sum(one.excessive == right for one in sample) >= 0.85 * len(sample)
    sure = [one for one in sample if one.decided]
    assert sum(one.excessive == right for one in sure) >= 0.97 * len(sure)


def test_the_estimate_has_the_error_it_says() -> None:
    """The logarithm of the estimate scatters around the truth by about its standard error."""
    found = [one for one in tail_risks(rate(0.5), 4096) if math.isfinite(one.expected)]
    scores = [math.log(one.expected / 0.5) / one.error for one in found]
    assert abs(sum(scores) / len(scores)) < 0.25
    assert 0.7 < math.sqrt(sum(score**2 for score in scores) / len(scores)) < 1.4


@pytest.mark.parametrize("draw", [rounding(1.0), rounding(0.8), exponential(0.03)], ids=["all", "0.8", "small"])
@pytest.mark.parametrize("count", [512, OF])
def test_errors_that_end_before_the_tolerance_carry_no_tail_risk(draw: Draw, count: int) -> None:
    """One rounding that uses the whole tolerance, and no more, is right on every input."""
    assert not any(one.excessive for one in tail_risks(draw, count))


def test_quantised_errors_at_an_end_point_carry_no_tail_risk() -> None:
    """Where the largest errors are all the same there is nothing beyond them."""
    errors = torch.cat([torch.full((500,), 0.9), torch.zeros(500)]).double()
    found = tail_risk(errors, OF)
    assert found is not None
    assert (found.expected, found.excessive) == (0.0, False)


def test_an_error_beyond_the_tolerance_is_certain() -> None:
    """What was seen need not be estimated."""
    errors = torch.linspace(0, 1.01, 1000).double()
    found = tail_risk(errors, OF)
    assert found is not None
    assert (found.excessive, found.decided, found.worst) == (True, True, pytest.approx(1.01))


def test_too_small_a_sample_is_asked_about_by_its_worst_error() -> None:
    """A handful of errors makes no tail: from half of the tolerance on it is worth asking."""
    assert tail_risk(torch.full((20,), 0.9).double(), OF) is None
    assert undecided(torch.full((20,), 0.5).double(), OF)
    assert not undecided(torch.full((20,), 0.49).double(), OF)


def test_a_small_problem_asks_when_it_cannot_tell() -> None:
    """336 rows of errors that fail one draw in ten of 8,192 are in doubt, those of plain rounding seldom."""
    assert all(undecided(rate(0.1)(336, torch.Generator().manual_seed(seed)), OF) for seed in range(50))
    honest = [undecided(exponential(0.025)(336, torch.Generator().manual_seed(seed)), OF) for seed in range(50)]
    assert sum(honest) <= 2


def test_errors_of_equal_rows_count_once() -> None:
    """Where inputs are equal along rows so are the errors: a row is one event; elsewhere an element is."""
    got, expected = torch.zeros(3, 4).double(), torch.tensor([[0.0], [0.1], [0.2]]).double().expand(3, 4)
    errors = error_over_tolerance(got, expected, torch.full((3, 4), 0.4).double())
    assert independent_errors(errors, "equal_rows").tolist() == pytest.approx([0.0, 0.25, 0.5])
    assert len(independent_errors(errors, "large")) == 12


def test_nothing_allowed_and_nothing_wrong_is_no_error() -> None:
    """A tolerance of 0 is met by an exact result, and by nothing else."""
    zero = torch.zeros(2).double()
    assert error_over_tolerance(zero, zero, zero).tolist() == [0.0, 0.0]
    assert error_over_tolerance(zero + 1, zero, zero).tolist() == [math.inf, math.inf]
