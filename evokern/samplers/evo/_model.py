"""Model of the time: a Gaussian process over scaled log times, and its forecasts.

The slow tail of log(time) is compressed, because slow candidates reveal little about the fastest ones.
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
"""Maximum number of trials for fitting the length scales."""
SPREAD = 1.5
"""Prior standard deviation of the groups' log weights: of dozens of genes, a few matter much and many hardly matter."""
FLATTEN_BELOW = -9.0
"""Log expected improvement below which a candidate has little to gain."""
FLATTENED = 0.02
"""Factor on score differences below that limit, so that failure risk matters more than tiny gains."""
LINEAR = 0.6
"""Variance share of the linear part, in which each choice has the same effect everywhere."""


@dataclass(frozen=True)
class Scale:
    """Conversion of log times to targets: scaled distances from the median, compressed on the slow side."""

    centre: float
    """Median of the log times."""
    unit: float
    """Median absolute deviation of the log times."""

    @classmethod
    def of(cls, values: Floats) -> Scale:
        """Return the scale for known log times."""
        centre = float(np.median(values))
        return cls(centre, float(np.median(np.abs(values - centre))) + 1e-9)

    def compress(self, values: Floats) -> Floats:
        """Return the targets for log times; distances on the slow side become logarithmic."""
        distance = (values - self.centre) / self.unit
        compressed: Floats = np.where(distance > 0, np.log1p(np.maximum(distance, 0.0)), distance)
        return compressed

    def expand(self, targets: Floats) -> Floats:
        """Return the log times that correspond to targets."""
        distance = np.where(targets > 0, np.expm1(np.clip(targets, 0.0, 20.0)), targets)
        expanded: Floats = self.centre + self.unit * distance
        return expanded


def targets_of(values: Floats) -> tuple[Floats, Scale]:
    """Return targets of log times (NaN if unknown) and their scale.

    A failure counts as the slowest success; a worse value would spoil good regions nearby.
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
    """Return the indices of at most `most` trials: the best half, required ones, and an even selection of the rest.

    Args:
        values: Log times; NaN if unknown.
        must: Mask of trials to keep in any case (pending ones).
        most: Maximum number to keep.
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
class TrainingTrials:
    """Trials that condition a model: finished ones first, then pending ones."""

    rows: Rows
    """Configurations of the trials."""
    values: Floats
    """Log times; NaN for failed and pending trials."""
    finished: npt.NDArray[np.bool_]
    """Mask of finished trials."""
    problem: Floats
    """Distance of each trial's problem from this study's; 0 for this study's own trials."""

    @classmethod
    def of(cls, rows: Rows, values: Floats, problem: Floats | None = None) -> TrainingTrials:
        """Return finished trials with times."""
        there = np.zeros(len(rows)) if problem is None else problem
        return cls(rows, values, np.ones(len(rows), dtype=bool), there)

    def take(self, kept: npt.NDArray[np.intp] | npt.NDArray[np.bool_]) -> TrainingTrials:
        """Return a subset, by index or mask."""
        return TrainingTrials(self.rows[kept], self.values[kept], self.finished[kept], self.problem[kept])

    def with_others(self, other: TrainingTrials | None) -> TrainingTrials:
        """Return these trials with the finished trials of other studies inserted before the pending trials."""
        if other is None:
            return self
        parts = self.take(self.finished), other, self.take(~self.finished)
        return TrainingTrials(
            np.concatenate([part.rows for part in parts]),
            np.concatenate([part.values for part in parts]),
            np.concatenate([part.finished for part in parts]),
            np.concatenate([part.problem for part in parts]),
        )


def fit(features: Features, known: TrainingTrials) -> Floats:
    """Return the length scales that best explain finished trials; at most `FIT_ROWS` each of this and other studies.

    Args:
        features: Columns and groups.
        known: Trials; pending ones are ignored.
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
    """Predictions for candidates."""

    score: Floats
    """Log expected improvement on the best time, in standard deviations; flattened below `FLATTEN_BELOW`."""
    log_time: Floats
    """Predicted log(time)."""


class Model:
    """Predictor of candidate times that accepts additional pending trials."""

    def __init__(self, features: Features, logs: Floats, known: TrainingTrials, room: int) -> None:
        # words: `room` is a parameter name
        """Condition the model on trials.

        Args:
            features: Columns and groups.
            logs: Fitted log weights and log noise.
            known: Trials; at least one finished trial of this study.
            room: Number of rows that can be added later.
        """
        self._features = features
        finished = int(known.finished.sum())
        targets, self._scale = targets_of(known.values[:finished])
        self._centre, self._spread = float(targets.mean()), float(targets.std()) + 1e-9
        y = standardised(targets)
        self._best = float(y[known.problem[:finished] == 0.0].min())
        self._process = Process(features, logs, features(known.rows, known.problem), y, room, LINEAR)

    def candidates(self, rows: Rows) -> Candidates:
        """Return candidates in a form that can be queried repeatedly."""
        return self._process.candidates(self._features(rows))

    def add(self, rows: Rows, candidates: Candidates) -> None:
        """Add pending rows, and update the given candidates."""
        for row in self._features(rows):
            self._process.add(row, candidates)

    def forecast(self, candidates: Candidates) -> Forecast:
        """Return the predictions for candidates."""
        mean, sd = self._process.predict(candidates)
        score = _log_expected_improvement(self._best, mean, sd)
        score = np.where(score < FLATTEN_BELOW, FLATTEN_BELOW + FLATTENED * (score - FLATTEN_BELOW), score)
        return Forecast(score, self._scale.expand(mean * self._spread + self._centre))


def _log_expected_improvement(best: float, mean: Floats, sd: Floats) -> Floats:
    z = (best - mean) / sd
    density = np.exp(-0.5 * z * z) / np.sqrt(2.0 * np.pi)
    improvement: Floats = np.log(np.maximum(sd * (z * ndtr(z) + density), 1e-300))
    # Far below the best, the difference cancels; use the asymptotic form to keep the ranking.
    far = z <= -5.0
    if far.any():
        improvement[far] = np.log(sd[far]) + log_ndtr(z[far]) - np.log(-z[far])
    return improvement
