"""Generations: what the trials of a stretch share, so that a proposal stays cheap.

A generation begins at a fixed trial number and uses only what was visible then: length scales, candidates, the model
and what it was conditioned on. Another process that is asked for a later trial builds the same one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evokern.samplers.evo import _candidates
from evokern.samplers.evo._candidates import Made
from evokern.samplers.evo._features import Features, Floats
from evokern.samplers.evo._gaussian import Candidates
from evokern.samplers.evo._model import Known, Model, fit, representative
from evokern.samplers.evo._observations import Observations
from evokern.samplers.evo._pool import Pool
from evokern.samplers.evo._prior import OtherStudies, StudyPrior, TimeModelPrior
from evokern.samplers.evo._validity import FailureCounts, Validity
from evokern.samplers.genome import Keys
from evokern.samplers.inert_genes import InertGenes

MODEL_ROWS = 384
"""Most trials that condition the model: the best half of them, and the rest spread over all."""
OTHERS_ROWS = 256
"""Most trials of other studies among them; as this study's own grow numerous they make room."""
GENERATION = 24
"""Most trials of a generation, unless `SHARE_IN_FLIGHT` allows more."""
SHARE_IN_FLIGHT = 8
"""A generation may have one in so many of the trials in flight: 48 of 384. A proposal sees nothing of the last 384
then; longer generations make it a fifth cheaper. On nine landscapes, one seed each, the best after 800, 1,200 and 1,600
trials was the same with 48 as with 24, and after 1,000 trials .003 of the reference less."""
GROWTH = 32
"""A young generation's length is this part of the trials before it."""
_LATE_TRIAL = 10**9
"""A trial with as many in flight as a schedule ever has."""
FIT_GROWTH = 16
"""The same for the length scales: where a search stands decides which genes matter."""
LEAST_TIMES = 3
"""Times that must be known before the model speaks."""
LATE = 4.0
"""How much is taken off the logarithm of a score, at first, for each value that is to be tried late."""
LATE_FADES = 24.0
"""Trials after which half of it is taken off."""


@dataclass
class Generation:
    """What the trials of one generation share."""

    start: int
    """Number of its first trial."""
    latest: int
    """Number of the latest trial that conditions the model."""
    made: Made
    """What may be proposed: feasible."""
    keys: Keys
    """Keys of the candidates."""
    free: npt.NDArray[np.bool_]
    """Which candidates were not proposed yet."""
    model: Model
    """The model."""
    candidates: Candidates
    """The candidates as the model sees them."""
    weight: Floats
    """Logarithm of each candidate's factor: probability to be valid, what a prior thinks of it, values to try late."""


class Generations:
    """Builds generations, and remembers the latest one."""

    def __init__(
        self,
        pool: Pool,
        features: Features,
        seed: int,
        in_flight: Callable[[int], int],
        prior: StudyPrior | None,
    ) -> None:
        """Remember what every generation needs.

        Args:
            pool: feasibility.
            features: what the model sees of a row.
            seed: the study's seed.
            in_flight: trial number → trials in flight, its own among them.
            prior: a warm start.
        """
        self._genome = pool.genome
        self._pool, self._features, self._prior = pool, features, prior
        self._seed, self._in_flight = seed, in_flight
        self._longest = max(GENERATION, in_flight(_LATE_TRIAL) // SHARE_IN_FLIGHT)
        self.forget()

    def forget(self) -> None:
        """Forget what was remembered: another study is proposed for."""
        self._logs: tuple[int, Floats] | None = None
        self._latest: Generation | None = None
        self._failures = FailureCounts(self._genome)

    def start_of(self, number: int) -> int:
        """Return the first trial of the generation to which a trial belongs."""
        return boundary(number, GROWTH, self._longest)

    def visible(self, number: int, seen: Observations) -> Observations:
        """Return what was known when a trial was proposed."""
        return seen.before(number, number - self._in_flight(number))

    def at(self, start: int, seen: Observations) -> Generation | None:
        """Return the generation that begins at a trial, conditioned on every row proposed since.

        None where too few times were visible then for a model.
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

        def weight_of(made: Made) -> Floats:
            weight = np.log(validity(made.rows) + 1e-9)
            if isinstance(self._prior, TimeModelPrior):
                weight += np.log(self._prior.preference(made.rows, finished))
            weight -= LATE * LATE_FADES / (LATE_FADES + finished) * self._genome.late(made.rows)
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
        weight_of: Callable[[Made], Floats],
        rng: np.random.Generator,
    ) -> tuple[Made, Candidates]:
        """Return feasible candidates: bred ones, then neighbours of the most promising, round by round."""
        taken = then.keys
        parts: list[tuple[Made, Candidates, Floats]] = []
        climbed: set[int] = set()
        for turn in range(1 + _candidates.ROUNDS):
            if turn == 0:
                made = _candidates.bred(self._pool, then, rng)
                if isinstance(self._prior, OtherStudies | TimeModelPrior):
                    made = Made.joined([made, _candidates.bred_from(self._pool, self._prior.elites, rng)])
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
            # What was looked at once is not looked at again, infeasible ones included.
            taken = np.concatenate([taken, self._genome.keys(made.rows)])
            looked = model.candidates(made.rows)
            score = model.forecast(looked).score + weight_of(made)
            place = min(turn, 1)
            limits = (_candidates.FOUND[place], _candidates.ASKED[place], _candidates.LEAST[place])
            kept = _candidates.asked(self._pool, made.rows, score, *limits)
            parts.append((made.take(kept), looked.take(kept), score[kept]))
        return Made.joined([part[0] for part in parts]), Candidates.joined([part[1] for part in parts])

    def _logs_at(self, number: int, seen: Observations) -> Floats:
        if self._logs is None or self._logs[0] != number:
            self._logs = number, fit(self._features, self._known(self.visible(number, seen)))
        return self._logs[1]

    def _known(self, then: Observations) -> Known:
        """Return the trials that condition a model: this study's, and as far as these leave room those of others."""
        kept = representative(then.values, ~then.finished, MODEL_ROWS)
        own = Known(then.rows[kept], then.values[kept], then.finished[kept], np.zeros(len(kept)))
        if not isinstance(self._prior, OtherStudies):
            return own
        return own.beside(self._prior.known(then, min(OTHERS_ROWS, MODEL_ROWS - len(kept))))


def boundary(number: int, growth: int, most: int | None = None) -> int:
    """Return the last fixed trial number up to `number`, in steps that grow with the study.

    Args:
        number: a trial number.
        growth: a step is this part of the trials before it, at least 1.
        most: longest step.
    """
    at = 0
    while True:
        step = max(1, at // growth)
        if most is not None and step >= most:
            return at + (number - at) // most * most
        if at + step > number:
            return at
        at += step
