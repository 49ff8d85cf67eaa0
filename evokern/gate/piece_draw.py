"""Where pieces of tensors lie that change, are poisoned, or are kept: drawn, so that no candidate knows the places."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import torch

from evokern.declaration.kernel import Tensor
from evokern.gate.kept_answers import Piece
from evokern.gate.slicing import Indices, SlicedTensors

InputSlice = tuple[SlicedTensors, Indices]
"""A declared slice, and where along its axes."""
_POISONED = 24
"""Poisoned parts, at most."""
_POISON_BYTES = 4096
"""Bytes of one poisoned part; a step writes at most 96 KB of poison, which takes a GPU less than a launch."""


class PieceDraw:
    """Draws pieces of tensors."""

    def __init__(self, generator: torch.Generator) -> None:
        """Begin.

        Args:
            generator: source of the seed.
        """
        seed = torch.randint(2**62, (), generator=generator, device=generator.device)
        self._random = random.Random(int(seed))

    def integer(self, below: int) -> int:
        """Draw a number from 0 up; 0 where there is none below."""
        return self._random.randrange(max(below, 1))

    def distinct(self, below: int, count: int) -> list[int]:
        """Draw different numbers from 0 up, as many as there are, in random order."""
        return self._random.sample(range(below), min(below, count))

    def poison(self, tensors: Mapping[str, Tensor]) -> list[tuple[str, int, int]]:
        """Draw (tensor, first byte, bytes): up to half of each output and workspace, the rest stays as it was left."""
        targets = {
            name: tensor
            for name, tensor in tensors.items()
            if tensor.role == "output" or (tensor.role == "workspace" and tensor.initial == "poison")
        }
        parts: list[tuple[str, int, int]] = []
        for name, tensor in list(targets.items())[:_POISONED]:
            count = max(1, _POISONED // len(targets))
            size = max(1, min(_POISON_BYTES, tensor.bytes // (2 * count)))
            size = size // 16 * 16 or size
            parts += [self._inside(name, at * size, size) for at in self.distinct(tensor.bytes // size, count)]
        return parts

    def _inside(self, name: str, start: int, size: int) -> tuple[str, int, int]:
        """Draw a part of a part, long or short, at any place: who looks at one element of a block misses some."""
        units = size // 16
        if units < 2:
            return name, start, size
        length = max(1, int(units ** self._random.random()))
        return name, start + 16 * self.integer(units - length + 1), 16 * length

    def input_slice(self, name: str, tensor: Tensor, slices: Sequence[SlicedTensors], size: int) -> InputSlice | None:
        """Draw where along the axes of a declared slice an input changes; None where its reference is not cut.

        Args:
            name: the input.
            tensor: its declaration.
            slices: those that are declared.
            size: bytes of a piece that is to lie in it.
        """
        able = [one for one in slices if name in one.inputs]
        if not able:
            return None
        one = able[self.integer(len(able))]
        at: list[list[int]] = []
        for axis, extent in zip(one.declared.cut(name), one.extents, strict=True):
            # Pieces lie side by side in memory: along the last axis as many indices as one has elements.
            count = min(extent, _length(tensor, size)) if axis == len(tensor.shape) - 1 else 1
            first = self.integer(extent - count + 1)
            at.append(list(range(first, first + count)))
        return one, tuple(at)

    def pieces(self, name: str, tensor: Tensor, size: int, count: int, inside: InputSlice | None = None) -> list[Piece]:
        """Draw pieces that do not overlap: each in another row, where there are as many rows.

        Args:
            name: the tensor.
            tensor: its declaration.
            size: bytes of a piece; at least an element, at most the tensor.
            count: how many; fewer where there is no room.
            inside: a slice that they must lie in.
        """
        length = _length(tensor, size)
        row = tensor.shape[-1] if tensor.shape else 1
        rows = tensor.elements // row
        if inside is not None:
            return self._pieces_inside(inside, name, tensor, min(length, row), count)
        if row >= length and rows >= count:
            starts = [at * row + self.integer(row - length + 1) for at in self.distinct(rows, count)]
        else:
            phase = self.integer(tensor.elements % length + 1)
            starts = [phase + at * length for at in self.distinct(tensor.elements // length, count)]
        return [Piece(name, start, length) for start in starts]

    def _pieces_inside(self, inside: InputSlice, name: str, tensor: Tensor, length: int, count: int) -> list[Piece]:
        """Draw pieces inside a slice of an input."""
        one, at = inside
        fixed = dict(zip(one.declared.cut(name), at, strict=True))
        last = len(tensor.shape) - 1
        starts = set()
        for _ in range(count):
            start = 0
            for axis, extent in enumerate(tensor.shape):
                place = fixed[axis][0] if axis in fixed else self.integer(extent)
                if axis == last and axis not in fixed:
                    place = self.integer(extent // length) * length
                start = start * extent + place
            starts.add(start)
        return [Piece(name, start, length) for start in sorted(starts)]


def _length(tensor: Tensor, size: int) -> int:
    """Return the elements of a piece of so many bytes."""
    return max(1, min(tensor.elements, size * tensor.elements // tensor.bytes))
