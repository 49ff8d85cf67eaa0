"""How likely a candidate that passed would fail the same check on other inputs, judged by its nearest misses.

A check that draws its inputs anew sees another sample of the same rounding errors each time. Where the largest of them
comes near the tolerance, one draw says little: the candidate passed by luck, and another one fails by bad luck. What
is asked instead is how many elements are expected beyond the tolerance. The errors above a high threshold are taken to
fall off exponentially (peaks over a threshold: Pickands, Ann. Statist. 3 (1975), 119; Davison and Smith, J. R. Stat.
Soc. B 52 (1990), 393), with the mean excess over the threshold as the scale. Errors that end at a point, as those of a
single rounding do, crowd there: their largest excess is too small for its mean, and they are no luck. The same rule
serves a GPU, which has every element of the problem, and the simulated device, which has a sample.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from evokern.wording import told_apart

MARGINAL = 0.5
"""Error over tolerance from which it is asked whether a candidate passed by luck, where the whole problem was seen or
too little of it to tell otherwise."""
CLEAR = 0.3
"""Error over tolerance below which a small sample is in no doubt."""
LIMIT = 0.05
"""Largest chance of failing on other inputs that is accepted: a right candidate passes 19 of 20 checks at least."""
SURE = 2.0
"""Standard errors between an estimate and the limit from which it counts as decided: 98 % on that side."""
_FEWEST_UNITS = 64
_FEWEST_PEAKS, _MOST_PEAKS = 8, 64
_SHARE_OF_PEAKS = 32
_DISTINGUISHING_PEAKS = 48
"""Peaks with which errors that end at a point can be told from errors that fall off."""
_END_POINT_PROBABILITY = 0.01
"""Probability of so small a largest excess if errors fell off exponentially, from which on they end at a point."""


@dataclass(frozen=True)
class TailRisk:
    """Tail risk of a candidate: what the largest errors say."""

    expected: float
    """Elements (or rows of equal ones) expected beyond the tolerance in one draw of the whole problem."""
    error: float
    """Standard error of the logarithm of `expected`."""
    units: int
    """Elements, or rows, that were seen."""
    peaks: int
    """Of those, how many lie above the threshold."""
    worst: float
    """Largest error over tolerance among them."""

    @property
    def chance(self) -> float:
        """Probability that a draw has one beyond the tolerance."""
        return -math.expm1(-self.expected)

    @property
    def excessive(self) -> bool:
        """Whether other inputs would turn the candidate away too often."""
        return self.chance > LIMIT and (self.worst > 1 or self.peaks >= _DISTINGUISHING_PEAKS)

    @property
    def decided(self) -> bool:
        """Whether a larger sample would hardly change the answer."""
        if not 0 < self.expected < math.inf:
            return True
        beyond = math.log(self.expected / -math.log1p(-LIMIT))
        return abs(beyond) > SURE * self.error and (beyond < 0 or self.excessive)


def undecided(errors: torch.Tensor, of: int) -> bool:
    """Tell whether a small sample leaves open that the whole problem would show a candidate to be wrong."""
    worst = float(errors.max())
    found = tail_risk(errors, of)
    if found is None or worst < CLEAR:
        return worst >= MARGINAL
    return found.excessive or not found.decided


def tail_risk(errors: torch.Tensor, of: int) -> TailRisk | None:
    """Judge by a sample of errors; None where the sample is too small to say anything.

    Args:
        errors: error over tolerance of each unit that was seen, flat.
        of: units in the whole problem.
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


def fault(found: TailRisk, output: str, kind: str, of: int) -> dict[str, Any]:
    """Return the evidence against a marginal pass whose tail risk is too high."""
    evidence: dict[str, Any] = {"check": "margin", "output": output, "input_set": kind, "over": found.worst}
    if found.worst > 1:
        message = f"an error of {output!r} is {told_apart(found.worst, 1.0)[0]} of the tolerance on {kind} inputs"
        return evidence | {"check": "tolerance", "message": message}
    message = (
        f"right this time, but errors of {output!r} reach {found.worst:.2f} of the tolerance on {kind} inputs and fall "
        f"off so slowly that {found.expected:.2g} of {of} are expected beyond it: other inputs turn the candidate away "
        f"with probability {found.chance:.2g}, and {LIMIT:g} is accepted"
    )
    return evidence | {"expected": found.expected, "message": message}
