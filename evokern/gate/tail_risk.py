"""Estimate of the probability that a candidate that passed would fail the same check on other inputs.

Each check draws new inputs, and so a new sample of the same rounding errors. If the largest error is close to the
tolerance, passing one check is partly luck. The estimate is therefore the expected number of elements beyond the
tolerance.

Errors above a high threshold are assumed to decrease exponentially, with their mean excess as the scale (peaks over a
threshold: Pickands, Ann. Statist. 3 (1975), 119; Davison and Smith, J. R. Stat. Soc. B 52 (1990), 393).

Errors with an upper bound, such as those of a single rounding, crowd below the bound. Their largest excess is then
small compared with the mean excess, and the risk is 0.

The rule applies to a GPU, which checks every element, and to the simulated device, which checks a sample.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from evokern.wording import distinguishing_digits

MARGINAL = 0.5
"""Error / tolerance from which the risk is estimated, if all elements were checked or the sample is very small."""
CLEAR_RATIO = 0.3
"""Error / tolerance below which a small sample needs no further check."""
LIMIT = 0.05
"""Largest accepted probability of failing on other inputs: a correct candidate passes at least 19 of 20 checks."""
DECIDED_SIGMAS = 2.0
"""Distance in standard errors between an estimate and the limit at which the case is decided (98 % confidence)."""
_FEWEST_UNITS = 64
_FEWEST_PEAKS, _MOST_PEAKS = 8, 64
_SHARE_OF_PEAKS = 32
_DISTINGUISHING_PEAKS = 48
"""Number of peaks needed to distinguish errors with an upper bound from errors that decrease exponentially."""
_END_POINT_PROBABILITY = 0.01
"""Significance level for an upper bound: probability of such a small largest excess under an exponential decrease."""


@dataclass(frozen=True)
class TailRisk:
    """Tail risk of a candidate, estimated from its largest errors."""

    expected: float
    """Expected number of elements (or rows of equal elements) beyond the tolerance in one draw of all inputs."""
    error: float
    """Standard error of the logarithm of `expected`."""
    units: int
    """Number of checked elements or rows."""
    peaks: int
    """Number of checked elements or rows above the threshold."""
    worst: float
    """Largest ratio of error to tolerance."""

    @property
    def chance(self) -> float:
        """Probability that a random set of inputs has an element beyond the tolerance."""
        return -math.expm1(-self.expected)

    @property
    def excessive(self) -> bool:
        """Whether the candidate would fail too often on other inputs."""
        return self.chance > LIMIT and (self.worst > 1 or self.peaks >= _DISTINGUISHING_PEAKS)

    @property
    def decided(self) -> bool:
        """Whether a larger sample would hardly change the result."""
        if not 0 < self.expected < math.inf:
            return True
        beyond = math.log(self.expected / -math.log1p(-LIMIT))
        return abs(beyond) > DECIDED_SIGMAS * self.error and (beyond < 0 or self.excessive)


def undecided(errors: torch.Tensor, of: int) -> bool:
    """Return whether a small sample is inconclusive: checking the whole problem might show a wrong result.

    Args:
        errors: error over tolerance of each checked element or row, flat.
        of: number of elements or rows in the whole problem.
    """
    worst = float(errors.max())
    found = tail_risk(errors, of)
    if found is None or worst < CLEAR_RATIO:
        return worst >= MARGINAL
    return found.excessive or not found.decided


def tail_risk(errors: torch.Tensor, of: int) -> TailRisk | None:
    """Return the tail risk estimated from a sample of errors, or None if the sample is too small.

    Args:
        errors: error over tolerance of each checked element or row, flat.
        of: number of elements or rows in the whole problem.
    """
    count = errors.numel()
    if count < _FEWEST_UNITS:
        return None
    peaks = max(_FEWEST_PEAKS, min(_MOST_PEAKS, count // _SHARE_OF_PEAKS))
    top: list[float] = errors.topk(peaks + 1).values.tolist()
    threshold, above = top[-1], top[:-1]
    if top[0] > 1.0 or math.isnan(top[0]):
        return TailRisk(math.inf, 0.0, count, peaks, top[0])
    scale = math.fsum(value - threshold for value in above) / peaks
    # The largest of k exponential excesses stays below x times their mean with probability (1 - exp(-x))^k.
    end_point_excess = -math.log1p(-(_END_POINT_PROBABILITY ** (1 / peaks)))
    if top[0] - threshold <= end_point_excess * scale:
        return TailRisk(0.0, 0.0, count, peaks, top[0])
    steps = (1.0 - threshold) / scale
    return TailRisk(peaks * (of / count) * math.exp(-steps), steps / math.sqrt(peaks), count, peaks, top[0])


def margin_evidence(found: TailRisk, output: str, kind: str, of: int) -> dict[str, Any]:
    """Return the evidence for rejecting a candidate that passed but has too high a tail risk."""
    evidence: dict[str, Any] = {"check": "margin", "output": output, "input_set": kind, "over": found.worst}
    if found.worst > 1:
        times = distinguishing_digits(found.worst, 1.0)[0]
        message = f"an error of {output!r} is {times} times the tolerance on {kind} inputs"
        return evidence | {"check": "tolerance", "message": message}
    message = (
        f"too close to the tolerance: the largest error of {output!r} on {kind} inputs is {found.worst:.2f} of the "
        f"tolerance, and about {found.expected:.2g} of its {of} elements are expected to exceed it; other inputs "
        f"would fail with probability {found.chance:.2g} (limit {LIMIT:g})"
    )
    return evidence | {"expected": found.expected, "message": message}
