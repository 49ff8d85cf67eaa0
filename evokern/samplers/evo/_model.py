"""The model of the time: targets from log times, one Gaussian process over them, and what it expects of candidates.

It sees log(time) with its slow tail compressed, because a landscape's bad half says little about its best corner.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr, ndtr

from evokern.samplers.evo._features import Features, Floats
from evokern.samplers.evo._gaussian import Candidates, Process, fit_weights
from evokern.samplers.genome import Rows

FIT_ROWS = 96
"""Most trials from which the length scales are fitted."""
SPREAD = 1.5
"""Prior standard deviation of the logarithms of the groups' weights: of dozens of genes some decide and many hardly
matter."""
HOPELESS = -9.0
"""Logarithm of an expected improvement below which there is little to gain from a candidate."""
FLATTENED = 0.02
"""How much differences below it count: where little is left to gain, a candidate that may fail is none to try."""
LINEAR = 0.6
"""Share of the variance that choices add wherever they are made."""


@dataclass(frozen=True)
class Scale:
    """How log times become targets: distances from their median in median absolute deviations, slow ones compressed."""

    centre: float
    """Median of the log times."""
    unit: float
    """Their median absolute deviation."""

    @classmethod
    def of(cls, values: Floats) -> Scale:
        """Return the scale of known log times."""
        centre = float(np.median(values))
        return cls(centre, float(np.median(np.abs(values - centre))) + 1e-9)

    def compress(self, values: Floats) -> Floats:
        """Return targets of log times; the slow side's distances become logarithms."""
        distance = (values - self.centre) / self.unit
        compressed: Floats = np.where(distance > 0, np.log1p(np.maximum(distance, 0.0)), distance)
        return compressed

    def expand(self, targets: Floats) -> Floats:
        """Return the log times of targets."""
        distance = np.where(targets > 0, np.expm1(np.clip(targets, 0.0, 20.0)), targets)
        expanded: Floats = self.centre + self.unit * distance
        return expanded


def targets_of(values: Floats) -> tuple[Floats, Scale]:
    """Return targets of log times, NaN where there is none, and their scale.

    A failure is as bad as the slowest success: worse would tear holes into the model beside good regions.
    """
    timed = ~np.isnan(values)
    scale = Scale.of(values[timed])
    targets = np.zeros(len(values))
    targets[timed] = scale.compress(values[timed])
    targets[~timed] = targets[timed].max()
    return targets, scale


def standardised(targets: Floats) -> Floats:
    """Return targets with mean 0 and standard deviation 1."""
    standard: Floats = (targets - targets.mean()) / (targets.std() + 1e-9)
    return standard


def representative(values: Floats, must: npt.NDArray[np.bool_], most: int) -> npt.NDArray[np.intp]:
    """Return the positions of at most `most` trials: the best half, those that must stay, others evenly spread.

    Args:
        values: log times, NaN where there is none.
        must: trials that stay whatever happens (pending ones).
        most: how many to keep.
    """
    if len(values) <= most:
        return np.arange(len(values))
    kept = must.copy()
    kept[np.argsort(np.where(np.isnan(values), np.inf, values), kind="stable")[: most // 2]] = True
    rest = np.flatnonzero(~kept)
    room = max(most - int(kept.sum()), 0)
    if room:
        kept[rest[np.linspace(0, len(rest) - 1, room).astype(int)]] = True
    return np.flatnonzero(kept)


@dataclass(frozen=True)
class Known:
    """Trials that condition a model: those with a result first, pending ones behind."""

    rows: Rows
    """Their configurations."""
    values: Floats
    """Their log times; NaN where there is none: a failure, or pending."""
    finished: npt.NDArray[np.bool_]
    """Which of them have a result."""
    problem: Floats
    """How far each one's problem is from this study's: 0 for its own."""

    @classmethod
    def of(cls, rows: Rows, values: Floats, problem: Floats | None = None) -> Known:
        """Return trials with a time each."""
        there = np.zeros(len(rows)) if problem is None else problem
        return cls(rows, values, np.ones(len(rows), dtype=bool), there)

    def take(self, kept: npt.NDArray[np.intp] | npt.NDArray[np.bool_]) -> Known:
        """Return some of them, by position or by mask."""
        return Known(self.rows[kept], self.values[kept], self.finished[kept], self.problem[kept])

    def beside(self, other: Known | None) -> Known:
        """Return these with finished ones of other studies, before the pending ones."""
        if other is None:
            return self
        parts = self.take(self.finished), other, self.take(~self.finished)
        return Known(
            np.concatenate([part.rows for part in parts]),
            np.concatenate([part.values for part in parts]),
            np.concatenate([part.finished for part in parts]),
            np.concatenate([part.problem for part in parts]),
        )


def fit(features: Features, known: Known) -> Floats:
    """Return the length scales that explain finished trials best, `FIT_ROWS` of this study and of others each.

    Args:
        features: columns and groups.
        known: the trials; pending ones are left out.
    """
    known = known.take(known.finished)
    own = known.problem == 0.0
    kept = np.concatenate(
        [
            np.flatnonzero(part)[representative(known.values[part], np.zeros(int(part.sum()), dtype=bool), FIT_ROWS)]
            for part in (own, ~own)
        ]
    )
    known = known.take(kept)
    targets, _ = targets_of(known.values)
    return fit_weights(features, features(known.rows, known.problem), standardised(targets), SPREAD)


@dataclass(frozen=True)
class Forecast:
    """What the model says of candidates."""

    score: Floats
    """Logarithm of the expected improvement on the best time, in standard deviations; flattened below `HOPELESS`."""
    log_time: Floats
    """Predicted log(time)."""


class Model:
    """Predicts the time of candidates from trials that keep coming in."""

    def __init__(self, features: Features, logs: Floats, known: Known, room: int) -> None:
        """Condition on trials.

        Args:
            features: columns and groups.
            logs: fitted log weights and log noise.
            known: the trials, of this study at least one that is finished.
            room: rows that may be added later.
        """
        self._features = features
        finished = int(known.finished.sum())
        targets, self._scale = targets_of(known.values[:finished])
        self._centre, self._spread = float(targets.mean()), float(targets.std()) + 1e-9
        y = standardised(targets)
        self._best = float(y[known.problem[:finished] == 0.0].min())
        self._process = Process(features, logs, features(known.rows, known.problem), y, room, LINEAR)

    def candidates(self, rows: Rows) -> Candidates:
        """Return rows as the process sees them, to be asked about again and again."""
        return self._process.candidates(self._features(rows))

    def add(self, rows: Rows, candidates: Candidates) -> None:
        """Take in rows that were proposed since, pending ones, and what they change for some candidates."""
        for row in self._features(rows):
            self._process.add(row, candidates)

    def forecast(self, candidates: Candidates) -> Forecast:
        """Return what the model says of candidates."""
        mean, sd = self._process.predict(candidates)
        score = _log_expected_improvement(self._best, mean, sd)
        score = np.where(score < HOPELESS, HOPELESS + FLATTENED * (score - HOPELESS), score)
        return Forecast(score, self._scale.expand(mean * self._spread + self._centre))


def _log_expected_improvement(best: float, mean: Floats, sd: Floats) -> Floats:
    z = (best - mean) / sd
    density = np.exp(-0.5 * z * z) / np.sqrt(2.0 * np.pi)
    improvement: Floats = np.log(np.maximum(sd * (z * ndtr(z) + density), 1e-300))
    # Far from any improvement the difference cancels; the tail's asymptote keeps the order of candidates.
    far = z <= -5.0
    if far.any():
        improvement[far] = np.log(sd[far]) + log_ndtr(z[far]) - np.log(-z[far])
    return improvement
