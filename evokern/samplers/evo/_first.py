"""The first generation: what a prior ranks best, the default candidate, then rows of which the model knows least."""

from __future__ import annotations

import numpy as np

from evokern.declaration.space import Config, Space
from evokern.samplers.evo._features import Features, Floats
from evokern.samplers.evo._gaussian import Process, prior_weights
from evokern.samplers.evo._observations import OPERATORS, Observations
from evokern.samplers.evo._pool import Pool
from evokern.samplers.evo._prior import PriorModel
from evokern.samplers.genome import Rows

TRIALS = 8
"""Trials of a first generation."""
FROM_PRIOR = 8
"""Trials that the best of a time model's prior fill."""
PRIOR_SHARE = 0.75
"""Its share in the trials after them."""
FROM_STUDY = 1
"""The same where another study found the prior: its best ones are alike, and may all be slow here. The best of further
studies come with it."""
STUDY_SHARE = 0.5
"""Its share in the trials after that one."""
DRAWN = 48
"""Rows from which the one is taken of which least is known."""


def size(prior: PriorModel | None) -> int:
    """Return the trials of the first generation, the prior's among them."""
    return TRIALS + (0 if prior is None else _leading(prior))


def _leading(prior: PriorModel) -> int:
    """Return the trials that a prior's best ones fill, and those of further studies."""
    return _own(prior) + len(prior.leaders)


def _own(prior: PriorModel) -> int:
    return FROM_PRIOR if prior.modelled else FROM_STUDY


def propose(
    pool: Pool, features: Features, seen: Observations, prior: PriorModel | None, rng: np.random.Generator
) -> tuple[Rows, str] | None:
    """Return a row, shape (1, genes), and its operator; None when nothing is left.

    With a prior many of them are good ones of it, for immigrants tell little of a good region.
    """
    genome = pool.genome
    tried = int((seen.operators == OPERATORS.index("prior")).sum())
    if prior is not None and tried < _leading(prior):
        for rows in (prior.best, prior.leaders)[tried >= _own(prior) :]:
            if len(from_prior := pool.admissible(rows, seen.keys)):
                return from_prior[:1], "prior"
    default = genome.rows([_default(genome.space)])
    if len(left := pool.admissible(default, seen.keys)):
        return left, "default"
    drawn, operator = np.empty((0, len(genome)), dtype=np.int16), "cover"
    if prior is not None and rng.random() < (PRIOR_SHARE if prior.modelled else STUDY_SHARE):
        drawn, operator = pool.admissible(prior.good, seen.keys), "prior"
    if not len(drawn):
        known = np.concatenate([default[pool.feasible(default)], seen.rows])
        drawn, operator = pool.draw(rng, DRAWN, seen.keys, known), "cover"
    if not len(drawn):
        drawn = pool.first_left(seen.keys)
    if not len(drawn):
        return None
    return drawn[[int(np.argmax(unknown(features, drawn, seen.rows)))]], operator


def _default(space: Space) -> Config:
    """Return the default candidate, or where it is infeasible the one near it with which the device began.

    A recorded space has no device that began with one: its default stays what it is.
    """
    return space.default() if space.table is not None else space.first_feasible() or space.default()


def unknown(features: Features, rows: Rows, shown: Rows) -> Floats:
    """Return how much of each row's variance is left to a model that knows what was shown, before any time is known."""
    process = Process(features, prior_weights(features), features(shown), np.zeros(len(shown)), 0, linear=0.0)
    return process.candidates(features(rows)).left
