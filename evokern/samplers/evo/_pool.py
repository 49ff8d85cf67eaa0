"""Feasibility of rows, asked once each, and rows drawn from the whole space."""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt

from evokern.samplers.contract import Explain
from evokern.samplers.genome import Genome, Keys, Rows

ENUMERABLE = 4_096
"""Largest grid that is enumerated at once; beyond it feasibility checks would delay the first trial."""
ROUNDS = 12
"""Batches of draws before a search for feasible rows goes on from feasible ones."""
STEPS = 24
"""Changes that such a walk tries from each row."""


class Pool:
    """Feasibility of rows, remembered, and the whole list of feasible rows where it is short or known."""

    def __init__(self, genome: Genome, explain: Explain) -> None:
        self.genome = genome
        self._explain = explain
        self._memory: dict[int, str] = {}
        self.rejections: Counter[str] = Counter()
        """Constraint → configurations it turned away, until somebody clears it."""
        self.everything: Rows | None = None
        """Every feasible row, where the list is known or short."""
        space = genome.space
        if space.table is not None:
            self.everything = genome.rows(space.table)
        elif space.size <= ENUMERABLE:
            self.everything = genome.rows(config for config in space.grid() if space.feasible(config))
        if self.everything is not None:
            self._keys: Keys = genome.keys(self.everything)
            self._sorted: Keys = np.sort(self._keys)

    def feasible(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Tell for each canonical row whether it is feasible; count the constraints that turn rows away."""
        keys = self.genome.keys(rows)
        if self.everything is not None:
            if not len(self._sorted):
                return np.zeros(len(rows), dtype=bool)
            at = np.searchsorted(self._sorted, keys).clip(max=len(self._sorted) - 1)
            verdict: npt.NDArray[np.bool_] = self._sorted[at] == keys
            return verdict
        violated = [self._constraint(int(key), row) for key, row in zip(keys, rows, strict=True)]
        # Counted again where it is remembered: counts must not depend on what a process happens to remember.
        self.rejections.update(name for name in violated if name)
        return np.array([not name for name in violated], dtype=bool)

    def _constraint(self, key: int, row: Rows) -> str:
        """Return the constraint that turns a row away, empty where it is feasible."""
        known = self._memory.get(key)
        if known is None:
            config = self.genome.config(row)
            known = self._memory[key] = "" if self.genome.space.feasible(config) else self._explain(config)
        return known

    def anywhere(self, rng: np.random.Generator, count: int, taken: Keys) -> Rows:
        """Return up to `count` distinct rows from anywhere, not among `taken`; whether they are feasible is not known.

        Where the feasible set is a list they come from it.
        """
        if self.everything is not None:
            left = np.flatnonzero(~np.isin(self._keys, taken))
            listed: Rows = self.everything[rng.permutation(left)[:count]]
            return listed
        drawn = self.distinct(self.genome.draw(rng, count))
        fresh: Rows = drawn[~np.isin(self.genome.keys(drawn), taken)]
        return fresh

    def draw(self, rng: np.random.Generator, count: int, taken: Keys, known: Rows) -> Rows:
        """Draw up to `count` distinct feasible rows whose keys are not among `taken`.

        None of them has a value that is tried late, unless nothing else is found.

        Args:
            rng: source of randomness.
            count: how many rows to find.
            taken: keys that must not be drawn.
            known: feasible rows, from which the search goes on where constraints leave too little to draw blindly.
        """
        if self.everything is not None:
            left = self.anywhere(rng, len(self.everything), taken)
            early = left[self.genome.late(left) == 0]
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
        """Return each row with some genes drawn anew, canonical.

        Args:
            rows: the rows.
            rng: source of randomness.
            genes: how many, of all or of each.
        """
        made, most = rows.copy(), int(np.max(genes, initial=0))
        for turn in range(most):
            gene = rng.integers(len(self.genome), size=len(rows))
            value = (rng.random(len(rows)) * self.genome.sizes[gene]).astype(np.int16)
            changes = np.flatnonzero(np.broadcast_to(np.asarray(genes) > turn, len(rows)))
            made[changes, gene[changes]] = value[changes]
        return self.genome.canonical(made)

    def admissible(self, rows: Rows, taken: Keys) -> Rows:
        """Return the distinct rows that are feasible and not among `taken`, in order of first appearance."""
        rows = self.distinct(rows)
        rows = rows[~np.isin(self.genome.keys(rows), taken)]
        return rows[self.feasible(rows)]

    def distinct(self, rows: Rows) -> Rows:
        """Return each row once, in order of first appearance."""
        _, first = np.unique(self.genome.keys(rows), return_index=True)
        return rows[np.sort(first)]

    def first_left(self, taken: Keys) -> Rows:
        """Walk the grid to the first feasible row not among `taken`: shape (1, genes), or (0, genes) when exhausted."""
        known = set(taken.tolist())
        for config in self.genome.space.grid():
            row = self.genome.rows([config])
            if int(self.genome.keys(row)[0]) not in known and self.feasible(row)[0]:
                return row
        return np.empty((0, len(self.genome)), dtype=np.int16)
