"""Sampler `evo` for a plain Optuna study.

In `optuna.create_study(sampler=EvoForOptuna(space))`, a proposal uses all trials finished at that moment. With several
jobs the sequence depends on timing, as with Optuna's own samplers. Inside evokern, the sampler reads a `History`
instead and is reproducible.
"""

from __future__ import annotations

import math
import threading
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from evokern.declaration.genes import Config
from evokern.declaration.space import Space
from evokern.errors import SpaceError, StudyError
from evokern.samplers.contract import History, TrialResult
from evokern.samplers.evo import EvoSampler
from evokern.samplers.optuna_view import distributions
from evokern.study.trial import Outcome, Proposal

PROPOSED = "evokern:proposed"
"""System attribute that holds a trial's proposal before its parameters are suggested one by one."""


class EvoForOptuna(BaseSampler):
    """Sampler of feasible configurations without repetition; use one object per study.

    The objective suggests every gene with `trial.suggest_categorical(gene.name, gene.values)`. A pruned trial counts
    with its last intermediate value. A failed trial, or a pruned one without a value, counts as a failure, and similar
    configurations are avoided.

    Args:
        space: Genes with their feasibility rules.
        seed: Seed of the proposals.
    """

    def __init__(self, space: Space, seed: int = 0) -> None:
        self._space = space
        self._seed = seed
        self._distributions: dict[str, BaseDistribution] = dict(distributions(space))
        self._lock = threading.Lock()

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return every gene as a categorical distribution."""
        return self._distributions

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the proposal for a trial.

        Raises:
            StudyError: The study has several objectives, or no feasible configuration is left.
        """
        if len(study.directions) != 1:
            raise StudyError(
                f"evo supports one objective, but this study has {len(study.directions)}; use a study with one "
                "objective"
            )
        # Jobs are threads that share this object: make one proposal at a time, which sees all earlier ones.
        with self._lock:
            history = self._history(study, trial)
            proposal = EvoSampler(self._space, self._seed).propose(history, len(history.proposals))
            if proposal is None:
                raise StudyError("every feasible configuration of the space has been proposed; stop the study")
            study._storage.set_trial_system_attr(trial._trial_id, PROPOSED, dict(proposal.config))
        return dict(proposal.config)

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Reject a parameter that is not a gene of the space.

        Raises:
            StudyError: Always.
        """
        raise StudyError(
            f"{param_name} is not a gene of the space ({', '.join(self._distributions)}); add it, or fix its value"
        )

    def _history(self, study: optuna.Study, asking: FrozenTrial) -> History:
        """Return the history: finished trials in number order, followed by running ones."""
        found: list[tuple[bool, Config, FrozenTrial]] = []
        for trial in study.get_trials(deepcopy=False):
            values = trial.system_attrs.get(PROPOSED) or trial.params
            if trial.number == asking.number or not values:
                continue
            try:
                config = self._space.canonical(values)
            except SpaceError:  # enqueued or from another sampler, outside this space
                continue
            found.append((trial.state.is_finished(), config, trial))
        found.sort(key=lambda entry: (not entry[0], entry[2].number))
        history = History(self._space)
        for number, (_, config, _) in enumerate(found):
            history.commit(number, Proposal(config))
        sign = -1.0 if study.direction is StudyDirection.MAXIMIZE else 1.0
        for number, (finished, config, trial) in enumerate(found):
            if finished:
                history.tell(_result(number, config, trial, sign))
        return history


def _result(number: int, config: Config, trial: FrozenTrial, sign: float) -> TrialResult:
    value = trial.value if trial.state is TrialState.COMPLETE else None
    if trial.state is TrialState.PRUNED and trial.intermediate_values:
        value = trial.intermediate_values[max(trial.intermediate_values)]
    if value is None or not math.isfinite(value):
        return TrialResult(number, config, Outcome.CRASHED)
    outcome = Outcome.MEASURED if trial.state is TrialState.COMPLETE else Outcome.SLOW
    return TrialResult(number, config, outcome, sign * value)
