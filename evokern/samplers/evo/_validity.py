"""Which candidates will fail: evidence per value and per pair of values.

Crashes and wrong answers follow patterns ("four warps only with 16-byte loads"), mostly of one or two genes. So every
value and every pair of values keeps a count of failures and of trials; the worst cell that a candidate lies in speaks.
"""

from __future__ import annotations

import numpy as np

from evokern.samplers.evo._features import Floats
from evokern.samplers.evo._observations import Observations
from evokern.samplers.evo.genome import Genome, Rows

CAUTION = 1.5
"""Trials that the overall failure rate is worth in a cell."""


class Validity:
    """Predicts the probability that a candidate gives a time."""

    def __init__(self, genome: Genome, seen: Observations) -> None:
        self._sizes = genome.sizes
        rows, failed = seen.rows[seen.finished], seen.failed[seen.finished]
        self.rate = float(failed.mean()) if len(failed) else 0.0
        """Share of the finished trials that failed."""
        self._cells: list[tuple[int, int, Floats]] = []
        if self.rate == 0.0:
            return
        for a in range(len(genome)):
            for b in range(a, len(genome)):
                cell = rows[:, a] * self._sizes[b] + rows[:, b]
                size = int(self._sizes[a] * self._sizes[b])
                failures = np.bincount(cell, weights=failed, minlength=size)
                trials = np.bincount(cell, minlength=size)
                self._cells.append((a, b, (failures + CAUTION * self.rate) / (trials + CAUTION)))

    def __call__(self, rows: Rows) -> Floats:
        """Return the probability of each row to give a time, shape (n,)."""
        worst = np.zeros(len(rows))
        for a, b, risk in self._cells:
            worst = np.maximum(worst, risk[rows[:, a] * self._sizes[b] + rows[:, b]])
        return 1.0 - worst
