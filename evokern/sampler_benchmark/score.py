"""How much better than random search: the expected curve of random search, and the score against it.

The score follows Willemsen et al., "A methodology for comparing optimization algorithms for auto-tuning" (Future
Generation Computer Systems 159, 2024): how much of the gap between random search and the optimum is closed, averaged
over the whole search, so that being early counts. Here the search is measured in evaluations and quality as optimum ÷
best. `make bench-sampler` computes the original, in recorded seconds up to each space's own budget.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import stdev

import numpy as np

from evokern.device.recorded.table import Table
from evokern.study.trial import Outcome

TIED = 0.01
"""Relative difference from the best time below which configurations count as equally good: a repeated measurement's."""
MANY_TIED = 0.1
"""Share of such configurations that is worth a remark."""


def random_fractions(table: Table, trials: int) -> tuple[float, ...]:
    """Return the expected optimum ÷ best of random search without replacement after 1, 2, … evaluations.

    With the N configurations ordered by time, none of the first k is among n drawn with probability
    C(N - k, n) / C(N, n); the best of n is the k-th with the difference of two such numbers.

    Args:
        table: the recording; its failures are draws that find nothing.
        trials: evaluations.
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
    """Return 0 for random search, 1 for the optimum at once, below 0 for worse than random.

    Args:
        curves: optimum ÷ best after each evaluation, one per repeat.
        random: the same, expected of random search.
    """
    mean, base = np.mean(np.asarray(curves, dtype=float), axis=0), np.asarray(random)
    open_gap = base < 1 - 1e-12
    if not open_gap.any():
        return 1.0
    return float(np.mean((mean - base)[open_gap] / (1 - base)[open_gap]))


def worth(table: Table) -> list[str]:
    """Return what scores on a recording are worth less for: it covers a part of the space, or many are equally good.

    Args:
        table: the recording.
    """
    notes = []
    if table.sought_out:
        by = f" by {table.searched_by}" if table.searched_by else ""
        notes.append(
            f"{table.name} holds what one search{by} visited: {table.visited:,} of {table.combinations:,} "
            "configurations, those that it sought out. The scores tell how soon a sampler finds these again, not how "
            "good it is: compare samplers on a table that covers the space, such as a tuner's cache or a search with "
            "--sampler grid"
        )
    times = [a.time_us for a in table.answers.values() if a.outcome is Outcome.MEASURED and a.time_us]
    tied = sum(time_us <= (1 + TIED) * min(times) for time_us in times)
    if tied >= MANY_TIED * len(times) and tied > 1:
        notes.append(
            f"{tied:,} of {len(times):,} measured configurations ({100 * tied / len(times):.0f} %) are within "
            f"{100 * TIED:g} % of the best: whoever draws one of them early scores well by chance"
        )
    return notes


def half_width(values: Sequence[float], confidence: float = 0.95) -> float:
    """Return half the width of the interval of a mean over repeats, by Student's t; 0 for a single repeat."""
    from scipy.stats import t

    if len(values) < 2:
        return 0.0
    quantile = float(t.ppf((1 + confidence) / 2, len(values) - 1))
    return quantile * stdev(values) / math.sqrt(len(values))
