"""What the surrogate sees of a row: one group of columns per way in which a gene, or two genes together, can matter.

A numeric gene may act as a name (its values share nothing), as a rank, as a magnitude (log2), or by how often two
divides it (a multiple of 64 threads is not like one of 48). Two numbers often matter by their product: threads of a
block, bytes of a tile. Each of these is a group with its own length scale, and the data decide which ones count.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evokern.samplers.evo._genome import Genome, Rows
from evokern.space import Gene

Floats = npt.NDArray[np.float64]

MOST_PAIRS = 66
"""Most products of two genes that get a group: all of those of 12 numeric genes."""


@dataclass(frozen=True)
class Features:
    """A linear map from rows to columns that lie in [0, 1], and the group of each column."""

    tables: tuple[Floats, ...]
    """One per gene, shape (values, columns): what each value of the gene adds to each column."""
    groups: npt.NDArray[np.intp]
    """Group of each column, ascending from 0."""
    product: npt.NDArray[np.bool_]
    """Of each group: whether it is a product of two genes."""

    def __call__(self, rows: Rows) -> Floats:
        """Return the columns of rows, shape (n, columns)."""
        columns = np.zeros((len(rows), len(self.groups)))
        for gene, table in enumerate(self.tables):
            columns += table[rows[:, gene]]
        return columns


def features_of(genome: Genome) -> Features:
    """Return the features of a space."""
    entries: list[dict[int, Floats]] = []  # per column: gene -> what each of its values adds
    groups: list[int] = []
    product: list[bool] = []

    def add_group(columns: list[dict[int, Floats]], of_product: bool = False) -> None:
        entries.extend(columns)
        groups.extend([len(product)] * len(columns))
        product.append(of_product)

    magnitudes: dict[int, Floats] = {}
    for index, gene in enumerate(genome.genes):
        if len(gene.values) < 2:
            continue
        # Two values differ in two columns, so 1/sqrt(2) makes their squared distance 1.
        add_group([{index: one_hot} for one_hot in np.eye(len(gene.values)) / np.sqrt(2)])
        for scale in _scales(gene):
            add_group([{index: scale}])
        if _is_number(gene):
            magnitudes[index] = _log2(gene)
    pairs = [(a, b) for a in magnitudes for b in magnitudes if a < b]
    for a, b in pairs[:MOST_PAIRS]:
        span = np.ptp(magnitudes[a]) + np.ptp(magnitudes[b])
        add_group([{a: magnitudes[a] / span, b: magnitudes[b] / span}], of_product=True)
    tables = tuple(
        np.stack([entry.get(i, np.zeros(len(gene.values))) for entry in entries], axis=1)
        if entries
        else np.zeros((len(gene.values), 0))
        for i, gene in enumerate(genome.genes)
    )
    return Features(tables, np.array(groups, dtype=np.intp), np.array(product, dtype=bool))


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
