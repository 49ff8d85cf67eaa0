"""Candidates of a generation: children of the elites, and immigrants, in shares that follow what each operator earned.

The population is the elites: the best overall, and in each niche (a value of an outer gene) the best of that niche, so
that a code choice is not lost while its parameters are not tuned yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from evokern.samplers.evo._features import Floats
from evokern.samplers.evo._observations import OPERATORS, Observations
from evokern.samplers.evo._pool import Pool
from evokern.samplers.evo.genome import Genome, Keys, Rows

BRED: Final = OPERATORS[:4]
"""Operators that share the candidates: neighbour, mutation, crossover, immigrant."""
BEST = 6
"""Elites taken from the whole population."""
MEMORY = 96
"""Latest trials from which an operator's credit is counted."""
FEASIBILITY_BATCH = 16
"""Candidates asked about at once, until enough are feasible."""
LEAST_SHARE = 0.1
"""Share of the candidates that an operator keeps however little it earned."""
GOOD = 0.1
"""A proposal earns credit when it lands among this share of the best trials seen so far."""


@dataclass(frozen=True)
class Elites:
    """The population that breeds."""

    rows: Rows
    """Configurations, best first, then the niches' champions."""
    numbers: npt.NDArray[np.intp]
    """Their trial numbers."""


@dataclass(frozen=True)
class Candidates:
    """What a generation may propose."""

    rows: Rows
    """Distinct configurations that were not proposed before."""
    operators: npt.NDArray[np.intp]
    """Position in `OPERATORS` of the operator that made each."""
    parents: npt.NDArray[np.intp]
    """Trial numbers of the parents, shape (n, 2); -1 for none."""
    feasible: npt.NDArray[np.bool_]
    """Which are known to be feasible; the others were not asked about yet."""

    def take(self, kept: npt.NDArray[Any]) -> Candidates:
        """Return some of the candidates, by position or by mask."""
        return Candidates(self.rows[kept], self.operators[kept], self.parents[kept], self.feasible[kept])


def elites_of(genome: Genome, seen: Observations) -> Elites:
    """Return the best trials and each niche's champion."""
    order = seen.best_first
    chosen = list(order[:BEST])
    for index, gene in enumerate(genome.genes):
        if gene.layer != "mutation":
            continue
        for value in range(len(gene.values)):
            niche = order[seen.rows[order, index] == value]
            chosen.extend(niche[:1])
    picked = np.array(list(dict.fromkeys(int(i) for i in chosen)), dtype=np.intp)
    return Elites(seen.rows[picked], seen.numbers[picked])


def shares(seen: Observations) -> Mapping[str, float]:
    """Return each operator's share of the candidates: what its latest proposals earned, with a floor."""
    latest = np.flatnonzero(seen.finished)[-MEMORY:]
    threshold = np.quantile(seen.values[seen.timed], GOOD) if seen.timed.any() else -np.inf
    good = seen.values[latest] <= threshold
    rates = {}
    for code, name in enumerate(BRED):
        own = (seen.operators[latest] == code) & (seen.roots[latest] < 0)
        rates[name] = (1.0 + float((own & good).sum())) / (2.0 + float(own.sum()))
    spare, total = 1.0 - LEAST_SHARE * len(BRED), sum(rates.values())
    return {name: LEAST_SHARE + spare * rate / total for name, rate in rates.items()}


def breed(pool: Pool, seen: Observations, elites: Elites, rng: np.random.Generator, count: int) -> Candidates:
    """Return about `count` candidates, none of them proposed before; children may turn out infeasible.

    Args:
        pool: feasibility.
        seen: trials so far.
        elites: who breeds.
        rng: source of randomness.
        count: how many candidates to make in all.
    """
    counts = {name: int(count * share) for name, share in shares(seen).items()}
    children = _distinct(
        pool,
        seen.keys,
        _near(pool, elites, rng, counts["neighbour"], 1),
        _crossed(pool, elites, rng, counts["crossover"]),
        _near(pool, elites, rng, counts["mutation"], 2),
    )
    # What the elites do not fill goes to immigrants, beyond their share.
    immigrants = _immigrants(pool, seen.keys, rng, max(counts["immigrant"], count - len(children.rows)))
    return _distinct(pool, seen.keys, immigrants, children)


def repair_crossovers(
    pool: Pool, seen: Observations, elites: Elites, rng: np.random.Generator, count: int
) -> Candidates:
    """Return feasible children of elites in which one gene changed, and with it those that it needs."""
    rows, parent = pool.repair_crossovers(elites.rows, rng, count, seen.keys)
    made = _made(rows, elites.numbers[parent], None, 1, rng, count)
    return _distinct(pool, seen.keys, replace(made, feasible=np.ones(len(made.rows), dtype=bool)))


def niche_children(
    pool: Pool, taken: Keys, row: Rows, number: int, gene: int, mates: Rows, rng: np.random.Generator, count: int
) -> Candidates:
    """Return about `count` children of a candidate that keep its value of one gene.

    Args:
        pool: feasibility.
        taken: keys of what was proposed before.
        row: the candidate, shape (genes,).
        number: its trial number.
        gene: the gene.
        mates: candidates that it is crossed with.
        rng: source of randomness.
        count: how many to make.
    """
    single = Elites(row[None], np.array([number], dtype=np.intp))
    near = [_near(pool, single, rng, count // 3, genes) for genes in (1, 2)]
    mate = mates[rng.integers(len(mates), size=count // 3)]
    mixed = np.where(rng.random(mate.shape) < 0.5, row, mate).astype(np.int16)
    made = [*near, _made(mixed, np.full(len(mixed), number), None, 2, rng, len(mixed))]
    for candidates in made:
        candidates.rows[:, gene] = row[gene]
    children = _distinct(pool, taken, *(replace(m, rows=pool.genome.canonical(m.rows)) for m in made))
    # A gene whose condition a child no longer meets is at its default.
    return children.take(children.rows[:, gene] == row[gene])


def joined(pool: Pool, *made: Candidates) -> Candidates:
    """Return each candidate of all once."""
    return _distinct(pool, np.empty(0, dtype=np.int64), *made)


def screened(pool: Pool, made: Candidates, promise: Floats, most: int) -> Candidates:
    """Return the candidates known to be feasible, and of the others the most promising `most` that are.

    Asking about feasibility costs more than a rough prediction. Half of those asked about are the most promising ones;
    the other half takes each parent's children in turn, so that every niche has its own.

    Args:
        pool: feasibility.
        made: candidates.
        promise: a rough score of each, higher is better.
        most: how many to find.
    """
    unknown = np.flatnonzero(~made.feasible)
    place = np.argsort(np.argsort(-promise[unknown], kind="stable"), kind="stable")
    _, parent = np.unique(made.parents[unknown, 0], return_inverse=True)
    by_parent = np.lexsort((place, parent))
    turn = np.empty(len(unknown), dtype=np.intp)
    turn[by_parent] = np.arange(len(unknown)) - np.searchsorted(parent[by_parent], parent[by_parent])
    in_turn = np.argsort(np.lexsort((place, turn)), kind="stable")
    order = unknown[np.argsort(np.minimum(place, in_turn), kind="stable")]
    found: list[int] = []
    for begin in range(0, len(order), FEASIBILITY_BATCH):
        asked = order[begin : begin + FEASIBILITY_BATCH]
        found.extend(asked[pool.feasible(made.rows[asked])])
        if len(found) >= most:
            break
    kept = np.sort(np.append(np.flatnonzero(made.feasible), found[:most])).astype(np.intp)
    return replace(made.take(kept), feasible=np.ones(len(kept), dtype=bool))


def _distinct(pool: Pool, taken: Keys, *made: Candidates) -> Candidates:
    """Return each candidate once, under the operator that made it first."""
    rows = np.concatenate([m.rows for m in made])
    _, first = np.unique(pool.genome.keys(rows), return_index=True)
    everyone = Candidates(
        rows,
        np.concatenate([m.operators for m in made]),
        np.concatenate([m.parents for m in made]),
        np.concatenate([m.feasible for m in made]),
    ).take(np.sort(first))
    everyone = everyone.take(~np.isin(pool.genome.keys(everyone.rows), taken))
    if pool.everything is None:
        return everyone
    # Asking about membership of a list costs nothing.
    everyone = everyone.take(pool.feasible(everyone.rows))
    return replace(everyone, feasible=np.ones(len(everyone.rows), dtype=bool))


def labelled(rows: Rows, elites: Elites) -> Candidates:
    """Return feasible rows that nobody bred as candidates, under the operator that would have made each."""
    distance = (rows[:, None] != elites.rows[None]).sum(axis=2)
    nearest = distance.argmin(axis=1)
    nearest_distance = distance[np.arange(len(rows)), nearest]
    operators = np.select([nearest_distance <= 1, nearest_distance <= 2], [0, 1], 3)
    parents = np.full((len(rows), 2), -1, dtype=np.intp)
    parents[:, 0] = np.where(operators == 3, -1, elites.numbers[nearest])
    return Candidates(rows, operators, parents, np.ones(len(rows), dtype=bool))


def _near(pool: Pool, elites: Elites, rng: np.random.Generator, count: int, genes: int) -> Candidates:
    """Return rows that differ from an elite in one gene (`genes` = 1) or in two and sometimes three."""
    rows, parent = pool.near(elites.rows, rng, count, genes)
    return _made(rows, elites.numbers[parent], None, genes - 1, rng, count)


def _crossed(pool: Pool, elites: Elites, rng: np.random.Generator, count: int) -> Candidates:
    """Return mixes of two elites, gene by gene; one gene in twelve is drawn anew."""
    genome, n = pool.genome, len(elites.rows)
    one, two = rng.integers(n, size=count), rng.integers(n, size=count)
    child = np.where(rng.random((count, len(genome))) < 0.5, elites.rows[one], elites.rows[two])
    fresh = rng.random((count, len(genome))) < 1.0 / 12.0
    child = genome.canonical(np.where(fresh, genome.draw(rng, count), child).astype(np.int16))
    return _made(child, elites.numbers[one], elites.numbers[two], 2, rng, count)


def _immigrants(pool: Pool, taken: Keys, rng: np.random.Generator, count: int) -> Candidates:
    rows = pool.immigrants(rng, count, taken)
    return replace(_made(rows, np.full(len(rows), -1), None, 3, rng, count), feasible=np.ones(len(rows), dtype=bool))


def _made(
    rows: Rows,
    one: npt.NDArray[np.intp],
    two: npt.NDArray[np.intp] | None,
    operator: int,
    rng: np.random.Generator,
    count: int,
) -> Candidates:
    kept = np.sort(rng.permutation(len(rows))[:count])
    parents = np.stack([one, np.full(len(rows), -1) if two is None else two], axis=1).astype(np.intp)
    unknown = np.zeros(len(kept), dtype=bool)
    return Candidates(rows[kept], np.full(len(kept), operator, dtype=np.intp), parents[kept], unknown)
