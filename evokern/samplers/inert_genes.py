"""Which genes are inert: changing them gives the same machine code and launch, always or together with certain values.

Evidence are pairs of trials that differ in one gene only. A gene is called inert in a context (always, or where another
gene has a certain value) after `ENOUGH` pairs with equal fingerprints and none with different ones. A candidate that
equals an earlier one up to inert genes would be the same program again, and is not proposed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evokern.samplers.genome import Genome, Keys, Rows

ENOUGH = 2
"""Pairs with equal fingerprints, and none with different ones, that make a gene inert in a context."""


@dataclass(frozen=True)
class InertGene:
    """One gene that changes nothing in a context."""

    gene: int
    """Position of the gene."""
    context: tuple[int, int] | None
    """Another gene's position and value position in whose presence it is inert; None: always."""
    pairs: int
    """Pairs of trials that showed it."""


class InertGenes:
    """Knows inert genes and folds rows that differ in nothing else onto each other."""

    def __init__(self, genome: Genome, rows: Rows, fingerprints: npt.NDArray[np.int64]) -> None:
        self._genome = genome
        known = fingerprints >= 0
        self.genes: tuple[InertGene, ...] = ()
        """Inert genes, those that are inert always first."""
        if len(np.unique(fingerprints[known])) < known.sum():
            self.genes = tuple(_inert_genes(genome, rows[known], fingerprints[known]))

    def fold(self, rows: Rows) -> Rows:
        """Return rows with every inert gene set to its default."""
        folded = rows.copy()
        for inert in self.genes:
            applies = np.ones(len(rows), dtype=bool)
            if inert.context is not None:
                applies = rows[:, inert.context[0]] == inert.context[1]
            gene = self._genome.genes[inert.gene]
            folded[applies, inert.gene] = gene.values.index(gene.default)
        return folded

    def fresh(self, rows: Rows, earlier: Rows) -> npt.NDArray[np.bool_]:
        """Tell which rows are not known to be the same program as an earlier one."""
        if not self.genes:
            return np.ones(len(rows), dtype=bool)
        keys: Keys = self._genome.keys(self.fold(earlier))
        return ~np.isin(self._genome.keys(self.fold(rows)), keys)


def single_gene_pairs(genome: Genome, rows: Rows, gene: int) -> npt.NDArray[np.intp]:
    """Return pairs of positions, shape (n, 2), of rows that differ in one gene only: neighbours of each group.

    Equal rows, as two arms of a study may have them, are no pair.
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
