"""First generation: the best entries of the prior, the default candidate, starting points, and uncertain rows.

Uncertain rows are those for which the model's variance is largest.
"""

from __future__ import annotations

import numpy as np

from evokern.declaration.genes import Config
from evokern.declaration.space import Space
from evokern.samplers.evo._features import Features, Floats
from evokern.samplers.evo._gaussian import Process, prior_weights
from evokern.samplers.evo._observations import OPERATORS, Observations
from evokern.samplers.evo._pool import Pool
from evokern.samplers.evo._prior import NearestStudyPrior, SeveralStudiesPrior, StudyPrior, TimeModelPrior
from evokern.samplers.evo._validity import Exploration
from evokern.samplers.genome import Rows

TRIALS = 8
"""Minimum number of trials in a first generation."""
OTHERS = 4
"""Minimum number of trials other than the default candidate and starting points."""
FROM_PRIOR = 8
"""Number of trials from a time model's prior."""
PRIOR_SHARE = 0.75
"""Share of the remaining trials that are other good candidates of the prior."""
STUDY_SHARE = 0.5
"""Share of the remaining trials that are good candidates of a prior from another study."""
DRAWN = 48
"""Number of rows to choose the most uncertain one from."""
EXPLORED = 256
"""Number of rows to choose from after a first generation without correct candidates."""


def size(pool: Pool, prior: StudyPrior | None) -> int:
    """Return the length of the first generation, including the prior's candidates and the starting points."""
    match prior:
        # With a time model or several studies, the model already knows more than a space-filling design.
        case TimeModelPrior():
            return FROM_PRIOR
        case SeveralStudiesPrior():
            return 1 + len(prior.leaders) + 1
    genome = pool.genome
    default, points = genome.rows([_default(genome.space)]), genome.rows(genome.space.starting_configs())
    trials = max(TRIALS, 1 + len(pool.admissible(points, genome.keys(default))) + OTHERS)
    return trials if prior is None else 1 + len(prior.leaders) + trials


def propose(
    pool: Pool,
    features: Features,
    seen: Observations,
    prior: StudyPrior | None,
    rng: np.random.Generator,
    exploration: Exploration | None = None,
) -> tuple[Rows, str] | None:
    """Return a row, shape (1, genes), and its operator, or None if all configurations have been used.

    With a prior, many rows are its good configurations, because random rows reveal little about a good region.

    Args:
        pool: Feasibility of rows.
        features: Features of a row.
        seen: Known trials.
        prior: Warm start.
        rng: Random generator.
        exploration: Value of each row after a first generation without correct candidates; None before.
    """
    genome = pool.genome
    tried = int((seen.operators == OPERATORS.index("prior")).sum())
    for rows, until in _of_prior(prior):
        if tried < until and len(from_prior := pool.admissible(rows, seen.keys)):
            return from_prior[:1], "prior"
    default = genome.rows([_default(genome.space)])
    if len(left := pool.admissible(default, seen.keys)):
        return left, "default"
    if len(left := pool.admissible(genome.rows(genome.space.starting_configs()), seen.keys)):
        return left[:1], "starting_point"
    drawn, operator = np.empty((0, len(genome)), dtype=np.int16), "cover"
    share = PRIOR_SHARE if isinstance(prior, TimeModelPrior) else STUDY_SHARE
    if isinstance(prior, TimeModelPrior | NearestStudyPrior) and rng.random() < share:
        drawn, operator = pool.admissible(prior.good, seen.keys), "prior"
    if not len(drawn):
        known = np.concatenate([default[pool.feasible(default)], seen.rows])
        drawn, operator = pool.draw(rng, DRAWN if exploration is None else EXPLORED, seen.keys, known), "cover"
    if not len(drawn):
        drawn = pool.first_left(seen.keys)
    if not len(drawn):
        return None
    if exploration is not None:
        value = exploration(drawn)
        drawn = drawn[value >= value.max()]
    return drawn[[int(np.argmax(remaining_variance(features, drawn, seen.rows)))]], operator


def _of_prior(prior: StudyPrior | None) -> list[tuple[Rows, int]]:
    """Return the prior's first candidates in groups, each with the number of prior trials after which it ends."""
    match prior:
        case TimeModelPrior():
            return [(prior.best, FROM_PRIOR)]
        case NearestStudyPrior() | SeveralStudiesPrior():
            # Use only the best of the nearest study, because its best ones are similar and may all be slow here.
            return [(prior.best, 1), (prior.leaders, 1 + len(prior.leaders))]
        case None:
            return []


def _default(space: Space) -> Config:
    """Return the default candidate, or a feasible one near it if the default is infeasible.

    A recorded space keeps its default.
    """
    return space.default() if space.table is not None else space.first_feasible() or space.default()


def remaining_variance(features: Features, rows: Rows, shown: Rows) -> Floats:
    """Return the relative variance of each row in a model that knows only which rows were proposed."""
    process = Process(features, prior_weights(features), features(shown), np.zeros(len(shown)), 0, linear=0.0)
    return process.candidates(features(rows)).left
