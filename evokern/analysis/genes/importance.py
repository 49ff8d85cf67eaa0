"""Which genes decide the time: a forest over the measured trials, with intervals from bootstrap repeats.

Importance is the loss of explained variance when one gene's values are permuted among trials that the forest has not
seen (Breiman, Random Forests, Machine Learning 45 (2001), section 10). The effect of a value is its partial dependence
(Friedman, Greedy function approximation, Annals of Statistics 29 (2001), section 8.2): the mean predicted log(time)
when every trial is given that value. Each repeat fits a forest to trials drawn with replacement, judged on the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from evokern.declaration.space import Config, Gene, Space, Value

Floats = npt.NDArray[np.float64]

LEAST_TRIALS = 24
"""Measured trials below which a forest says nothing that would hold."""
TREES = 32
"""Trees of each repeat's forest."""
MOST_ROWS = 200
"""Trials over which partial dependence is averaged."""


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
    space: Space, configs: Sequence[Config], logs: Sequence[float], seed: int = 0, effort: Effort = FULL
) -> Importance | None:
    """Return each gene's importance and effect; None with fewer than `LEAST_TRIALS` trials, or times all alike.

    Args:
        space: the genes.
        configs: configuration of each measured trial.
        logs: its log(time).
        seed: of the bootstrap.
        effort: how much is spent on it.
    """
    rng = np.random.default_rng(seed)
    kept = _kept(np.asarray(logs, dtype=float), effort.most, rng)
    configs, times = [configs[i] for i in kept], np.asarray(logs, dtype=float)[kept]
    genes = [gene for gene in space.genes if len({config[gene.name] for config in configs}) > 1]
    if len(kept) < LEAST_TRIALS or not genes or times.std() < 1e-6:
        return None
    active = np.array([[space.active(gene, config) for gene in genes] for config in configs])
    levels = np.array([[gene.values.index(config[gene.name]) for gene in genes] for config in configs])
    found = [_repeat(genes, levels, active, times, rng) for _ in range(effort.repeats)]
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


@dataclass(frozen=True)
class _Repeat:
    losses: Floats
    dependence: list[Floats]
    explained: float


def _kept(logs: Floats, most: int, rng: np.random.Generator) -> npt.NDArray[np.intp]:
    order = np.argsort(logs, kind="stable")
    if len(order) <= most:
        return np.sort(order)
    half = most // 2
    return np.sort(np.concatenate([order[:half], rng.choice(order[half:], most - half, replace=False)]))


def _repeat(
    genes: Sequence[Gene],
    levels: npt.NDArray[np.int_],
    active: npt.NDArray[np.bool_],
    times: Floats,
    rng: np.random.Generator,
) -> _Repeat:
    count = len(times)
    drawn = rng.integers(count, size=count)
    rest = np.setdiff1d(np.arange(count), drawn)
    forest = _forest(_features(genes, levels[drawn]), times[drawn], int(rng.integers(2**31)))
    variance = float(times[rest].var()) or 1.0
    asked = [levels[rest]]
    for index in range(len(genes)):
        permuted = levels[rest].copy()
        permuted[:, index] = rng.permutation(permuted[:, index])
        asked.append(permuted)
    curves, waiting = [], []
    for index, gene in enumerate(genes):
        curve = np.full(len(gene.values), np.nan)
        curves.append(curve)
        measured, rows = _changed(levels, active, index, rng)
        if rows:
            waiting.append((curve, measured, len(asked)))
            asked += rows
        else:
            curve[measured] = 0.0
    # All at once: asking a forest costs milliseconds, however little is asked.
    predicted = _predict(forest, genes, asked)
    errors = np.array([np.square(one - times[rest]).mean() for one in predicted[: len(genes) + 1]])
    for curve, measured, first in waiting:
        curve[measured] = [one.mean() for one in predicted[first : first + len(measured)]]
    return _Repeat((errors[1:] - errors[0]) / variance, curves, 1 - float(errors[0]) / variance)


def _changed(
    levels: npt.NDArray[np.int_], active: npt.NDArray[np.bool_], index: int, rng: np.random.Generator
) -> tuple[npt.NDArray[np.int_], list[npt.NDArray[np.int_]]]:
    """Return a gene's values where it matters, and for each the trials with that value; no trials with fewer than two.

    The mean prediction over each is the gene's partial dependence.
    """
    matters = np.flatnonzero(active[:, index])
    measured = np.unique(levels[matters, index])
    if len(measured) < 2:
        return np.unique(levels[:, index]), []
    rows = levels[rng.choice(matters, min(len(matters), MOST_ROWS), replace=False)]
    found = []
    for level in measured:
        changed = rows.copy()
        changed[:, index] = level
        found.append(changed)
    return measured, found


def _forest(features: npt.NDArray[np.float32], times: Floats, seed: int) -> list[Any]:
    """Return extremely randomised trees (Geurts, Ernst and Wehenkel, Machine Learning 63 (2006), 3).

    They are those of scikit-learn's `ExtraTreesRegressor`, which takes as long again to see to its threads and to check
    what each of its trees is given.
    """
    from sklearn import config_context
    from sklearn.tree import ExtraTreeRegressor

    rng = np.random.RandomState(seed)
    trees = [
        ExtraTreeRegressor(max_features=1.0, min_samples_leaf=2, random_state=rng.randint(np.iinfo(np.int32).max))
        for _ in range(TREES)
    ]
    with config_context(skip_parameter_validation=True):
        return [tree.fit(features, times, check_input=False) for tree in trees]


def _predict(trees: Sequence[Any], genes: Sequence[Gene], asked: Sequence[npt.NDArray[np.int_]]) -> list[Floats]:
    """Return the predicted log(time) of each of several lists of trials: the mean over the trees."""
    ends = np.cumsum([len(rows) for rows in asked])[:-1]
    features = _features(genes, np.concatenate(asked))
    total = np.zeros(len(features))
    for tree in trees:
        total += tree.predict(features, check_input=False)
    return np.split(total / len(trees), ends)


def _features(genes: Sequence[Gene], levels: npt.NDArray[np.int_]) -> npt.NDArray[np.float32]:
    """Return numbers by their rank, and code choices one column per value."""
    columns: list[npt.NDArray[np.generic]] = []
    for index, gene in enumerate(genes):
        if gene.layer == "parameter" or len(gene.values) == 2:
            columns.append(levels[:, index])
        else:
            columns += [levels[:, index] == level for level in range(len(gene.values))]
    return np.column_stack(columns).astype(np.float32)


def _interval(values: Floats) -> tuple[float, float]:
    low, high = np.percentile(values, (2.5, 97.5))
    return float(low), float(high)
