"""The sampler's Optuna face and the stages of a proposal.

A proposal of trial n is a pure function of the results it may see, the configurations before it, the study's seed and
n. Work that is shared by several trials (length scales, a generation's candidates) is tied to fixed trial numbers and
uses only what was visible at them, so that it can be remembered while the process lives and is rebuilt alike by
another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from optuna import Study
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

from evokern.samplers._base import (
    PROPOSAL_ATTR,
    REJECTIONS_ATTR,
    Explain,
    SpaceExhausted,
    distributions,
    trial_seed,
)
from evokern.samplers.evo import _first
from evokern.samplers.evo._breeding import Candidates, breed, elites_of, grafts, joined, labelled, screened
from evokern.samplers.evo._features import Floats, features_of
from evokern.samplers.evo._genome import Genome, Keys, Rows
from evokern.samplers.evo._observations import OPERATORS, Ledger, Observations
from evokern.samplers.evo._pool import Pool
from evokern.samplers.evo._prior import Prior, PriorModel
from evokern.samplers.evo._surrogate import LARGE, SMALL, Ensemble, fit, representative
from evokern.samplers.evo._twins import Twins
from evokern.samplers.evo._validity import Validity
from evokern.space import Space

CANDIDATES = (1_200, 400)
"""Candidates of a generation in a young study, and from trial `LATE` on: a proposal must stay cheap."""
UNASKED = 600
"""The same where the space is no list: children about whose feasibility nothing is known yet."""
MODEL_ROWS = (256, 128)
"""Most trials that condition the model: the best half of them, and the rest spread over all."""
SCREEN_ROWS = 64
"""Most trials that condition the rough model which decides which candidates are asked about."""
GRAFTED = 8
"""Grafts of a generation where the space is no list."""
SCREENED = 96
"""Feasible children that a generation keeps where the space is no list."""
LATE = 256
"""Trial from which a generation has its full length."""
CONSIDERED = (2_000, 600)
"""The same where every row of a list can be looked at."""
GENERATION = 8
"""Most trials of a generation."""
GROWTH = 32
"""A young generation's length is this part of the trials before it."""
LIST_GENERATION = 16
"""Most trials of a generation where candidates come from a list and so do not age."""
LIST_GROWTH = 6
"""The same for a list, and for its length scales: fitted more often, they follow noise."""
FIT_GROWTH = 16
"""The same for the length scales of a space that is no list: where a search stands decides which genes matter."""
LEAST_TIMES = 3
"""Times that must be known before the model speaks."""
NICHE_TURN = 6
"""Every so many trials, the least tried value of an outer gene gets the trial."""
RESTART_TURN = 4
"""Every so many trials of a stuck study, a trial is spent far from the elites."""
PATIENCE = 24
"""Least number of trials without a better time after which a study is stuck."""


@dataclass
class _Generation:
    """What the trials of one generation share."""

    start: int
    """Number of its first trial."""
    selected: npt.NDArray[np.intp]
    """Trial numbers of the rows that condition the model, later ones appended."""
    candidates: Candidates
    """What may be proposed."""
    ensemble: Ensemble
    """The model."""
    worth: Floats
    """Factor of each candidate: probability to be valid, and what the prior thinks of it."""
    sound: npt.NDArray[np.bool_]
    """Which candidates are more likely to give a time than not, as far as any is."""
    keys: Keys
    """Keys of the candidates."""
    free: npt.NDArray[np.bool_]
    """Which candidates were not proposed yet."""


class EvoSampler(BaseSampler):
    """Two-layer evolutionary sampler with a model of the time; feasible and unseen by construction.

    Args:
        space: genes with feasibility bound.
        seed: the study's seed.
        window: the study's window: the proposal of trial n sees the results of trials up to n - window.
        explain: names the constraint that turns an infeasible configuration away.
        prior: a warm start.
    """

    def __init__(
        self,
        space: Space,
        seed: int = 0,
        window: int = 1,
        explain: Explain | None = None,
        prior: Prior | None = None,
    ) -> None:
        self._genome = Genome(space)
        self._pool = Pool(self._genome, explain or (lambda config: "infeasible"), seed)
        self._features = features_of(self._genome)
        self._belief = SMALL if self._pool.listed else LARGE
        self._seed = seed
        self._window = max(window, 1)
        self._stride = max(1, min(GENERATION, self._window // 2))
        self._prior = None if prior is None else PriorModel(prior, self._genome, self._features)
        self._first = _first.size(self._genome, self._prior)
        self._ledger = Ledger(self._genome)
        self._distributions: dict[str, BaseDistribution] = dict(distributions(space))
        self._list_columns: Floats | None = None
        self._logs: tuple[int, Floats] | None = None
        self._generation: _Generation | None = None
        self._told_to: Any = None
        self._threads = ThreadpoolController()

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
        if self._told_to is not study:
            self._told_to, self._generation, self._logs = study, None, None
        self._pool.rejections.clear()
        seen = self._ledger.read(study, trial.number)
        rng = np.random.default_rng(trial_seed(self._seed, trial.number))
        # Matrices this small lose more to threads than they gain, and one thread always rounds alike.
        with self._threads.limit(limits=1):
            row, info = self._propose(seen, trial.number, rng)
        study._storage.set_trial_system_attr(trial._trial_id, PROPOSAL_ATTR, dict(info))
        if self._pool.rejections:
            study._storage.set_trial_system_attr(trial._trial_id, REJECTIONS_ATTR, dict(self._pool.rejections))
        return dict(self._genome.config(row))

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Refuse: every gene of the space is proposed together.

        Raises:
            ValueError: the objective asked for a gene that the space does not have.
        """
        raise ValueError(f"{param_name} is no gene of this sampler's space")

    def _propose(self, seen: Observations, number: int, rng: np.random.Generator) -> tuple[Rows, Mapping[str, Any]]:
        growth, most = (LIST_GROWTH, LIST_GENERATION) if self._pool.listed else (GROWTH, GENERATION)
        start = boundary(number, growth, most, self._stride)
        if number >= self._first and seen.before(start, start - self._window).timed.sum() >= LEAST_TIMES:
            generation = self._generation_at(start, seen)
            if number > start:
                self._pool.rejections.clear()  # they were counted for the trial that began the generation
            self._catch_up(generation, seen)
            if generation.free.any():
                return self._select(generation, seen, number)
        first = _first.propose(self._pool, seen, self._prior, rng)
        if first is None:
            raise SpaceExhausted
        return first[0][0], {"operator": first[1]}

    def _generation_at(self, start: int, seen: Observations) -> _Generation:
        if self._generation is not None and self._generation.start == start:
            return self._generation
        then = seen.before(start, start - self._window)
        rng = np.random.default_rng([self._seed, start])
        late = int(start >= LATE)
        growth = LIST_GROWTH if self._pool.listed else FIT_GROWTH
        logs = self._logs_at(boundary(start, growth, least=self._stride), seen)
        validity = Validity(self._genome, then)
        elites = elites_of(self._genome, then)
        if self._pool.listed:
            candidates = labelled(self._promising(then, logs, validity, rng, CONSIDERED[late]), elites)
        else:
            count = CANDIDATES[late] if self._pool.everything is not None else UNASKED
            candidates = self._fresh(breed(self._pool, then, elites, rng, count), then)
            if not candidates.feasible.all():
                columns = self._features(candidates.rows)
                promise = self._promise(candidates.rows, columns, then, logs, validity)
                candidates = screened(self._pool, candidates, promise, SCREENED)
            if self._pool.everything is None:
                more = self._fresh(grafts(self._pool, then, elites, rng, GRAFTED), then)
                candidates = joined(self._pool, candidates, more)
        kept = representative(then.values, ~then.finished, MODEL_ROWS[late])
        columns = self._features(candidates.rows)
        ensemble = Ensemble(self._features, logs, then.rows[kept], columns, rng, LIST_GENERATION, belief=self._belief)
        worth = validity(candidates.rows)
        sound = worth >= min(0.5, float(worth.max(initial=0.0)))
        if self._prior is not None:
            worth = worth * self._prior.preference(candidates.rows, int(then.finished.sum()))
        keys = self._genome.keys(candidates.rows)
        free = np.ones(len(keys), dtype=bool)
        self._generation = _Generation(start, then.numbers[kept], candidates, ensemble, worth, sound, keys, free)
        return self._generation

    def _fresh(self, candidates: Candidates, then: Observations) -> Candidates:
        """Return the candidates that are not known to be the same program as one before, unless none is left then."""
        fresh = Twins(self._genome, then.rows, then.prints).fresh(candidates.rows, then.rows)
        return candidates.take(fresh) if fresh.any() else candidates

    def _promising(
        self, then: Observations, logs: Floats, validity: Validity, rng: np.random.Generator, most: int
    ) -> Rows:
        """Return the rows of the list that a generation considers: the most promising ones, and some of the rest."""
        assert self._pool.everything is not None
        if self._list_columns is None:
            self._list_columns = self._features(self._pool.everything)
        left = self._pool.left(then.keys)
        rows = self._pool.everything[left]
        fresh = Twins(self._genome, then.rows, then.prints).fresh(rows, then.rows)
        if fresh.any():
            left, rows = left[fresh], rows[fresh]
        if len(left) <= most:
            return rows
        order = np.argsort(-self._promise(rows, self._list_columns[left], then, logs, validity), kind="stable")
        best = most - most // 4
        others = rng.permutation(order[best:])[: most - best]
        chosen: Rows = rows[np.sort(np.append(order[:best], others))]
        return chosen

    def _promise(self, rows: Rows, columns: Floats, then: Observations, logs: Floats, validity: Validity) -> Floats:
        """Return what a rough model of few trials thinks of rows: higher is better."""
        few = representative(then.values, np.zeros(len(then), dtype=bool), SCREEN_ROWS)
        rng, belief = np.random.default_rng(0), self._belief
        rough = Ensemble(self._features, logs, then.rows[few], columns, rng, room=0, members=1, belief=belief)
        forecast = rough.forecast(then.values[few], then.finished[few])
        promise: Floats = np.log(forecast.improvement + 1e-300) + np.log(validity(rows) + 1e-9)
        return promise

    def _logs_at(self, number: int, seen: Observations) -> Floats:
        if self._logs is None or self._logs[0] != number:
            then = seen.before(number, number - self._window)
            self._logs = number, fit(self._features, then.rows, then.values, then.failed, self._belief)
        return self._logs[1]

    def _catch_up(self, generation: _Generation, seen: Observations) -> None:
        """Condition the model on the rows proposed since the generation began."""
        known = generation.selected[-1] if len(generation.selected) else -1
        later = seen.numbers > max(int(known), generation.start - 1)
        if later.any():
            generation.ensemble.add(seen.rows[later])
            generation.selected = np.append(generation.selected, seen.numbers[later])
            generation.free &= ~np.isin(generation.keys, seen.keys[later])

    def _select(
        self,
        generation: _Generation,
        seen: Observations,
        number: int,
    ) -> tuple[Rows, Mapping[str, Any]]:
        free = generation.free
        at = np.searchsorted(seen.numbers, generation.selected)
        forecast = generation.ensemble.forecast(seen.values[at], seen.finished[at])
        score = np.where(free, np.log(forecast.improvement + 1e-300) + np.log(generation.worth + 1e-9), -np.inf)
        turn = self._niche_turn(generation, seen, number, free) or self._restart_turn(generation, seen, number, free)
        if turn is not None:
            reason, among = turn
            own = -forecast.optimism + np.log(generation.worth + 1e-9) if reason == "restart" else score
            score = np.where(among, own, -np.inf)
        chosen = int(np.argmax(score))
        made = generation.candidates
        info: dict[str, Any] = {
            "operator": OPERATORS[made.operators[chosen]],
            "parents": [int(n) for n in made.parents[chosen] if n >= 0],
            "predicted_us": round(float(np.exp(np.clip(forecast.log_time[chosen], -50, 50))), 4),
        }
        if turn is not None:
            info["turn"] = turn[0]
        return made.rows[chosen], info

    def _niche_turn(
        self, generation: _Generation, seen: Observations, number: int, free: npt.NDArray[np.bool_]
    ) -> tuple[str, npt.NDArray[np.bool_]] | None:
        """Return the candidates with the outer gene's value that had fewest trials, when it is its turn."""
        outer = [i for i, gene in enumerate(self._genome.genes) if gene.layer == "mutation" and len(gene.values) > 1]
        if not outer or number % NICHE_TURN:
            return None
        rows = generation.candidates.rows
        tried = [(int((seen.rows[:, i] == v).sum()), i, v) for i in outer for v in range(int(self._genome.sizes[i]))]
        for _, index, value in sorted(tried):
            among = free & generation.sound & (rows[:, index] == value)
            if among.any():
                gene = self._genome.genes[index]
                return f"niche {gene.name}={gene.values[value]}", among
        return None

    def _restart_turn(
        self, generation: _Generation, seen: Observations, number: int, free: npt.NDArray[np.bool_]
    ) -> tuple[str, npt.NDArray[np.bool_]] | None:
        """Return the candidates far from the best trial, when the study is stuck and it is their turn."""
        if number % RESTART_TURN or not seen.timed.any():
            return None
        best = int(np.nanargmin(seen.values))
        latest = int(seen.numbers[seen.finished][-1])
        if latest - int(seen.numbers[best]) < max(PATIENCE, latest // 5):
            return None
        apart = (generation.candidates.rows != seen.rows[best]).sum(axis=1)
        among = free & generation.sound & (apart >= min(len(self._genome) / 2, apart[free].max()))
        return ("restart", among) if among.any() else None


def boundary(number: int, growth: int, most: int | None = None, least: int = 1) -> int:
    """Return the last fixed trial number up to `number`, in steps that grow with the study.

    Args:
        number: a trial number.
        growth: a step is this part of the trials before it.
        most: longest step.
        least: shortest step.
    """
    at = 0
    while True:
        step = max(least, at // growth)
        if most is not None and step >= most:
            return at + (number - at) // most * most
        if at + step > number:
            return at
        at += step
