"""What a trial's record says of how it ended."""

from __future__ import annotations

import pytest

from evokern.analysis.evaluate.result import SourceResult
from evokern.study.trial import Evaluation, Outcome


@pytest.mark.parametrize(
    ("needed", "available", "reason", "told", "whole"),
    [
        (1, 0, "no small problem that it can run", "fits: no small problem that it can run", ""),
        (1, 0, "", "fits: needs 1, has 0", ""),
        (32, 16, "too many rows", "fits: needs 32, has 16", " (too many rows)"),
    ],
)
def test_a_condition_that_does_not_hold_says_its_reason(
    needed: int, available: int, reason: str, told: str, whole: str
) -> None:
    """Of a condition, 1 of 0, the reason says all there is to say, and once; numbers say how far a limit is missed."""
    evidence = {"constraint": "fits", "needed": needed, "available": available, "unit": "problems", "reason": reason}
    found = Evaluation(Outcome.INFEASIBLE, evidence=evidence)
    assert found.reason == told
    assert SourceResult("a.cu", found, predicted=True).reason == told + whole


def test_a_remainder_is_reported_as_left_over() -> None:
    """A divisibility constraint states the remainder with its unit."""
    evidence = {"constraint": "whole_rows", "needed": 80, "available": 0, "unit": "rows left over", "reason": "tiles"}
    assert Evaluation(Outcome.INFEASIBLE, evidence=evidence).reason == "whole_rows: 80 rows left over, must be 0"
