"""Optuna's samplers with or without a guard.

The guard makes proposals feasible and new. It draws until a proposal is admissible. It then mutates the last draw,
draws uniformly, and finally searches the whole grid, so it fails only when no configuration is left. It counts rejected
proposals by constraint.
"""

from __future__ import annotations

import random
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler, NSGAIISampler, RandomSampler, TPESampler

from evokern.declaration.genes import Config
from evokern.errors import StudyError
from evokern.samplers.contract import Explain, History, trial_seed
from evokern.samplers.optuna_view import OptunaView
from evokern.study.trial import Proposal

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


DRAWS: Mapping[str, int] = {"random": 2_000, "tpe": 24, "nsga2": 64, "gp": 2}
"""Number of draws before a proposal is mutated; smaller for samplers that are slow or repeat themselves."""


def optuna_class(name: str) -> type[BaseSampler]:
    """Return Optuna's class for a sampler."""
    if name == "gp":
        from optuna.samplers import GPSampler  # imports torch, which takes seconds

        return GPSampler
    classes: dict[str, type[BaseSampler]] = {"random": RandomSampler, "tpe": TPESampler, "nsga2": NSGAIISampler}
    return classes[name]


class OptunaSampler:
    """An Optuna sampler that is created again for each trial, so that no cache outlives a proposal.

    Without the guard (`guard = false`), infeasible and repeated proposals become trials.
    """

    def __init__(self, name: str, options: Mapping[str, Any], seed: int, explain: Explain, *, guarded: bool) -> None:
        self._name = name
        self._class = optuna_class(name)
        self._given = dict(options)
        self._options = dict(options)
        if name == "gp":
            # Without a model, it samples each gene separately and warns every time.
            self._options.setdefault("warn_independent_sampling", False)
        self._seed = seed
        self._explain = explain
        self._guarded = guarded
        self._view: OptunaView | None = None

    def propose(self, history: History, number: int) -> Proposal | None:
        """Return the sampler's proposal, corrected by the guard, or None if no configuration is left."""
        if self._view is None or self._view.history is not history:
            self._view = OptunaView(history)
        view = self._view
        trial = view.begin(number)
        seed = trial_seed(self._seed, number)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            sampler = self._class(seed=seed, **self._options)  # type: ignore[call-arg]
        if self._name == "gp":
            _one_torch_thread()

        rng = random.Random(seed)
        listed = self._name == "random" and self._guarded and history.space.table is not None

        def one_draw() -> Config:
            if listed:
                # A table row has the same distribution as drawing until a proposal is feasible.
                return history.space.draw(rng)
            try:
                return history.space.canonical(view.draw(sampler, trial))
            except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
                if not self._given:
                    raise  # not caused by the user's options
                raise StudyError(
                    f"sampler {self._name} failed with the options {self._given}: {type(error).__name__}: {error}; "
                    "change the options in the [sampler] table of the study"
                ) from error

        guard = FeasibilityGuard(history, self._explain, rng)
        config = guard.choose(one_draw, DRAWS[self._name]) if self._guarded else one_draw()
        if config is None:
            return None
        return Proposal(config, {"operator": self._name}, dict(guard.rejections), view.sampler_state(number))


def _one_torch_thread() -> None:
    # One thread: for small matrices, threads are much slower on busy cores and change the rounding.
    import torch

    torch.set_num_threads(1)
