"""Candidates of a generation: made from elites, drawn from the whole space, and improved by local search.

Elites are the best trials overall and the best trial with each value of an outer gene. The latter keep a code choice
alive until its parameters are tuned. Only promising candidates are checked for feasibility.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evokern.samplers.evo._features import Floats
from evokern.samplers.evo._observations import OPERATORS, Observations
from evokern.samplers.evo._pool import Pool
from evokern.samplers.genome import Genome, Keys, Rows

BEST = 6
"""Number of elites from all trials."""
NICHE_BEST = 1
"""Number of elites for each value of an outer gene."""
SURROUNDED = 3
"""Number of best trials all of whose neighbours become candidates."""
CHANGED = 200
"""Number of candidates made from elites by one to three changes."""
CROSSED = 150
"""Number of candidates made from two elites."""
DRAWN = 300
"""Number of candidates drawn from the whole space."""
FOUND = (80, 24)
"""Number of feasible candidates to find: at first, and in each local-search round."""
ASKED = (240, 80)
"""Maximum number of candidates to check for feasibility, once `LEAST` feasible ones are found."""
LEAST = (24, 0)
"""Minimum number of feasible candidates; all candidates are checked if needed. If the model prefers mostly infeasible
ones, a generation would otherwise run out and fall back to random draws."""
BATCH = 16
"""Number of candidates checked at once."""
ROUNDS = 2
"""Number of local-search rounds."""
CLIMBERS = 6
"""Number of most promising candidates whose neighbours are considered in each round."""
LOOKED_AT = 240
"""Maximum number of neighbours in a round."""


@dataclass(frozen=True)
class CandidateSet:
    """Configurations with the operators that created them."""

    rows: Rows
    """The configurations."""
    operators: npt.NDArray[np.intp]
    """Index in `OPERATORS` of the operator that made each configuration."""
    parents: npt.NDArray[np.intp]
    """Trial numbers of the parents, shape (n, 2); -1 for none."""

    def take(self, kept: npt.NDArray[np.intp] | npt.NDArray[np.bool_]) -> CandidateSet:
        """Return a subset, by index or mask."""
        return CandidateSet(self.rows[kept], self.operators[kept], self.parents[kept])

    @staticmethod
    def joined(parts: Sequence[CandidateSet]) -> CandidateSet:
        """Return the concatenation of several parts."""
        return CandidateSet(
            np.concatenate([part.rows for part in parts]),
            np.concatenate([part.operators for part in parts]),
            np.concatenate([part.parents for part in parts]),
        )

    def distinct(self, genome: Genome, taken: Keys) -> CandidateSet:
        """Return each configuration that is not in `taken` once, with its first operator."""
        keys = genome.keys(self.rows)
        _, first = np.unique(keys, return_index=True)
        return self.take(np.sort(first[~np.isin(keys[first], taken)]))


def elites_of(genome: Genome, seen: Observations) -> npt.NDArray[np.intp]:
    """Return the indices of the best trials, best first, followed by the best trial for each outer value."""
    order = seen.best_first
    chosen = list(order[:BEST])
    for index in genome.choices:
        for value in range(len(genome.genes[index].values)):
            chosen.extend(order[seen.rows[order, index] == value][:NICHE_BEST])
    return np.array(list(dict.fromkeys(int(i) for i in chosen)), dtype=np.intp)


def bred(pool: Pool, seen: Observations, rng: np.random.Generator) -> CandidateSet:
    """Return candidates made from elites or drawn from the whole space; they may be duplicates or infeasible."""
    elites = elites_of(pool.genome, seen)
    parts = [neighbours(pool.genome, seen.rows[elites[:SURROUNDED]], seen.numbers[elites[:SURROUNDED]])]
    # Half of the children have parents among the best, half among all elites.
    among = np.where(rng.random(CHANGED) < 0.5, min(BEST, len(elites)), len(elites))
    parent = elites[(rng.random(CHANGED) * among).astype(np.intp)]
    count = rng.integers(1, 4, size=CHANGED)
    made = pool.changed(seen.rows[parent], rng, count)
    parts.append(_made(made, np.where(count > 1, 1, 0), seen.numbers[parent]))
    one, two = elites[rng.integers(len(elites), size=(2, CROSSED))]
    mixed = _mixed(pool.genome, seen.rows[one], seen.rows[two], rng)
    parts.append(_made(mixed, np.full(CROSSED, 2), seen.numbers[one], seen.numbers[two]))
    drawn = pool.anywhere(rng, DRAWN, seen.keys)
    parts.append(_made(drawn, np.full(len(drawn), OPERATORS.index("immigrant")), np.full(len(drawn), -1)))
    return CandidateSet.joined(parts)


def bred_from(pool: Pool, elites: Rows, rng: np.random.Generator) -> CandidateSet:
    """Return candidates made from a warm start's best entries; they may be duplicates or infeasible.

    Args:
        pool: Feasibility of rows.
        elites: Best candidates of the warm start, best first.
        rng: Random generator.
    """
    nobody = np.full(CROSSED, -1)
    one, two = elites[rng.integers(len(elites), size=(2, CROSSED))]
    mixed = _mixed(pool.genome, one, two, rng)
    count = rng.integers(1, 4, size=CROSSED)
    changed = pool.changed(elites[rng.integers(len(elites), size=CROSSED)], rng, count)
    first = elites[:SURROUNDED]
    return CandidateSet.joined(
        [
            _made(elites, np.full(len(elites), OPERATORS.index("prior")), np.full(len(elites), -1)),
            neighbours(pool.genome, first, np.full(len(first), -1)),
            _made(changed, np.where(count > 1, 1, 0), nobody),
            _made(mixed, np.full(CROSSED, 2), nobody),
        ]
    )


def _mixed(genome: Genome, one: Rows, two: Rows, rng: np.random.Generator) -> Rows:
    """Return children that take each gene from one of two parents."""
    return genome.canonical(np.where(rng.random((len(one), len(genome))) < 0.5, one, two))


def neighbours(genome: Genome, rows: Rows, numbers: npt.NDArray[np.intp]) -> CandidateSet:
    """Return all rows that differ from a given row in one gene, in canonical form."""
    gene = np.repeat(np.arange(len(genome)), genome.sizes)
    value = np.concatenate([np.arange(size) for size in genome.sizes]).astype(np.int16)
    made = np.repeat(rows, len(gene), axis=0)
    made[np.arange(len(made)), np.tile(gene, len(rows))] = np.tile(value, len(rows))
    return _made(genome.canonical(made), np.zeros(len(made), dtype=np.intp), np.repeat(numbers, len(gene)))


def most_promising_feasible(
    pool: Pool, rows: Rows, score: Floats, found: int, most: int, least: int
) -> npt.NDArray[np.intp]:
    """Return the indices of the most promising feasible rows, best first.

    Args:
        pool: Feasibility of rows.
        rows: Rows to check.
        score: Score of each row; higher is better.
        found: Number of rows to find.
        most: Maximum number of rows to check, once `least` are found.
        least: Minimum number to find, for which all rows are checked.
    """
    order = np.argsort(-score, kind="stable")
    kept: list[int] = []
    for begin in range(0, len(order), BATCH):
        if len(kept) >= found or (begin >= most and len(kept) >= least):
            break
        batch = order[begin : begin + BATCH]
        kept.extend(batch[pool.feasible(rows[batch])].tolist())
    return np.array(kept[:found], dtype=np.intp)


def _made(
    rows: Rows, operators: npt.NDArray[np.intp], one: npt.NDArray[np.intp], two: npt.NDArray[np.intp] | None = None
) -> CandidateSet:
    parents = np.stack([one, np.full(len(rows), -1) if two is None else two], axis=1).astype(np.intp)
    return CandidateSet(rows.astype(np.int16), operators.astype(np.intp), parents)
