"""Which inputs are new for a candidate: all of them, or of a large problem slices, or the sets whose turn it is.

A float64 reference of a large problem takes longer than all that the candidate does. So its sets are kept from one
candidate to the next, and what is new follows from counts alone: no clock, and no candidate, has a say in it.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence

import torch

from evokern.declaration.kernel import Problem, Tensor, Workload
from evokern.errors import KernelError
from evokern.gate.data import declared_values, draw, may_be_zero
from evokern.gate.references import References
from evokern.gate.slicing import Indices, SlicedTensors
from evokern.study.settings import InputSet

LARGE_FLOPS = 4e9
"""Operations from which a problem is a large one: ten references take an H200 some 2 ms below, a GPU without fast
float64 some 80 ms."""
LARGE_ELEMENTS = 1 << 24
"""Elements of inputs and outputs from which it is."""
AGREEMENT = 1e-9
"""Largest difference between a slice's reference and the same part of the whole, relative to the largest value."""

_ZERO_TURNS = itertools.count(random.SystemRandom().randrange(1 << 16))
"""Which input is zero next, for all benches of a process: a candidate that is judged twice, on two problems or in a
repetition, has another one at zero the second time."""

Sliced = tuple[int, SlicedTensors, Indices]
"""A slice of an input set that is new."""


def is_large(workload: Workload, problem: Problem, tensors: Mapping[str, Tensor]) -> bool:
    """Tell whether a problem's inputs and references are kept from one candidate to the next."""
    elements = sum(tensor.elements for tensor in tensors.values() if tensor.role != "workspace")
    return elements > LARGE_ELEMENTS or workload.flops(problem) > LARGE_FLOPS


class Renewal:
    """Draws the inputs of one bench."""

    def __init__(
        self,
        workload: Workload,
        problem: Problem,
        tensors: Mapping[str, Tensor],
        kinds: Sequence[InputSet],
        generator: torch.Generator,
        secret: random.Random,
        every: int,
    ) -> None:
        """Take what is drawn.

        Args:
            workload: its slices, and which inputs may be infinite.
            problem: the problem.
            tensors: its buffers.
            kinds: kind of each input set.
            generator: private source of the inputs.
            secret: private source of the order.
            every: candidates after which sets are renewed whole where slices do not do it.

        Raises:
            KernelError: a slice does not fit the tensors.
        """
        self._given = {name: tensor for name, tensor in tensors.items() if tensor.given}
        self._kinds, self._generator, self._every = tuple(kinds), generator, every
        self._nonfinite = workload.nonfinite
        self.slices = [SlicedTensors(one, problem, tensors, secret) for one in workload.slices_at(problem)]
        """The declared slices."""
        self.large = is_large(workload, problem, tensors)
        """Whether inputs are kept from one candidate to the next."""
        self._zero: dict[int, str] = {}
        self._candidates = self._repetitions = 0

    def renew(
        self, views: Mapping[str, torch.Tensor], share: float, *, whole: bool, repetition: bool
    ) -> tuple[list[int], list[Sliced]]:
        """Draw new inputs.

        Args:
            views: each input over all sets, shape (sets, *shape).
            share: share of the elements that change.
            whole: renew every set.
            repetition: for the same candidate as before.

        Returns:
            The sets that are renewed whole, and the slices that are renewed of others.
        """
        sets = range(len(self._kinds))
        renewed = list(sets) if whole or not self.large else self._due(repetition=repetition)
        for group in self._alike(renewed):
            self._draw_whole(group, views, share)
        sliced: list[Sliced] = []
        for index in sets:
            if index in renewed:
                continue
            for one in self.slices:
                if any(one.renews(name, self._kinds[index]) for name in one.inputs):
                    at = one.next(index)
                    self._draw_slice(index, one, at, {name: view[index] for name, view in views.items()}, share)
                    sliced.append((index, one, at))
        return renewed, sliced

    def covered(self, index: int) -> bool:
        """Whether slices renew every input of a set in time."""
        if self._is_zero_set(index):
            return False
        return all(any(one.renews(name, self._kinds[index]) for one in self.slices) for name in self._given)

    def _due(self, *, repetition: bool) -> list[int]:
        """Return the sets whose turn it is: each comes every so many candidates, not all of them at once."""
        uncovered = [index for index in range(len(self._kinds)) if not self.covered(index)]
        if repetition:
            self._repetitions += 1
            return [uncovered[self._repetitions % len(uncovered)]] if len(uncovered) == len(self._kinds) else []
        self._candidates += 1
        return [
            index
            for place, index in enumerate(uncovered)
            if (self._candidates + place * self._every // len(uncovered)) % self._every == 0
        ]

    def _is_zero_set(self, index: int) -> bool:
        """Whether a set is one of `edges` behind the first, in which a whole input is zero."""
        return self._kinds[index] == "edges" and self._kinds.index("edges") < index

    def _alike(self, sets: Sequence[int]) -> list[slice]:
        """Return neighbouring sets of one kind, to be drawn at once where that is little."""
        together = max(1, LARGE_ELEMENTS // max(tensor.elements for tensor in self._given.values()))
        groups: list[slice] = []
        for index in sets:
            last = groups[-1] if groups else None
            if (
                last
                and last.stop == index
                and self._kinds[last.start] == self._kinds[index]
                and (index - last.start < together)
            ):
                groups[-1] = slice(last.start, index + 1)
            else:
                groups.append(slice(index, index + 1))
        return groups

    def _draw_whole(self, group: slice, views: Mapping[str, torch.Tensor], share: float) -> None:
        """Draw the inputs of some sets of one kind."""
        kind = self._kinds[group.start]
        for index in range(group.start, group.stop):
            if self._is_zero_set(index) and (share >= 1.0 or index not in self._zero):
                able = [name for name, tensor in self._given.items() if may_be_zero(tensor)]
                self._zero[index] = able[next(_ZERO_TURNS) % len(able)] if able else ""
        for name, whole in views.items():
            self._draw_tensor(name, kind, whole[group], share)
            for index in range(group.start, group.stop):
                if self._zero.get(index) == name:
                    whole[index].view(torch.uint8).zero_()

    def _draw_tensor(self, name: str, kind: InputSet, view: torch.Tensor, share: float) -> None:
        """Draw an input of some sets of one kind, shape (sets, *shape)."""
        tensor = self._given[name]
        if share < 1.0 and tensor.change == "nothing":
            return
        if share < 1.0 and callable(tensor.change):
            for one in view:
                one.copy_(declared_values(tensor, "change", one, one.clone(), self._generator))
            return
        fresh = view if share >= 1.0 else torch.empty_like(view)
        draw(tensor, kind, fresh, self._generator, nonfinite=name in self._nonfinite)
        if share < 1.0:
            changed = torch.rand(view.shape, generator=self._generator, device=view.device) < share
            # Bytes, since torch selects no 8-bit floats.
            raw, new = (t.view(torch.uint8).view(*t.shape, -1) for t in (view, fresh))
            raw.copy_(torch.where(changed.unsqueeze(-1), new, raw))

    def _draw_slice(
        self, index: int, one: SlicedTensors, at: Indices, views: Mapping[str, torch.Tensor], share: float
    ) -> None:
        kind, where = self._kinds[index], one.indices(at, self._generator.device)
        for name in one.inputs:
            if one.renews(name, kind) and self._zero.get(index) != name:
                odd = name in self._nonfinite
                one.draw(name, kind, views[name], where, self._generator, share=share, nonfinite=odd)

    def prove(self, views: Mapping[str, torch.Tensor], references: References, kernel: str) -> None:
        """Check each slice by itself on normal inputs: see `Bench.prove_slices`.

        Raises:
            KernelError: a slice reaches other elements than it says, or its reference is another one.
        """
        for one in self.slices:
            before = {name: value.clone() for name, value in references.whole(views).items()}
            at = one.next(0)
            where = one.indices(at, self._generator.device)
            for name in one.inputs:
                one.draw(name, "normal", views[name], where, self._generator, share=1.0, nonfinite=False)
            for name, part in references.sliced(one, at, views).items():
                one.put(name, before[name], part, where)
            for name, wanted in references.whole(views).items():
                scale = max(float(wanted.abs().max()), 1e-300)
                error = float((before[name].to(torch.float64) - wanted).abs().max())
                if not error <= AGREEMENT * scale:
                    raise KernelError(
                        f"kernel {kernel}: the slice of {', '.join(one.inputs)} is declared wrong: with new inputs in "
                        f"it, {name!r} is not what the slice's reference says (it differs by {error:.3g}). Either it "
                        "reaches other elements than those of the axes named, or its reference is not that of these"
                    )
