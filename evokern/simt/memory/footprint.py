"""Which bytes of global memory a launch reads and writes, and which of them it read before it wrote them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from evokern.simt.arrays import Array

_UNITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_ONES = {1: 0x01, 2: 0x0101, 4: 0x01010101, 8: 0x0101010101010101}


class Footprint:
    """Marks of one launch, a byte for each byte of the memory's storage; pages that nobody touches are never backed.

    Give one to `Memory.footprint` before a launch. Bulk copies by the tensor memory accelerator are not noted.

    Args:
        size: returns the bytes of the storage, which grows when a launch places variables of its own.
    """

    def __init__(self, size: Callable[[], int]) -> None:
        self._size = size
        self._marks = {kind: np.zeros(size(), np.uint8) for kind in ("read", "written", "found")}

    def read(self, index: Array, width: int) -> None:
        """Note a read.

        Args:
            index: places in the storage, in units of the width.
            width: bytes of one access.
        """
        index, width = _small(index, width)
        written = self._view("written", width)[index]
        self._view("read", width)[index] = _ONES[width]
        found = self._view("found", width)
        found[index] |= ~written & written.dtype.type(_ONES[width])

    def write(self, index: Array, width: int) -> None:
        """Note a write; arguments as `read`."""
        index, width = _small(index, width)
        self._view("written", width)[index] = _ONES[width]

    def of(self, offset: int, size: int, kind: str) -> Array:
        """Return the marks of one allocation, a byte each.

        Args:
            offset: the allocation's place in the storage.
            size: its bytes.
            kind: `read`, `written`, or `found`: read while nothing had written it yet.
        """
        return self._marks[kind][offset : offset + size]

    def _view(self, kind: str, width: int) -> Array:
        marks = self._marks[kind]
        size = self._size()
        if marks.size < size:
            marks = self._marks[kind] = np.concatenate([marks, np.zeros(size - marks.size, np.uint8)])
        return marks.view(_UNITS[width])


def _small(index: Array, width: int) -> tuple[Array, int]:
    """Return wider accesses as several of 8 bytes."""
    if width <= 8:
        return index, width
    parts = width // 8
    return (np.asarray(index)[:, None] * parts + np.arange(parts)).ravel(), 8
