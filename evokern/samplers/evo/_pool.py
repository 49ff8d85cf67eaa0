"""Feasibility of rows with a cache, random rows of the whole space, and the predicted risk that a row fails.

Crashes and wrong results follow patterns, mostly of one or two genes ("four warps only with 16-byte loads"). Therefore
the failures and trials of every value and every pair of values are counted. The risk of a candidate is that of its
riskiest value or pair.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt

from evokern.samplers.contract import Explain
from evokern.samplers.evo._features import Floats
from evokern.samplers.evo._observations import Observations
from evokern.samplers.genome import Genome, Keys, Rows

ENUMERABLE = 4_096
"""Maximum size of a grid that is enumerated completely; larger grids would delay the first trial."""
ROUNDS = 12
"""Number of batches of random draws before the search continues from feasible rows."""
STEPS = 24
"""Number of rows that each step of that search changes."""


class Pool:
    """Feasible rows of a space: a cache of checks, and the complete list if it is short or known."""

    def __init__(self, genome: Genome, explain: Explain) -> None:
        self.genome = genome
        self._explain = explain
        self._memory: dict[int, str] = {}
        self.rejections: Counter[str] = Counter()
        """Number of rejected configurations by constraint, until cleared by the caller."""
        self.everything: Rows | None = None
        """All feasible rows if the list is known or short, else None."""
        space = genome.space
        if space.table is not None:
            self.everything = genome.rows(space.table)
        elif space.size <= ENUMERABLE:
            self.everything = genome.rows(config for config in space.grid() if space.feasible(config))
        if self.everything is not None:
            self._keys: Keys = genome.keys(self.everything)
            self._sorted: Keys = np.sort(self._keys)

    def feasible(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Return a mask of the feasible rows among canonical rows, and count the violated constraints."""
        keys = self.genome.keys(rows)
        if self.everything is not None:
            if not len(self._sorted):
                return np.zeros(len(rows), dtype=bool)
            at = np.searchsorted(self._sorted, keys).clip(max=len(self._sorted) - 1)
            verdict: npt.NDArray[np.bool_] = self._sorted[at] == keys
            return verdict
        violated = [self._constraint(int(key), row) for key, row in zip(keys, rows, strict=True)]
        # Count cached results too, because counts must not depend on the state of the cache.
        self.rejections.update(name for name in violated if name)
        return np.array([not name for name in violated], dtype=bool)

    def _constraint(self, key: int, row: Rows) -> str:
        """Return the constraint violated by a row; empty if the row is feasible."""
        known = self._memory.get(key)
        if known is None:
            config = self.genome.config(row)
            known = self._memory[key] = "" if self.genome.space.feasible(config) else self._explain(config)
        return known

    def anywhere(self, rng: np.random.Generator, count: int, taken: Keys) -> Rows:
        """Return up to `count` distinct rows of the whole space that are not in `taken`, feasible or not.

        If all feasible rows are known, the rows come from that list.
        """
        if self.everything is not None:
            left = np.flatnonzero(~np.isin(self._keys, taken))
            listed: Rows = self.everything[rng.permutation(left)[:count]]
            return listed
        drawn = self.distinct(self.genome.draw(rng, count))
        fresh: Rows = drawn[~np.isin(self.genome.keys(drawn), taken)]
        return fresh

    def draw(self, rng: np.random.Generator, count: int, taken: Keys, known: Rows) -> Rows:
        """Draw up to `count` distinct feasible rows whose keys are not in `taken`.

        Rows with low-priority values are used only if there are no others.

        Args:
            rng: Random generator.
            count: Number of rows to find.
            taken: Keys to exclude.
            known: Feasible rows from which the search continues if random draws find too few.
        """
        if self.everything is not None:
            left = self.anywhere(rng, len(self.everything), taken)
            early = left[self.genome.low_priority_count(left) == 0]
            return (early if len(early) else left)[:count]
        found = np.empty((0, len(self.genome)), dtype=np.int16)
        for _ in range(ROUNDS):
            drawn = self.genome.draw(rng, 4 * count, early=True)
            found = self.distinct(np.concatenate([found, self.admissible(drawn, taken)]))
            if len(found) >= count:
                return found[:count]
        walked = known
        for _ in range(ROUNDS):
            if not len(walked) or len(found) >= count:
                break
            made = self.changed(walked[rng.integers(len(walked), size=STEPS)], rng, 2)
            walked = np.concatenate([walked, made[self.feasible(made)]])
            fresh = self.admissible(walked[len(known) :], taken)
            found = self.distinct(np.concatenate([found, fresh]))
        return found[:count]

    def changed(self, rows: Rows, rng: np.random.Generator, genes: int | npt.NDArray[np.intp]) -> Rows:
        """Return each row with some genes redrawn, in canonical form.

        Args:
            rows: Rows to change.
            rng: Random generator.
            genes: Number of genes to change, for all rows or for each.
        """
        made, most = rows.copy(), int(np.max(genes, initial=0))
        for turn in range(most):
            gene = rng.integers(len(self.genome), size=len(rows))
            value = (rng.random(len(rows)) * self.genome.sizes[gene]).astype(np.int16)
            changes = np.flatnonzero(np.broadcast_to(np.asarray(genes) > turn, len(rows)))
            made[changes, gene[changes]] = value[changes]
        return self.genome.canonical(made)

    def admissible(self, rows: Rows, taken: Keys) -> Rows:
        """Return the distinct feasible rows that are not in `taken`, in order of first appearance."""
        rows = self.distinct(rows)
        rows = rows[~np.isin(self.genome.keys(rows), taken)]
        return rows[self.feasible(rows)]

    def distinct(self, rows: Rows) -> Rows:
        """Return distinct rows, in order of first appearance."""
        _, first = np.unique(self.genome.keys(rows), return_index=True)
        return rows[np.sort(first)]

    def first_left(self, taken: Keys) -> Rows:
        """Return the first feasible row of the grid not in `taken`: shape (1, genes), or (0, genes) if none is left."""
        known = set(taken.tolist())
        for config in self.genome.space.grid():
            row = self.genome.rows([config])
            if int(self.genome.keys(row)[0]) not in known and self.feasible(row)[0]:
                return row
        return np.empty((0, len(self.genome)), dtype=np.int16)


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
    """Value of trying a row while no candidate is right.

    A right candidate passes every stage. Therefore a row is valued that may reach the furthest stage so far. Such a row
    has no value, and no pair of otherwise usable values, with which trials failed earlier and none reached that stage.
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
