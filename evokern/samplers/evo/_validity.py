"""Which candidates will fail: evidence per value and per pair of values.

Crashes and wrong answers follow patterns ("four warps only with 16-byte loads"), mostly of one or two genes. So every
value and every pair of values keeps a count of failures and of trials; the worst cell that a candidate lies in speaks.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from evokern.samplers.evo._features import Floats
from evokern.samplers.evo._observations import Observations
from evokern.samplers.genome import Genome, Rows

CAUTION = 4.0
"""Trials that the overall failure rate is worth in a cell."""
PAIRS = 64
"""Pairs of genes that are looked at, those whose failures differ most from chance: of 34 genes there are 561."""


class Validity:
    """Predicts the probability that a candidate gives a time."""

    def __init__(self, genome: Genome, seen: Observations) -> None:
        rows, failed = seen.rows[seen.finished].astype(np.int64), seen.failed[seen.finished]
        self.rate = float(failed.mean()) if len(failed) else 0.0
        """Share of the finished trials that failed."""
        if self.rate == 0.0:
            return
        one, two = np.triu_indices(len(genome))
        risk, trials, begins = _risks(genome.sizes, rows, failed, self.rate, one, two)
        counted = np.add.reduceat(trials * (risk - self.rate) ** 2, begins)
        counted[one == two] = np.inf
        kept = np.sort(np.argsort(-counted, kind="stable")[: len(genome) + PAIRS])
        self._one, self._two, self._begins = one[kept], two[kept], begins[kept]
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


def _risks(
    sizes: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64],
    failed: npt.NDArray[np.bool_],
    rate: float,
    one: npt.NDArray[np.intp],
    two: npt.NDArray[np.intp],
) -> tuple[Floats, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return risk and trials of each cell of each table of two genes, one after the other, and where tables begin."""
    ends = np.cumsum(sizes[one] * sizes[two])
    begins = np.append(0, ends[:-1])
    cells = rows[:, one] * sizes[two] + rows[:, two] + begins
    trials = np.bincount(cells.ravel(), minlength=ends[-1])
    failures = np.bincount(cells[failed].ravel(), minlength=ends[-1])
    return (failures + CAUTION * rate) / (trials + CAUTION), trials, begins
