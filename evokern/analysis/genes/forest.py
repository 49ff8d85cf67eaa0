"""Random forests over the measured trials, one per bootstrap repeat, fitted here or in a separate process.

`evokern.analysis.genes.importance` describes their use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt

from evokern.declaration.genes import Gene
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
