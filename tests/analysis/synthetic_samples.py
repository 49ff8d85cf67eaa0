"""Samples as a GPU would give them of candidates whose true times are known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


class SyntheticBench:
    """Candidates with true times, measured as a GPU would.

    A clock that drifts for all alike, autocorrelated noise of each candidate, an offset at every load (where buffers
    happen to lie), and now and then a sample that something disturbed.
    """

    def __init__(self, times_us: Sequence[float], seed: int, noise: float = 0.004, load: float = 0.002) -> None:
        self.times, self.rng, self.noise, self.load = np.log(times_us), np.random.default_rng(seed), noise, load
        self.drift = 0.0
        self.state = np.zeros(len(times_us))
        self.asked: list[tuple[int, ...]] = []

    def __call__(self, alive: Sequence[int], samples: int) -> list[list[float]]:
        self.asked.append(tuple(alive))
        offsets = self.rng.normal(0, self.load, len(self.times))
        # Loading takes as long as a hundred samples; what the last round left of the noise has mostly gone.
        self.state *= 0.3
        taken: list[list[float]] = [[] for _ in alive]
        for _ in range(samples):
            self.drift = 0.98 * self.drift + self.rng.normal(0, 0.004)
            self.state = 0.8 * self.state + self.rng.normal(0, self.noise * 0.6, len(self.times))
            hit = self.rng.random(len(self.times)) < 0.02
            logs = self.times + self.drift + offsets + self.state + hit * self.rng.exponential(0.1, len(self.times))
            for row, index in zip(taken, alive, strict=True):
                row.append(float(np.exp(logs[index])))
        return taken
