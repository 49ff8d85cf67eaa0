"""Record of accesses to global memory by launches: the bytes read and written, and the block of each store.

The result of a launch does not show whether it wrote an element, because an unwritten element may contain the correct
value by chance. A record shows which elements were written, and by which blocks.
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
    """One mark per byte of a memory's storage; untouched pages use no physical memory."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._bytes: Array = np.zeros(0, np.uint8)
        self._views: dict[int, Array] = {}

    def view(self, width: int) -> Array:
        """View the marks in units of a width, as unsigned integers (for 16 bytes, as complex numbers)."""
        size = self._memory.storage.size
        if self._bytes.size != size:  # Module variables may have been placed since the previous call.
            grown = np.zeros(size, np.uint8)
            grown[: self._bytes.size] = self._bytes
            self._bytes, self._views = grown, {}
        view = self._views.get(width)
        if view is None:
            view = self._views[width] = self._bytes[: size // width * width].view(RAW[width])
        return view

    def set(self, index: Array, width: int) -> None:
        """Mark accesses, given as positions in units of the width, and the width in bytes."""
        self.view(width)[index] = _ONES[width]

    def elements(self, buffer: Buffer, itemsize: int) -> Array:
        """Return the marks of an allocation, as an array (elements, bytes per element)."""
        marks = self.view(1)[buffer.offset : buffer.offset + buffer.size // itemsize * itemsize]
        return marks.reshape(-1, itemsize)

    def touched(self, buffer: Buffer, itemsize: int) -> npt.NDArray[np.bool_]:
        """Return a mask of the elements with at least one marked byte; elements have 1, 2, 4 or 8 bytes."""
        first = buffer.offset // itemsize  # Allocations have a much larger alignment.
        return np.asarray(self.view(itemsize)[first : first + buffer.size // itemsize] != 0)


class WriteRecord:
    """Writes to a memory by launches during a recording."""

    def __init__(self, memory: Memory, *, by_block: bool) -> None:
        """Create an empty record.

        Args:
            memory: memory that contains the buffers.
            by_block: store each write with its block, which suits few blocks; otherwise store one mark per byte, for
                any number of blocks.
        """
        self._by_block = by_block
        self._marks = _Marks(memory)
        self._stores: list[tuple[int, Array, Array]] = []

    def read(self, index: Array, width: int) -> None:
        """Ignore reads."""

    def write(self, index: Array, width: int, block: Array) -> None:
        """Record writes; the arguments are those of `AccessRecorder.write`."""
        if self._by_block:
            self._stores.append((width, index.astype(np.int64) * width, block))
        else:
            self._marks.set(index, width)

    def written(self, buffer: Buffer, itemsize: int) -> npt.NDArray[np.bool_]:
        """Return a mask of the elements that were written completely or, with `by_block`, at least partly.

        Args:
            buffer: the allocation.
            itemsize: bytes per element.
        """
        if self._by_block:
            found = np.zeros(buffer.size // itemsize, np.bool_)
            for _, elements in self._covered(buffer, itemsize):
                found[elements] = True
            return found
        return np.asarray(self._marks.elements(buffer, itemsize).all(1))

    def elements(self, buffer: Buffer, itemsize: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the distinct (block, element) pairs of all writes, sorted by block, then element.

        Args:
            buffer: the allocation.
            itemsize: bytes per element; a partly written element counts as written.
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
        """Yield, for each store width, the blocks that stored to a buffer and the elements that they wrote to."""
        for width, starts, blocks in self._stores:
            inside = (starts >= buffer.offset) & (starts < buffer.offset + buffer.size)
            if inside.any():
                first = starts[inside] - buffer.offset
                yield blocks[inside], (first[:, None] + np.arange(0, width, min(width, itemsize))) // itemsize


class Footprint:
    """Record of the elements that launches read, wrote, and read before writing."""

    def __init__(self, memory: Memory) -> None:
        self._read, self._written, self._found = (_Marks(memory) for _ in range(3))

    def read(self, index: Array, width: int) -> None:
        """Record reads; the arguments are those of `AccessRecorder.read`. Bulk copies do not report reads here."""
        self._read.set(index, width)
        if width > 8:  # 16-byte accesses are handled as two halves, because NumPy has no 16-byte integers.
            index, width = (np.asarray(index)[:, None] * 2 + np.arange(2)).reshape(-1), 8
        fresh = ~self._written.view(width)[index] & _ONES[width]
        self._found.view(width)[index] |= fresh

    def write(self, index: Array, width: int, block: Array) -> None:
        """Record writes; the arguments are those of `AccessRecorder.write`."""
        self._written.set(index, width)

    def of(self, buffer: Buffer, itemsize: int) -> tuple[npt.NDArray[np.bool_], ...]:
        """Return three masks of elements: read, written, and read before the first write.

        Args:
            buffer: the allocation.
            itemsize: bytes per element: 1, 2, 4 or 8; an access to one byte counts as an access to the element.
        """
        return tuple(marks.touched(buffer, itemsize) for marks in (self._read, self._written, self._found))


@contextmanager
def recording(memory: Memory, recorder: Recorder) -> Iterator[Recorder]:
    """Record the reads and writes of launches to a memory while the context is active."""
    memory.recorder = recorder
    try:
        yield recorder
    finally:
        memory.recorder = None
