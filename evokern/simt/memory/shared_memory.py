"""Shared, local and parameter memory: byte arrays with one range per block or per lane.

The ranges of a cluster's blocks are ordered by rank; `evokern.simt.clusters.layout` maps an address of
``.shared::cluster`` to a block.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from evokern.ptx.segments import Routine
from evokern.simt.arrays import DTYPES, RAW, Active, Array, lowest_bits
from evokern.simt.batch import Batch, Occurrence
from evokern.simt.clusters.layout import RANK_BITS
from evokern.simt.clusters.lifetime import ClusterLifetime
from evokern.simt.memory.faults import misaligned, outside
from evokern.simt.sanitizer.block_classes import EVERYTHING, LeaderLanes
from evokern.simt.sanitizer.findings import Access, Reads
from evokern.simt.sanitizer.shared_shadow import SharedShadow
from evokern.simt.sanitizer.thread_order import ThreadOrder

_HALF = 1 << RANK_BITS - 1
"""Half the distance between the address ranges of two ranks, bytes."""


def _wrapped(where: Array) -> Array:
    """Convert 32-bit sums to signed addresses, so that addresses slightly below zero are negative."""
    wrapped: Array = ((where + _HALF) & 0xFFFFFFFF) - _HALF
    return wrapped


class SharedSpace:
    """Shared memory of all blocks of the batch, one range per block."""

    def __init__(self, batch: Batch, dynamic: int, order: ThreadOrder | None) -> None:
        """Allocate shared memory for the variables of the program.

        Args:
            batch: the lanes.
            order: happens-before order; None without checks.
            dynamic: bytes of dynamic shared memory.
        """
        self._batch = batch
        static, layout = batch.program.static_shared, batch.program.shared
        start = min((offset for offset, size in layout.values() if size == 0), default=static)
        self.size = max(static, start + dynamic if dynamic else static)
        self.dynamic_start = start
        self.dynamic = dynamic
        self.stride = -(-max(self.size, 1) // 128) * 128
        blocks = batch.geometry.blocks
        self.bytes = np.zeros(blocks * self.stride, np.uint8)
        self._views: dict[int, Array] = {width: self.bytes.view(RAW[width]) for width in (1, 2, 4, 8, 16, 32, 64)}
        self.base = batch.block_slot * self.stride
        self.single = blocks == 1
        self.order = order
        self.ranks = batch.geometry.ranks
        self.window = batch.block_slot % self.ranks << RANK_BITS
        """Start of each lane's own block among ``shared::cluster`` addresses."""
        self.lifetime = ClusterLifetime(batch, order, self.access_at) if order is not None and self.ranks > 1 else None
        self.shadow = (
            SharedShadow(batch, order, self.bytes.size, self.place_of) if order is not None and self.size else None
        )

    def load(self) -> None:
        """Reset the memory for new blocks to zero, although its contents are arbitrary on a GPU."""
        self.bytes.fill(0)
        if self.shadow is not None:
            self.shadow.load()
        if self.lifetime is not None:
            self.lifetime.load()

    def place_of(self, position: int, lane: int = 0) -> Access:
        """Return a position's address within its block, with the variable there."""
        return self.access_at(position % self.stride)

    def access_at(self, address: int) -> Access:
        """Return an address with the last shared variable that starts at or before it."""
        best, at = "shared memory", 0
        for name, (offset, _) in self._batch.program.shared.items():
            if address >= offset >= at:
                best, at = name, offset
        return Access(address=address, allocation=best.split("@")[0], offset=address - at)

    def view(self, width: int) -> Array:
        """Return the bytes as elements of the given width."""
        return self._views[width]

    def locate(
        self, active: Active, address: Array, offset: int, width: int, number: int, *, cluster: bool = False
    ) -> tuple[Active | None, Array, LeaderLanes]:
        """Check addresses and convert them to indices in units of the given width.

        Args:
            active: lanes that access.
            address: shared-space addresses, one per active lane or a single one.
            offset: bytes to add.
            width: bytes of the access.
            number: the instruction, for findings.
            cluster: whether addresses may belong to other blocks of the cluster.

        Returns:
            The lanes with a valid access (None if there are none), their indices, and the lanes that represent them in
            the shadow.

        Raises:
            Stopped: an address is misaligned, which ends the launch.
        """
        leaders = self.leader_lanes(active, address)
        where = address.astype(np.int64)
        if offset:
            where += offset
        if where.shape[0] != active.count:
            where = np.repeat(where, active.count)
        wraps = (
            address.dtype.itemsize == 4
        )  # The sum of a 32-bit base and its offset wraps: [0xfffffffc + 4] is byte 0.
        if self.ranks > 1:  # From here on, addresses are relative to the block's own memory.
            where = (_wrapped(where) if wraps else where) - active.pick(self.window)
        few = where[leaders.chosen]
        if lowest_bits(few) & (width - 1):
            good = (where & (width - 1)) == 0
            misaligned(self._batch, active.lanes[~good], where[~good], width, number, self._describe)
            if not good.any():
                return None, where, leaders
            active, where = self._batch.restrict(active, good), where[good]
            leaders = self.leader_lanes(active, where)
            few = where[leaders.chosen]
        if int(few.max()) > self.size - width or int(few.min()) < 0:
            if cluster and self.ranks > 1:
                return self._in_cluster(active, where, width, number, leaders)
            if wraps and self.ranks == 1:
                where &= 0xFFFFFFFF
            bad = (where > self.size - width) | (where < 0)
            if not bad.any():
                return self._indices(active, where, width, leaders)
            outside(self._batch, active.lanes[bad], where[bad], width, number, self._describe)
            good = ~bad
            if not good.any():
                return None, where, leaders
            active = self._batch.restrict(active, good)
            where = where[good]
            leaders = self.leader_lanes(active, where)
        return self._indices(active, where, width, leaders)

    def _in_cluster(
        self, active: Active, where: Array, width: int, number: int, leaders: LeaderLanes
    ) -> tuple[Active | None, Array, LeaderLanes]:
        """Locate addresses that may belong to another block; report addresses whose block or byte does not exist."""
        # Round to the nearest multiple, so that an address slightly below a block's memory counts as outside that
        # block, not as in another.
        further = (where + _HALF) >> RANK_BITS
        at = where - (further << RANK_BITS)
        own = self._batch.block_slot[active.lanes]
        rank, block = own % self.ranks + further, own + further
        bad = (at > self.size - width) | (at < 0) | (rank < 0) | (rank >= self.ranks)
        if bad.any():
            outside(self._batch, active.lanes[bad], where[bad], width, number, self._describe_in_cluster)
            good = ~bad
            if not good.any():
                return None, where, leaders
            active = self._batch.restrict(active, good)
            where, at, block, own = where[good], at[good], block[good], own[good]
            leaders = self.leader_lanes(active, where)
        others = block != own
        if self.lifetime is not None and others.any():
            part = active if others.all() else self._batch.restrict(active, others)
            self.lifetime.access(part, block[others], at[others], number)
        at += block * self.stride
        return active, at >> (width.bit_length() - 1), leaders

    def _rank_of(self, address: int, lane: int) -> tuple[int, int]:
        """Return the rank of an address, relative to the lane's own block, and the offset in that block's memory."""
        further = address + _HALF >> RANK_BITS
        return int(self._batch.block_slot[lane]) % self.ranks + further, address - (further << RANK_BITS)

    def _describe_in_cluster(self, address: int, lane: int) -> tuple[Access, str]:
        rank, at = self._rank_of(address, lane)
        if not 0 <= rank < self.ranks:
            detail = f"The address belongs to rank {rank}, but the cluster has {self.ranks} blocks"
            return Access(address=at, allocation="shared memory", offset=at), detail
        detail = f"A block has {self.size} bytes of shared memory; the access is to block rank {rank}"
        return self.access_at(at), detail

    def _indices(
        self, active: Active, where: Array, width: int, leaders: LeaderLanes
    ) -> tuple[Active, Array, LeaderLanes]:
        if not self.single:
            where += active.pick(self.base)
        return active, where >> (width.bit_length() - 1), leaders

    def met(self, active: Active) -> None:
        """Record that some lanes have executed a warp-synchronous instruction together."""
        if self.order is not None and self.order.dirty:
            self.order.met(active)

    def leader_lanes(self, active: Active, address: Array) -> LeaderLanes:
        """Return the lanes that represent all lanes of an access, from the addresses within the blocks.

        Args:
            active: lanes that access.
            address: one address, one per active lane, or several rows of them if all lanes are active.
        """
        return (
            LeaderLanes(active, EVERYTHING)
            if self.shadow is None
            else self.shadow.order.classes.leader_lanes(active, address)
        )

    def _describe(self, address: int, lane: int) -> tuple[Access, str]:
        rank, at = self._rank_of(address, lane)
        if at == address or not (0 <= rank < self.ranks and 0 <= at < self.size):
            return self.access_at(address), f"The block has {self.size} bytes of shared memory"
        detail = f"The address belongs to the cluster's block of rank {rank}, which this instruction cannot access: "
        if rank == 0:
            detail += f"the block's own rank (bits from {RANK_BITS} up) may be missing in the address; otherwise "
        return self.access_at(at), f"{detail}use an instruction with shared::cluster"


class LocalSpace:
    """Local memory of each lane, in which the compiler places arrays and spilled registers."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self.size = batch.program.local_bytes
        self.stride = -(-max(self.size, 1) // 16) * 16
        lanes = batch.lanes if self.size else 0
        self.bytes = np.zeros(lanes * self.stride, np.uint8)
        self.written = np.zeros(lanes * self.stride, np.bool_) if batch.options.sanitize else None
        self.base = np.arange(batch.lanes) * self.stride

    def load(self) -> None:
        """Reset the memory for new blocks."""
        self.bytes.fill(0)
        if self.written is not None:
            self.written.fill(False)

    def view(self, width: int) -> Array:
        """Return the bytes as elements of the given width."""
        return self.bytes.view(RAW[width])

    def locate(
        self, active: Active, address: Array, offset: int, width: int, number: int
    ) -> tuple[Active | None, Array]:
        """Check addresses and convert them to indices in units of the given width; see `SharedSpace.locate`."""
        where = address.astype(np.int64)
        if offset:
            where += offset
        if where.shape[0] != active.count:
            where = np.repeat(where, active.count)
        if lowest_bits(where) & (width - 1):
            good = (where & (width - 1)) == 0
            misaligned(self._batch, active.lanes[~good], where[~good], width, number, self._describe)
            if not good.any():
                return None, where
            active, where = self._batch.restrict(active, good), where[good]
        if int(where.max()) > self.size - width or int(where.min()) < 0:
            bad = (where > self.size - width) | (where < 0)
            outside(self._batch, active.lanes[bad], where[bad], width, number, self._describe)
            good = ~bad
            if not good.any():
                return None, where
            active = self._batch.restrict(active, good)
            where = where[good]
        where += active.pick(self.base)
        return active, where >> (width.bit_length() - 1)

    def _describe(self, address: int, lane: int = 0) -> tuple[Access, str]:
        name, at = "local memory", 0
        routine: Routine
        for routine in self._batch.program.routines:
            for variable, start in routine.depot.items():
                if start <= address:
                    name, at = variable, start
        access = Access(address=address, allocation=name, offset=address - at)
        return access, f"The thread has {self.size} bytes of local memory"

    def note_write(self, index: Array, width: int) -> None:
        """Record bytes that were written."""
        if self.written is not None:
            self.written.view(RAW[width])[index] = np.ones(width, np.bool_).view(RAW[width])

    def note_read(self, active: Active, index: Array, width: int, number: int) -> None:
        """Report reads of bytes that were never written."""
        if self.written is None:
            return
        seen = self.written.view(RAW[width]).take(index, mode="clip").view(np.bool_)
        if not seen.all():
            bad = ~seen.reshape(-1, width).all(1)
            lanes = active.lanes[bad]
            places = index[bad] * width - self.base[lanes]
            access, _ = self._describe(int(places[0]))
            reads = Reads(number, lanes, places)
            self._batch.report("uninitialised", Occurrence.of(number, lanes), access, reads=reads)


class ParamSpace:
    """Kernel parameters (one block per launch) and parameters of device function calls (one range per lane)."""

    def __init__(self, batch: Batch, blocks: Array, symbols: Mapping[str, Array]) -> None:
        """Allocate memory for the parameters.

        Args:
            batch: the lanes.
            blocks: parameter block of each launch, bytes.
            symbols: addresses in global memory; ``%params`` is the address of the parameter blocks.
        """
        self._batch, self._symbols = batch, symbols
        self.blocks = blocks
        self.offsets = {}
        offset = 0
        for item in batch.program.entry.params:
            offset = -(-offset // item.align) * item.align
            self.offsets[item.name] = offset
            offset += item.size
        self.size = offset
        self.stride = -(-max(batch.program.param_bytes, 1) // 16) * 16
        self.area = np.zeros((batch.lanes if batch.program.param_bytes else 0, self.stride), np.uint8)
        self.shadow: Array | None = None
        """Shadow of the parameters of device functions, one word for every two bytes; None without exact arithmetic."""
        self._rows: list[tuple[Array, Array]] = []

    def copy(self, lanes: Array, to: int, source: int, size: int) -> None:
        """Copy parameters of device functions between functions, for some lanes."""
        self.area[lanes, to : to + size] = self.area[lanes, source : source + size]
        if self.shadow is not None:
            units = (size + 1) // 2
            self.shadow[lanes, to // 2 : to // 2 + units] = self.shadow[lanes, source // 2 : source // 2 + units]

    def load(self) -> None:
        """Refill the rows that differ between launches for new blocks."""
        for row, per_launch in self._rows:
            row[...] = per_launch[self._batch.launch]

    def per_lane(self, per_launch: Array) -> Array:
        """Return one value per launch as a row of lanes; the row has length one if all values are equal."""
        if per_launch.shape[0] == 1 or bool((per_launch == per_launch[0]).all()):
            return per_launch[:1].copy()
        row = per_launch[self._batch.launch]
        self._rows.append((row, per_launch))
        return row

    def entry_value(self, name: str, offset: int, type_name: str) -> Array:
        """Return an entry parameter's value as a row."""
        dtype = np.dtype(DTYPES[type_name])
        start = self.offsets[name] + offset
        raw = np.ascontiguousarray(self.blocks[:, start : start + dtype.itemsize])
        return self.per_lane(raw.view(dtype).reshape(-1))

    def address(self, name: str, offset: int) -> Array:
        """Return the address of an entry parameter; the parameter block is a separate allocation."""
        blocks = self._symbols["%params"]
        return self.per_lane(blocks + np.uint64(self.offsets[name] + offset))

    def column(self, start: int, type_name: str) -> Array:
        """Return the row of lanes for a location in the per-lane parameter area."""
        dtype = np.dtype(DTYPES[type_name])
        return np.ndarray((self._batch.lanes,), dtype, self.area, start, (self.stride,))
