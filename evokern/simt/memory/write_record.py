"""Which bytes of global memory launches wrote, and from which block each store came.

A launch says of itself only what it leaves behind: an element that holds the right value by accident, or one that was
never written, looks like any other. With a record one sees what was written, and by whom.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from evokern.simt.arrays import RAW, Array
from evokern.simt.memory.buffers import Buffer, Memory

_ONES = {width: np.full(width, 1, np.uint8).view(RAW[width])[0] for width in RAW}


class WriteRecord:
    """What launches wrote into a memory while it was recorded."""

    def __init__(self, memory: Memory, *, by_block: bool) -> None:
        """Prepare a record.

        Args:
            memory: where the buffers live.
            by_block: keep each store with its block, for some blocks; otherwise one mark per byte, for any number.
        """
        self._memory, self._by_block = memory, by_block
        self._marks: Array = np.zeros(0, np.uint8)
        self._views: dict[int, Array] = {}
        self._stores: list[tuple[int, Array, Array]] = []

    def note(self, index: Array, width: int, block: Array) -> None:
        """Record stores.

        Args:
            index: positions in the storage, in units of ``width``.
            width: bytes of each.
            block: linear id of the block of each.
        """
        if self._by_block:
            self._stores.append((width, index.astype(np.int64) * width, block))
            return
        size = self._memory.storage.size
        if self._marks.size != size:  # module variables may have been placed since
            grown = np.zeros(size, np.uint8)
            grown[: self._marks.size] = self._marks
            self._marks, self._views = grown, {}
        view = self._views.get(width)
        if view is None:
            view = self._views[width] = self._marks[: size // width * width].view(RAW[width])
        view[index] = _ONES[width]

    def written(self, buffer: Buffer, itemsize: int) -> npt.NDArray[np.bool_]:
        """Return which elements of a buffer were written, every byte of them.

        Args:
            buffer: the allocation.
            itemsize: bytes of an element.
        """
        if self._by_block:
            found = np.zeros(buffer.size // itemsize, np.bool_)
            found[self.elements(buffer, itemsize)[1]] = True
            return found
        if not self._marks.size:
            return np.zeros(buffer.size // itemsize, np.bool_)
        marks = self._marks[buffer.offset : buffer.offset + buffer.size]
        return np.asarray(marks.reshape(-1, itemsize).all(1))

    def elements(self, buffer: Buffer, itemsize: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return (block, element) of every element that each block wrote, each pair once, by block then element.

        Args:
            buffer: the allocation.
            itemsize: bytes of an element; one that is written in parts counts from its first part on.
        """
        count = buffer.size // itemsize
        pairs: list[Any] = []
        for width, starts, blocks in self._stores:
            inside = (starts >= buffer.offset) & (starts < buffer.offset + buffer.size)
            if inside.any():
                first = starts[inside] - buffer.offset
                covered = (first[:, None] + np.arange(0, width, min(width, itemsize))) // itemsize
                pairs.append((blocks[inside].astype(np.int64)[:, None] * count + covered).reshape(-1))
        if not pairs:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        found = np.unique(np.concatenate(pairs))
        return found // count, found % count


@contextmanager
def recording_writes(memory: Memory, *, by_block: bool) -> Iterator[WriteRecord]:
    """Record what launches in this memory write, while the context lasts."""
    record = WriteRecord(memory, by_block=by_block)
    memory.record = record
    try:
        yield record
    finally:
        memory.record = None
