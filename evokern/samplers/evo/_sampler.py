"""The sampler's Optuna face: read the study, propose one row, leave operator and parents with the trial."""

from __future__ import annotations

from typing import Any

import numpy as np
from optuna import Study
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState

from evokern.samplers._base import (
    PROPOSAL_ATTR,
    REJECTIONS_ATTR,
    Explain,
    SpaceExhausted,
    distributions,
    trial_seed,
)
from evokern.samplers.evo._genome import Genome, Keys, Rows
from evokern.samplers.evo._pool import Pool
from evokern.space import Space

FIRST_GENERATION = 10
"""Trials before anything is bred: the default candidate, then random ones."""
ELITES = 10
"""Best rows that parents are drawn from."""


class EvoSampler(BaseSampler):
    """Proposes feasible candidates that were not proposed before.

    Args:
        space: genes with feasibility bound.
        seed: the study's seed.
        window: the study's window: trials in flight.
        explain: names the constraint that turns an infeasible configuration away.
    """

    def __init__(self, space: Space, seed: int = 0, window: int = 1, explain: Explain | None = None) -> None:
        self._genome = Genome(space)
        self._pool = Pool(self._genome, explain or (lambda config: "infeasible"))
        self._seed = seed
        self._window = window
        self._distributions: dict[str, BaseDistribution] = dict(distributions(space))

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return every gene: they are proposed together."""
        return self._distributions

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the candidate of one trial.

        Raises:
            SpaceExhausted: every feasible configuration was proposed already.
        """
        rng = np.random.default_rng(trial_seed(self._seed, trial.number))
        self._pool.rejections.clear()
        told = [t for t in study.get_trials(deepcopy=False) if t.number != trial.number and t.params]
        rows = self._genome.rows(t.params for t in told)
        taken = self._genome.keys(rows)
        scored = [(t.value, i) for i, t in enumerate(told) if t.state is TrialState.COMPLETE and t.value is not None]
        elites = rows[[i for _, i in sorted(scored)[:ELITES]]]
        row, operator = self._breed(rng, trial.number, elites, taken)
        storage = study._storage
        storage.set_trial_system_attr(trial._trial_id, PROPOSAL_ATTR, {"operator": operator})
        if self._pool.rejections:
            storage.set_trial_system_attr(trial._trial_id, REJECTIONS_ATTR, dict(self._pool.rejections))
        return dict(self._genome.config(row))

    def _breed(self, rng: np.random.Generator, number: int, elites: Rows, taken: Keys) -> tuple[Rows, str]:
        if number == 0:
            default = self._pool.admissible(self._genome.rows([self._genome.space.default()]), taken)
            if len(default):
                return default[0], "default"
        if number >= FIRST_GENERATION and len(elites):
            children = self._pool.admissible(self._children(rng, elites, 32), taken)
            if len(children):
                return children[0], "mutation"
        drawn = self._pool.draw(rng, 1, taken)
        if not len(drawn):
            drawn = self._pool.first_left(taken)
        if not len(drawn):
            raise SpaceExhausted
        return drawn[0], "random"

    def _children(self, rng: np.random.Generator, elites: Rows, count: int) -> Rows:
        genes = len(self._genome)
        one, two = (elites[rng.integers(len(elites), size=count)] for _ in range(2))
        children = np.where(rng.random((count, genes)) < 0.5, one, two)
        drawn = rng.integers(0, self._genome.sizes, size=(count, genes))
        changed = rng.random((count, genes)) < 1.5 / genes
        return self._genome.canonical(np.where(changed, drawn, children).astype(np.int16))

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Refuse: every gene of the space is proposed together.

        Raises:
            ValueError: the objective asked for a gene that the space does not have.
        """
        raise ValueError(f"{param_name} is no gene of this sampler's space")
