"""The guard of samplers that know nothing of feasibility: what they propose becomes feasible and unseen.

It draws again until a proposal passes, then changes genes of the last one drawn, then draws blindly, and at the end
walks the whole grid, so that it gives up only when nothing is left. Each constraint that turned a proposal away is
counted.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

from evokern.declaration.genes import Config
from evokern.samplers.contract import Explain, History

BLIND_DRAWS = 2_000
"""Uniform draws before the grid is walked."""


class FeasibilityGuard:
    """Turns one trial's draws into a configuration that may be proposed."""

    def __init__(self, history: History, explain: Explain, rng: random.Random) -> None:
        self._history = history
        self._explain = explain
        self._rng = rng
        self.rejections: Counter[str] = Counter()
        """Constraint → proposals that it turned away."""

    def admits(self, config: Config) -> bool:
        """Tell whether a configuration may be proposed; count the constraint that turns it away."""
        if config in self._history.seen:
            return False
        if self._history.space.feasible(config):
            return True
        self.rejections[self._explain(config)] += 1
        return False

    def choose(self, draw: Callable[[], Config], draws: int) -> Config | None:
        """Return a configuration that may be proposed, or None when none is left.

        Args:
            draw: one proposal of the guarded sampler.
            draws: how often to ask it.
        """
        config = draw()
        for _ in range(draws - 1):
            if self.admits(config):
                return config
            config = draw()
        if self.admits(config):
            return config
        return self._mutated(config) or self._drawn_blindly() or self._first_of_grid()

    def _mutated(self, base: Config) -> Config | None:
        space = self._history.space
        for changes in (1, 2, 3):
            moves = [(gene, value) for gene in space.genes for value in gene.values if value != base[gene.name]]
            self._rng.shuffle(moves)
            for gene, value in moves:
                values = {**base, gene.name: value}
                for other in self._rng.sample(space.genes, min(changes - 1, len(space.genes))):
                    values[other.name] = self._rng.choice(other.values)
                config = space.canonical(values)
                if self.admits(config):
                    return config
        return None

    def _drawn_blindly(self) -> Config | None:
        for _ in range(min(BLIND_DRAWS, 4 * self._history.space.size)):
            config = self._history.space.draw(self._rng)
            if self.admits(config):
                return config
        return None

    def _first_of_grid(self) -> Config | None:
        # Walked cells are no proposals: they are not counted as rejections.
        space, seen = self._history.space, self._history.seen
        return next((config for config in space.grid() if config not in seen and space.feasible(config)), None)
