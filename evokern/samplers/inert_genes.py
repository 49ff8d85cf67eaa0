"""Detection of inert genes, which do not change the machine code or launch, always or in a context.

The evidence is pairs of trials that differ in one gene only. A context is "always" or a certain value of another gene.
A gene is inert in a context after `ENOUGH` pairs with equal fingerprints and none with different ones. A candidate that
differs from an earlier one only in inert genes is the same program, so it is not proposed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evokern.samplers.genome import Genome, Keys, Rows

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
