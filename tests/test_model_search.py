"""A search of the time model: what a warm start from `sim` looks at before anything is measured."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping

from test_evo import kernel_space, log_time

from evokern.search._model_search import search_model
from evokern.space import Config, Space


class Made:
    """A model that answers a few candidates at a time, in any order; some cannot run."""

    def __init__(self, seed: int = 0) -> None:
        self.most = 0
        self._open: dict[int, Config] = {}
        self._draw = random.Random(seed)

    def submit(self, key: int, config: Config) -> None:
        self._open[key] = config
        self.most = max(self.most, len(self._open))

    def poll(self) -> Mapping[int, float | None]:
        keys = self._draw.sample(sorted(self._open), min(3, len(self._open)))
        found = {key: self._open.pop(key) for key in keys}
        return {key: None if c.WARPS == 8 else 2.0 ** log_time(c) for key, c in found.items()}


def feasible(space: Space) -> list[Config]:
    return [config for config in space.grid() if space.feasible(config)]


def test_the_model_is_searched_not_drawn_from() -> None:
    """Few looks find what a random draw of as many would miss, and come back with what each look said."""
    space = kernel_space()
    model = Made()
    found = search_model(space, model, 60, window=8, seed=1)
    assert model.most == 8
    runs = sorted(log_time(config) for config in feasible(space) if config.WARPS != 8)
    assert min(value for _, value in found) < log_like(runs[len(runs) // 100])
    assert all(config.WARPS != 8 for config, _ in found)
    assert all(value == log_like(log_time(config)) for config, value in found)


def log_like(value: float) -> float:
    """Log of 2 to a power, rounded as the search does it."""
    return math.log(2.0**value)


def test_what_is_looked_at_depends_on_the_seed_alone() -> None:
    """The order in which predictions come in changes nothing."""
    space = kernel_space()
    assert search_model(space, Made(1), 30, 8, seed=3) == search_model(space, Made(2), 30, 8, seed=3)


def test_a_small_space_is_looked_at_whole() -> None:
    """More looks than there are candidates end when all were looked at."""
    space = kernel_space()
    small = Space(space.genes, table=tuple(feasible(space)[:20]))
    assert len(search_model(small, Made(), 50, 4, seed=0)) == sum(c.WARPS != 8 for c in feasible(space)[:20])
