"""Search for the input that an element of an output counts wrongly: left out, twice, or that of another row.

The programs run with changed inputs, and the element is compared with that of the first run. Fresh slices along a field
of the problem show on which inputs the element depends. The terms of a sum may change places: the element of the
default candidate stays. That of the candidate changes only if one of these terms counts otherwise than the others, and
halving finds it in few runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from evokern.compile.build import tensors_of
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Kernel, Problem
from evokern.declaration.small_problems import problem_with
from evokern.device.sim.algebra.runs import Slices

Changes = Callable[[bool, Mapping[str, Slices]], bool]
"""Function that returns whether the candidate's element (or, with False, the default candidate's) changes."""
CANDIDATE, DEFAULT = True, False


def axes_of(kernel: Kernel, config: Config, problem: Problem) -> dict[str, dict[str, int]]:
    """Return for each numeric field the axis of each tensor whose extent is that field."""
    shapes = {name: one.shape for name, one in kernel.workload.tensors(problem, config).items()}
    found: dict[str, dict[str, int]] = {}
    for entry in kernel.free_fields:
        extent, step = int(problem[entry.name]), entry.multiple_of
        near = (problem_with(kernel, problem, {entry.name: extent + one}) for one in (step, -step))
        other = next((one for one in near if one is not None), None)
        axes = found[entry.name] = {}
        for name, tensor in kernel.workload.tensors(other, config).items() if other is not None else ():
            pairs = zip(shapes.get(name, ()), tensor.shape, strict=False)
            differing = [axis for axis, (one, changed) in enumerate(pairs) if one != changed]
            if len(differing) == 1 and shapes[name][differing[0]] == extent:
                axes[name] = differing[0]
    return found


class InfluenceSearch:
    """Search for one input index that an element of an output counts wrongly."""

    def __init__(
        self, kernel: Kernel, config: Config, problem: Problem, place: tuple[str, int], changes: Changes
    ) -> None:
        """Create a search.

        Args:
            kernel: the kernel.
            config: the candidate.
            problem: the problem.
            place: the output and the number of its element.
            changes: runs one of the two programs with changed inputs.
        """
        self._tensors, self._problem, self._run = tensors_of(kernel, config, problem), problem, changes
        self._axes = axes_of(kernel, config, problem)
        at = np.unravel_index(place[1], self._tensors[place[0]].shape)
        self._own = {name: int(at[axes[place[0]]]) for name, axes in self._axes.items() if place[0] in axes}

    def text(self) -> str:
        """Return a clause about the input; empty if it is not exactly one index of a field."""
        return next((found for name in self._axes if (found := self._along(name))), "")

    def _along(self, field: str) -> str:
        axes = [name for name in self._axes[field] if self._tensors[name].given]
        others = self._others(field)
        if not axes or not others:
            return ""
        summed = [name for name in axes if self._fresh(DEFAULT, field, [name], others)]
        if not summed:
            return self._foreign(field, axes, others)
        terms = self._terms(field, summed)
        if len(terms) < 3 or not self._turned(CANDIDATE, field, summed, terms):
            return ""
        odd, rest = self._odd(field, summed, terms)
        if self._turned(CANDIDATE, field, summed, rest):
            return ""
        where = self._places(field, summed, odd)
        if self._fresh(CANDIDATE, field, summed, [odd]):
            return f"it counts {where} otherwise than the default candidate, for example twice"
        return f"it leaves out {where}"

    def _others(self, field: str) -> list[int]:
        """Return the indices along a field other than the element's own."""
        return [index for index in range(int(self._problem[field])) if index != self._own.get(field)]

    def _foreign(self, field: str, axes: Sequence[str], others: list[int]) -> str:
        """Return a clause about an index on which the element must not depend."""
        if not self._fresh(CANDIDATE, field, axes, others):
            return ""
        part = others
        while len(part) > 1:
            half = part[: len(part) // 2]
            part = half if self._fresh(CANDIDATE, field, axes, half) else part[len(half) :]
        rest = [index for index in others if index != part[0]]
        if rest and self._fresh(CANDIDATE, field, axes, rest):
            return ""
        wrong = [name for name in axes if self._fresh(CANDIDATE, field, [name], part)]
        return f"it depends on {self._places(field, wrong, part[0])}, the default candidate's does not"

    def _terms(self, field: str, summed: Sequence[str]) -> list[int]:
        """Return the indices whose slices may change places in the default candidate."""
        every = list(range(int(self._problem[field])))
        own = self._own.get(field, -1)
        first, last = 0, len(every)
        if self._turned(DEFAULT, field, summed, every) and self._turned(DEFAULT, field, summed, self._others(field)):
            last = self._bound(field, summed, lambda count: every[count:])
            first = len(every) - self._bound(field, summed, lambda count: every[: len(every) - count])
        used = every[first:last]
        ways = (used, [index for index in used if index != own])
        return next((way for way in ways if way and not self._turned(DEFAULT, field, summed, way)), [])

    def _bound(self, field: str, summed: Sequence[str], rest: Callable[[int], list[int]]) -> int:
        """Return the smallest number after which the indices left have no influence on the default candidate."""
        low, high = 0, int(self._problem[field])
        while low < high:
            middle = (low + high) // 2
            if self._fresh(DEFAULT, field, summed, rest(middle)):
                low = middle + 1
            else:
                high = middle
        return low

    def _odd(self, field: str, summed: Sequence[str], terms: list[int]) -> tuple[int, list[int]]:
        """Return the index that counts otherwise, if there is only one, and all others."""
        part, good = terms, list[int]()
        while len(part) > 1:
            half = part[: (len(part) + 1) // 2]
            rest = part[len(half) :]
            if self._turned(CANDIDATE, field, summed, half + good):
                part, good = half, rest[:1]
            else:
                part, good = rest, half[:1]
        return part[0], [index for index in terms if index != part[0]]

    def _places(self, field: str, names: Sequence[str], index: int) -> str:
        """Return the elements of some inputs in words, such as `k[0, 1, 37, :]`."""
        texts = []
        for name in names:
            at = [":"] * len(self._tensors[name].shape)
            at[self._axes[field][name]] = str(index)
            for other, own in self._own.items():
                if other != field and name in self._axes[other]:
                    others = self._others(other)
                    if not others or not self._fresh(DEFAULT, other, [name], others):
                        at[self._axes[other][name]] = str(own)
            texts.append(f"{name}[{', '.join(at)}]")
        return " and ".join(texts)

    def _turned(self, candidate: bool, field: str, names: Sequence[str], indices: Sequence[int]) -> bool:
        """Return whether an element changes if the slices at some indices change places."""
        return len(indices) > 1 and self._changes(candidate, field, names, indices, np.roll(indices, 1), ())

    def _fresh(self, candidate: bool, field: str, names: Sequence[str], indices: Sequence[int]) -> bool:
        """Return whether an element changes if the slices at some indices are replaced by others."""
        return bool(indices) and self._changes(candidate, field, names, indices, indices, indices)

    def _changes(
        self, candidate: bool, field: str, names: Sequence[str], places: Sequence[int], sources: Any,
        fresh: Sequence[int],
    ) -> bool:  # fmt: skip
        order = np.arange(int(self._problem[field]))
        order[list(places)] = sources
        marks = np.isin(np.arange(order.size), fresh)
        return self._run(candidate, {name: Slices(self._axes[field][name], order, marks) for name in names})
