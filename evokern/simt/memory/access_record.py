"""Which bytes of global memory launches read and wrote, and from which block each store came.

A launch says of itself only what it leaves behind: an element that holds the right value by accident, or one that was
never written, looks like any other. With a record one sees what was written, and by whom.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from evokern.simt.arrays import RAW, Array
from evokern.simt.memory.buffers import AccessRecorder, Buffer, Memory

Recorder = TypeVar("Recorder", bound=AccessRecorder)

_ONES = {width: np.full(width, 1, np.uint8).view(RAW[width])[0] for width in RAW}


class _Marks:
    """One byte for each byte of a memory's storage; pages that nobody touches are never backed."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._bytes: Array = np.zeros(0, np.uint8)
        self._views: dict[int, Array] = {}

    def view(self, width: int) -> Array:
        """Return the marks in units of a width, as unsigned integers of it (16 bytes: as complex numbers)."""
        size = self._memory.storage.size
        if self._bytes.size != size:  # module variables may have been placed since
            grown = np.zeros(size, np.uint8)
            grown[: self._bytes.size] = self._bytes
            self._bytes, self._views = grown, {}
        view = self._views.get(width)
        if view is None:
            view = self._views[width] = self._bytes[: size // width * width].view(RAW[width])
        return view

    def set(self, index: Array, width: int) -> None:
        """Mark accesses: positions in units of the width, bytes of each."""
        self.view(width)[index] = _ONES[width]

    def elements(self, buffer: Buffer, itemsize: int) -> Array:
        """Return the marks of an allocation: (elements, bytes of an element)."""
        marks = self.view(1)[buffer.offset : buffer.offset + buffer.size // itemsize * itemsize]
        return marks.reshape(-1, itemsize)

    def touched(self, buffer: Buffer, itemsize: int) -> npt.NDArray[np.bool_]:
        """Return which elements of an allocation have a mark on any byte; elements of 1, 2, 4 or 8 bytes."""
        first = buffer.offset // itemsize  # allocations are aligned to far more
        return np.asarray(self.view(itemsize)[first : first + buffer.size // itemsize] != 0)


class WriteRecord:
    """What launches wrote into a memory while it was recorded."""

    def __init__(self, memory: Memory, *, by_block: bool) -> None:
        """Prepare a record.

        Args:
            memory: where the buffers live.
            by_block: keep each store with its block, for some blocks; otherwise one mark per byte, for any number.
        """
        self._by_block = by_block
        self._marks = _Marks(memory)
        self._stores: list[tuple[int, Array, Array]] = []

    def read(self, index: Array, width: int) -> None:
        """Take reads, of which nothing is kept."""

    def write(self, index: Array, width: int, block: Array) -> None:
        """Take writes; arguments as `AccessRecorder.write`."""
        if self._by_block:
            self._stores.append((width, index.astype(np.int64) * width, block))
        else:
            self._marks.set(index, width)

    def written(self, buffer: Buffer, itemsize: int) -> npt.NDArray[np.bool_]:
        """Return which elements of a buffer were written: every byte of them, or kept by block any part.

        Args:
            buffer: the allocation.
            itemsize: bytes of an element.
        """
        if self._by_block:
            found = np.zeros(buffer.size // itemsize, np.bool_)
            for _, elements in self._covered(buffer, itemsize):
                found[elements] = True
            return found
        return np.asarray(self._marks.elements(buffer, itemsize).all(1))

    def elements(self, buffer: Buffer, itemsize: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return (block, element) of every element that each block wrote, each pair once, by block then element.

        Args:
            buffer: the allocation.
            itemsize: bytes of an element; one that is written in parts counts from its first part on.
        """
        count = buffer.size // itemsize
        pairs: list[Any] = [
            (blocks.astype(np.int64)[:, None] * count + elements).reshape(-1)
            for blocks, elements in self._covered(buffer, itemsize)
        ]
        if not pairs:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        found = np.unique(np.concatenate(pairs))
        return found // count, found % count

    def _covered(self, buffer: Buffer, itemsize: int) -> Iterator[tuple[Array, npt.NDArray[np.int64]]]:
        """Yield, for stores of one width that fell into a buffer, their blocks and the elements that each touched."""
        for width, starts, blocks in self._stores:
            inside = (starts >= buffer.offset) & (starts < buffer.offset + buffer.size)
            if inside.any():
                first = starts[inside] - buffer.offset
                yield blocks[inside], (first[:, None] + np.arange(0, width, min(width, itemsize))) // itemsize


class Footprint:
    """Which elements launches read and wrote, and which of them they read before they wrote them."""

    def __init__(self, memory: Memory) -> None:
        self._read, self._written, self._found = (_Marks(memory) for _ in range(3))

    def read(self, index: Array, width: int) -> None:
        """Take reads; arguments as `AccessRecorder.read`. Reads of bulk copies do not come here."""
        self._read.set(index, width)
        if width > 8:  # of 16 bytes: two halves, which have integers to calculate with
            index, width = (np.asarray(index)[:, None] * 2 + np.arange(2)).reshape(-1), 8
        fresh = ~self._written.view(width)[index] & _ONES[width]
        self._found.view(width)[index] |= fresh

    def write(self, index: Array, width: int, block: Array) -> None:
        """Take writes; arguments as `AccessRecorder.write`."""
        self._written.set(index, width)

    def of(self, buffer: Buffer, itemsize: int) -> tuple[npt.NDArray[np.bool_], ...]:
        """Return which elements were read, written, and read while nothing had written them yet.

        Args:
            buffer: the allocation.
            itemsize: bytes of an element, 1, 2, 4 or 8; one byte of it is enough.
        """
        return tuple(marks.touched(buffer, itemsize) for marks in (self._read, self._written, self._found))


@contextmanager
def recording(memory: Memory, recorder: Recorder) -> Iterator[Recorder]:
    """Let a recorder take what launches in this memory read and write, while the context lasts."""
    memory.recorder = recorder
    try:
        yield recorder
    finally:
        memory.recorder = None
