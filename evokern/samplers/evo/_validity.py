"""Which candidates will fail: evidence per value and per pair of values.

Crashes and wrong answers follow patterns ("four warps only with 16-byte loads"), mostly of one or two genes. So every
value and every pair of values keeps a count of failures and of trials; the worst cell that a candidate lies in speaks.
"""

from __future__ import annotations

import numpy as np

from evokern.samplers.evo._features import Floats
from evokern.samplers.evo._observations import Observations
from evokern.samplers.genome import Genome, Rows

CAUTION = 4.0
"""Trials that the overall failure rate is worth in a cell."""
PAIRS = 64
"""Pairs of genes that are looked at, those whose failures differ most from chance: of 34 genes there are 561."""


class FailureCounts:
    """Failures and trials of every value and every pair of values, counted once for each trial."""

    def __init__(self, genome: Genome) -> None:
        self.sizes = genome.sizes
        self.one, self.two = np.triu_indices(len(genome))
        """Positions of the two genes of each table; a gene with itself is its values alone."""
        ends = np.cumsum(self.sizes[self.one] * self.sizes[self.two])
        self.begins = np.append(0, ends[:-1])
        """First cell of each table, one table after the other."""
        self.trials = np.zeros(ends[-1], dtype=np.int64)
        """Trials of each cell."""
        self.failures = np.zeros(ends[-1], dtype=np.int64)
        """Those of them that failed."""
        self._counted = 0

    def count(self, seen: Observations) -> None:
        """Take in what was finished since the last call: results become visible in number order, and stay visible."""
        done = np.flatnonzero(seen.finished)[self._counted :]
        rows, failed = seen.rows[done].astype(np.int64), seen.failed[done]
        cells = rows[:, self.one] * self.sizes[self.two] + rows[:, self.two] + self.begins
        self.trials += np.bincount(cells.ravel(), minlength=len(self.trials))
        self.failures += np.bincount(cells[failed].ravel(), minlength=len(self.trials))
        self._counted += len(done)


class Validity:
    """Predicts the probability that a candidate gives a time."""

    def __init__(self, genome: Genome, seen: Observations, counts: FailureCounts | None = None) -> None:
        """Look at what is known.

        Args:
            genome: the genes.
            seen: what is known.
            counts: of what was known before, which are brought up to date; None to count all of it.
        """
        failed = seen.failed[seen.finished]
        self.rate = float(failed.mean()) if len(failed) else 0.0
        """Share of the finished trials that failed."""
        counts = counts or FailureCounts(genome)
        counts.count(seen)
        if self.rate == 0.0:
            return
        one, two, trials = counts.one, counts.two, counts.trials
        risk = (counts.failures + CAUTION * self.rate) / (trials + CAUTION)
        counted = np.add.reduceat(trials * (risk - self.rate) ** 2, counts.begins)
        counted[one == two] = np.inf
        kept = np.sort(np.argsort(-counted, kind="stable")[: len(genome) + PAIRS])
        self._one, self._two, self._begins = one[kept], two[kept], counts.begins[kept]
        self._stride = genome.sizes[self._two]
        self._risk = risk

    def __call__(self, rows: Rows) -> Floats:
        """Return the probability of each row to give a time, shape (n,)."""
        if self.rate == 0.0:
            return np.ones(len(rows))
        wide = rows.astype(np.int64)
        cells = wide[:, self._one] * self._stride + wide[:, self._two] + self._begins
        valid: Floats = 1.0 - self._risk[cells].max(axis=1)
        return valid
