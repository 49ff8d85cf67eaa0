"""The model of the time: a small ensemble of Gaussian processes that disagree where the data do.

One fit of the length scales is the centre; the members scatter around it, so that a proposal does not hang on one
guess of which genes matter, and half of them see log(time) with its slow tail compressed, because a landscape's bad
half says little about its best corner.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr, ndtr

from evokern.samplers.evo._features import Features, Floats
from evokern.samplers.evo._gaussian import Process, fit_weights
from evokern.samplers.evo._genome import Rows

MEMBERS = 4
"""Gaussian processes in the ensemble."""
SCATTER = 0.7
"""Standard deviation of the members' log weights around the fit."""
ROWS_FIT = 96
"""Most trials from which the length scales are fitted."""


@dataclass(frozen=True)
class Forecast:
    """What the ensemble says of every candidate."""

    improvement: Floats
    """Expected improvement on the best time, in standard deviations of the targets, averaged over the members."""
    optimism: Floats
    """Lowest plausible target, mean minus two standard deviations, averaged: lower is more promising."""
    log_time: Floats
    """Predicted log(time)."""


def compress(values: Floats) -> Floats:
    """Return log times as distances from their median, in median absolute deviations, the slow side's logarithm."""
    centre = np.median(values)
    distance = (values - centre) / (np.median(np.abs(values - centre)) + 1e-9)
    compressed: Floats = np.where(distance > 0, np.log1p(np.maximum(distance, 0.0)), distance)
    return compressed


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


def fit(features: Features, rows: Rows, values: Floats, failed: npt.NDArray[np.bool_]) -> Floats:
    """Return the length scales that explain finished trials best.

    Args:
        features: columns and groups.
        rows: the trials' configurations.
        values: their log times, NaN where there is none.
        failed: which of them failed; the rest without a time is pending and left out.
    """
    known = ~np.isnan(values) | failed
    rows, values = rows[known], values[known]
    kept = representative(values, np.zeros(len(values), dtype=bool), ROWS_FIT)
    targets = _standardised(_targets(values[kept], slow_tail=False))
    return fit_weights(features, features(rows[kept]), targets)


class Ensemble:
    """Predicts the time of fixed candidates from trials that keep coming in."""

    def __init__(
        self,
        features: Features,
        logs: Floats,
        rows: Rows,
        candidates: Rows,
        rng: np.random.Generator,
        room: int,
        members: int = MEMBERS,
    ) -> None:
        self._features = features
        columns, targets = features(rows), features(candidates)
        self._count = len(candidates)
        self._members: list[Process] = []
        for member in range(members):
            scatter = SCATTER * rng.standard_normal(len(logs)) * (member > 0)
            own = np.clip(logs + scatter, -12.0, 6.0)
            own[-1] = min(own[-1], -1.0)
            self._members.append(Process(features, own, columns, targets, room))

    def add(self, rows: Rows) -> None:
        """Take in rows that were proposed since."""
        for row in self._features(rows):
            for member in self._members:
                member.add(row)

    def forecast(self, values: Floats, finished: npt.NDArray[np.bool_]) -> Forecast:
        """Return what the ensemble says of its candidates.

        Args:
            values: log times of the rows in the order they were taken in, NaN where there is none.
            finished: which of the rows have a result. Rows after the first that has none count as pending.
        """
        known = len(finished) if finished.all() else int(np.argmin(finished))
        improvement, optimism, log_time = (np.zeros(self._count) for _ in range(3))
        both = [_targets(values[:known], slow_tail=slow_tail) for slow_tail in (False, True)]
        scales = [(float(raw.mean()), float(raw.std()) + 1e-9) for raw in both]
        standard = [(raw - centre) / spread for raw, (centre, spread) in zip(both, scales, strict=True)]
        for index, member in enumerate(self._members):
            y, (centre, spread) = standard[index % 2], scales[index % 2]
            mean, sd = member.predict(y)
            improvement += _expected_improvement(float(y.min()), mean, sd) / len(self._members)
            optimism += (mean - 2.0 * sd) / len(self._members)
            if index % 2 == 1:
                log_time += (mean * spread + centre) / (MEMBERS // 2)
        return Forecast(improvement, optimism, log_time)


def _targets(values: Floats, *, slow_tail: bool) -> Floats:
    timed = ~np.isnan(values)
    targets = np.zeros(len(values))
    targets[timed] = values[timed] if slow_tail else compress(values[timed])
    # A failure is as bad as the slowest success: worse would tear holes into the model beside good regions.
    targets[~timed] = targets[timed].max()
    return targets


def _standardised(targets: Floats) -> Floats:
    standard: Floats = (targets - targets.mean()) / (targets.std() + 1e-9)
    return standard


def _expected_improvement(best: float, mean: Floats, sd: Floats) -> Floats:
    z = (best - mean) / sd
    density = np.exp(-0.5 * z * z) / np.sqrt(2.0 * np.pi)
    plain = sd * (z * ndtr(z) + density)
    # Far from any improvement the difference cancels; the tail's asymptote keeps the order of candidates.
    tail = np.exp(np.log(sd) + log_ndtr(z) - np.log(np.maximum(-z, 1.0)))
    improvement: Floats = np.where(z > -5.0, plain, tail)
    return improvement
