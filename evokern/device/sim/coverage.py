"""Coverage of outputs by a launch, counted from all blocks or extrapolated from some blocks.

The class of a block is its position along each axis of the grid: first, last, or between. Blocks of a class with full
tiles write equally many elements, and no two blocks write the same element. If the sampled blocks confirm this, the sum
over the classes is the launch's coverage. Otherwise (persistent blocks, tickets, atomic updates, work that depends on
the position) a sample allows no conclusion.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from evokern.declaration.problem import Problem

Grid = tuple[int, int, int]
"""Blocks along x, y, z."""
Place = tuple[int, int, int]
"""Class of a block: 0 first, 1 between, 2 last, along each axis."""

DRAWN = 2
"""Number of blocks sampled from the largest class, beyond one of every class: two that must agree, and a neighbour."""


@dataclass(frozen=True)
class Coverage:
    """Coverage of one output by a launch."""

    written: int
    """Number of distinct written elements, counted or extrapolated."""
    elements: int
    """Number of elements of the output."""
    certain: bool
    """Whether all blocks ran, or the sampled blocks allow an extrapolation."""

    @property
    def complete(self) -> bool:
        """Whether every element is known to be written."""
        return self.certain and self.written == self.elements


def place_of(grid: Grid, block: int) -> Place:
    """Return the class of a block with a given linear id."""
    at = (block % grid[0], block // grid[0] % grid[1], block // (grid[0] * grid[1]))
    x, y, z = (0 if i == 0 else 2 if i == n - 1 else 1 for i, n in zip(at, grid, strict=True))
    return x, y, z


def class_sizes(grid: Grid) -> dict[Place, int]:
    """Return the number of blocks in each class of a grid; empty classes are omitted."""
    along = [{0: 1, 1: n - 2, 2: 1} if n > 2 else {0: 1, 2: 1} if n == 2 else {0: 1} for n in grid]
    return {
        (x, y, z): along[0][x] * along[1][y] * along[2][z]
        for x, y, z in itertools.product(*along)
        if along[0][x] * along[1][y] * along[2][z]
    }


def sample(grid: Grid, rng: random.Random) -> tuple[int, ...]:
    """Return representative blocks of a grid in ascending order: corners, one block of each class, and random blocks.

    Args:
        grid: blocks along x, y, z.
        rng: generator for the places, unpredictable for a source.
    """
    found: set[int] = set()

    def draw(place: Place) -> list[int]:
        return [
            0 if where == 0 else n - 1 if where == 2 else rng.randrange(1, n - 1)
            for where, n in zip(place, grid, strict=True)
        ]

    def number(at: Sequence[int]) -> int:
        return at[0] + grid[0] * (at[1] + grid[1] * at[2])

    sizes = class_sizes(grid)
    for place in sizes:
        found.add(number(draw(place)))
    largest = max(sizes, key=lambda place: sizes[place])
    for _ in range(DRAWN):
        at = draw(largest)
        found.add(number(at))
    for axis, n in enumerate(grid):  # two adjacent blocks reveal overlapping tiles
        if n > 1:
            found.add(number([i + (i + 1 < n) - (i + 1 == n) if a == axis else i for a, i in enumerate(at)]))
    return tuple(sorted(found))


def extrapolated(
    grid: Grid, ran: Sequence[int], blocks: npt.NDArray[np.int64], elements: npt.NDArray[np.int64], count: int
) -> Coverage:
    """Return the coverage of an output, extrapolated from some blocks of a launch.

    Args:
        grid: blocks along x, y, z.
        ran: blocks that ran, at least one of each class.
        blocks: the block of each written pair.
        elements: the element of each pair; every pair occurs once.
        count: number of elements of the output.
    """
    numbers, each = np.unique(blocks, return_counts=True)
    wrote = dict.fromkeys(ran, 0) | dict(zip(numbers.tolist(), each.tolist(), strict=True))
    by_class: dict[Place, set[int]] = {}
    for block, amount in wrote.items():
        by_class.setdefault(place_of(grid, block), set()).add(amount)
    sizes = class_sizes(grid)
    total = sum(size * max(by_class[place]) for place, size in sizes.items())
    disjoint = np.unique(elements).size == elements.size
    alike = all(len(amounts) == 1 for amounts in by_class.values())
    return Coverage(min(total, count), count, bool(disjoint and alike and total <= count))


def evidence(name: str, found: Coverage, problem: Problem, where: str) -> dict[str, Any]:
    """Return the evidence for a launch that does not write some elements of an output."""
    missing = found.elements - found.written
    message = (
        f"no thread writes {missing} of {found.elements} elements of {name!r} at {problem}{where}; check the grid "
        "and the output index"
    )
    return {"check": "coverage", "message": message, "problem": problem.key, "output": name, "written": found.written,
            "elements": found.elements}  # fmt: skip


def as_json(found: Mapping[str, Coverage]) -> dict[str, Any]:
    """Return the coverage by output as JSON values."""
    return {name: {"written": one.written, "elements": one.elements, "certain": one.certain}
            for name, one in found.items()}  # fmt: skip
