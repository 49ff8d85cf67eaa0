"""What a warm start says of candidates that it does not name: a model of its entries over the whole space.

A time model's word on this very study is taken as it is, and fades. What another study found is about another problem
or another version of the kernel: how much of it holds here is for the data to say, so it is one more column of the
features.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from evokern.samplers._prior import Prior
from evokern.samplers.evo._features import Features, Floats
from evokern.samplers.evo._gaussian import Process
from evokern.samplers.evo._model import LINEAR, fit, representative, standardised, targets_of
from evokern.samplers.genome import Genome, Rows

STRENGTH = 10.0
"""Trials after which the prior's word and the model's count alike (the exponent of Hvarfner et al. 2022, piBO)."""
DISTINCT = 0.005
"""Difference in log(time) from which two of a prior's configurations are worth a trial each: what a time model gives
one time differs in nothing that it sees."""
GOOD = 0.2
"""Difference in log(time) up to which a configuration is not far behind."""
MISJUDGED = 0.4
"""Difference in log(time) by which a prior may misjudge a code choice: a factor of one and a half."""
BEYOND = 0.2
"""How far below a prior's best entry candidates are still told apart, in standard deviations of its entries."""
ENTRIES = 192
"""Most entries from which the prior's model is made: the best half of them, and the rest spread over all."""


class PriorModel:
    """A prior, spread from its entries over the whole space."""

    def __init__(self, prior: Prior, genome: Genome, features: Features) -> None:
        self.modelled = prior.modelled
        """Whether a time model gave its times for this very study."""
        rows = genome.rows(config for config, _ in prior.entries)
        values = np.array([value for _, value in prior.entries])
        self.best: Rows = rows[_distinct_times(values)]
        """The prior's configurations, best first; of those that it gives nearly the same time only the first."""
        self.leaders: Rows = genome.rows(prior.leaders)
        """What was fastest in further studies, the nearest first."""
        self.good: Rows = rows[_not_far_behind(genome, rows, values)]
        """Its configurations that are not far behind its best, or not behind the best with the same code choice."""
        self._features = features
        kept = representative(values, np.zeros(len(values), dtype=bool), ENTRIES)
        targets = standardised(targets_of(values[kept])[0])
        logs = fit(features, rows[kept], values[kept], np.zeros(len(kept), dtype=bool))
        self._process = Process(features, logs, features(rows[kept]), targets, 0, LINEAR)
        self._least, self._most = float(targets.min()) - BEYOND, float(targets.max()) + 1e-9

    def expected(self, rows: Rows) -> Floats:
        """Return what the prior expects of rows: 0 is better than all of its entries by a little, 1 its worst one."""
        mean, _ = self._process.predict(self._process.candidates(self._features(rows)))
        share: Floats = np.clip((mean - self._least) / (self._most - self._least), 0.0, 1.0)
        return share

    def preference(self, rows: Rows, finished: int) -> Floats:
        """Return the factor on the acquisition of each row after `finished` trials: it fades to 1."""
        mean, _ = self._process.predict(self._process.candidates(self._features(rows)))
        preference: Floats = np.exp(-2.0 * (mean - mean.min()) * STRENGTH / (STRENGTH + finished))
        return preference


def _distinct_times(values: Floats) -> list[int]:
    """Return the positions in ascending values that differ from the one chosen before."""
    chosen: list[int] = []
    for position, value in enumerate(values):
        if not chosen or value >= values[chosen[-1]] + DISTINCT:
            chosen.append(position)
    return chosen


def _not_far_behind(genome: Genome, rows: Rows, values: Floats) -> npt.NDArray[np.bool_]:
    """Tell which rows are little behind the best of some code choice, where that may be misjudged.

    Whatever a prior errs about, it errs about for every configuration that makes the same choice: its best ones, which
    are alike, may all be bad. So the best of the other choices count as good too.
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
