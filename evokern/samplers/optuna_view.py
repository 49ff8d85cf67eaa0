"""View of a history as an in-memory Optuna study, for Optuna's own samplers.

Results are finished trials and pending proposals are running trials. State that a sampler leaves on the view (a
generation, cached parents) is stored with its proposal and restored when a study is resumed. Optuna has no public way
to add running trials with parameters, to draw again for one trial, or to set system attributes. Only this module uses
Optuna's private functions.
"""

from __future__ import annotations

import copy
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState

from evokern.declaration.genes import Config
from evokern.declaration.space import Space
from evokern.samplers.contract import History, TrialResult
from evokern.study.trial import Outcome, Proposal


def distributions(space: Space) -> dict[str, CategoricalDistribution]:
    """Return every gene as a categorical distribution, in declared order."""
    return {gene.name: CategoricalDistribution(gene.values) for gene in space.genes}


def state_of(result: TrialResult) -> TrialState:
    """Return the Optuna state of a finished trial."""
    if result.outcome is Outcome.LOST:
        return TrialState.FAIL
    return TrialState.COMPLETE if result.outcome in (Outcome.MEASURED, Outcome.DUPLICATE) else TrialState.PRUNED


def constraint_attrs(result: TrialResult) -> dict[str, float]:
    """Return the system attributes that Optuna uses for `Trial.set_constraint`."""
    return {f"constraints:{key}": amount for key, amount in result.constraints.items()}


class OptunaView:
    """A history as an Optuna study; `begin` first adds new proposals and results."""

    def __init__(self, history: History) -> None:
        self.history = history
        """History shown by the view."""
        self._distributions = distributions(history.space)
        self._storage = optuna.storages.InMemoryStorage()
        self.study = _empty_study(self._storage)
        """Optuna study of the view."""
        self._study_id = self.study._study_id
        self._ids: list[int] = []
        self._committed = 0
        self._reported = 0
        self._lost: set[int] = set()
        self._known_study_attrs: set[str] = set()

    def begin(self, number: int) -> FrozenTrial:
        """Add new proposals and results; return the next trial, which is running and has no parameters."""
        self.catch_up()
        self._begin()
        return self._storage.get_trial(self._ids[number])

    def draw(self, sampler: BaseSampler, trial: FrozenTrial) -> dict[str, Any]:
        """Return one value per gene, as proposed by an Optuna sampler for a running trial.

        This follows `optuna.Trial.suggest_categorical` for each gene in declared order, but does not set the
        parameters, so that a guard can draw again.
        """
        self.study._thread_local.cached_all_trials = None
        sampler.before_trial(self.study, trial)
        searched = sampler.infer_relative_search_space(self.study, trial)
        relative = sampler.sample_relative(self.study, trial, searched)
        values: dict[str, Any] = {}
        for name, distribution in self._distributions.items():
            if distribution.single():
                values[name] = distribution.choices[0]
            elif name in relative:
                values[name] = relative[name]
            else:
                values[name] = sampler.sample_independent(self.study, trial, name, distribution)
        return values

    def sampler_state(self, number: int) -> dict[str, Any]:
        """Return the state that the sampler left on the view, for `Proposal.sampler_state`."""
        on_study = self._storage.get_study_system_attrs(self._study_id)
        fresh = {key: value for key, value in on_study.items() if key not in self._known_study_attrs}
        self._known_study_attrs.update(fresh)
        attrs = self._storage.get_trial(self._ids[number]).system_attrs
        # Omit relative parameters, which are redundant later and would double the size of every record.
        own = {key: value for key, value in attrs.items() if "relative_params" not in key}
        return {name: attrs for name, attrs in (("trial", own), ("study", fresh)) if attrs}

    def catch_up(self) -> None:
        """Add proposals and results that are new in the history."""
        proposals = self.history.proposals
        for number in range(self._committed, len(proposals)):
            if number == len(self._ids):
                self._begin()
                self._put_back(number, proposals[number])
            self._commit(number, proposals[number].config)
        self._committed = len(proposals)
        for result in self.history.results[self._reported :]:
            self._tell(result)
        self._reported = len(self.history.results)
        for number in self.history.lost.keys() - self._lost:
            self._storage.set_trial_state_values(self._ids[number], TrialState.FAIL)  # ignored by samplers
            self._lost.add(number)

    def _begin(self) -> None:
        self._ids.append(self._storage.create_new_trial(self._study_id))

    def _put_back(self, number: int, proposal: Proposal) -> None:
        """Restore the sampler's state from an earlier session."""
        for key, value in proposal.sampler_state.get("trial", {}).items():
            self._storage.set_trial_system_attr(self._ids[number], key, value)
        for key, value in proposal.sampler_state.get("study", {}).items():
            self._storage.set_study_system_attr(self._study_id, key, value)
            self._known_study_attrs.add(key)

    def _commit(self, number: int, config: Config) -> None:
        # Set all parameters at once: otherwise Optuna copies the trial for each of dozens of genes.
        trial = copy.copy(self._storage.get_trial(self._ids[number]))
        trial.params = dict(config)
        trial.distributions = dict(self._distributions)
        self._storage._set_trial(self._ids[number], trial)

    def _tell(self, result: TrialResult) -> None:
        trial_id, state = self._ids[result.number], state_of(result)
        for key, amount in constraint_attrs(result).items():
            self._storage.set_trial_system_attr(trial_id, key, amount)
        if state is TrialState.PRUNED and result.value is not None:
            self._storage.set_trial_intermediate_value(trial_id, 0, result.value)
        self._storage.set_trial_state_values(trial_id, state, None if result.value is None else [result.value])


def _empty_study(storage: optuna.storages.InMemoryStorage) -> optuna.Study:
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # hide the view from users
    try:
        return optuna.create_study(storage=storage, pruner=optuna.pruners.NopPruner())
    finally:
        optuna.logging.set_verbosity(verbosity)
