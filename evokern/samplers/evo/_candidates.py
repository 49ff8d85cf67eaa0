"""Candidates of a generation: bred from the elites and drawn from anywhere, then climbed to where the model leads.

The elites are the best trials overall, and in each niche (a value of an outer gene) the best of that niche, so that a
code choice is not lost while its parameters are not tuned yet. Feasibility is asked for the promising ones only.
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
"""Elites taken from the whole population."""
NICHE_BEST = 1
"""Elites taken from each niche."""
SURROUNDED = 3
"""Of the best trials, how many have all of their neighbours among the candidates."""
CHANGED = 200
"""Candidates made from elites by one to three changes."""
CROSSED = 150
"""Candidates made from two elites."""
DRAWN = 300
"""Candidates drawn from anywhere."""
FOUND = (80, 24)
"""Feasible candidates that are asked for: at first, and in each round of climbing."""
ASKED = (240, 80)
"""Candidates about which is asked for them at most, once `LEAST` were found."""
LEAST = (24, 0)
"""Feasible candidates below which asking goes on, through all of them: a generation's trials must not run out of them
and fall back to draws from anywhere, where the model leads to what is mostly infeasible."""
BATCH = 16
"""Candidates asked about at once."""
ROUNDS = 2
"""Rounds of climbing."""
CLIMBERS = 6
"""The most promising candidates whose neighbours a round looks at."""
LOOKED_AT = 240
"""Most neighbours of a round."""


@dataclass(frozen=True)
class Made:
    """Configurations, and what made them."""

    rows: Rows
    """The configurations."""
    operators: npt.NDArray[np.intp]
    """Position in `OPERATORS` of the operator that made each."""
    parents: npt.NDArray[np.intp]
    """Trial numbers of the parents, shape (n, 2); -1 for none."""

    def take(self, kept: npt.NDArray[np.intp] | npt.NDArray[np.bool_]) -> Made:
        """Return some of them, by position or by mask."""
        return Made(self.rows[kept], self.operators[kept], self.parents[kept])

    @staticmethod
    def joined(parts: Sequence[Made]) -> Made:
        """Return all of some."""
        return Made(
            np.concatenate([part.rows for part in parts]),
            np.concatenate([part.operators for part in parts]),
            np.concatenate([part.parents for part in parts]),
        )

    def distinct(self, genome: Genome, taken: Keys) -> Made:
        """Return each once that is not among `taken`, under the operator that made it first."""
        keys = genome.keys(self.rows)
        _, first = np.unique(keys, return_index=True)
        return self.take(np.sort(first[~np.isin(keys[first], taken)]))


def elites_of(genome: Genome, seen: Observations) -> npt.NDArray[np.intp]:
    """Return the positions of the best trials, best first, then of each niche's champion."""
    order = seen.best_first
    chosen = list(order[:BEST])
    for index in genome.choices:
        for value in range(len(genome.genes[index].values)):
            chosen.extend(order[seen.rows[order, index] == value][:NICHE_BEST])
    return np.array(list(dict.fromkeys(int(i) for i in chosen)), dtype=np.intp)


def bred(pool: Pool, seen: Observations, rng: np.random.Generator) -> Made:
    """Return candidates made from the elites and drawn from anywhere; some twice, or infeasible."""
    elites = elites_of(pool.genome, seen)
    parts = [neighbours(pool.genome, seen.rows[elites[:SURROUNDED]], seen.numbers[elites[:SURROUNDED]])]
    # Half of the children come from the best, half from all elites.
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
    return Made.joined(parts)


def bred_from(pool: Pool, elites: Rows, rng: np.random.Generator) -> Made:
    """Return what the fastest of a warm start lead to: they themselves, changed, mixed; some twice, or infeasible.

    Args:
        pool: feasibility.
        elites: these candidates, the best first.
        rng: random numbers.
    """
    nobody = np.full(CROSSED, -1)
    one, two = elites[rng.integers(len(elites), size=(2, CROSSED))]
    mixed = _mixed(pool.genome, one, two, rng)
    count = rng.integers(1, 4, size=CROSSED)
    changed = pool.changed(elites[rng.integers(len(elites), size=CROSSED)], rng, count)
    first = elites[:SURROUNDED]
    return Made.joined(
        [
            _made(elites, np.full(len(elites), OPERATORS.index("prior")), np.full(len(elites), -1)),
            neighbours(pool.genome, first, np.full(len(first), -1)),
            _made(changed, np.where(count > 1, 1, 0), nobody),
            _made(mixed, np.full(CROSSED, 2), nobody),
        ]
    )


def _mixed(genome: Genome, one: Rows, two: Rows, rng: np.random.Generator) -> Rows:
    """Return children that have each gene of one of their parents."""
    return genome.canonical(np.where(rng.random((len(one), len(genome))) < 0.5, one, two))


def neighbours(genome: Genome, rows: Rows, numbers: npt.NDArray[np.intp]) -> Made:
    """Return everything that differs from a row in one gene, and what follows from it."""
    gene = np.repeat(np.arange(len(genome)), genome.sizes)
    value = np.concatenate([np.arange(size) for size in genome.sizes]).astype(np.int16)
    made = np.repeat(rows, len(gene), axis=0)
    made[np.arange(len(made)), np.tile(gene, len(rows))] = np.tile(value, len(rows))
    return _made(genome.canonical(made), np.zeros(len(made), dtype=np.intp), np.repeat(numbers, len(gene)))


def asked(pool: Pool, rows: Rows, score: Floats, found: int, most: int, least: int) -> npt.NDArray[np.intp]:
    """Return the positions of the most promising feasible rows, best first.

    Args:
        pool: feasibility.
        rows: the rows.
        score: of each, higher is better.
        found: how many to find.
        most: how many to ask about at most, once `least` were found.
        least: how many to find as long as there are rows.
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
) -> Made:
    parents = np.stack([one, np.full(len(rows), -1) if two is None else two], axis=1).astype(np.intp)
    return Made(rows.astype(np.int16), operators.astype(np.intp), parents)
