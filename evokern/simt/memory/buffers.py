"""Global memory: allocations in one flat storage, with guard zones that belong to nobody.

Device addresses are storage positions plus `GLOBAL_BASE`. Shared and local memory have windows of their own in the
generic address space, far below. Guard zones cost address space only: pages nobody writes are never backed.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from evokern.errors import UsageError
from evokern.simt.arrays import RAW, Array
from evokern.simt.chip_view import ChipTime

WINDOW_BITS = 40
"""Generic addresses: the window is address >> 40."""
SHARED_WINDOW = 1 << WINDOW_BITS
LOCAL_WINDOW = 2 << WINDOW_BITS
GLOBAL_BASE = 16 << WINDOW_BITS
GUARD_BYTES = 1 << 20
"""Least distance between two allocations; an index that is off by up to this many bytes cannot land in a neighbour."""
ALIGNMENT = 512
"""Of every allocation, as cudaMalloc gives it."""
MEMORY_LIMIT = 1 << 32
"""Most bytes one launch may hold in allocations."""


class AccessRecorder(Protocol):
    """Takes what launches read and write."""

    def read(self, index: Array, width: int) -> None:
        """Take reads: positions in the storage in units of the width, bytes of each."""

    def write(self, index: Array, width: int, block: Array) -> None:
        """Take writes: positions in the storage in units of the width, bytes of each, linear id of each one's block."""


@dataclass(slots=True, eq=False)
class Buffer:
    """One allocation."""

    name: str
    """For messages."""
    address: int
    """Device address of its first byte."""
    size: int
    """Bytes."""
    writable: bool
    """False for an input: a write is a finding."""
    initialised: bool
    """False when the kernel has to write before it reads."""
    dtype: np.dtype[Any]
    """Element type that `read` returns."""
    shape: tuple[int, ...]
    """Shape that `read` returns."""
    memory: Memory
    """Where it lives."""
    space: str = "global"
    """``global``, ``const`` or ``param``, for messages."""

    @property
    def offset(self) -> int:
        """Position of the first byte in the storage."""
        return self.address - GLOBAL_BASE

    def read(self) -> Array:
        """Return a copy of the contents, in the dtype and shape it was allocated with."""
        raw = self.memory.storage[self.offset : self.offset + self.size]
        return raw.view(self.dtype).reshape(self.shape).copy()

    def write(self, data: Array) -> None:
        """Replace the contents from the host.

        Args:
            data: as many bytes as the allocation holds.
        """
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        if raw.size != self.size:
            raise UsageError(f"buffer {self.name!r} holds {self.size} bytes, but got {raw.size}")
        self.memory.storage[self.offset : self.offset + self.size] = raw


class Memory:
    """Global memory of one batch of launches.

    Attributes:
        buffers: all allocations, by ascending address.
        module_data: (module, number of the launch) → its variables by symbol.
        module_initial: the same → what the variables begin with, where that is not zeros.
        recorder: takes every read and write while somebody wants to know (`evokern.simt.memory.access_record`).
        time: how far the clocks of the chip went by the launches so far.
    """

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        self._starts: list[int] = []
        self._end = GUARD_BYTES
        self._bytes = 0
        self._storage: Array = np.zeros(0, np.uint8)
        self._pending: list[tuple[int, Array]] = []
        self._views: dict[int, Array] = {}
        self.module_data: dict[Any, dict[str, Buffer]] = {}
        self.module_initial: dict[Any, dict[str, Array]] = {}
        self.recorder: AccessRecorder | None = None
        self.time = ChipTime()

    def allocate(
        self,
        name: str,
        data: Array,
        *,
        writable: bool = True,
        initialised: bool = True,
        space: str = "global",
        lead: int = 0,
    ) -> Buffer:
        """Copy an array into device memory.

        Args:
            name: for messages.
            data: any dtype and shape; with ``initialised=False`` the contents are what the kernel finds but must
                not read.
            writable: False for an input.
            initialised: False when the kernel has to write before it reads.
            space: ``global``, ``const`` or ``param``, for messages.
            lead: bytes from a multiple of the usual alignment to its start, as for a view into a larger allocation.

        Returns:
            The allocation.

        Raises:
            UsageError: more than 4 GiB in all.
        """
        data = np.asarray(data)
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        self._bytes += raw.size
        if self._bytes > MEMORY_LIMIT:
            raise UsageError(
                f"allocation {name!r} of {raw.size} bytes exceeds the PTX machine's {MEMORY_LIMIT >> 30} GiB: use a "
                "smaller problem"
            )
        start = -(-self._end // ALIGNMENT) * ALIGNMENT + lead
        buffer = Buffer(name, GLOBAL_BASE + start, raw.size, writable, initialised, data.dtype, data.shape, self, space)
        self.buffers.append(buffer)
        self._starts.append(start)
        self._end = start + raw.size + max(GUARD_BYTES, min(raw.size, 16 * GUARD_BYTES))
        self._pending.append((start, raw))
        return buffer

    @property
    def storage(self) -> Array:
        """All bytes; grown when allocations came since the last look."""
        if self._pending:
            grown = np.zeros(-(-(self._end + 64) // 64) * 64, np.uint8)
            waiting = {start for start, _ in self._pending}
            for buffer in self.buffers:
                if buffer.offset not in waiting:
                    grown[buffer.offset : buffer.offset + buffer.size] = self._storage[
                        buffer.offset : buffer.offset + buffer.size
                    ]
            for start, raw in self._pending:
                grown[start : start + raw.size] = raw
            self._storage = grown
            self._pending = []
            self._views = {}
        return self._storage

    def view(self, width: int) -> Array:
        """Return the storage as elements of so many bytes."""
        storage = self.storage
        view = self._views.get(width)
        if view is None:
            view = self._views[width] = storage[: storage.size // width * width].view(RAW[width])
        return view

    def find(self, offset: int) -> Buffer | None:
        """Return the allocation that holds an storage position, None in a guard zone."""
        index = bisect.bisect_right(self._starts, offset) - 1
        if index < 0:
            return None
        buffer = self.buffers[index]
        return buffer if offset < buffer.offset + buffer.size else None

    def nearest(self, offset: int) -> Buffer | None:
        """Return the allocation nearest to a position outside all of them."""
        index = bisect.bisect_right(self._starts, offset) - 1
        around = [self.buffers[at] for at in (index, index + 1) if 0 <= at < len(self.buffers)]
        if not around:
            return None
        return min(around, key=lambda item: max(item.offset - offset, offset - (item.offset + item.size - 1)))

    def bounds(self) -> tuple[Array, Array]:
        """Return first positions and sizes of all allocations, for look-ups over lanes."""
        return np.array(self._starts, np.int64), np.array([item.size for item in self.buffers], np.int64)
