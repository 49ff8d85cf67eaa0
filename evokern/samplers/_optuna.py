"""Optuna's samplers, with or without the guard."""

from __future__ import annotations

import random
import warnings
from collections.abc import Mapping
from typing import Any

from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler, NSGAIISampler, RandomSampler, TPESampler

from evokern.declaration.genes import Config
from evokern.errors import StudyError
from evokern.samplers._guard import FeasibilityGuard
from evokern.samplers.contract import Explain, History, trial_seed
from evokern.samplers.optuna_view import OptunaView
from evokern.study.trial import Proposal

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
