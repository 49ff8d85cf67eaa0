"""Forests over the measured trials, one for each bootstrap repeat, fitted here or in a process of their own.

What they are asked for, and where it comes from, says `evokern.analysis.genes.importance`.
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
"""Trees of each repeat's forest."""
MOST_ROWS = 200
"""Trials over which partial dependence is averaged."""
MANY_BYTES = 4 * 2**20
"""Size of a database that takes longer to read than a process takes to start, which then fits the forests."""
FIT_S = 600.0
"""Most seconds for all repeats in a process of their own."""


@dataclass(frozen=True)
class ForestFit:
    """What one repeat's forest says."""

    losses: Floats
    """Gene → loss of explained variance where its values are permuted."""
    dependence: list[Floats]
    """Gene → mean predicted log(time) at each of its values, NaN for one that was never measured."""
    explained: float
    """Share of the variance that it explains on trials it has not seen."""


@dataclass(frozen=True)
class Forests:
    """What the forests are fitted to."""

    genes: Sequence[Gene]
    """The genes with more than one value among the trials."""
    levels: npt.NDArray[np.int_]
    """Trials × genes: which of its values each gene has."""
    active: npt.NDArray[np.bool_]
    """Trials × genes: whether the gene matters there."""
    times: Floats
    """Each trial's log(time)."""
    rng: np.random.Generator
    """Draws trials and trees."""
    repeats: int
    """How many there are."""

    def fit(self) -> list[ForestFit]:
        """Return what each repeat says."""
        return [_repeat(self.genes, self.levels, self.active, self.times, self.rng) for _ in range(self.repeats)]


class ForestProcess:
    """Fits forests in a process of its own; a context manager.

    Importing scikit-learn takes 0.8 s of a core. That process begins with it at once, while the caller reads trials.
    `beside` runs what waits for it in a thread, so that the caller need not.
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
        self._thread.shutdown(cancel_futures=True)  # what was begun ends: a second or two
        self._pool.close()

    def beside(self, act: Callable[[], _T]) -> Callable[[], _T]:
        """Begin something that asks for forests in a thread; what is returned waits for it and returns its answer."""
        return self._thread.submit(act).result

    def fit(self, forests: Forests) -> list[ForestFit]:
        """Return what each repeat says: the same as `Forests.fit`.

        Raises:
            EvokernError: the process cannot be started, died twice, or took more than `FIT_S`.
        """
        found: list[ForestFit] = run_single_job(self._pool, forests, FIT_S, "the model of the genes")
        return found


def forest_process(path: Path) -> AbstractContextManager[ForestProcess | None]:
    """Return a process to fit the forests of a database's studies; none where to start one takes longer than to fit."""
    large = path.exists() and path.stat().st_size >= MANY_BYTES
    return ForestProcess() if large else nullcontext()


class ForestWorker:
    """Fits what it is sent."""

    def __init__(self, init: None) -> None:
        pass

    def handle(self, forests: Forests) -> list[ForestFit]:
        """Return what each repeat says."""
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
    return ForestFit((errors[1:] - errors[0]) / variance, curves, 1 - float(errors[0]) / variance)


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
