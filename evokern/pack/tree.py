"""Dispatch of an operator: a decision tree over the problem's fields, whose leaves list variants.

The variants of a leaf are in the order of preference. The first variant that takes the shape runs; if none does, the
leaf's baseline runs.
"""

from __future__ import annotations

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
    """One decision: `field <= most` or not."""

    field: str
    """Name of a field, `capability` or `mode`."""
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
        tree = tree.yes if values[tree.field] <= tree.most else tree.no
    return tree


def leaves(tree: Tree) -> Iterator[TreeLeaf]:
    """Yield the leaves from left to right."""
    if isinstance(tree, TreeLeaf):
        yield tree
    else:
        yield from leaves(tree.yes)
        yield from leaves(tree.no)
