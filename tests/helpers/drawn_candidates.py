"""Random feasible candidates of a space, for scripts and tests."""

from __future__ import annotations

import random

from evokern.declaration.genes import Config
from evokern.declaration.space import Space

TRIES = 3000
"""Draws for each candidate, before the space counts as exhausted."""


def drawn_candidates(space: Space, rng: random.Random, count: int) -> list[Config]:
    """Return different feasible candidates in the order of the draws; fewer than `count` if no more are found."""
    found: dict[Config, None] = {}
    for _ in range(TRIES * count):
        if len(found) == count:
            break
        config = space.draw(rng)
        if space.feasible(config):
            found[config] = None
    return list(found)
