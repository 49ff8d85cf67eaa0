"""Importance and effects of genes: forests over the measured trials, with intervals from bootstrap repeats.

Importance is the loss of explained variance when a gene's values are permuted in held-out trials (Breiman, Random
Forests, Machine Learning 45 (2001), section 10). The effect of a value is its partial dependence (Friedman, Greedy
function approximation, Annals of Statistics 29 (2001), section 8.2): the mean predicted log(time) with every trial set
to that value. Each repeat fits a forest to trials drawn with replacement and evaluates it on the others.
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
"""Minimum number of measured trials for a useful forest."""


@dataclass(frozen=True)
class Effort:
    """Computational effort of the analysis."""

    repeats: int = 16
    """Number of bootstrap repeats; their 2.5 and 97.5 % quantiles are the 95 % intervals."""
    most: int = 2_000
    """Maximum number of trials to use: the fastest and a random sample, half each. More do not improve the result."""


FULL = Effort()
"""Effort of the command `show --genes`."""


@dataclass(frozen=True)
class GeneEffect:
    """Effect of one gene on the time."""

    share: float
    """Share of the total importance of all genes, from 0 to 1."""
    share_ci95: tuple[float, float]
    """95 % confidence interval of the share."""
    ratio: float
    """Predicted time with the worst value divided by that with the best value, other genes unchanged."""
    ratio_ci95: tuple[float, float]
    """95 % confidence interval of the ratio."""
    relative: Mapping[Value, float]
    """Measured value → predicted time divided by that of the best value."""

    @property
    def best(self) -> Value:
        """Value with the shortest predicted time."""
        return min(self.relative, key=lambda value: self.relative[value])


@dataclass(frozen=True)
class Importance:
    """Effects of all genes, estimated by forests."""

    effects: Mapping[str, GeneEffect]
    """Gene → effect, without genes that were measured with only one value."""
    explained: float
    """Share of the variance of log(time) that the forests explain on held-out trials, at most 1."""
    trials: int
    """Number of trials to which the forests were fitted."""


def importance(
    space: Space,
    configs: Sequence[Config],
    logs: Sequence[float],
    seed: int = 0,
    effort: Effort = FULL,
    fit: Callable[[Forests], Sequence[ForestFit]] = Forests.fit,
) -> Importance | None:
    """Return each gene's importance and effect, or None with fewer than `LEAST_TRIALS` trials or equal times.

    Args:
        space: the genes.
        configs: configuration of each measured trial.
        logs: log(time) of each measured trial.
        seed: seed of the bootstrap.
        effort: computational effort.
        fit: function that fits the forests, in this or another process.
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
        curves = np.array(
            [repeat.dependence[index] for repeat in found]
        )  # shape [repeats, values]; NaN if never measured
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
