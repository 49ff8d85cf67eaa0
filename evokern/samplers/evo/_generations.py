"""Generations: what the trials of a stretch share, so that a proposal stays cheap.

A generation begins at a fixed trial number and uses only what was visible then: length scales, children, the model and
what it was conditioned on. Another process that is asked for a later trial builds the same one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evokern.samplers.evo import _niche_restarts
from evokern.samplers.evo._breeding import Candidates, breed, elites_of, joined, labelled, repair_crossovers, screened
from evokern.samplers.evo._features import Features, Floats
from evokern.samplers.evo._observations import Observations
from evokern.samplers.evo._pool import Pool
from evokern.samplers.evo._prior import PriorModel
from evokern.samplers.evo._surrogate import LARGE, SMALL, Ensemble, fit, representative
from evokern.samplers.evo._validity import Validity
from evokern.samplers.evo.genome import Keys, Rows
from evokern.samplers.evo.inert_genes import InertGenes

CANDIDATES = (1_200, 400)
"""Candidates of a generation in a young study, and from trial `LATE` on: a proposal must stay cheap."""
UNCHECKED = 600
"""The same where the space is no list: children about whose feasibility nothing is known yet."""
MODEL_ROWS = (256, 128)
"""Most trials that condition the model: the best half of them, and the rest spread over all."""
SCREEN_ROWS = 64
"""Most trials that condition the rough model which decides which candidates are asked about."""
REPAIR_CROSSOVERS = 8
"""Repair crossovers of a generation where the space is no list."""
SCREENED = 96
"""Feasible children that a generation keeps where the space is no list."""
LATE = 256
"""Trial from which a generation has its full length."""
CONSIDERED = (2_000, 600)
"""The same where every row of a list can be looked at."""
GENERATION = 16
"""Most trials of a generation."""
STRIDE = 8
"""Longest first generation: half the window where that is less."""
GROWTH = 32
"""A young generation's length is this part of the trials before it."""
LIST_GROWTH = 6
"""The same for a list, whose candidates do not age, and for its length scales: fitted more often, they follow noise."""
FIT_GROWTH = 16
"""The same for the length scales of a space that is no list: where a search stands decides which genes matter."""
SOUND = 0.5
"""Probability to give a time from which a candidate is sound."""


@dataclass
class Generation:
    """What the trials of one generation share."""

    start: int
    """Number of its first trial."""
    selected: npt.NDArray[np.intp]
    """Trial numbers of the rows that condition the model, later ones appended."""
    candidates: Candidates
    """What may be proposed."""
    ensemble: Ensemble
    """The model."""
    factor: Floats
    """Factor of each candidate: probability to be valid, and what the prior thinks of it."""
    sound: npt.NDArray[np.bool_]
    """Which candidates are more likely to give a time than not, as far as any is."""
    keys: Keys
    """Keys of the candidates."""
    free: npt.NDArray[np.bool_]
    """Which candidates were not proposed yet."""
    plans: dict[int, _niche_restarts.NicheRestartPlan]
    """Slot → what its niche restart may propose; empty where the study is not stuck."""


class Generations:
    """Builds generations, and remembers the latest one."""

    def __init__(self, pool: Pool, features: Features, seed: int, window: int, prior: PriorModel | None) -> None:
        """Remember what every generation needs.

        Args:
            pool: feasibility.
            features: what the model sees of a row.
            seed: the study's seed.
            window: trials in flight.
            prior: a warm start.
        """
        self._genome = pool.genome
        self._pool, self._features, self._prior = pool, features, prior
        self._belief = SMALL if pool.listed else LARGE
        self._seed, self._window = seed, window
        self._stride = max(1, min(STRIDE, window // 2))
        self._list_columns: Floats | None = None
        self.forget()

    def forget(self) -> None:
        """Forget what was remembered: another study is proposed for."""
        self._logs: tuple[int, Floats] | None = None
        self._latest: Generation | None = None

    def start_of(self, number: int) -> int:
        """Return the first trial of the generation to which a trial belongs."""
        growth = LIST_GROWTH if self._pool.listed else GROWTH
        return boundary(number, growth, GENERATION, self._stride)

    def at(self, start: int, seen: Observations) -> Generation:
        """Return the generation that begins at a trial, conditioned on every row proposed since."""
        if self._latest is None or self._latest.start != start:
            self._latest = self._begun(start, seen)
        self._catch_up(self._latest, seen)
        return self._latest

    def _begun(self, start: int, seen: Observations) -> Generation:
        then = seen.before(start, start - self._window)
        rng = np.random.default_rng([self._seed, start])
        late = int(start >= LATE)
        growth = LIST_GROWTH if self._pool.listed else FIT_GROWTH
        logs = self._logs_at(boundary(start, growth, least=self._stride), seen)
        validity = Validity(self._genome, then)
        elites = elites_of(self._genome, then)
        inert = InertGenes(self._genome, then.rows, then.fingerprints)
        plans: dict[int, _niche_restarts.NicheRestartPlan] = {}
        if self._pool.listed:
            candidates = labelled(self._promising(then, logs, validity, inert, rng, CONSIDERED[late]), elites)
        else:
            count = CANDIDATES[late] if self._pool.everything is not None else UNCHECKED
            candidates = self._fresh(breed(self._pool, then, elites, rng, count), then, inert)
            if not candidates.feasible.all():
                columns = self._features(candidates.rows)
                promise = self._promise(candidates.rows, columns, then, logs, validity)
                candidates = screened(self._pool, candidates, promise, SCREENED)
            if self._pool.everything is None:
                more = repair_crossovers(self._pool, then, elites, rng, REPAIR_CROSSOVERS)
                more = more.take(inert.fresh(more.rows, then.rows))
                plans = self._plans(start, then, logs, validity, inert)
                candidates = joined(self._pool, candidates, more, *(plan.candidates for plan in plans.values()))
        kept = representative(then.values, ~then.finished, MODEL_ROWS[late])
        columns = self._features(candidates.rows)
        ensemble = Ensemble(self._features, logs, then.rows[kept], columns, rng, GENERATION, belief=self._belief)
        factor = validity(candidates.rows)
        sound = factor >= min(SOUND, float(factor.max(initial=0.0)))
        if self._prior is not None:
            factor = factor * self._prior.preference(candidates.rows, int(then.finished.sum()))
        keys = self._genome.keys(candidates.rows)
        free = np.ones(len(keys), dtype=bool)
        return Generation(start, then.numbers[kept], candidates, ensemble, factor, sound, keys, free, plans)

    def _plans(
        self, start: int, then: Observations, logs: Floats, validity: Validity, inert: InertGenes
    ) -> dict[int, _niche_restarts.NicheRestartPlan]:
        """Return what the niche restarts of a generation may propose."""
        if not _niche_restarts.is_stuck(then):
            return {}

        def worthwhile(made: Candidates) -> Candidates:
            made = made.take(inert.fresh(made.rows, then.rows))
            return made.take(validity(made.rows) >= SOUND)

        def promise(rows: Rows) -> Floats:
            return self._promise(rows, self._features(rows), then, logs, validity)

        turns = (_niche_restarts.slot_of(number, self._window) for number in range(start, start + GENERATION))
        due = list(dict.fromkeys(slot for slot in turns if slot is not None))
        rng = np.random.default_rng([self._seed, start, 1])
        return _niche_restarts.plans(self._pool, then, due, worthwhile, promise, rng)

    def _fresh(self, candidates: Candidates, then: Observations, inert: InertGenes) -> Candidates:
        """Return the candidates that are not known to be the same program as one before, unless none is left then."""
        fresh = inert.fresh(candidates.rows, then.rows)
        return candidates.take(fresh) if fresh.any() else candidates

    def _promising(
        self,
        then: Observations,
        logs: Floats,
        validity: Validity,
        inert: InertGenes,
        rng: np.random.Generator,
        most: int,
    ) -> Rows:
        """Return the rows of the list that a generation considers: the most promising ones, and some of the rest."""
        assert self._pool.everything is not None
        if self._list_columns is None:
            self._list_columns = self._features(self._pool.everything)
        left = self._pool.left(then.keys)
        rows = self._pool.everything[left]
        fresh = inert.fresh(rows, then.rows)
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

    def _catch_up(self, generation: Generation, seen: Observations) -> None:
        """Condition the model on the rows proposed since the generation began."""
        known = generation.selected[-1] if len(generation.selected) else -1
        later = seen.numbers > max(int(known), generation.start - 1)
        if later.any():
            generation.ensemble.add(seen.rows[later])
            generation.selected = np.append(generation.selected, seen.numbers[later])
            generation.free &= ~np.isin(generation.keys, seen.keys[later])


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
