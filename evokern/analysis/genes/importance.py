"""Which genes decide the time: a forest over the measured trials, with intervals from bootstrap repeats.

Importance is the loss of explained variance when one gene's values are permuted among trials that the forest has not
seen (Breiman, Random Forests, Machine Learning 45 (2001), section 10). The effect of a value is its partial dependence
(Friedman, Greedy function approximation, Annals of Statistics 29 (2001), section 8.2): the mean predicted log(time)
when every trial is given that value. Each repeat fits a forest to trials drawn with replacement, judged on the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evokern.analysis.genes.forest import Floats, ForestFit, Forests
from evokern.declaration.genes import Config, Value
from evokern.declaration.space import Space

LEAST_TRIALS = 24
"""Measured trials below which a forest says nothing that would hold."""


@dataclass(frozen=True)
class Effort:
    """How much is spent on the answer."""

    repeats: int = 16
    """Bootstrap repeats: their 3rd and 97th percentiles are the intervals told as 95 %."""
    most: int = 2_000
    """Trials that are looked at, the fastest ones first and the rest by lot: more change nothing and cost seconds."""


FULL = Effort()
"""For a command that is asked for nothing else."""


@dataclass(frozen=True)
class GeneEffect:
    """What one gene does to the time."""

    share: float
    """Its part of all genes' importances, 0 to 1."""
    share_ci95: tuple[float, float]
    """95 % interval of the share."""
    ratio: float
    """Predicted time at its worst value ÷ at its best value, everything else as it is."""
    ratio_ci95: tuple[float, float]
    """95 % interval of the ratio."""
    relative: Mapping[Value, float]
    """Value → predicted time ÷ that of the best value; only values that were measured."""

    @property
    def best(self) -> Value:
        """The value with the least predicted time."""
        return min(self.relative, key=lambda value: self.relative[value])


@dataclass(frozen=True)
class Importance:
    """What the forest says of every gene."""

    effects: Mapping[str, GeneEffect]
    """Gene → its effect; genes that were measured at one value only are left out."""
    explained: float
    """Share of the variance of log(time) that the forests explain on trials they have not seen, at most 1."""
    trials: int
    """Measured trials that it is fitted to."""


def importance(
    space: Space,
    configs: Sequence[Config],
    logs: Sequence[float],
    seed: int = 0,
    effort: Effort = FULL,
    fit: Callable[[Forests], Sequence[ForestFit]] = Forests.fit,
) -> Importance | None:
    """Return each gene's importance and effect; None with fewer than `LEAST_TRIALS` trials, or times all alike.

    Args:
        space: the genes.
        configs: configuration of each measured trial.
        logs: its log(time).
        seed: of the bootstrap.
        effort: how much is spent on it.
        fit: fits the forests, here or in another process.
    """
    rng = np.random.default_rng(seed)
    kept = _kept(np.asarray(logs, dtype=float), effort.most, rng)
    configs, times = [configs[i] for i in kept], np.asarray(logs, dtype=float)[kept]
    genes = [gene for gene in space.genes if len({config[gene.name] for config in configs}) > 1]
    if len(kept) < LEAST_TRIALS or not genes or times.std() < 1e-6:
        return None
    active = np.array([[space.active(gene, config) for gene in genes] for config in configs])
    levels = np.array([[gene.values.index(config[gene.name]) for gene in genes] for config in configs])
    found = fit(Forests(genes, levels, active, times, rng, effort.repeats))
    losses = np.array([repeat.losses for repeat in found])
    shares = np.maximum(losses, 0) / np.maximum(np.maximum(losses, 0).sum(axis=1, keepdims=True), 1e-12)
    effects = {}
    for index, gene in enumerate(genes):
        curves = np.array([repeat.dependence[index] for repeat in found])  # repeats × values, NaN where never measured
        measured = ~np.isnan(curves).all(axis=0)
        spread = np.nanmax(curves, axis=1) - np.nanmin(curves, axis=1)
        middle = np.nanmedian(curves[:, measured], axis=0)
        values = [value for value, known in zip(gene.values, measured, strict=True) if known]
        effects[gene.name] = GeneEffect(
            float(shares[:, index].mean()),
            _interval(shares[:, index]),
            float(np.exp(middle.max() - middle.min())),
            _interval(np.exp(spread)),
            {value: float(np.exp(level - middle.min())) for value, level in zip(values, middle, strict=True)},
        )
    return Importance(effects, float(np.mean([repeat.explained for repeat in found])), len(kept))


def _kept(logs: Floats, most: int, rng: np.random.Generator) -> npt.NDArray[np.intp]:
    order = np.argsort(logs, kind="stable")
    if len(order) <= most:
        return np.sort(order)
    half = most // 2
    return np.sort(np.concatenate([order[:half], rng.choice(order[half:], most - half, replace=False)]))


def _interval(values: Floats) -> tuple[float, float]:
    low, high = np.percentile(values, (2.5, 97.5))
    return float(low), float(high)
