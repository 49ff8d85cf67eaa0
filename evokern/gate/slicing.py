"""Declared slices applied to tensors: the part of a large problem to renew for one candidate."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from evokern.declaration.kernel import Problem, Slice, Tensor
from evokern.errors import KernelError
from evokern.gate.data import draw
from evokern.study.settings import InputSet

MIN_SHARE = 0.01
"""Minimum share of the outputs that the renewed slices affect for each candidate."""
LEAST_ROWS = 64
"""Minimum number of output rows (columns, if the last axis is cut) that the renewed slices affect, if there are as
many."""

Indices = tuple[list[int], ...]
"""Indices along each axis that a slice cuts."""


class SlicedTensors:
    """One declared slice of one problem: chooses indices, and cuts, writes and draws parts of tensors."""

    def __init__(self, declared: Slice, problem: Problem, tensors: Mapping[str, Tensor], rng: random.Random) -> None:
        """Check that a declared slice fits the tensors.

        Args:
            declared: the slice.
            problem: the problem.
            tensors: inputs and outputs.
            rng: private source of the order of indices.

        Raises:
            KernelError: the slice does not fit the tensors.
        """
        self.declared, self._problem, self._rng = declared, problem, rng
        self._tensors = {name: tensors[name] for name in tensors if tensors[name].role != "workspace"}
        self.extents = declared.extents({name: tensor.shape for name, tensor in self._tensors.items()})
        self.counts = self._counts()
        self._decks: dict[int, list[Indices]] = {}
        self._uploaded: dict[int, tuple[Indices, tuple[torch.Tensor, ...]]] = {}

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs that are renewed with the slice."""
        return tuple(name for name in self.declared.axes if self._tensors[name].given)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs that the slice affects."""
        return tuple(name for name in self.declared.axes if self._tensors[name].role in ("output", "inout"))

    def renews(self, name: str, kind: InputSet) -> bool:
        """Return whether parts of an input can be drawn separately; rows of equal values cannot be cut."""
        tensor, axes = self._tensors[name], self.declared.cut(name)
        if name not in self.inputs or tensor.change != "elements":
            return False
        return kind != "equal_rows" or len(tensor.shape) - 1 not in axes

    def _counts(self) -> tuple[int, ...]:
        """Return the number of indices along each axis of the smallest slice that affects enough of each output."""
        if not self.outputs:
            raise KernelError(f"Slice({dict(self.declared.axes)}) names no output; add the outputs that it changes")
        single = len(self.extents) == 1
        counts = [math.ceil(MIN_SHARE * extent) if single else 1 for extent in self.extents]
        while not all(self._enough(name, counts) for name in self.outputs):
            share = [count / extent for count, extent in zip(counts, self.extents, strict=True)]
            place = share.index(min(share))
            counts[place] += 1
        return tuple(counts)

    def _enough(self, name: str, counts: Sequence[int]) -> bool:
        share, rows = 1.0, self._tensors[name].elements // self._tensors[name].shape[-1]
        last = len(self._tensors[name].shape) - 1
        reached = float(rows)
        for axis, count, extent in zip(self.declared.cut(name), counts, self.extents, strict=True):
            share *= count / extent
            if axis != last:
                reached *= count / extent
            elif count < min(LEAST_ROWS, extent):
                return False
        return share >= MIN_SHARE and (reached >= min(LEAST_ROWS, rows) or last in self.declared.cut(name))

    def next(self, index: int) -> Indices:
        """Return the next indices for an input set, in random order; all are used once before any is repeated."""
        deck = self._decks.setdefault(index, [])
        if not deck:
            parts = []
            for count, extent in zip(self.counts, self.extents, strict=True):
                order = self._rng.sample(range(extent), extent)
                groups = [order[start : start + count] for start in range(0, extent, count)]
                missing = count - len(groups[-1])
                groups[-1] += order[:missing]
                parts.append([sorted(group) for group in groups])
            deck += itertools.product(*parts)
            self._rng.shuffle(deck)
        return deck.pop()

    def indices(self, at: Indices, device: torch.device) -> tuple[torch.Tensor, ...]:
        """Return the given indices as tensors, which are kept until `forget_indices`."""
        if id(at) not in self._uploaded:
            upload([(self, at)], device)
        return self._uploaded[id(at)][1]

    def forget_indices(self) -> None:
        """Release the indices on the device before a candidate runs, which must not learn what has changed."""
        self._uploaded.clear()

    def cut(self, name: str, values: torch.Tensor, at: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Return the slice of a tensor, or the whole tensor if the slice does not cut it."""
        part = _selectable(values)
        for axis, indices in zip(self.declared.cut(name), at, strict=False):
            part = part.index_select(axis, indices)
        return part.view(values.dtype)

    def put(self, name: str, whole: torch.Tensor, part: torch.Tensor, at: tuple[torch.Tensor, ...]) -> None:
        """Write `part` into the slice of a tensor."""
        axes = self.declared.cut(name)
        if len(at) == 1:
            _selectable(whole).index_copy_(axes[0], at[0], _selectable(part))
            return
        rest = [axis for axis in range(whole.ndim) if axis not in axes]
        order = (*axes, *rest)
        mesh = torch.meshgrid(*at, indexing="ij") if len(at) > 1 else at
        _selectable(whole).permute(order)[mesh] = _selectable(part).permute(order)

    def draw(
        self,
        name: str,
        kind: InputSet,
        view: torch.Tensor,
        at: tuple[torch.Tensor, ...],
        generator: torch.Generator,
        *,
        share: float,
        nonfinite: bool,
    ) -> None:
        """Draw new values for a slice of an input.

        Args:
            name: the input.
            kind: kind of inputs.
            view: the whole input.
            at: indices of the slice along each axis.
            generator: private source of randomness.
            share: share of the slice's elements that change.
            nonfinite: whether `edges` inputs include infinities and NaN.
        """
        tensor = self._tensors[name]
        old = self.cut(name, view, at)
        if tensor.draw is not None:
            whole = torch.empty_like(view)
            draw(tensor, kind, whole, generator)
            fresh = self.cut(name, whole, at)
        else:
            fresh = torch.empty(old.shape, dtype=view.dtype, device=view.device)
            draw(replace(tensor, shape=tuple(old.shape)), kind, fresh, generator, nonfinite=nonfinite)
        if share < 1.0:
            changed = torch.rand(old.shape, generator=generator, device=view.device) < share
            fresh = torch.where(changed, _selectable(fresh), _selectable(old))
        self.put(name, view, fresh, at)


def upload(slices: Sequence[tuple[SlicedTensors, Indices]], device: torch.device) -> None:
    """Copy the indices of several slices to a device in one step, for `SlicedTensors.indices`.

    A copy from pinned memory does not wait for the work that the GPU has queued.
    """
    new = [(sliced, at) for sliced, at in slices if id(at) not in sliced._uploaded]
    numbers, on_gpu = [number for _, at in new for one in at for number in one], device.type == "cuda"
    flat = torch.tensor(numbers, dtype=torch.int64, pin_memory=on_gpu).to(device, non_blocking=on_gpu)
    parts = iter(flat.split([len(one) for _, at in new for one in at]))  # type: ignore[no-untyped-call]
    for sliced, at in new:
        # Keeping `at` prevents that another object gets its id.
        sliced._uploaded[id(at)] = at, tuple(next(parts) for _ in at)


def _selectable(values: torch.Tensor) -> torch.Tensor:
    """Return a view that torch can index; it cannot index 8-bit floats."""
    return values.view(torch.uint8) if values.element_size() == 1 else values
