"""Types and small helpers for code that works on lanes."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
"""NumPy array; unless stated otherwise, its last axis runs over the lanes."""

Action = Callable[[], Any]
"""One step of a segment, bound to its rows; the return value is ignored."""

DTYPES: dict[str, Any] = {
    "pred": np.bool_,
    "u8": np.uint8, "b8": np.uint8, "s8": np.int8,
    "u16": np.uint16, "b16": np.uint16, "f16": np.float16, "bf16": np.uint16, "s16": np.int16,
    "e4m3x2": np.uint16, "e5m2x2": np.uint16,
    "u32": np.uint32, "b32": np.uint32, "s32": np.int32, "f32": np.float32,
    "f16x2": np.uint32, "bf16x2": np.uint32, "tf32": np.uint32, "u16x2": np.uint32, "s16x2": np.uint32,
    "u64": np.uint64, "b64": np.uint64, "s64": np.int64, "f64": np.float64, "f32x2": np.uint64,
}  # fmt: skip
"""PTX type → NumPy type of a row; formats that NumPy lacks are stored as bit patterns."""

RAW: dict[int, Any] = {
    1: np.dtype(np.uint8), 2: np.dtype(np.uint16), 4: np.dtype(np.uint32), 8: np.dtype(np.uint64),
    16: np.dtype("V16"), 32: np.dtype("V32"), 64: np.dtype("V64"),
}  # fmt: skip
"""Width in bytes → element type for moving raw bits."""

SIGNED = frozenset({"s8", "s16", "s32", "s64"})


def ballot(mask: Array) -> Array:
    """Return a lane mask as one 32-bit word per warp."""
    return np.packbits(mask.reshape(-1, 32), axis=1, bitorder="little").view(np.uint32).reshape(-1)


def sparse_zeros(size: int, dtype: Any) -> Array:
    """Return an array of zeros on small memory pages, so that only the parts in use occupy physical memory."""
    wanted = np.dtype(dtype)
    if not hasattr(mmap, "MADV_NOHUGEPAGE") or size * wanted.itemsize < 1 << 21:
        return np.zeros(size, wanted)
    memory = mmap.mmap(-1, size * wanted.itemsize)
    with suppress(OSError):  # The operating system has no large pages.
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, wanted)


def lowest_bits(values: Array) -> int:
    """Return the bitwise OR of all values, whose low bits show the alignment of addresses."""
    return int(np.bitwise_or.reduce(values, axis=None))


class Active:
    """Lanes that execute together, as a mask over all lanes of the batch.

    Attributes:
        mask: bool per lane.
        count: number of lanes in the mask.
        all: whether the mask contains every lane of the batch, so that rows can be used directly.
        full: whether the mask contains every lane that has not exited; writing to exited lanes is harmless.
    """

    __slots__ = ("_lanes", "_warps", "all", "count", "full", "mask")

    def __init__(self, mask: Array, count: int, live: int) -> None:
        self.mask = mask
        self.count = count
        self.all = count == mask.size
        self.full = count >= live
        self._lanes: Array | None = None
        self._warps = -1

    @property
    def lanes(self) -> Array:
        """Indices of the lanes, ascending."""
        if self._lanes is None:
            self._lanes = np.flatnonzero(self.mask)
        return self._lanes

    @property
    def warps(self) -> int:
        """Number of warps that contain at least one of the lanes."""
        if self._warps < 0:
            self._warps = self.mask.size // 32 if self.all else int(np.count_nonzero(self.mask.reshape(-1, 32).any(1)))
        return self._warps

    def pick(self, row: Array) -> Array:
        """Return the row's values at these lanes; the row itself if all lanes are active or it has only one value."""
        return row if self.all or row.shape[0] == 1 else row[self.lanes]

    def put(self, row: Array, values: Array) -> None:
        """Write one value per active lane to the row."""
        if self.all:
            row[...] = values
        else:
            row[self.lanes] = values


class Repeated(Active):
    """Lanes that access several elements each, with one entry per element."""

    __slots__ = ()

    def __init__(self, active: Active, owner: Array) -> None:
        """Repeat lanes.

        Args:
            active: the lanes.
            owner: for each element, the position of its lane among them.
        """
        super().__init__(active.mask, owner.size, active.mask.size)
        self.all = self.full = False
        self._lanes = active.lanes[owner]
