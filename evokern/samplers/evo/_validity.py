"""Predicted risk that a candidate fails, from failures per value and per pair of values.

Crashes and wrong results follow patterns, mostly of one or two genes ("four warps only with 16-byte loads"). Therefore
the failures and trials of every value and every pair of values are counted. The risk of a
candidate is that of its riskiest value or pair.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from evokern.samplers.evo._features import Floats
from evokern.samplers.evo._observations import Observations
from evokern.samplers.genome import Genome, Rows

CAUTION = 4.0
"""Weight of the overall failure rate in each cell, in trials."""
PAIRS = 64
"""Number of gene pairs to use, those with the most unusual failure rates; 34 genes have 561 pairs."""
MOST_CELLS = 65_521
"""Maximum number of cells of a table; a prime, so that the pairs which share a cell differ in both values."""
Cells = npt.NDArray[np.int64]
"""Indices of cells."""


class FailureCounts:
    """Counts of failures and trials for every value and every pair of values."""

    def __init__(self, genome: Genome) -> None:
        self.sizes = genome.sizes
        self.one, self.two = np.triu_indices(len(genome))
        """Indices of the two genes of each table; a table of a gene with itself counts single values."""
        pairs = self.sizes[self.one] * np.where(self.one == self.two, 1, self.sizes[self.two])
        self.cells = np.minimum(pairs, MOST_CELLS)
        """Number of cells of each table; pairs of many values share cells."""
        ends = np.cumsum(self.cells)
        self.begins = np.append(0, ends[:-1])
        """Index of the first cell of each table."""
        self.trials = np.zeros(ends[-1], dtype=np.int64)
        """Number of trials in each cell."""
        self.failures = np.zeros(ends[-1], dtype=np.int64)
        """Number of failed trials in each cell."""
        self._counted = 0

    def count(self, seen: Observations) -> None:
        """Add the trials finished since the last call; results become visible in number order."""
        done = np.flatnonzero(seen.finished)[self._counted :]
        rows, failed = seen.rows[done].astype(np.int64), seen.failed[done]
        cells = self.cells_of(rows)
        np.add.at(self.trials, cells.ravel(), 1)
        np.add.at(self.failures, cells[failed].ravel(), 1)
        self._counted += len(done)

    def cells_of(self, rows: npt.NDArray[np.int64], tables: npt.NDArray[np.intp] | slice = slice(None)) -> Cells:
        """Return the cell of each row in some tables, shape (n, tables)."""
        one, two = self.one[tables], self.two[tables]
        places = rows[:, one] * np.where(one == two, 0, self.sizes[two]) + rows[:, two]
        cells: Cells = places % self.cells[tables] + self.begins[tables]
        return cells


class Validity:
    """Predicted probability that a candidate yields a time."""

    def __init__(self, genome: Genome, seen: Observations, counts: FailureCounts | None = None) -> None:
        """Estimate the failure risk of each cell.

        Args:
            genome: Genes of the space.
            seen: Known trials.
            counts: Earlier counts to update; None counts all trials.
        """
        failed = seen.failed[seen.finished]
        self.rate = float(failed.mean()) if len(failed) else 0.0
        """Share of failed trials among the finished ones."""
        counts = counts or FailureCounts(genome)
        counts.count(seen)
        if self.rate == 0.0:
            return
        one, two, trials = counts.one, counts.two, counts.trials
        risk = (counts.failures + CAUTION * self.rate) / (trials + CAUTION)
        counted = np.add.reduceat(trials * (risk - self.rate) ** 2, counts.begins)
        counted[one == two] = np.inf
        kept = np.sort(np.argsort(-counted, kind="stable")[: len(genome) + PAIRS])
        self._counts, self._kept, self._risk = counts, kept, risk

    def __call__(self, rows: Rows) -> Floats:
        """Return the probability that each row yields a time, shape (n,)."""
        if self.rate == 0.0:
            return np.ones(len(rows))
        cells = self._counts.cells_of(rows.astype(np.int64), self._kept)
        valid: Floats = 1.0 - self._risk[cells].max(axis=1)
        return valid
