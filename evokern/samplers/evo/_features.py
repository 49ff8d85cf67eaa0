"""Features of a row: one group of columns for each way in which a gene could affect the time.

A numeric gene can act as a name (unrelated values), a rank, or a magnitude (log2). The number of times that two divides
it can also matter: 64 threads differ from 48. Each is a group with its own length scale, fitted to the data. Groups
that are rarely relevant are marked, so that the model's prior can prefer others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from evokern.declaration.genes import Gene
from evokern.samplers.genome import Genome, Rows

Floats = npt.NDArray[np.float64]

MOST_NAMES = 256
"""Largest number of a gene's values that get one column each. Names of more values share columns, so that the size of
the table grows linearly with the number of values."""
NAME_COLUMNS = 64
"""Number of random columns for the names of a gene with more values."""


@dataclass(frozen=True)
class Features:
    """Linear map from rows to columns in [0, 1], with the group of each column."""

    tables: tuple[Floats, ...]
    """Columns of each gene's values, shape (values, columns), in declared order."""
    groups: npt.NDArray[np.intp]
    """Group of each column, ascending from 0."""
    bare: npt.NDArray[np.bool_]
    """Mask of the groups that treat a numeric gene's values as unrelated names."""
    centre: Floats
    """Mean of each column over all combinations of values."""
    variance: Floats
    """Variance of each column over all combinations of values."""
    expected: Callable[[Rows], Floats] | None = None
    """Expected times from another study, from 0 (best) to 1, as a last column and group; None without such a study."""
    problems: bool = False
    """Whether trials of other studies are included; a trial's problem is then the last column and group."""

    def __post_init__(self) -> None:
        # Store the values of all genes in one array, so that all columns of a row are read at once.
        widths = [table.shape[1] for table in self.tables]
        sizes = [table.size for table in self.tables]
        begins = np.repeat(np.cumsum([0, *sizes[:-1]]), widths)
        within = np.concatenate([np.arange(width) for width in widths])
        object.__setattr__(self, "_gene", np.repeat(np.arange(len(widths)), widths))
        object.__setattr__(self, "_stride", np.repeat(widths, widths))
        object.__setattr__(self, "_begin", begins + within)
        object.__setattr__(self, "_values", np.concatenate([table.ravel() for table in self.tables]))

    def __call__(self, rows: Rows, problem: Floats | None = None) -> Floats:
        """Return the columns of rows, shape (n, columns).

        Args:
            rows: Configurations.
            problem: Distance of each row's problem from this study's; None for this study's problem.
        """
        parts = [self._values[rows.take(self._gene, axis=1) * self._stride + self._begin]]  # type: ignore[attr-defined]
        if self.expected is not None:
            parts.append(self.expected(rows)[:, None])
        if self.problems:
            parts.append(np.zeros((len(rows), 1)) if problem is None else problem[:, None])
        columns: Floats = np.concatenate(parts, axis=1)
        return columns

    def expecting(self, expected: Callable[[Rows], Floats]) -> Features:
        """Return features with a column for expected times from another study, assumed uniform over all rows."""
        return self._with_column(1 / 2, 1 / 12, expected=expected)

    def with_problems(self) -> Features:
        """Return features with a column for the distance between a trial's problem and this study's problem."""
        return self._with_column(0.0, 0.0, problems=True)  # candidates belong to this study

    def _with_column(self, centre: float, variance: float, **what: Any) -> Features:
        return Features(
            self.tables,
            np.append(self.groups, self.groups.max(initial=-1) + 1),
            np.append(self.bare, False),
            np.append(self.centre, centre),
            np.append(self.variance, variance),
            **what,
        )


def features_of(genome: Genome) -> Features:
    """Return the features of a space."""
    own: list[Floats] = []
    groups: list[int] = []
    bare: list[bool] = []
    count = 0
    for gene in genome.genes:
        columns: list[Floats] = []
        if len(gene.values) > 1:
            names = _names(len(gene.values))
            scales = _scales(gene)
            columns = names + scales
            groups.extend([count] * len(names) + list(range(count + 1, count + 1 + len(scales))))
            bare.extend([bool(scales)] + [False] * len(scales))
            count += 1 + len(scales)
        own.append(np.array(columns).reshape(-1, len(gene.values)).T)
    centre = np.concatenate([table.mean(axis=0) for table in own])
    variance = np.concatenate([table.var(axis=0) for table in own])
    return Features(tuple(own), np.array(groups, dtype=np.intp), np.array(bare, dtype=bool), centre, variance)


def _names(count: int) -> list[Floats]:
    """Return columns in which the squared distance of two different values is 1; of many values, about 1."""
    if count <= MOST_NAMES:
        return list(np.eye(count) / np.sqrt(2))  # two values differ in two columns
    signs = np.random.default_rng(count).integers(0, 2, size=(NAME_COLUMNS, count), dtype=np.int8)
    return list(signs * np.sqrt(2 / NAME_COLUMNS))


def _is_number(gene: Gene) -> bool:
    numbers = all(isinstance(value, int) for value in gene.values)
    return numbers and gene.layer == "parameter" and len(gene.values) > 2


def _scales(gene: Gene) -> list[Floats]:
    if not _is_number(gene):
        return []
    values = np.array(gene.values, dtype=np.int64)
    rank = np.argsort(np.argsort(values)).astype(float)
    twos = np.array([_times_two_divides(int(value)) for value in values], dtype=float)
    kept: list[Floats] = []
    for scale in (rank, _log2(gene), twos):
        if np.ptp(scale) == 0:
            continue
        unit = (scale - scale.min()) / np.ptp(scale)
        if all(np.abs(unit - other).max() > 1e-9 for other in kept):
            kept.append(unit)
    return kept


def _log2(gene: Gene) -> Floats:
    logs: Floats = np.log2(np.maximum(np.array(gene.values, dtype=float), 0.5))
    logs -= logs.min()
    return logs


def _times_two_divides(value: int, most: int = 8) -> int:
    return most if value == 0 else min(most, (value & -value).bit_length() - 1)
