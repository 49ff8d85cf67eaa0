"""What a run of any tuner over a recorded space leaves: the configurations it evaluated, in order, and its own time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from evokern.device.recorded import read_recording
from evokern.device.table import Table
from evokern.space import Config
from evokern.trial import Outcome


@dataclass(frozen=True)
class Run:
    """One repeat of one tuner."""

    tuner: str
    """Its name in the table."""
    space: str
    """The recording's name."""
    seed: int
    """Seed of the repeat."""
    evaluated: tuple[int, ...]
    """Positions in the recording of the configurations it evaluated, failures too, each once."""
    own_s: float
    """Seconds that it spent on proposals, over the whole run."""


class Recording:
    """A recorded space as arrays in the order of its configurations."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.table: Table = read_recording(path)
        self.name = self.table.name
        self.configs: tuple[Config, ...] = tuple(self.table.answers)
        self.position = {config: index for index, config in enumerate(self.configs)}
        answers = [self.table.answers[config] for config in self.configs]
        ran = [a.time_us if a.outcome is Outcome.MEASURED else None for a in answers]
        self.times = np.array([np.nan if time is None else time for time in ran])
        """Time of each configuration, in µs; NaN where it failed."""
        self.costs = np.array([self.table.seconds.get(config, 0.0) for config in self.configs])
        """Seconds that evaluating each configuration took."""

    @cached_property
    def optimum(self) -> int:
        """Position of the fastest configuration."""
        return int(np.nanargmin(self.times))

    @cached_property
    def budget(self) -> int:
        """Evaluations after which random search has closed 95 % of the gap between the median and the optimum.

        The official budget of the community score (Willemsen et al. 2024), in evaluations.
        """
        ordered = np.sort(self.times[~np.isnan(self.times)])[::-1]
        target = ordered[-1] + 0.05 * (np.median(ordered) - ordered[-1])
        rank = int(np.argmax(ordered <= target))
        return int(np.ceil(rank / (len(ordered) + 1 - rank)))

    def fractions(self, run: Run, trials: int) -> np.ndarray:
        """Return optimum ÷ best after each of the first `trials` evaluations, 0 while nothing ran."""
        seen = np.where(np.isnan(self.times), np.inf, self.times)[list(run.evaluated[:trials])]
        best = np.minimum.accumulate(seen)
        found = self.times[self.optimum] / best
        return np.append(found, np.full(trials - len(found), found[-1]))
