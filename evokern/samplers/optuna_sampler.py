"""Sampler `evo` for a plain Optuna study, and the view of a history as an Optuna study for Optuna's own samplers.

In `optuna.create_study(sampler=EvoForOptuna(space))`, a proposal uses all trials finished at that moment. With several
jobs the sequence depends on timing, as with Optuna's own samplers. Inside evokern, the sampler reads a `History`
instead and is reproducible.

In the *view*, results are finished trials and pending proposals are running trials. State that a sampler leaves on the
view (a generation, cached parents) is stored with its proposal and restored when a study is resumed. Optuna has no
public way to add running trials with parameters, to draw again for one trial, or to set system attributes. Only this
module uses Optuna's private functions.
"""

from __future__ import annotations

import copy
import math
import threading
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from evokern.declaration.genes import Config
from evokern.declaration.space import Space
from evokern.errors import SpaceError, StudyError
from evokern.samplers.contract import History, TrialResult
from evokern.samplers.evo import EvoSampler
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
