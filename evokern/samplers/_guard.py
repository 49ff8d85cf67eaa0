"""Guard that makes the proposals of other samplers feasible and new.

The guard draws until a proposal is admissible. It then mutates the last draw, draws uniformly, and finally searches the
whole grid, so it fails only when no configuration is left. It counts rejected proposals by constraint.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

from evokern.declaration.genes import Config
from evokern.samplers.contract import Explain, History

BLIND_DRAWS = 2_000
"""Maximum number of uniform draws before the whole grid is searched."""


class FeasibilityGuard:
    """Guard for the proposals of one trial."""

    def __init__(self, history: History, explain: Explain, rng: random.Random) -> None:
        self._history = history
        self._explain = explain
        self._rng = rng
        self.rejections: Counter[str] = Counter()
        """Number of rejected proposals, by constraint."""

    def admits(self, config: Config) -> bool:
        """Return whether a configuration may be proposed; if it is rejected, count the violated constraint."""
        if config in self._history.seen:
            return False
        if self._history.space.feasible(config):
            return True
        self.rejections[self._explain(config)] += 1
        return False

    def choose(self, draw: Callable[[], Config], draws: int) -> Config | None:
        """Return a configuration that may be proposed, or None if all have been used.

        Args:
            draw: Function that returns one proposal of the guarded sampler.
            draws: Maximum number of calls to `draw`.
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
        # Configurations of the grid search are not proposals and do not count as rejections.
        space, seen = self._history.space, self._history.seen
        return next((config for config in space.grid() if config not in seen and space.feasible(config)), None)
