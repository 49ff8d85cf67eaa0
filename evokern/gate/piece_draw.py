"""Random choice of the pieces of tensors to change, poison or record; candidates cannot predict the positions."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import torch

from evokern.declaration.kernel import Tensor
from evokern.gate.recorded_outputs import Piece
from evokern.gate.slicing import Indices, SlicedTensors

InputSlice = tuple[SlicedTensors, Indices]
"""A declared slice with indices along its axes."""
_POISONED = 24
"""Maximum number of poisoned parts."""
_POISON_BYTES = 4096
"""Maximum bytes of a poisoned part; a step writes at most 96 KB of poison, which takes less time than a launch."""


class RandomPieces:
    """Random choice of pieces of tensors."""

    def __init__(self, generator: torch.Generator) -> None:
        """Seed the random number generator.

        Args:
            generator: private source of the seed.
        """
        seed = torch.randint(2**62, (), generator=generator, device=generator.device)
        self._random = random.Random(int(seed))

    def integer(self, below: int) -> int:
        """Draw a number from 0 to `below` - 1, or 0 if `below` is less than 1."""
        return self._random.randrange(max(below, 1))

    def distinct(self, below: int, count: int) -> list[int]:
        """Draw up to `count` different numbers below `below`, in random order."""
        return self._random.sample(range(below), min(below, count))

    def poison(self, tensors: Mapping[str, Tensor]) -> list[tuple[str, int, int]]:
        """Draw the parts to poison as (tensor, first byte, bytes): up to half of each output and workspace."""
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
        """Draw a sub-range of random length, so that a candidate that checks one element per block misses some."""
        units = size // 16
        if units < 2:
            return name, start, size
        length = max(1, int(units ** self._random.random()))
        return name, start + 16 * self.integer(units - length + 1), 16 * length

    def input_slice(self, name: str, tensor: Tensor, slices: Sequence[SlicedTensors], size: int) -> InputSlice | None:
        """Draw a position of a declared slice in which an input changes; None if no slice contains the input.

        Args:
            name: the input.
            tensor: declaration of the input.
            slices: the declared slices.
            size: bytes of a piece that must fit in the slice.
        """
        able = [one for one in slices if name in one.inputs]
        if not able:
            return None
        one = able[self.integer(len(able))]
        at: list[list[int]] = []
        for axis, extent in zip(one.declared.cut(name), one.extents, strict=True):
            # A piece is consecutive in memory, so it spans as many indices of the last axis as it has elements.
            count = min(extent, _length(tensor, size)) if axis == len(tensor.shape) - 1 else 1
            first = self.integer(extent - count + 1)
            at.append(list(range(first, first + count)))
        return one, tuple(at)

    def pieces(self, name: str, tensor: Tensor, size: int, count: int, inside: InputSlice | None = None) -> list[Piece]:
        """Draw pieces that do not overlap, each in a different row if there are enough rows.

        Args:
            name: the tensor.
            tensor: declaration of the tensor.
            size: bytes of a piece; at least one element, at most the tensor.
            count: number of pieces; fewer are returned if they do not fit.
            inside: slice that must contain the pieces.
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
    """Return the number of elements of a piece of `size` bytes, at least 1."""
    return max(1, min(tensor.elements, size * tensor.elements // tensor.bytes))
