"""Distribution-free intervals and bounds for the median.

Kernel times are skewed and sometimes bimodal, so intervals based on a normal distribution are wrong. Order statistics
require only independent samples: the number of samples below the median is binomial with p = 1/2 (Conover, Practical
Nonparametric Statistics, 3rd ed., section 3.2; David and Nagaraja, Order Statistics, 3rd ed., section 7.1).
"""

from __future__ import annotations

import bisect
import functools
import math
import statistics
from collections.abc import Sequence


def median(samples: Sequence[float]) -> float:
    """Return the median."""
    return statistics.median(samples)


@functools.cache
def lower_rank(count: int, tail: float) -> int:
    """Return the largest rank r (from 1) for which P(r-th smallest sample > median) <= `tail`; 0 if there is none.

    Args:
        count: number of samples.
        tail: one-sided error probability.
    """
    probability, rank = 0.0, 0
    for below in range(count):
        probability += math.comb(count, below) / 2.0**count
        if probability > tail:
            return rank
        rank = below + 1
    return rank


def median_interval(samples: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Return an interval that covers the median with at least this confidence, in the samples' unit.

    If there are too few samples (fewer than six for 95 %), such an interval does not exist and the whole range is
    returned. `enough_for_interval` detects this case.
    """
    ordered = sorted(samples)
    rank = max(lower_rank(len(ordered), (1 - confidence) / 2), 1)
    return ordered[rank - 1], ordered[len(ordered) - rank]


def enough_for_interval(count: int, confidence: float = 0.95) -> bool:
    """Return whether there are enough samples for a confidence interval of the median at this level."""
    return lower_rank(count, (1 - confidence) / 2) > 0


def median_lower_bound(samples: Sequence[float], confidence: float = 0.95) -> float | None:
    """Return a lower bound on the median at this confidence level, or None with too few samples (95 % needs five)."""
    rank = lower_rank(len(samples), 1 - confidence)
    return sorted(samples)[rank - 1] if rank else None


@functools.cache
def student_quantile(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t, within 0.13 %.

    The result is exact for two degrees of freedom. For more it uses the expansion in 1/freedom (Abramowitz and Stegun,
    Handbook of Mathematical Functions, 26.7.5), because importing SciPy takes half a second.

    Args:
        freedom: degrees of freedom, 2 or more.
    """
    if freedom < 2:
        raise ValueError(f"{freedom} degrees of freedom are too few")
    if freedom == 2:
        return 0.95 * math.sqrt(2 / (1 - 0.95**2))
    z = statistics.NormalDist().inv_cdf(0.975)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + math.fsum(term / freedom**power for power, term in enumerate(terms, 1))


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean of positive values."""
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def cliffs_delta(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return Cliff's delta, an effect size without a unit: P(ours < theirs) - P(ours > theirs), from -1 to 1.

    A value of 1 means that every value of `ours` is below every value of `theirs` (Cliff, Dominance statistics,
    Psychological Bulletin 114 (1993)).
    """
    ordered = sorted(theirs)
    count = len(ordered)
    balance = sum(count - bisect.bisect_right(ordered, x) - bisect.bisect_left(ordered, x) for x in ours)
    return balance / (len(ours) * count)
