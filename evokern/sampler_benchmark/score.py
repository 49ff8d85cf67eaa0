"""Score of a sampler relative to random search.

The score follows Willemsen et al., "A methodology for comparing optimization algorithms for auto-tuning" (Future
Generation Computer Systems 159, 2024). It is the share of the gap between random search and the optimum that the
sampler closes. It is averaged over the whole search, so that early progress counts. Here, progress is measured in
evaluations and quality as optimum ÷ best. `make bench-sampler` computes the original score, in recorded seconds up to
the budget of each space.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import stdev

import numpy as np

from evokern.device.recorded.table import Table
from evokern.study.trial import Outcome

TIED = 0.01
"""Relative difference from the best time within which configurations are equally good."""
MANY_TIED = 0.1
"""Share of such configurations that causes a note."""


def random_fractions(table: Table, trials: int) -> tuple[float, ...]:
    """Return the expected value of optimum ÷ best for random search without replacement after 1, 2, … evaluations.

    Order the N configurations by time. The probability that none of the first k is among n drawn is C(N - k, n) / C(N,
    n). The difference of two such numbers is the probability that the best of n is the k-th.

    Args:
        table: Recording; failures count as draws without a result.
        trials: Number of evaluations.
    """
    answers = [a for a in table.answers.values() if a.outcome is not Outcome.INFEASIBLE]
    times = np.sort([a.time_us for a in answers if a.outcome is Outcome.MEASURED and a.time_us])
    quality = times[0] / times
    total, first = len(answers), np.arange(len(times))
    expected = []
    for drawn in range(1, trials + 1):
        missed = np.cumprod(np.maximum(total - drawn - first, 0) / (total - first))
        best = -np.diff(missed, prepend=1.0)
        expected.append(float(best @ quality))
    return tuple(expected)


def score(curves: Sequence[Sequence[float]], random: Sequence[float]) -> float:
    """Return the score: 0 for random search, 1 for finding the optimum immediately, negative if worse than random.

    Args:
        curves: Optimum ÷ best after each evaluation, one curve per repeat.
        random: Expected curve of random search.
    """
    mean, base = np.mean(np.asarray(curves, dtype=float), axis=0), np.asarray(random)
    open_gap = base < 1 - 1e-12
    if not open_gap.any():
        return 1.0
    return float(np.mean((mean - base)[open_gap] / (1 - base)[open_gap]))


def recording_notes(table: Table) -> list[str]:
    """Return notes on the limitations of a recording: it covers only a part of the space, or has many ties.

    Args:
        table: Recording to check.
    """
    notes = []
    if table.is_partial_search:
        by = f" by {table.searched_by}" if table.searched_by else ""
        notes.append(
            f"{table.name} contains only the configurations visited by one search{by}: {table.visited:,} of "
            f"{table.combinations:,}. Scores show how soon a sampler finds these again, not how good the sampler is. "
            "To compare "
            "samplers, use a table that covers the space, such as a tuner's cache or a search with --sampler grid"
        )
    times = [a.time_us for a in table.answers.values() if a.outcome is Outcome.MEASURED and a.time_us]
    tied = sum(time_us <= (1 + TIED) * min(times) for time_us in times)
    if tied >= MANY_TIED * len(times) and tied > 1:
        notes.append(
            f"{tied:,} of {len(times):,} measured configurations ({100 * tied / len(times):.0f} %) are within "
            f"{100 * TIED:g} % of the best, so a lucky early draw scores well"
        )
    return notes


def half_width(values: Sequence[float], confidence: float = 0.95) -> float:
    """Return half the width of the confidence interval of a mean over repeats (Student's t); 0 for one repeat."""
    from scipy.stats import t

    if len(values) < 2:
        return 0.0
    quantile = float(t.ppf((1 + confidence) / 2, len(values) - 1))
    return quantile * stdev(values) / math.sqrt(len(values))
