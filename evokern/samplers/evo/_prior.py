"""Extension of a warm start to configurations that it does not contain.

A time model predicts this study itself. Its predictions are used directly, and their influence fades. Another study has
a different problem or kernel version. Its predictions become a feature, and the data decide how relevant it is. Several
other studies show how much problems differ, so their trials become observations of the model, each with its problem.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

from evokern.declaration.genes import Config
from evokern.samplers.contract import Entries, Prior
from evokern.samplers.evo._features import Features, Floats
from evokern.samplers.evo._gaussian import Process
from evokern.samplers.evo._model import LINEAR, TrainingTrials, fit, representative, standardised, targets_of
from evokern.samplers.evo._observations import Observations
from evokern.samplers.genome import Genome, Rows

STRENGTH = 10.0
"""Number of trials after which prior and model have equal influence (exponent of piBO, Hvarfner et al. 2022)."""
DISTINCT = 0.005
"""Minimum difference in log(time) between prior configurations that are each worth a trial. Equal predictions mean that
the time model sees no difference."""
GOOD = 0.2
"""Maximum difference in log(time) between the best configuration and one that counts as good."""
MISJUDGED = 0.4
"""Difference in log(time) by which a prior may misjudge a code choice: a factor of 1.5."""
ENTRIES = 192
"""Maximum number of entries from a time model: the best half, and an even selection of the rest."""
BEYOND = 0.2
"""Distance below a prior's best entry at which candidates still differ, in standard deviations of its entries."""
SEVERAL = 3
"""Minimum number of studies to use as observations; one or two become a feature, which works better
(docs/lab/2026-11-26-sampler.md)."""
ELITES = 12
"""Number of fastest candidates of a time model or other studies used as parents."""
PROBLEM_POSITIONS = (0.5, 0.25, 1.5)
"""Position of another study in the problem column (0 is this study): for the same problem, increase per power of two of
distance, and maximum."""


class _SpreadPrior:
    """Entries of a prior, extended to the whole space by a model."""

    def __init__(self, prior: Prior, genome: Genome, features: Features) -> None:
        rows = genome.rows(config for config, _ in prior.entries)
        values = np.array([value for _, value in prior.entries])
        self.best: Rows = rows[_distinct_times(values)]
        """Configurations of the prior, best first, without those of nearly equal times."""
        self.leaders: Rows = genome.rows(prior.leaders)
        """Best candidates of further studies, nearest first."""
        self.good: Rows = rows[_near_best(genome, rows, values)]
        """Configurations close to the best, or to the best with the same code choice."""
        self._features = features
        kept = representative(values, np.zeros(len(values), dtype=bool), ENTRIES)
        targets = standardised(targets_of(values[kept])[0])
        logs = fit(features, TrainingTrials.of(rows[kept], values[kept]))
        self._process = Process(features, logs, features(rows[kept]), targets, 0, LINEAR)
        self._least, self._most = float(targets.min()) - BEYOND, float(targets.max()) + 1e-9

    def _mean(self, rows: Rows) -> Floats:
        return self._process.predict(self._process.candidates(self._features(rows)))[0]


class TimeModelPrior(_SpreadPrior):
    """Predictions of a time model for this study."""

    def __init__(self, prior: Prior, genome: Genome, features: Features) -> None:
        super().__init__(prior, genome, features)
        self.elites: Rows = genome.rows(config for config, _ in prior.entries[:ELITES])
        """Fastest candidates of the prior."""

    def preference(self, rows: Rows, finished: int) -> Floats:
        """Return the factor for each row's acquisition value after `finished` trials; it tends to 1."""
        mean = self._mean(rows)
        preference: Floats = np.exp(-2.0 * (mean - mean.min()) * STRENGTH / (STRENGTH + finished))
        return preference


class NearestStudyPrior(_SpreadPrior):
    """Results of the nearest study, and the best results of one or two others."""

    def expected(self, rows: Rows) -> Floats:
        """Return the expected times of rows, from 0 (slightly better than the best entry) to 1 (the worst entry)."""
        share: Floats = np.clip((self._mean(rows) - self._least) / (self._most - self._least), 0.0, 1.0)
        return share


class SeveralStudiesPrior:
    """Results of several other studies as observations of this study's model.

    Their times are scaled to this study by the candidates tried in both, at least the default.
    """

    def __init__(self, prior: Prior, genome: Genome) -> None:
        self.best: Rows = genome.rows(config for config, _ in prior.entries)
        """Configurations of the nearest study, best first."""
        self.leaders: Rows = genome.rows(prior.leaders)
        """Best candidates of further studies, nearest first."""
        studies = [(prior.distance, prior.entries), *((one.distance, one.entries) for one in prior.further)]
        nearest = dict(prior.entries)
        self._rows: Rows = np.concatenate([genome.rows(config for config, _ in entries) for _, entries in studies])
        self._keys = genome.keys(self._rows)
        self._values = np.concatenate([_as_there(entries, nearest) for _, entries in studies])
        least, each, most = PROBLEM_POSITIONS
        self._problem = np.concatenate(
            [np.full(len(entries), min(least + each * distance, most)) for distance, entries in studies]
        )

    @cached_property
    def elites(self) -> Rows:
        """Fastest distinct candidates of the other studies."""
        order = np.argsort(self._values, kind="stable")
        _, first = np.unique(self._keys[order], return_index=True)
        return self._rows[order[np.sort(first)][:ELITES]]

    def known(self, seen: Observations, most: int) -> TrainingTrials | None:
        """Return the trials of other studies scaled to this study, or None before this study has timed one of them.

        Args:
            seen: Trials of this study.
            most: Maximum number of trials: the best half, and an even selection of the rest.
        """
        if most <= 0:
            return None
        behind = [
            float(seen.values[at] - self._values[same].mean())
            for at in np.flatnonzero(seen.timed)
            if (same := self._keys == seen.keys[at]).any()
        ]
        if not behind:
            return None
        kept = representative(self._values, np.zeros(len(self._values), dtype=bool), most)
        return TrainingTrials.of(self._rows[kept], self._values[kept] + float(np.median(behind)), self._problem[kept])


StudyPrior = TimeModelPrior | NearestStudyPrior | SeveralStudiesPrior
"""A warm start in the form used by a study."""


def study_prior(prior: Prior, genome: Genome, features: Features) -> tuple[StudyPrior, Features]:
    """Return a prior in the form used by a study, and the model's features extended for it."""
    if prior.from_time_model:
        return TimeModelPrior(prior, genome, features), features
    if 1 + len(prior.further) >= SEVERAL:
        return SeveralStudiesPrior(prior, genome), features.with_problems()
    nearest = NearestStudyPrior(prior, genome, features)
    return nearest, features.expecting(nearest.expected)


def _as_there(entries: Entries, nearest: dict[Config, float]) -> Floats:
    """Return a study's log times scaled to the nearest study, by shared candidates or else by their best."""
    values = np.array([value for _, value in entries])
    shared = [nearest[config] - value for config, value in entries if config in nearest]
    behind = float(np.median(shared)) if shared else min(nearest.values()) - float(values.min())
    return values + behind


def _distinct_times(values: Floats) -> list[int]:
    """Return the indices in ascending values that differ enough from the previously chosen one."""
    chosen: list[int] = []
    for position, value in enumerate(values):
        if not chosen or value >= values[chosen[-1]] + DISTINCT:
            chosen.append(position)
    return chosen


def _near_best(genome: Genome, rows: Rows, values: Floats) -> npt.NDArray[np.bool_]:
    """Return a mask of rows close to the best, or to the best with the same code choice.

    An error of the prior affects all configurations with the same choice. Its best ones are similar and may all be bad,
    so the best of other choices also count as good.
    """
    lag = np.full(len(rows), np.inf)
    for index, gene in enumerate(genome.genes):
        if gene.layer == "mutation":
            for value in np.unique(rows[:, index]):
                same = rows[:, index] == value
                lag[same] = np.minimum(lag[same], values[same] - values[same].min())
    ahead = values - values.min()
    good: npt.NDArray[np.bool_] = (ahead <= GOOD) | ((lag <= GOOD) & (ahead <= MISJUDGED))
    return good
