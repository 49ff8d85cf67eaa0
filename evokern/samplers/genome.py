"""Configurations as rows of small integers, the input of models and operators, and genes without effect on them.

A row contains the index of each gene's value in `Gene.values`, in declared order. Inactive genes have their default
value, as in `Space.canonical`, so equal rows are equal configurations.

A gene is inert if it does not change the machine code or launch. The evidence is pairs of trials that differ in one
gene only. A context is "always" or a certain value of another gene. A gene is inert in a context after `ENOUGH` pairs
with equal fingerprints and none with different ones. A candidate that differs from an earlier one only in inert genes
is the same program, so it is not proposed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from evokern.declaration.genes import Config, Gene, Value
from evokern.declaration.space import Space

Rows = npt.NDArray[np.int16]
"""Configurations as rows of value indices, shape (n, genes)."""
Keys = npt.NDArray[np.int64]
"""One number per row, equal for equal rows."""


class Genome:
    """Converter between configurations of a space and rows."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.genes: tuple[Gene, ...] = space.genes
        self.sizes = np.array([len(gene.values) for gene in space.genes], dtype=np.int64)
        """Number of values of each gene."""
        self.choices: tuple[int, ...] = tuple(i for i, gene in enumerate(space.genes) if _is_choice(gene))
        """Indices of the outer genes: mutations, and numbers with two values."""
        self._positions: list[dict[Value, int]] = [{v: i for i, v in enumerate(g.values)} for g in space.genes]
        column = {gene.name: i for i, gene in enumerate(space.genes)}
        self._pins = [
            (
                column[gene.name],
                gene.values.index(gene.default),
                [(column[other], _listed(space.gene(other), allowed)) for other, allowed in when],
            )
            for gene in space.genes
            if (when := list(gene.when.items()))
        ]
        self._weights = _weights(self.sizes)
        self._late = [(column[name], _listed(space.gene(name), values)) for name, values in space.low_priority.items()]
        """Index of each gene with low-priority values, and a mask of these values."""

    def __len__(self) -> int:
        return len(self.genes)

    def rows(self, configs: Iterable[Config]) -> Rows:
        """Return configurations as rows."""
        found = list(configs)
        rows = np.empty((len(found), len(self.genes)), dtype=np.int16)
        # Convert column by column, because reports convert thousands of rows.
        values = [dict(config.items()) for config in found]
        for column, (gene, known) in enumerate(zip(self.genes, self._positions, strict=True)):
            rows[:, column] = [known[one[gene.name]] for one in values]
        return rows

    def config(self, row: npt.NDArray[Any]) -> Config:
        """Return a row as a configuration."""
        return Config({gene.name: gene.values[i] for gene, i in zip(self.genes, row.tolist(), strict=True)})

    def canonical(self, rows: Rows) -> Rows:
        """Return rows with inactive genes set to their defaults."""
        if not self._pins:
            return rows
        pinned = rows.copy()
        # In declared order, conditions refer only to earlier genes, which are already canonical.
        for column, default, conditions in self._pins:
            pinned[:, column] = np.where(_active(pinned, conditions), pinned[:, column], default)
        return pinned

    def keys(self, rows: Rows) -> Keys:
        """Return one number per row: its position in the grid, or a hash for grids larger than 2**62."""
        with np.errstate(over="ignore"):
            keys: Keys = (rows.astype(np.int64) * self._weights).sum(axis=1)
        return keys

    def draw(self, rng: np.random.Generator, count: int, *, early: bool = False) -> Rows:
        """Draw canonical rows, uniformly over all combinations.

        Args:
            rng: Random generator.
            count: Number of rows.
            early: Whether to exclude low-priority values.
        """
        drawn = rng.integers(0, self.sizes, size=(count, len(self.genes)))
        if early:
            for at, late in self._late:
                positions = np.flatnonzero(~late)
                drawn[:, at] = positions[drawn[:, at] % len(positions)]
        return self.canonical(drawn.astype(np.int16))

    def low_priority_count(self, rows: Rows) -> npt.NDArray[np.intp]:
        """Return the number of active genes with low-priority values for each canonical row."""
        found = np.zeros(len(rows), dtype=np.intp)
        pins = {column: conditions for column, _, conditions in self._pins}
        for at, late in self._late:
            found += late[rows[:, at]] & _active(rows, pins.get(at, ()))
        return found


_Conditions = Sequence[tuple[int, npt.NDArray[np.bool_]]]
"""Conditions of a gene: index of another gene, and a mask of the values that activate this one."""


def _active(rows: Rows, conditions: _Conditions) -> npt.NDArray[np.bool_]:
    """Return a mask of the rows in which a gene is active."""
    met = np.ones(len(rows), dtype=bool)
    for other, allowed in conditions:
        met &= allowed[rows[:, other]]
    return met


def _is_choice(gene: Gene) -> bool:
    return len(gene.values) == 2 or (gene.layer == "mutation" and len(gene.values) > 1)


def _listed(gene: Gene, allowed: Sequence[Value]) -> npt.NDArray[np.bool_]:
    """Return a mask of a gene's allowed values."""
    wanted = frozenset(allowed)
    return np.array([value in wanted for value in gene.values])


def _weights(sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    total, weights = 1, []
    for size in reversed(sizes.tolist()):
        weights.append(total)
        total *= size
    if total < 2**62:
        return np.array(weights[::-1], dtype=np.int64)
    # With odd random multipliers, two rows share a key with probability below 2**-60.
    drawn = np.random.default_rng(len(sizes)).integers(2**62, size=len(sizes), dtype=np.int64)
    return drawn * 2 + 1


ENOUGH = 2
"""Number of pairs with equal fingerprints (and none with different ones) that make a gene inert in a context."""


@dataclass(frozen=True)
class InertGene:
    """A gene that does not change the program in a given context."""

    gene: int
    """Index of the gene."""
    context: tuple[int, int] | None
    """Index and value index of another gene with which it is inert, or None for always."""
    pairs: int
    """Number of pairs of trials that are evidence."""


class InertGenes:
    """Known inert genes of a space."""

    def __init__(self, genome: Genome, rows: Rows, fingerprints: npt.NDArray[np.int64]) -> None:
        self._genome = genome
        known = fingerprints >= 0
        self.genes: tuple[InertGene, ...] = ()
        """Inert genes; those that are always inert come first."""
        if len(np.unique(fingerprints[known])) < known.sum():
            self.genes = tuple(_inert_genes(genome, rows[known], fingerprints[known]))

    def fold(self, rows: Rows) -> Rows:
        """Return rows in which every inert gene has its default value."""
        folded = rows.copy()
        for inert in self.genes:
            applies = np.ones(len(rows), dtype=bool)
            if inert.context is not None:
                applies = rows[:, inert.context[0]] == inert.context[1]
            gene = self._genome.genes[inert.gene]
            folded[applies, inert.gene] = gene.values.index(gene.default)
        return folded

    def fresh(self, rows: Rows, earlier: Rows) -> npt.NDArray[np.bool_]:
        """Return a mask that is False for the rows that are known to give the same program as an earlier row."""
        if not self.genes:
            return np.ones(len(rows), dtype=bool)
        keys: Keys = self._genome.keys(self.fold(earlier))
        return ~np.isin(self._genome.keys(self.fold(rows)), keys)


def single_gene_pairs(genome: Genome, rows: Rows, gene: int) -> npt.NDArray[np.intp]:
    """Return the indices, shape (n, 2), of adjacent rows in each group that differ in only one gene.

    Equal rows, such as those of a sampler and its control, do not form a pair.
    """
    rest = rows.copy()
    rest[:, gene] = 0
    keys = genome.keys(rest)
    order = np.argsort(keys, kind="stable")
    values = rows[order, gene]
    same = (keys[order][1:] == keys[order][:-1]) & (values[1:] != values[:-1])
    return np.stack([order[:-1][same], order[1:][same]], axis=1)


def _inert_genes(genome: Genome, rows: Rows, fingerprints: npt.NDArray[np.int64]) -> list[InertGene]:
    always: list[InertGene] = []
    in_context: list[InertGene] = []
    for gene in range(len(genome)):
        pairs = single_gene_pairs(genome, rows, gene)
        equal = fingerprints[pairs[:, 0]] == fingerprints[pairs[:, 1]]
        if equal.sum() < ENOUGH:
            continue
        if equal.all():
            always.append(InertGene(gene, None, len(pairs)))
            continue
        for other in range(len(genome)):
            if other == gene:
                continue
            values = rows[pairs[:, 0], other]
            for value in np.unique(values[equal]):
                here = values == value
                if equal[here].all() and here.sum() >= ENOUGH:
                    in_context.append(InertGene(gene, (other, int(value)), int(here.sum())))
    return always + in_context
