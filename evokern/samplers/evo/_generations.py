"""Generations: work that several consecutive trials share, which keeps proposals cheap.

A generation starts at a fixed trial number and uses only results visible at that point: length scales, candidates, and
the conditioned model. Another process builds the same generation for a later trial.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evokern.samplers.evo import _candidates
from evokern.samplers.evo._candidates import CandidateSet
from evokern.samplers.evo._features import Features, Floats
from evokern.samplers.evo._gaussian import Candidates
from evokern.samplers.evo._model import Model, TrainingTrials, fit, representative
from evokern.samplers.evo._observations import Observations
from evokern.samplers.evo._pool import Pool
from evokern.samplers.evo._prior import SeveralStudiesPrior, StudyPrior, TimeModelPrior
from evokern.samplers.evo._validity import FailureCounts, Validity
from evokern.samplers.genome import InertGenes, Keys

MODEL_ROWS = 384
"""Maximum number of trials in the model: the best half, and an even selection of the rest."""
OTHERS_ROWS = 256
"""Maximum number of other studies' trials among them; this study's own trials replace them over time."""
GENERATION = 24
"""Maximum length of a generation, unless `SHARE_IN_FLIGHT` allows more."""
SHARE_IN_FLIGHT = 8
"""Divisor of the number of trials in flight for the maximum length, such as 48 for 384. This makes proposals a fifth
cheaper at equal quality (docs/lab/2026-11-26-sampler.md)."""
GROWTH = 32
"""Divisor of the trial number for the length of early generations."""
_LATE_TRIAL = 10**9
"""Trial number at which every schedule has reached its maximum."""
FIT_GROWTH = 16
"""Divisor of the trial number for the distance between refits of the length scales; relevant genes change over time."""
LEAST_TIMES = 3
"""Minimum number of known times for using the model."""
LATE = 4.0
"""Initial penalty on the log score for each low-priority value."""
LATE_FADES = 24.0
"""Number of trials after which the penalty is halved."""


@dataclass
class Generation:
    """Data that the trials of a generation share."""

    start: int
    """Number of the first trial."""
    latest: int
    """Number of the latest trial in the model."""
    made: CandidateSet
    """Feasible candidates."""
    keys: Keys
    """Keys of the candidates."""
    free: npt.NDArray[np.bool_]
    """Mask of candidates not proposed yet."""
    model: Model
    """Model of the candidates' times."""
    candidates: Candidates
    """Candidates in the form that the model uses."""
    weight: Floats
    """Log factor of each candidate: probability of success, prior preference, and penalty of low-priority values."""


class Generations:
    """Builder of generations, with a cache of the latest one."""

    def __init__(
        self,
        pool: Pool,
        features: Features,
        seed: int,
        in_flight: Callable[[int], int],
        prior: StudyPrior | None,
    ) -> None:
        """Store the inputs of all generations.

        Args:
            pool: Feasibility of rows.
            features: Features of a row.
            seed: Seed of the study.
            in_flight: Function that returns the number of trials in flight with a given trial, including that trial.
            prior: Warm start.
        """
        self._genome = pool.genome
        self._pool, self._features, self._prior = pool, features, prior
        self._seed, self._in_flight = seed, in_flight
        self._longest = max(GENERATION, in_flight(_LATE_TRIAL) // SHARE_IN_FLIGHT)
        self.clear()

    def clear(self) -> None:
        """Clear the cache, for use with another study."""
        self._logs: tuple[int, Floats] | None = None
        self._latest: Generation | None = None
        self._failures = FailureCounts(self._genome)

    def start_of(self, number: int) -> int:
        """Return the first trial of the generation that contains a trial."""
        return boundary(number, GROWTH, self._longest)

    def visible(self, number: int, seen: Observations) -> Observations:
        """Return the observations that were known when a trial was proposed."""
        return seen.before(number, number - self._in_flight(number))

    def at(self, start: int, seen: Observations) -> Generation | None:
        """Return the generation that starts at a trial, conditioned on all rows proposed since then.

        The result is None if too few times were visible at that point for a model.
        """
        if self._latest is None or self._latest.start != start:
            then = self.visible(start, seen)
            if then.timed.sum() < LEAST_TIMES:
                return None
            self._latest = self._begun(start, seen, then)
        generation = self._latest
        later = seen.numbers > generation.latest
        if later.any():
            generation.model.add(seen.rows[later], generation.candidates)
            generation.latest = int(seen.numbers[-1])
            generation.free &= ~np.isin(generation.keys, seen.keys[later])
        return generation

    def _begun(self, start: int, seen: Observations, then: Observations) -> Generation:
        rng = np.random.default_rng([self._seed, start])
        logs = self._logs_at(boundary(start, FIT_GROWTH), seen)
        model = Model(self._features, logs, self._known(then), self._longest)
        validity = Validity(self._genome, then, self._failures)
        inert = InertGenes(self._genome, then.rows, then.fingerprints)
        finished = int(then.finished.sum())

        def weight_of(made: CandidateSet) -> Floats:
            weight = np.log(validity(made.rows) + 1e-9)
            if isinstance(self._prior, TimeModelPrior):
                weight += np.log(self._prior.preference(made.rows, finished))
            weight -= LATE * LATE_FADES / (LATE_FADES + finished) * self._genome.low_priority_count(made.rows)
            return weight

        made, looked = self._found(model, then, inert, weight_of, rng)
        keys = self._genome.keys(made.rows)
        latest = int(then.numbers[-1]) if len(then) else -1
        return Generation(start, latest, made, keys, np.ones(len(keys), dtype=bool), model, looked, weight_of(made))

    def _found(
        self,
        model: Model,
        then: Observations,
        inert: InertGenes,
        weight_of: Callable[[CandidateSet], Floats],
        rng: np.random.Generator,
    ) -> tuple[CandidateSet, Candidates]:
        """Return feasible candidates: those made from elites, then (in rounds) neighbours of the most promising."""
        taken = then.keys
        parts: list[tuple[CandidateSet, Candidates, Floats]] = []
        climbed: set[int] = set()
        for turn in range(1 + _candidates.ROUNDS):
            if turn == 0:
                made = _candidates.bred(self._pool, then, rng)
                if isinstance(self._prior, SeveralStudiesPrior | TimeModelPrior):
                    made = CandidateSet.joined([made, _candidates.bred_from(self._pool, self._prior.elites, rng)])
            else:
                rows = np.concatenate([part[0].rows for part in parts])
                parents = np.concatenate([part[0].parents[:, 0] for part in parts])
                order = np.argsort(-np.concatenate([part[2] for part in parts]), kind="stable")
                tops = [int(at) for at in order if int(at) not in climbed][: _candidates.CLIMBERS]
                climbed.update(tops)
                made = _candidates.neighbours(self._genome, rows[tops], parents[tops])
                made = made.take(np.sort(rng.permutation(len(made.rows))[: _candidates.LOOKED_AT]))
            made = made.distinct(self._genome, taken)
            fresh = inert.fresh(made.rows, then.rows)
            if fresh.any():
                made = made.take(fresh)
            if turn and not len(made.rows):
                break
            # Do not consider the same row twice, even if it was infeasible.
            taken = np.concatenate([taken, self._genome.keys(made.rows)])
            looked = model.candidates(made.rows)
            score = model.forecast(looked).score + weight_of(made)
            place = min(turn, 1)
            limits = (_candidates.FOUND[place], _candidates.ASKED[place], _candidates.LEAST[place])
            kept = _candidates.most_promising_feasible(self._pool, made.rows, score, *limits)
            parts.append((made.take(kept), looked.take(kept), score[kept]))
        return CandidateSet.joined([part[0] for part in parts]), Candidates.joined([part[1] for part in parts])

    def _logs_at(self, number: int, seen: Observations) -> Floats:
        if self._logs is None or self._logs[0] != number:
            self._logs = number, fit(self._features, self._known(self.visible(number, seen)))
        return self._logs[1]

    def _known(self, then: Observations) -> TrainingTrials:
        """Return the trials for a model: this study's, and other studies' while there is space."""
        kept = representative(then.values, ~then.finished, MODEL_ROWS)
        own = TrainingTrials(then.rows[kept], then.values[kept], then.finished[kept], np.zeros(len(kept)))
        if not isinstance(self._prior, SeveralStudiesPrior):
            return own
        return own.with_others(self._prior.known(then, min(OTHERS_ROWS, MODEL_ROWS - len(kept))))


def boundary(number: int, growth: int, most: int | None = None) -> int:
    """Return the last boundary that is at most `number`; the distances between boundaries grow with the study.

    Args:
        number: Trial number.
        growth: Divisor of the trial number for the step, which is at least 1.
        most: Maximum step.
    """
    at = 0
    while True:
        step = max(1, at // growth)
        if most is not None and step >= most:
            return at + (number - at) // most * most
        if at + step > number:
            return at
        at += step
