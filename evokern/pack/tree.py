"""Dispatch of an operator: a decision tree over the problem's fields and products of them, whose leaves list variants.

The variants of a leaf are in the order of preference. The first variant that takes the shape runs; if none does, the
leaf's baseline runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

CAPABILITY = "evokern_sm"
"""Name of the architecture in a tree: ten times the major plus the minor number of the compute capability."""
MODE = "evokern_mode"
"""Name of the mode's number in a tree."""


@dataclass(frozen=True)
class TreeLeaf:
    """End of a decision."""

    variants: tuple[int, ...] = ()
    """Indices of variants, in the order of preference."""
    baseline: int = 0
    """Index of the baseline."""


@dataclass(frozen=True)
class Split:
    """One decision: `product of fields <= most` or not."""

    fields: tuple[str, ...]
    """Names of the factors: one field, `CAPABILITY` or `MODE`, or several fields."""
    most: int
    """Largest value of the first branch."""
    yes: Tree
    """Branch for values up to `most`."""
    no: Tree
    """Branch for larger values."""


Tree = TreeLeaf | Split


def leaf_of(tree: Tree, values: Mapping[str, int]) -> TreeLeaf:
    """Return the leaf for a shape."""
    while isinstance(tree, Split):
        tree = tree.yes if math.prod(values[name] for name in tree.fields) <= tree.most else tree.no
    return tree


Box = Mapping[tuple[str, ...], tuple[int | None, int | None]]
"""Factors → smallest and largest value of their product in a region; None without a limit. Products that no decision
tests are missing."""


def regions(tree: Tree, box: Box | None = None) -> Iterator[tuple[Box, TreeLeaf]]:
    """Yield the leaves from left to right, each with its region."""
    box = box or {}
    if isinstance(tree, TreeLeaf):
        yield box, tree
        return
    low, high = box.get(tree.fields, (None, None))
    yield from regions(tree.yes, {**box, tree.fields: (low, tree.most)})
    yield from regions(tree.no, {**box, tree.fields: (tree.most + 1, high)})
