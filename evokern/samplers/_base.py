"""The contract of every sampler: the proposal of trial n is a pure function of what it may see.

What it may see is a `History`: the results of trials up to n - W in number order (W is the study's window), the
*configurations* of the trials in flight after them, and the same things as an in-memory Optuna study, the *view*. The
study in the database is a record that no sampler reads; so the sequence of proposals depends neither on timing, nor on
interruptions, nor on how many workers there are.

A sampler keeps nothing between proposals that changes what it proposes: its random numbers come from
`trial_seed(seed, number)`, and whatever Optuna's samplers leave on the view (a generation, cached parents) is stored
with the proposal and put back when a study is resumed.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState

from evokern.errors import InternalError
from evokern.space import Config, Space
from evokern.trial import Evaluation, Outcome, Trial

PROPOSAL_ATTR = "evokern:proposal"
"""System attribute of a view's trial in which a sampler of ours leaves `Proposal.info` (operator, parents, …)."""
REJECTIONS_ATTR = "evokern:rejections"
"""System attribute of a view's trial in which a sampler of ours leaves `Proposal.rejections`."""

Explain = Callable[[Config], str]
"""Configuration that is not feasible → name of the constraint that turns it away."""


class SpaceExhausted(Exception):  # noqa: N818 (a signal that ends a search normally, not an error)
    """Raised by a sampler's Optuna interface when no feasible configuration is left that was not proposed yet."""


@dataclass(frozen=True)
class Proposal:
    """What a sampler proposes for one trial."""

    config: Config
    """A canonical configuration; feasible and unseen, unless the sampler is `grid` or runs without its guard."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """What the sampler says of it, as JSON values: operator, parents, prediction."""
    rejections: Mapping[str, int] = field(default_factory=dict)
    """Constraint → how many proposals for this trial it turned away."""
    leavings: Mapping[str, Any] = field(default_factory=dict)
    """What the sampler left on the view, as JSON values: `trial` and `study` system attributes."""
    control: bool = False
    """Whether the study's control drew it, not its sampler."""


@dataclass(frozen=True)
class Result:
    """What a sampler may know of one finished trial."""

    number: int
    """Trial number."""
    config: Config
    """What was evaluated."""
    outcome: Outcome
    """How it ended."""
    value: float | None = None
    """log(time in µs): of `measured` and `duplicate` in full, of `slow` what was seen, else None."""
    fingerprint: str | None = None
    """Identity of machine code and launch."""
    constraints: Mapping[str, float] = field(default_factory=dict)
    """Constraint → amount; above 0 is violated, graded where the amount is known."""

    @classmethod
    def of(cls, trial: Trial) -> Result:
        """Return what a sampler may know of a recorded trial."""
        seen = trial.evaluation
        return cls(trial.number, trial.config, seen.outcome, objective(seen), seen.fingerprint, constraints(seen))

    @property
    def state(self) -> TrialState:
        """Optuna's state of it."""
        return TrialState.COMPLETE if self.outcome in (Outcome.MEASURED, Outcome.DUPLICATE) else TrialState.PRUNED


def objective(evaluation: Evaluation) -> float | None:
    """Return log(time in µs) where any time was seen, else None."""
    if evaluation.time_us is not None and evaluation.time_us > 0:
        return math.log(evaluation.time_us)
    if evaluation.outcome is Outcome.SLOW and evaluation.timings:
        return sum(math.log(timing.median_us) for timing in evaluation.timings) / len(evaluation.timings)
    return None


def constraints(evaluation: Evaluation) -> dict[str, float]:
    """Return a failed candidate's constraint amounts, as Optuna's `set_constraint` takes them.

    Graded, (needed - available) / max(|available|, 1), where resources ran out or a constraint was violated; 1 where
    there is only right and wrong.
    """
    outcome = evaluation.outcome
    if outcome in (Outcome.MEASURED, Outcome.DUPLICATE, Outcome.SLOW):
        return {}
    if outcome in (Outcome.INFEASIBLE, Outcome.OVER_RESOURCES):
        needed, available = float(evaluation.evidence["needed"]), float(evaluation.evidence["available"])
        excess = (needed - available) / max(abs(available), 1.0)
        # Optuna reads 0 as kept, and this one was not.
        return {str(evaluation.evidence["constraint"]): max(excess, 1e-9)}
    return {outcome.value: 1.0}


def trial_seed(seed: int, number: int) -> int:
    """Return the seed of one trial's proposal, below 2**32."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{number}".encode()).digest()[:4], "little")


def distributions(space: Space) -> dict[str, CategoricalDistribution]:
    """Return every gene as Optuna sees it: categorical, in declared order."""
    return {gene.name: CategoricalDistribution(gene.values) for gene in space.genes}


def _empty_view(storage: optuna.storages.InMemoryStorage) -> optuna.Study:
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # a view is no study that a user should read of
    try:
        return optuna.create_study(storage=storage, pruner=optuna.pruners.NopPruner())
    finally:
        optuna.logging.set_verbosity(verbosity)


class History:
    """What may be seen when a trial is proposed. The engine fills it; samplers only read it."""

    def __init__(self, space: Space) -> None:
        self.space = space
        """The genes, and which configurations are feasible."""
        self.results: list[Result] = []
        """Visible results, in number order."""
        self.pending: dict[int, Config] = {}
        """Trial number → configuration of proposals whose result is not visible."""
        self.seen: set[Config] = set()
        """Every configuration proposed so far."""
        self.distributions = distributions(space)
        """Gene → its values, as Optuna sees them."""
        self._storage = optuna.storages.InMemoryStorage()
        self.view = _empty_view(self._storage)
        """The same as an Optuna study: finished trials are results, running ones are pending."""
        self._study_id = self.view._study_id
        self._ids: list[int] = []
        self._known_study_attrs: set[str] = set()
        self._best: float | None = None

    def __len__(self) -> int:
        return len(self._ids)

    def begin(self, number: int) -> FrozenTrial:
        """Add trial `number`, running and without parameters, to the view and return it."""
        if number != len(self._ids):
            raise InternalError(f"trial {number} was proposed after {len(self._ids)} trials")
        self._ids.append(self._storage.create_new_trial(self._study_id))
        return self._storage.get_trial(self._ids[number])

    def frozen(self, number: int) -> FrozenTrial:
        """Return the view's trial `number` as it stands."""
        return self._storage.get_trial(self._ids[number])

    def commit(self, number: int, config: Config) -> None:
        """Give trial `number` of the view its configuration: from now on it is pending."""
        # All parameters at once: one by one, Optuna copies a trial for each, and kernels have dozens of genes.
        trial = copy.copy(self.frozen(number))
        trial.params = dict(config)
        trial.distributions = dict(self.distributions)
        self._storage._set_trial(self._ids[number], trial)
        self.pending[number] = config
        self.seen.add(config)

    def leavings(self, number: int) -> dict[str, Any]:
        """Return what the sampler left on the view while it proposed trial `number`, in the form `restore` takes."""
        on_study = self._storage.get_study_system_attrs(self._study_id)
        fresh = {key: value for key, value in on_study.items() if key not in self._known_study_attrs}
        self._known_study_attrs.update(fresh)
        attrs = self.frozen(number).system_attrs
        # Relative parameters say nothing once the trial has its own, and would double the size of every record.
        own = {key: v for key, v in attrs.items() if not key.startswith("evokern:") and "relative_params" not in key}
        return {name: attrs for name, attrs in (("trial", own), ("study", fresh)) if attrs}

    def restore(self, number: int, proposal: Proposal) -> None:
        """Put a proposal of an earlier session back: the view becomes what it was after it was made."""
        self.begin(number)
        own = dict(proposal.leavings.get("trial", {}))
        if proposal.info:
            own[PROPOSAL_ATTR] = dict(proposal.info)
        for key, value in own.items():
            self._storage.set_trial_system_attr(self._ids[number], key, value)
        for key, value in proposal.leavings.get("study", {}).items():
            self._storage.set_study_system_attr(self._study_id, key, value)
            self._known_study_attrs.add(key)
        self.commit(number, proposal.config)

    def tell(self, result: Result) -> None:
        """Make a pending trial's result visible; the engine calls this in number order.

        The view's trial gets the outcome and the fingerprint as user attributes `outcome` and `fingerprint`.
        """
        if result.number != len(self.results):
            raise InternalError(f"result of trial {result.number} told after {len(self.results)} results")
        trial_id = self._ids[result.number]
        self._storage.set_trial_user_attr(trial_id, "outcome", result.outcome.value)
        if result.fingerprint is not None:
            self._storage.set_trial_user_attr(trial_id, "fingerprint", result.fingerprint)
        for key, amount in result.constraints.items():
            self._storage.set_trial_system_attr(trial_id, f"constraints:{key}", amount)
        if result.state is TrialState.PRUNED and result.value is not None:
            self._storage.set_trial_intermediate_value(trial_id, 0, result.value)
        values = None if result.value is None else [result.value]
        self._storage.set_trial_state_values(trial_id, result.state, values)
        self.view._thread_local.cached_all_trials = None
        self.results.append(result)
        if result.outcome is Outcome.MEASURED and result.value is not None:
            self._best = result.value if self._best is None else min(self._best, result.value)
        del self.pending[result.number]

    @property
    def elite_us(self) -> float | None:
        """Time of the best visible measured trial, in µs: what later candidates race against."""
        return None if self._best is None else math.exp(self._best)


class Sampler(Protocol):
    """Proposes one candidate at a time."""

    def propose(self, history: History, number: int) -> Proposal | None:
        """Return the proposal of trial `number`, which it also commits to the history; None when nothing is left."""


def draw(sampler: BaseSampler, history: History, trial: FrozenTrial) -> dict[str, Any]:
    """Return one value per gene as an Optuna sampler proposes them for a running trial of the view.

    The same steps as `optuna.Trial.suggest_categorical` for each gene in declared order, without setting the
    parameters, so that a guard can draw again for the same trial.
    """
    view = history.view
    view._thread_local.cached_all_trials = None
    sampler.before_trial(view, trial)
    searched = sampler.infer_relative_search_space(view, trial)
    relative = sampler.sample_relative(view, trial, searched)
    values: dict[str, Any] = {}
    for name, distribution in history.distributions.items():
        if distribution.single():
            values[name] = distribution.choices[0]
        elif name in relative:
            values[name] = relative[name]
        else:
            values[name] = sampler.sample_independent(view, trial, name, distribution)
    return values


class NativeSampler:
    """Drives an Optuna sampler whose proposals are feasible and unseen by construction (`evo`).

    Such a sampler derives its random numbers from `trial_seed(seed, trial.number)`, reads the study it is given and
    nothing else, raises `SpaceExhausted` when nothing is left, and may leave `PROPOSAL_ATTR` and `REJECTIONS_ATTR` on
    the trial (`study._storage.set_trial_system_attr(trial._trial_id, …)`). It therefore works as well in a plain
    `optuna.create_study(sampler=…)`.
    """

    def __init__(self, sampler: BaseSampler) -> None:
        self.sampler = sampler
        """The Optuna sampler."""

    def propose(self, history: History, number: int) -> Proposal | None:
        """Return the sampler's proposal, or None when it finds nothing left."""
        trial = history.begin(number)
        try:
            values = draw(self.sampler, history, trial)
        except SpaceExhausted:
            return None
        config = history.space.canonical(values)
        if config in history.seen:
            raise InternalError(f"{self.sampler} proposed {dict(config)} twice, at last for trial {number}")
        leavings = history.leavings(number)
        attrs = history.frozen(number).system_attrs
        history.commit(number, config)
        return Proposal(config, attrs.get(PROPOSAL_ATTR, {}), attrs.get(REJECTIONS_ATTR, {}), leavings)
