"""Importance and effects of genes: forests over the measured trials, with intervals from bootstrap repeats.

Importance is the loss of explained variance when a gene's values are permuted in held-out trials (Breiman, Random
Forests, Machine Learning 45 (2001), section 10). The effect of a value is its partial dependence (Friedman, Greedy
function approximation, Annals of Statistics 29 (2001), section 8.2): the mean predicted log(time) with every trial set
to that value. Each repeat fits a forest to trials drawn with replacement and evaluates it on the others. The forests
are fitted here or in a separate process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt

from evokern.declaration.genes import Config, Gene, Value
from evokern.declaration.space import Space
from evokern.workers.pool import OwnServerPool, WorkerSpec
from evokern.workers.single_job import run_single_job

Floats = npt.NDArray[np.float64]
_T = TypeVar("_T")

TREES = 32
"""Number of trees per forest."""
MOST_ROWS = 200
"""Maximum number of trials over which the partial dependence is averaged."""
MANY_BYTES = 4 * 2**20
"""Minimum database size in bytes for a separate process, which then starts faster than the database is read."""
FIT_S = 600.0
"""Time limit for all repeats in a separate process, in seconds."""


@dataclass(frozen=True)
class ForestFit:
    """Result of one repeat's forest."""

    losses: Floats
    """Loss of explained variance when a gene's values are permuted, shape [genes]."""
    dependence: list[Floats]
    """For each gene, mean predicted log(time) at each value; NaN for values that were never measured."""
    explained: float
    """Share of the variance explained on held-out trials."""


@dataclass(frozen=True)
class Forests:
    """Training data and settings of the forests."""

    genes: Sequence[Gene]
    """Genes with more than one value among the trials."""
    levels: npt.NDArray[np.int_]
    """Index of each gene's value, shape [trials, genes]."""
    active: npt.NDArray[np.bool_]
    """Whether each gene is active, shape [trials, genes]."""
    times: Floats
    """log(time) of each trial."""
    rng: np.random.Generator
    """Random generator for trials and trees."""
    repeats: int
    """Number of bootstrap repeats."""

    def fit(self) -> list[ForestFit]:
        """Return the result of each repeat."""
        return [_repeat(self.genes, self.levels, self.active, self.times, self.rng) for _ in range(self.repeats)]


class ForestProcess:
    """Context manager of a separate process that fits forests.

    The process imports scikit-learn (0.8 s) while the caller reads trials. `submit` runs a function that waits for the
    process in a thread.
    """

    def __init__(self) -> None:
        spec = WorkerSpec(f"{__name__}:ForestWorker", None, may_fault=False)
        self._pool = OwnServerPool(spec, ("sklearn.tree",))
        self._thread = ThreadPoolExecutor(1, "evokern-forests")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown(cancel_futures=True)  # a running fit ends within seconds
        self._pool.close()

    def submit(self, act: Callable[[], _T]) -> Callable[[], _T]:
        """Run a function in a thread; return a function that waits for its result."""
        return self._thread.submit(act).result

    def fit(self, forests: Forests) -> list[ForestFit]:
        """Return the result of each repeat, as `Forests.fit` does.

        Raises:
            EvokernError: the process cannot be started, died twice, or ran longer than `FIT_S`.
        """
        found: list[ForestFit] = run_single_job(self._pool, forests, FIT_S, "the model of the genes")
        return found


def forest_process(path: Path) -> AbstractContextManager[ForestProcess | None]:
    """Return a process that fits the forests of a large database, or a null context for a small database."""
    large = path.exists() and path.stat().st_size >= MANY_BYTES
    return ForestProcess() if large else nullcontext()


class ForestWorker:
    """Worker that fits forests."""

    def __init__(self, init: None) -> None:
        pass

    def handle(self, forests: Forests) -> list[ForestFit]:
        """Return the result of each repeat."""
        return forests.fit()


def _repeat(
    genes: Sequence[Gene],
    levels: npt.NDArray[np.int_],
    active: npt.NDArray[np.bool_],
    times: Floats,
    rng: np.random.Generator,
) -> ForestFit:
    count = len(times)
    drawn = rng.integers(count, size=count)
    rest = np.setdiff1d(np.arange(count), drawn)
    forest = _forest(_features(genes, levels[drawn]), times[drawn], int(rng.integers(2**31)))
    variance = float(times[rest].var()) or 1.0
    row_sets = [levels[rest]]
    for index in range(len(genes)):
        permuted = levels[rest].copy()
        permuted[:, index] = rng.permutation(permuted[:, index])
        row_sets.append(permuted)
    curves, waiting = [], []
    for index, gene in enumerate(genes):
        curve = np.full(len(gene.values), np.nan)
        curves.append(curve)
        measured, rows = _changed(levels, active, index, rng)
        if rows:
            waiting.append((curve, measured, len(row_sets)))
            row_sets += rows
        else:
            curve[measured] = 0.0
    # Predict everything in one call, because each call costs milliseconds.
    predicted = _predict(forest, genes, row_sets)
    errors = np.array([np.square(one - times[rest]).mean() for one in predicted[: len(genes) + 1]])
    for curve, measured, first in waiting:
        curve[measured] = [one.mean() for one in predicted[first : first + len(measured)]]
    return ForestFit((errors[1:] - errors[0]) / variance, curves, 1 - float(errors[0]) / variance)


def _changed(
    levels: npt.NDArray[np.int_], active: npt.NDArray[np.bool_], index: int, rng: np.random.Generator
) -> tuple[npt.NDArray[np.int_], list[npt.NDArray[np.int_]]]:
    """Return a gene's measured values, and for each value a set of trials changed to that value.

    The mean prediction over each set is the gene's partial dependence. With fewer than two values, there are no sets.
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

    The trees equal those of scikit-learn's `ExtraTreesRegressor`, which takes twice as long because of threads and
    input checks.
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


def _predict(trees: Sequence[Any], genes: Sequence[Gene], row_sets: Sequence[npt.NDArray[np.int_]]) -> list[Floats]:
    """Return the predicted log(time), averaged over the trees, for each list of trials."""
    ends = np.cumsum([len(rows) for rows in row_sets])[:-1]
    features = _features(genes, np.concatenate(row_sets))
    total = np.zeros(len(features))
    for tree in trees:
        total += tree.predict(features, check_input=False)
    return np.split(total / len(trees), ends)


def _features(genes: Sequence[Gene], levels: npt.NDArray[np.int_]) -> npt.NDArray[np.float32]:
    """Return the features: one column with the rank for each parameter, and one column per value for other genes."""
    columns: list[npt.NDArray[np.generic]] = []
    for index, gene in enumerate(genes):
        if gene.layer == "parameter" or len(gene.values) == 2:
            columns.append(levels[:, index])
        else:
            columns += [levels[:, index] == level for level in range(len(gene.values))]
    return np.column_stack(columns).astype(np.float32)


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
