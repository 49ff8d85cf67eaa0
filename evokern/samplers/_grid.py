"""Sampler that proposes every configuration in declared order, so that trial n is cell n of the grid."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from evokern.declaration.genes import Config
from evokern.declaration.space import Space
from evokern.samplers.contract import History
from evokern.study.trial import Proposal


class GridSampler:
    """Sampler that proposes every configuration once, including infeasible ones."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._cells: Iterator[Config] = space.grid()
        self._next = 0

    def propose(self, history: History, number: int) -> Proposal | None:
        """Return cell `number` of the grid, or None past its end."""
        if number < self._next:
            self._cells, self._next = self._space.grid(), 0
        cell = next(islice(self._cells, number - self._next, None), None)
        self._next = number + 1
        if cell is None:
            return None
        return Proposal(cell, {"operator": "grid"})
