"""What a warm start says of candidates that it does not name.

A time model's word on this very study is taken as it is, and fades. What another study found is about another problem
or another version of the kernel: how much of it holds here is for the data to say, so it is one more column of the
features. Several other studies tell that themselves, by how much they differ: they are observations of this study's
model, at problems of their own.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

from evokern.declaration.genes import Config
from evokern.samplers._prior import Entries, Prior
from evokern.samplers.evo._features import Features, Floats
from evokern.samplers.evo._gaussian import Process
from evokern.samplers.evo._model import LINEAR, Known, fit, representative, standardised, targets_of
from evokern.samplers.evo._observations import Observations
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
ENTRIES = 192
"""Most entries from which a time model's prior is made: the best half of them, and the rest spread over all."""
BEYOND = 0.2
"""How far below a prior's best entry candidates are still told apart, in standard deviations of its entries."""
SEVERAL = 3
"""Studies from which on they are observations. Of a landscape of attention with 1,024 keys alone, at 512: .61, .67 and
.74 of the optimum after 20, 35 and 60 trials as observations, .69, .76 and .84 as a column (4 seeds); of up to eleven
studies the other way round (docs/sampler.md)."""
ELITES = 12
"""Fastest candidates of other studies, or by a time model, from which new ones are made."""
APART = (0.5, 0.25, 1.5)
"""Place of another study in the column of problems, this one's being 0: at the same problem, for each power of two that
its problem is away, and at most."""


class _SpreadPrior:
    """A prior's entries, spread over the whole space by a model of their own."""

    def __init__(self, prior: Prior, genome: Genome, features: Features) -> None:
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
        logs = fit(features, Known.of(rows[kept], values[kept]))
        self._process = Process(features, logs, features(rows[kept]), targets, 0, LINEAR)
        self._least, self._most = float(targets.min()) - BEYOND, float(targets.max()) + 1e-9

    def _mean(self, rows: Rows) -> Floats:
        return self._process.predict(self._process.candidates(self._features(rows)))[0]


class TimeModelPrior(_SpreadPrior):
    """What a time model says of this very study."""

    def __init__(self, prior: Prior, genome: Genome, features: Features) -> None:
        super().__init__(prior, genome, features)
        self.elites: Rows = genome.rows(config for config, _ in prior.entries[:ELITES])
        """Its fastest candidates."""

    def preference(self, rows: Rows, finished: int) -> Floats:
        """Return the factor on the acquisition of each row after `finished` trials: it fades to 1."""
        mean = self._mean(rows)
        preference: Floats = np.exp(-2.0 * (mean - mean.min()) * STRENGTH / (STRENGTH + finished))
        return preference


class NearestStudy(_SpreadPrior):
    """What another study found, and what was fastest in one or two more."""

    def expected(self, rows: Rows) -> Floats:
        """Return what it expects of rows: 0 is better than all of its entries by a little, 1 its worst one."""
        share: Floats = np.clip((self._mean(rows) - self._least) / (self._most - self._least), 0.0, 1.0)
        return share


class OtherStudies:
    """What several other studies found, as observations of this study's model.

    Their times differ from this one's by a factor each, which what several of them tried tells: the default at least.
    """

    def __init__(self, prior: Prior, genome: Genome) -> None:
        self.best: Rows = genome.rows(config for config, _ in prior.entries)
        """The nearest one's configurations, best first."""
        self.leaders: Rows = genome.rows(prior.leaders)
        """What was fastest in further ones, the nearest first."""
        studies = [(prior.distance, prior.entries), *((one.distance, one.entries) for one in prior.further)]
        nearest = dict(prior.entries)
        self._rows: Rows = np.concatenate([genome.rows(config for config, _ in entries) for _, entries in studies])
        self._keys = genome.keys(self._rows)
        self._values = np.concatenate([_as_there(entries, nearest) for _, entries in studies])
        least, each, most = APART
        self._problem = np.concatenate(
            [np.full(len(entries), min(least + each * distance, most)) for distance, entries in studies]
        )

    @cached_property
    def elites(self) -> Rows:
        """Their fastest candidates, each once."""
        order = np.argsort(self._values, kind="stable")
        _, first = np.unique(self._keys[order], return_index=True)
        return self._rows[order[np.sort(first)][:ELITES]]

    def known(self, seen: Observations, most: int) -> Known | None:
        """Return what they found, as this study would have timed it; None before it has timed a candidate of theirs.

        Args:
            seen: this study's trials.
            most: trials of theirs at most: the best half of them, and the rest spread over all.
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
        return Known.of(self._rows[kept], self._values[kept] + float(np.median(behind)), self._problem[kept])


StudyPrior = TimeModelPrior | NearestStudy | OtherStudies
"""What a study may begin with."""


def study_prior(prior: Prior, genome: Genome, features: Features) -> tuple[StudyPrior, Features]:
    """Return what a prior says, and the features of a model that listens to it."""
    if prior.modelled:
        return TimeModelPrior(prior, genome, features), features
    if 1 + len(prior.further) >= SEVERAL:
        return OtherStudies(prior, genome), features.with_problems()
    nearest = NearestStudy(prior, genome, features)
    return nearest, features.expecting(nearest.expected)


def _as_there(entries: Entries, nearest: dict[Config, float]) -> Floats:
    """Return a study's log times as the nearest one would have them: by what both tried, else by their best."""
    values = np.array([value for _, value in entries])
    shared = [nearest[config] - value for config, value in entries if config in nearest]
    behind = float(np.median(shared)) if shared else min(nearest.values()) - float(values.min())
    return values + behind


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
