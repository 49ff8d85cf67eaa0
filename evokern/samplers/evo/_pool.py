"""Which configurations there are to choose from: all of them where that is a short list, else drawn ones."""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt

from evokern.samplers.contract import Explain
from evokern.samplers.evo.genome import Genome, Keys, Rows

LISTED = 20_000
"""Longest list of feasible rows whose every row is a candidate."""
ENUMERABLE = 4_096
"""Largest grid that is enumerated at once; beyond it feasibility checks would delay the first trial."""
CHUNK = 48
"""Rows by which the reservoir of a space that is not enumerated grows."""
MOST_CHUNKS = 24
"""Chunks at which the reservoir stops growing."""
REMEMBERED = 64
"""Rows whose distances to a whole list are kept."""


class Pool:
    """Feasibility of rows, remembered, and the whole list of feasible rows where it is short or known."""

    def __init__(self, genome: Genome, explain: Explain, seed: int) -> None:
        self.genome = genome
        self._seed = seed
        self._reservoir: list[Rows] = []
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
            self._columns = np.ascontiguousarray(self.everything.T)
            self._keys: Keys = genome.keys(self.everything)
            self._sorted: Keys = np.sort(self._keys)
            self._distances: dict[bytes, npt.NDArray[np.uint8]] = {}

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

    def draw(self, rng: np.random.Generator, count: int, taken: Keys, rounds: int = 12) -> Rows:
        """Draw up to `count` distinct feasible rows whose keys are not among `taken`.

        Args:
            rng: source of randomness.
            count: how many rows to find.
            taken: keys that must not be drawn.
            rounds: batches of draws before giving up.
        """
        if self.everything is not None:
            total = len(self.everything)
            picked = rng.choice(total, size=min(total, count + len(taken)), replace=False)
            return self.everything[picked[~np.isin(self._keys[picked], taken)][:count]]
        found = np.empty((0, len(self.genome)), dtype=np.int16)
        for _ in range(rounds):
            drawn = self.admissible(self.genome.draw(rng, 4 * count), taken)
            found = self.distinct(np.concatenate([found, drawn]))
            if len(found) >= count:
                break
        return found[:count]

    def near(
        self, parents: Rows, rng: np.random.Generator, count: int, genes: int
    ) -> tuple[Rows, npt.NDArray[np.intp]]:
        """Return rows that differ from a parent in one gene (`genes` = 1) or in two, and the position of that parent.

        Where the space is a list they come from it, all of them. Else about `count` of them are drawn, with a third
        gene changed now and then, and whether they are feasible is not known.
        """
        if self.everything is not None:
            around = [np.flatnonzero(self._distance(row) == genes) for row in parents]
            parent = np.repeat(np.arange(len(parents)), [len(found) for found in around])
            return self.everything[np.concatenate(around)], parent
        genome = self.genome
        parent = rng.integers(len(parents), size=count)
        made = parents[parent]
        for share in (1.0,) if genes == 1 else (1.0, 1.0, 0.3):
            gene = rng.integers(len(genome), size=count)
            value = (rng.random(count) * genome.sizes[gene]).astype(np.int16)
            changes = rng.random(count) < share
            made[np.flatnonzero(changes), gene[changes]] = value[changes]
        return genome.canonical(made), parent

    def repair_crossovers(
        self, parents: Rows, rng: np.random.Generator, count: int, taken: Keys
    ) -> tuple[Rows, npt.NDArray[np.intp]]:
        """Return feasible rows that take one gene's value from an immigrant, with what else it needs to be feasible.

        Constraints tie genes together: a tile of 16 rows needs one warp along them, and neither change is feasible
        alone. The immigrant, which is feasible, shows one way in which all of them fit.

        Args:
            parents: feasible rows.
            rng: source of randomness.
            count: how many to try.
            taken: keys of rows that must not be drawn.

        Returns:
            The rows, and the position of each one's parent.
        """
        donors = self.immigrants(rng, count, taken)
        parent = rng.integers(len(parents), size=len(donors))
        made = [self._repair_crossover(parents[at], donor, rng) for donor, at in zip(donors, parent, strict=True)]
        return np.array(made, dtype=np.int16).reshape(-1, len(self.genome)), parent

    def _repair_crossover(self, parent: Rows, donor: Rows, rng: np.random.Generator) -> Rows:
        order = rng.permutation(np.flatnonzero(parent != donor))

        def child(genes: npt.NDArray[np.intp]) -> Rows:
            row = parent.copy()
            row[genes] = donor[genes]
            return self.genome.canonical(row[None])

        child_of_one: Rows = child(order[:1])[0]
        if self.feasible(child_of_one[None])[0]:
            return child_of_one
        # The whole donor is feasible, so some prefix of the order is; halving finds a short one.
        low, high = 2, len(order)
        while low < high:
            middle = (low + high) // 2
            if self.feasible(child(order[:middle]))[0]:
                high = middle
            else:
                low = middle + 1
        kept = order[:high]
        for gene in kept[1:]:
            fewer = kept[kept != gene]
            if self.feasible(child(fewer))[0]:
                kept = fewer
        repaired: Rows = child(kept)[0]
        return repaired

    def _distance(self, row: Rows) -> npt.NDArray[np.uint8]:
        """Return the Hamming distance of every row of the list to one row; elites are asked about again and again."""
        known = self._distances.get(row.tobytes())
        if known is None:
            known = np.zeros(self._columns.shape[1], dtype=np.uint8)
            for column, value in zip(self._columns, row, strict=True):
                known += column != value
            if len(self._distances) >= REMEMBERED:
                self._distances.clear()
            self._distances[row.tobytes()] = known
        return known

    def immigrants(self, rng: np.random.Generator, count: int, taken: Keys) -> Rows:
        """Return up to `count` feasible rows from anywhere, not among `taken`.

        Where the space is not a list, most come from a reservoir that grows with the study, so that a proposal does
        not pay for hundreds of feasibility checks.
        """
        if self.everything is not None:
            return self.draw(rng, count, taken)
        chunks = min(2 + len(taken) // 4, MOST_CHUNKS)
        while len(self._reservoir) < chunks:
            own, counted = np.random.default_rng([self._seed, len(self._reservoir)]), self.rejections.copy()
            self._reservoir.append(self.draw(own, CHUNK, np.empty(0, dtype=np.int64), rounds=4))
            self.rejections = counted  # drawn once in a process's life, so no trial's own
        stored = np.concatenate(self._reservoir[:chunks])
        stored = stored[~np.isin(self.genome.keys(stored), taken)]
        return stored[rng.permutation(len(stored))[:count]]

    @property
    def listed(self) -> bool:
        """Whether there is a list short enough that a model can look at every row of it."""
        return self.everything is not None and len(self.everything) <= LISTED

    def left(self, taken: Keys) -> npt.NDArray[np.intp]:
        """Return the positions in the list of the rows whose keys are not among `taken`."""
        return np.flatnonzero(~np.isin(self._keys, taken))

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
