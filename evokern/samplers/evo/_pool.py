"""Feasibility of rows with a cache, and random rows of the whole space."""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt

from evokern.samplers.contract import Explain
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
