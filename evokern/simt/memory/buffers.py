"""Global memory: allocations in one flat storage array, separated by guard zones.

Device addresses are storage positions plus `GLOBAL_BASE`. Shared and local memory have their own windows in the generic
address space, at much lower addresses. Guard zones use only address space, because unwritten pages take no physical
memory.
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
"""Bits of an address below its window: the window is address >> 40."""
SHARED_WINDOW = 1 << WINDOW_BITS
LOCAL_WINDOW = 2 << WINDOW_BITS
GLOBAL_BASE = 16 << WINDOW_BITS
GUARD_BYTES = 1 << 20
"""Minimum distance between two allocations; an index error of up to this many bytes cannot reach a neighbour."""
ALIGNMENT = 512
"""Alignment of every allocation, as in cudaMalloc."""
MEMORY_LIMIT = 1 << 32
"""Maximum bytes of allocations per launch."""


class AccessRecorder(Protocol):
    """Receiver of the reads and writes of launches."""

    def read(self, index: Array, width: int) -> None:
        """Receive reads as positions in the storage, in units of the width, and the width in bytes."""

    def write(self, index: Array, width: int, block: Array) -> None:
        """Receive writes: positions in the storage in units of the width, width in bytes, linear ids of the blocks."""


@dataclass(slots=True, eq=False, kw_only=True)
class Buffer:
    """Allocation in global memory."""

    name: str
    """Name, for messages."""
    address: int
    """Device address of the first byte."""
    size: int
    """Bytes."""
    writable: bool
    """False for an input; a write to it is a finding."""
    initialised: bool
    """False if the kernel has to write before it reads."""
    dtype: np.dtype[Any]
    """Element type of the array that `read` returns."""
    shape: tuple[int, ...]
    """Shape of the array that `read` returns."""
    memory: Memory
    """Memory that contains the allocation."""
    space: str = "global"
    """``global``, ``const`` or ``param``, for messages."""

    @property
    def offset(self) -> int:
        """Position of the allocation's first byte in the storage."""
        return self.address - GLOBAL_BASE

    def read(self) -> Array:
        """Return a copy of the contents, with the dtype and shape of the allocation."""
        raw = self.memory.storage[self.offset : self.offset + self.size]
        return raw.view(self.dtype).reshape(self.shape).copy()

    def write(self, data: Array) -> None:
        """Replace the contents with data from the host.

        Args:
            data: array with as many bytes as the allocation.
        """
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        if raw.size != self.size:
            raise UsageError(f"buffer {self.name!r} has {self.size} bytes, but the data have {raw.size}")
        self.memory.storage[self.offset : self.offset + self.size] = raw


class Memory:
    """Global memory of one batch of launches.

    Attributes:
        buffers: all allocations, in ascending order of addresses.
        module_data: (module, number of the launch) → its variables by symbol.
        module_initial: (module, number of the launch) → initial values of the variables, unless zero.
        recorder: receiver of every read and write during a recording (`evokern.simt.memory.access_record`).
        time: elapsed time on the chip's clocks over the launches so far.
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
        """Copy an array into a new allocation.

        Args:
            name: name in messages.
            data: array of any dtype and shape; with ``initialised=False``, memory has these contents but the kernel
                must not read them.
            writable: False for an input.
            initialised: False if the kernel has to write before it reads.
            space: ``global``, ``const`` or ``param``, for messages.
            lead: offset of the start from a multiple of the usual alignment, in bytes, to simulate a view into a larger
                allocation.

        Returns:
            The allocation.

        Raises:
            UsageError: the allocations exceed 4 GiB in total.
        """
        data = np.asarray(data)
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        self._bytes += raw.size
        if self._bytes > MEMORY_LIMIT:
            raise UsageError(
                f"allocation {name!r} of {raw.size} bytes exceeds the PTX machine's limit of {MEMORY_LIMIT >> 30} GiB: "
                "use a smaller problem"
            )
        start = -(-self._end // ALIGNMENT) * ALIGNMENT + lead
        buffer = Buffer(
            name=name, address=GLOBAL_BASE + start, size=raw.size, writable=writable, initialised=initialised,
            dtype=data.dtype, shape=data.shape, memory=self, space=space,
        )  # fmt: skip
        self.buffers.append(buffer)
        self._starts.append(start)
        self._end = start + raw.size + max(GUARD_BYTES, min(raw.size, 16 * GUARD_BYTES))
        self._pending.append((start, raw))
        return buffer

    @property
    def storage(self) -> Array:
        """All bytes of the memory; the storage grows with new allocations."""
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
        """View the storage as elements of `width` bytes."""
        storage = self.storage
        view = self._views.get(width)
        if view is None:
            view = self._views[width] = storage[: storage.size // width * width].view(RAW[width])
        return view

    def find(self, offset: int) -> Buffer | None:
        """Return the allocation that contains a storage position; None in a guard zone."""
        index = bisect.bisect_right(self._starts, offset) - 1
        if index < 0:
            return None
        buffer = self.buffers[index]
        return buffer if offset < buffer.offset + buffer.size else None

    def nearest(self, offset: int) -> Buffer | None:
        """Return the allocation nearest to a position outside all allocations."""
        index = bisect.bisect_right(self._starts, offset) - 1
        around = [self.buffers[at] for at in (index, index + 1) if 0 <= at < len(self.buffers)]
        if not around:
            return None
        return min(around, key=lambda item: max(item.offset - offset, offset - (item.offset + item.size - 1)))

    def bounds(self) -> tuple[Array, Array]:
        """Return the start positions and the sizes of all allocations, for vectorised look-ups."""
        return np.array(self._starts, np.int64), np.array([item.size for item in self.buffers], np.int64)
