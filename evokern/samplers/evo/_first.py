"""The first generation: what a prior ranks best, the default candidate, the kernel's starting points, then others.

The others are rows of which the model knows least.
"""

from __future__ import annotations

import numpy as np

from evokern.declaration.genes import Config
from evokern.declaration.space import Space
from evokern.samplers.evo._features import Features, Floats
from evokern.samplers.evo._gaussian import Process, prior_weights
from evokern.samplers.evo._observations import OPERATORS, Observations
from evokern.samplers.evo._pool import Pool
from evokern.samplers.evo._prior import NearestStudy, OtherStudies, StudyPrior, TimeModelPrior
from evokern.samplers.genome import Rows

TRIALS = 8
"""Trials of a first generation, at least."""
OTHERS = 4
"""Trials of it that are neither the default candidate nor starting points, at least."""
FROM_PRIOR = 8
"""Trials that the best of a time model's prior fill."""
PRIOR_SHARE = 0.75
"""Its share in the trials after them."""
STUDY_SHARE = 0.5
"""The same where another study is the prior."""
DRAWN = 48
"""Rows from which the one is taken of which least is known."""


def size(pool: Pool, prior: StudyPrior | None) -> int:
    """Return the trials of the first generation, the prior's and the kernel's starting points among them."""
    match prior:
        # What a time model or several studies say is known to the model: it asks better than a design that does not.
        case TimeModelPrior():
            return FROM_PRIOR
        case OtherStudies():
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
) -> tuple[Rows, str] | None:
    """Return a row, shape (1, genes), and its operator; None when nothing is left.

    With a prior many of them are good ones of it, for immigrants tell little of a good region.
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
    if isinstance(prior, TimeModelPrior | NearestStudy) and rng.random() < share:
        drawn, operator = pool.admissible(prior.good, seen.keys), "prior"
    if not len(drawn):
        known = np.concatenate([default[pool.feasible(default)], seen.rows])
        drawn, operator = pool.draw(rng, DRAWN, seen.keys, known), "cover"
    if not len(drawn):
        drawn = pool.first_left(seen.keys)
    if not len(drawn):
        return None
    return drawn[[int(np.argmax(unknown(features, drawn, seen.rows)))]], operator


def _of_prior(prior: StudyPrior | None) -> list[tuple[Rows, int]]:
    """Return what of a prior is tried first, each with the number of trials of it that come before what follows."""
    match prior:
        case TimeModelPrior():
            return [(prior.best, FROM_PRIOR)]
        case NearestStudy() | OtherStudies():
            # Of the nearest one only the best: its best ones are alike, and may all be slow here.
            return [(prior.best, 1), (prior.leaders, 1 + len(prior.leaders))]
        case None:
            return []


def _default(space: Space) -> Config:
    """Return the default candidate, or where it is infeasible the one near it with which the device began.

    A recorded space has no device that began with one: its default stays what it is.
    """
    return space.default() if space.table is not None else space.first_feasible() or space.default()


def unknown(features: Features, rows: Rows, shown: Rows) -> Floats:
    """Return how much of each row's variance is left to a model that knows what was shown, before any time is known."""
    process = Process(features, prior_weights(features), features(shown), np.zeros(len(shown)), 0, linear=0.0)
    return process.candidates(features(rows)).left
