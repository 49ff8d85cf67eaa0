"""The model of the time: a small ensemble of Gaussian processes that disagree where the data do.

One fit of the length scales is the centre; the members scatter around it, so that a proposal does not hang on one
guess of which genes matter, nor on one belief in how far choices act on their own, numbers as mere names, and genes not
at all. They see log(time) with its slow tail compressed, because a landscape's bad half says little about its best
corner.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr, ndtr

from evokern.samplers.evo._features import Features, Floats
from evokern.samplers.evo._gaussian import LOG_WEIGHT, LOG_WEIGHT_BARE, Process, fit_weights
from evokern.samplers.evo.genome import Rows

SCATTER = 0.7
"""Standard deviation of the members' log weights around the fit."""
DOUBTER = 1
"""The member for which the bare names of a number weigh as much as any other group: it keeps looking for the one value
that is better than its neighbours on either side."""
OPEN_MINDED = 3
"""The member for which no gene is without effect, where an ensemble is that large: a choice that changed nothing so far
may still decide beside choices that were not tried with it."""
LEAST_LOG_WEIGHT = 0.0
"""Least log weight, for that member, of a gene's name and of the scales of a number."""
ROWS_FIT = 96
"""Most trials from which the length scales are fitted."""


@dataclass(frozen=True)
class Belief:
    """What is believed of a space before anything is measured."""

    linear: tuple[float, ...]
    """Of each Gaussian process in the ensemble: the share of the variance that choices add wherever they are made."""
    spread: float
    """Prior standard deviation of the logarithms of the length scales' weights."""


SMALL: Final = Belief((0.6, 0.3, 0.8, 0.6), 1.0)
"""A space that is a short list; one look at all of it leaves time for a further member."""
LARGE: Final = Belief((0.3, 0.0, 0.6), 1.5)
"""A space of dozens of genes, of which some decide and many hardly matter, and choices matter beside others."""


@dataclass(frozen=True)
class Forecast:
    """What the ensemble says of every candidate."""

    improvement: Floats
    """Expected improvement on the best time, in standard deviations of the targets, averaged over the members."""
    optimism: Floats
    """Lowest plausible target, mean minus two standard deviations, averaged: lower is more promising."""
    log_time: Floats
    """Predicted log(time)."""


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


def fit(
    features: Features, rows: Rows, values: Floats, failed: npt.NDArray[np.bool_], belief: Belief = SMALL
) -> Floats:
    """Return the length scales that explain finished trials best.

    Args:
        features: columns and groups.
        rows: the trials' configurations.
        values: their log times, NaN where there is none.
        failed: which of them failed; the rest without a time is pending and left out.
        belief: what is believed of the space.
    """
    known = ~np.isnan(values) | failed
    rows, values = rows[known], values[known]
    kept = representative(values, np.zeros(len(values), dtype=bool), ROWS_FIT)
    targets, _ = targets_of(values[kept])
    return fit_weights(features, features(rows[kept]), standardised(targets), belief.spread)


def standardised(targets: Floats) -> Floats:
    """Return targets with mean 0 and standard deviation 1."""
    standard: Floats = (targets - targets.mean()) / (targets.std() + 1e-9)
    return standard


class Ensemble:
    """Predicts the time of fixed candidates from trials that keep coming in."""

    def __init__(
        self,
        features: Features,
        logs: Floats,
        rows: Rows,
        candidates: Floats,
        rng: np.random.Generator,
        room: int,
        members: int | None = None,
        belief: Belief = SMALL,
    ) -> None:
        """Build the members.

        Args:
            features: columns and groups.
            logs: fitted log weights and log noise.
            rows: configurations that condition the model.
            candidates: columns of the configurations that it is asked about.
            rng: scatters the members.
            room: rows that may be added later.
            members: how many, None: all; the first is the fit itself.
            belief: what is believed of the space.
        """
        self._features = features
        columns = features(rows)
        self._count = len(candidates)
        least = np.append(np.where(features.product | features.bare, -np.inf, LEAST_LOG_WEIGHT), -np.inf)
        doubt = np.append(np.where(features.bare, LOG_WEIGHT - LOG_WEIGHT_BARE, 0.0), 0.0)
        self._members: list[Process] = []
        for member, linear in enumerate(belief.linear[:members]):
            scatter = SCATTER * rng.standard_normal(len(logs)) * (member > 0)
            own = np.clip(logs + scatter + (doubt if member == DOUBTER else 0.0), -12.0, 6.0)
            own[-1] = min(own[-1], -1.0)
            if member == OPEN_MINDED:
                own = np.maximum(own, least)
            self._members.append(Process(features, own, columns, candidates, room, linear))

    def add(self, rows: Rows) -> None:
        """Take in rows that were proposed since."""
        for row in self._features(rows):
            for member in self._members:
                member.add(row)

    def forecast(self, values: Floats, finished: npt.NDArray[np.bool_], over: float | None = None) -> Forecast:
        """Return what the ensemble says of its candidates.

        Args:
            values: log times of the rows in the order they were taken in, NaN where there is none.
            finished: which of the rows have a result. Rows after the first that has none count as pending.
            over: log time on which improvement is expected, None: the best.
        """
        known = len(finished) if finished.all() else int(np.argmin(finished))
        targets, scale = targets_of(values[:known])
        centre, spread = float(targets.mean()), float(targets.std()) + 1e-9
        y = standardised(targets)
        best = float(y.min())
        if over is not None:
            best = (float(scale.compress(np.array([over]))[0]) - centre) / spread
        improvement, optimism, mean = (np.zeros(self._count) for _ in range(3))
        for member in self._members:
            own, sd = member.predict(y)
            improvement += _expected_improvement(best, own, sd)
            optimism += own - 2.0 * sd
            mean += own
        share = 1.0 / len(self._members)
        return Forecast(improvement * share, optimism * share, scale.expand(mean * share * spread + centre))


def _expected_improvement(best: float, mean: Floats, sd: Floats) -> Floats:
    z = (best - mean) / sd
    density = np.exp(-0.5 * z * z) / np.sqrt(2.0 * np.pi)
    improvement: Floats = sd * (z * ndtr(z) + density)
    # Far from any improvement the difference cancels; the tail's asymptote keeps the order of candidates.
    far = z <= -5.0
    if far.any():
        improvement[far] = np.exp(np.log(sd[far]) + log_ndtr(z[far]) - np.log(-z[far]))
    return improvement
