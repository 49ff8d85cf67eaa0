"""Choice of the inputs to renew for a candidate: all inputs or, for a large problem, some slices or sets.

A float64 reference of a large problem takes longer than running the candidate, so candidates share inputs. Counters
alone decide which inputs are renewed; neither a clock nor a candidate influences the choice.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from evokern.declaration.kernel import Problem, Tensor, Workload
from evokern.errors import KernelError
from evokern.gate.data import can_be_zero, declared_values, draw
from evokern.gate.references import References
from evokern.gate.slicing import Indices, SlicedTensors, upload
from evokern.study.settings import InputSet

LARGE_FLOPS = 4e9
"""A problem with more operations is large. Ten references below it take an H200 about 2 ms, and a GPU without fast
float64 about 80 ms."""
LARGE_ELEMENTS = 1 << 24
"""A problem with more elements of inputs and outputs is large."""
AGREEMENT = 1e-9
"""Largest accepted difference between a slice's reference and the whole reference, relative to the largest value."""


@dataclass
class ZeroTurns:
    """Counter that selects the next all-zero input, shared by the buffer sets of a process.

    A candidate that is judged twice, on two problems or in a repetition, gets a different all-zero input each time.
    """

    turn: int
    """Number of the next all-zero input; a device sets it for each candidate, so that equal seeds agree."""

    def next(self) -> int:
        """Return the number, and advance."""
        self.turn += 1
        return self.turn - 1


ZERO_TURNS = ZeroTurns(random.SystemRandom().randrange(1 << 16))
"""The counter of this process."""

Sliced = tuple[int, SlicedTensors, Indices]
"""Number of an input set, one of its renewed slices, and the indices of that slice."""


def is_large(workload: Workload, problem: Problem, tensors: Mapping[str, Tensor]) -> bool:
    """Return whether a problem is so large that candidates share inputs and references."""
    elements = sum(tensor.elements for tensor in tensors.values() if tensor.role != "workspace")
    return elements > LARGE_ELEMENTS or workload.flops(problem) > LARGE_FLOPS


class Renewal:
    """Random inputs of one buffer set, and the choice of the inputs to renew."""

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
        """Set up the renewal.

        Args:
            workload: workload with the declared slices and the inputs that may be infinite.
            problem: the problem.
            tensors: buffers of the workload.
            kinds: kind of each input set.
            generator: private source of the inputs.
            secret: private source of the order.
            every: number of candidates after which a set that slices do not cover is renewed entirely.

        Raises:
            KernelError: a slice does not fit the tensors.
        """
        self._given = {name: tensor for name, tensor in tensors.items() if tensor.given}
        self._kinds, self._generator, self._every = tuple(kinds), generator, every
        self._nonfinite = workload.nonfinite
        self.slices = [SlicedTensors(one, problem, tensors, secret) for one in workload.slices_at(problem)]
        """The declared slices."""
        self.large = is_large(workload, problem, tensors)
        """Whether candidates share inputs."""
        self._zero: dict[int, str] = {}
        self._candidates = self._repetitions = 0

    def renew(
        self, views: Mapping[str, torch.Tensor], share: float, *, whole: bool, repetition: bool
    ) -> tuple[list[int], list[Sliced]]:
        """Draw new inputs.

        Args:
            views: input buffers, each of shape (sets, *shape).
            share: share of the elements that change.
            whole: renew every set.
            repetition: draw inputs for the same candidate as before.

        Returns:
            The sets that were renewed entirely, and the renewed slices of the other sets.
        """
        sets = range(len(self._kinds))
        renewed = list(sets) if whole or not self.large else self._due(repetition=repetition)
        for group in self._alike(renewed):
            self._draw_whole(group, views, share)
        sliced = [
            (index, one, one.next(index))
            for index in sets
            if index not in renewed
            for one in self.slices
            if any(one.renews(name, self._kinds[index]) for name in one.inputs)
        ]
        upload([(one, at) for _, one, at in sliced], self._generator.device)
        for index, one, at in sliced:
            self._draw_slice(index, one, at, {name: view[index] for name, view in views.items()}, share)
        return renewed, sliced

    def covered(self, index: int) -> bool:
        """Return whether the declared slices together renew every input of a set."""
        if self._is_zero_set(index):
            return False
        return all(any(one.renews(name, self._kinds[index]) for one in self.slices) for name in self._given)

    def _due(self, *, repetition: bool) -> list[int]:
        """Return the sets to renew now: each set is due every `every` candidates, at staggered times."""
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
        """Return whether a set has an all-zero input: every `edges` set except the first."""
        return self._kinds[index] == "edges" and self._kinds.index("edges") < index

    def _alike(self, sets: Sequence[int]) -> list[slice]:
        """Return ranges of neighbouring sets of one kind that are small enough to draw together."""
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
        """Draw the inputs of several sets of one kind."""
        kind = self._kinds[group.start]
        for index in range(group.start, group.stop):
            if self._is_zero_set(index) and (share >= 1.0 or index not in self._zero):
                able = [name for name, tensor in self._given.items() if can_be_zero(tensor)]
                self._zero[index] = able[ZERO_TURNS.next() % len(able)] if able else ""
        for name, whole in views.items():
            self._draw_tensor(name, kind, whole[group], share)
            for index in range(group.start, group.stop):
                if self._zero.get(index) == name:
                    whole[index].view(torch.uint8).zero_()

    def _draw_tensor(self, name: str, kind: InputSet, view: torch.Tensor, share: float) -> None:
        """Draw one input for several sets of one kind, shape (sets, *shape)."""
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
            # Select bytes, because torch cannot select 8-bit floats.
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
        """Check each slice separately on normal inputs; see `BufferSet.prove_slices`.

        Raises:
            KernelError: a slice affects undeclared elements, or its reference is incorrect.
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
                        f"kernel {kernel}: the declared slice of {', '.join(one.inputs)} is incorrect: with new inputs "
                        f"in the slice, {name!r} differs from the slice's reference by {error:.3g}. Check the axes "
                        "(the slice may affect other elements) and the reference of this slice in kernel.py"
                    )
