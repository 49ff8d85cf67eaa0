"""Predicted risk that a candidate fails, from failures per value and per pair of values.

Crashes and wrong results follow patterns, mostly of one or two genes ("four warps only with 16-byte loads"). Therefore
the failures and trials of every value and every pair of values are counted. The risk of a candidate is that of its
riskiest value or pair.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from evokern.samplers.evo._features import Floats
from evokern.samplers.evo._observations import Observations
from evokern.samplers.genome import Genome, Rows

CAUTION = 4.0
"""Weight of the overall failure rate in each cell, in trials."""
NEW_PAIRS = 1.5
"""Added value of a row whose pairs are all new, before anything was right."""
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
        self.trials += np.bincount(cells.ravel(), minlength=len(self.trials))
        self.failures += np.bincount(cells[failed].ravel(), minlength=len(self.trials))
        self._counted += len(done)

    def cells_of(self, rows: npt.NDArray[np.int64], tables: npt.NDArray[np.intp] | slice = slice(None)) -> Cells:
        """Return the cell of each row in some tables, shape (n, tables)."""
        one, two = self.one[tables], self.two[tables]
        places = rows[:, one] * np.where(one == two, 0, self.sizes[two]) + rows[:, two]
        cells: Cells = places % self.cells[tables] + self.begins[tables]
        return cells


class Exploration:
    """Value of trying a row while no candidate is correct.

    A correct candidate passes every stage. Rows that may reach the furthest stage so far are therefore preferred. They
    contain no value, and no pair of otherwise usable values, whose trials all failed before that stage.
    """

    def __init__(self, genome: Genome, seen: Observations) -> None:
        """Learn from failures.

        Args:
            genome: Genes of the space.
            seen: Known trials, at least one of them finished.
        """
        self._genome = genome
        furthest = seen.stages >= seen.stages.max()
        one, two = np.triu_indices(len(genome))
        self._single = one == two
        reached, failed = _cells(genome, seen.rows[furthest]), _cells(genome, seen.rows[seen.finished & ~furthest])
        self._reached = np.unique(reached)
        self._known = np.unique(_cells(genome, seen.rows[furthest | ~seen.finished]))
        # A pair is suspected only if each of its values alone, and all others of the trial, can reach the stage.
        suspect = np.isin(failed, self._reached)[:, self._single].all(axis=1)
        blamed = np.concatenate([failed[:, self._single].ravel(), failed[suspect][:, ~self._single].ravel()])
        self._blamed, self._failures = np.unique(blamed, return_counts=True)

    def __call__(self, rows: Rows) -> Floats:
        """Return the value of each row, shape (n,): the chance to reach the furthest stage, and more for new pairs."""
        cells = _cells(self._genome, rows)
        failures = np.zeros(cells.shape)
        if len(self._blamed):
            at = np.searchsorted(self._blamed, cells).clip(max=len(self._blamed) - 1)
            failures = np.where(self._blamed[at] == cells, self._failures[at], 0)
        chance = 1.0 / (failures + 1.0 + (self._single & (failures > 0)))  # a new value is worth a trial
        chance[np.isin(cells, self._reached)] = 1.0
        new = ~np.isin(cells, self._known)
        value: Floats = chance.min(axis=1) * (1.0 + NEW_PAIRS * new.mean(axis=1))
        return value


def _cells(genome: Genome, rows: Rows) -> npt.NDArray[np.int64]:
    """Return the number of each value and each pair of values in rows, shape (n, pairs)."""
    one, two = np.triu_indices(len(genome))
    sizes = genome.sizes.astype(np.int64)
    ends = np.cumsum(sizes[one] * sizes[two])
    wide = rows.astype(np.int64)
    found: npt.NDArray[np.int64] = wide[:, one] * sizes[two] + wide[:, two] + np.append(0, ends[:-1])
    return found


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
