"""A warm start: what another study, another device or a time model says before anything is measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evokern.errors import StudyError
from evokern.samplers.evo._features import Features, Floats
from evokern.samplers.evo._gaussian import Process
from evokern.samplers.evo._genome import Genome, Rows
from evokern.samplers.evo._surrogate import fit, representative, standardised, targets_of
from evokern.space import Config, Space, Value

STRENGTH = 10.0
"""Trials after which the prior's word and the model's count alike (the exponent of Hvarfner et al. 2022, piBO)."""
APART = 0.005
"""Difference in log(time) from which two of a prior's configurations are worth a trial each: what a time model gives
one time differs in nothing that it sees."""
GOOD = 0.2
"""Difference in log(time) up to which a configuration is not far behind."""
MISJUDGED = 0.4
"""Difference in log(time) by which a prior may misjudge a code choice: a factor of one and a half."""
ENTRIES = 192
"""Most entries from which the prior's model is made: the best half of them, and the rest spread over all."""


@dataclass(frozen=True)
class Prior:
    """Configurations of this space with the log times that something else gave them."""

    entries: tuple[tuple[Config, float], ...]
    """Canonical configuration and its log(time), on any scale; each configuration once, best first."""
    source: str
    """Where they come from, for messages: `runs.db:attention-s128`, `sim:h200`."""
    used: tuple[str, ...] = ()
    """Genes that the source and this space share."""
    ignored: tuple[str, ...] = ()
    """Genes that only one of them has, with the reason: unknown here, or absent there and set to the default."""

    def __post_init__(self) -> None:
        if not self.entries:
            raise StudyError(f"warm start from {self.source} has no usable trial; leave --warm-start away")

    @classmethod
    def from_trials(cls, space: Space, trials: Iterable[tuple[Mapping[str, Value], float]], source: str) -> Prior:
        """Take over the trials of another study, gene by gene.

        Args:
            space: this study's space.
            trials: configuration and log(time) of each measured trial.
            source: where they come from.

        Raises:
            StudyError: no gene is shared, or no trial has values that this space knows.
        """
        known = [(dict(values), float(value)) for values, value in trials]
        there = {name for values, _ in known for name in values}
        here = [gene.name for gene in space.genes]
        used = tuple(name for name in here if name in there)
        if not used:
            raise StudyError(f"warm start from {source} shares no gene with this kernel ({', '.join(here)})")
        ignored = tuple(f"{name} (unknown here)" for name in sorted(there - set(here))) + tuple(
            f"{name} (not there: {space.gene(name).default})" for name in here if name not in there
        )
        best: dict[Config, float] = {}
        for values, value in known:
            if all(values[name] in space.gene(name).values for name in used if name in values):
                config = space.canonical({name: values.get(name, space.gene(name).default) for name in here})
                best[config] = min(value, best.get(config, value))
        ordered = sorted(best.items(), key=lambda entry: (entry[1], entry[0].key))
        return cls(tuple(ordered), source, used, ignored)


class PriorModel:
    """A prior, spread from its entries over the whole space."""

    def __init__(self, prior: Prior, genome: Genome, features: Features) -> None:
        rows = genome.rows(config for config, _ in prior.entries)
        values = np.array([value for _, value in prior.entries])
        self.best: Rows = rows[_apart(values)]
        """The prior's configurations, best first; of those that it gives nearly the same time only the first."""
        self.good: Rows = rows[_not_far_behind(genome, rows, values)]
        """Its configurations that are not far behind its best, or not behind the best with the same code choice."""
        self._features = features
        kept = representative(values, np.zeros(len(values), dtype=bool), ENTRIES)
        self._rows = rows[kept]
        self._targets = standardised(targets_of(values[kept])[0])
        self._logs = fit(features, self._rows, values[kept], np.zeros(len(kept), dtype=bool))

    def preference(self, rows: Rows, told: int) -> Floats:
        """Return the factor by which the acquisition of each row is multiplied after `told` results: it fades to 1."""
        process = Process(self._features, self._logs, self._features(self._rows), self._features(rows), 0)
        mean, _ = process.predict(self._targets)
        preference: Floats = np.exp(-2.0 * (mean - mean.min()) * STRENGTH / (STRENGTH + told))
        return preference


def _apart(values: Floats) -> list[int]:
    """Return the positions in ascending values that lie apart from the one chosen before."""
    chosen: list[int] = []
    for position, value in enumerate(values):
        if not chosen or value >= values[chosen[-1]] + APART:
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
