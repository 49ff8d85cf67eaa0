"""Special registers of PTX (PTX ISA chapter 10)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from evokern.simt.arrays import Array
from evokern.simt.batch import Batch
from evokern.simt.chip_view import CONCURRENT_WARPS, CYCLES_PER_INSTRUCTION, LAUNCH_CYCLES, READ_CYCLES, ChipTime
from evokern.simt.memory.shared_memory import SharedSpace
from evokern.simt.schedule import Schedule
from evokern.simt.settings import LEAST_WARPS

_WIDE = frozenset({"%clock64", "%globaltimer", "%gridid"})
_CLOCKS = frozenset({"%clock", "%clock64", "%clock_hi", "%globaltimer", "%globaltimer_lo", "%globaltimer_hi"})


class Specials:
    """Special registers of one batch as rows, which are created on first use.

    Attributes:
        reads: number of clock readings since the blocks were loaded.
    """

    def __init__(
        self, batch: Batch, schedule: Schedule, shared: SharedSpace, symbols: Mapping[str, Array], time: ChipTime
    ) -> None:
        """Prepare the special registers.

        Args:
            batch: the lanes.
            schedule: scheduler, which provides the progress of the batch.
            shared: shared memory, which provides its size.
            symbols: addresses of hidden allocations.
            time: clocks of the chip at the start of the blocks.
        """
        self._batch, self._schedule, self._shared, self._symbols, self._time = batch, schedule, shared, symbols, time
        self._chip = batch.options.view
        self._warps = max(batch.lanes // 32, LEAST_WARPS)
        self._later: Array | None = None
        self.reads = self._slept_ns = 0
        self._rows: dict[str, Array] = {}

    def load(self) -> None:
        """Update rows that depend on the blocks, in place."""
        self.reads, self._slept_ns, self._later = 0, 0, None
        for name, row in self._rows.items():
            row[...] = self._value(name)

    @property
    def cycles(self) -> int:
        """SM clocks since the blocks were loaded: instructions and sleep of a mean warp, plus clock readings."""
        slept = int(self._slept_ns * self._chip.profile.clock_mhz) // 1000 // (self._batch.lanes // 32)
        return CYCLES_PER_INSTRUCTION * self._schedule.issued // self._warps + READ_CYCLES * self.reads + slept

    def sleep(self, total_ns: int) -> None:
        """Advance the clocks by the sleep of some warps, summed over these warps."""
        self._slept_ns += total_ns

    def type(self, name: str) -> str | None:
        """Return the type of a special register, or None for an ordinary register."""
        if name in _WIDE:
            return "u64"
        if name == "%is_explicit_cluster":
            return "pred"
        return "u32" if self._known(name) else None

    def _known(self, name: str) -> bool:
        base = name.split(".")[0]
        return (
            base in ("%tid", "%ntid", "%ctaid", "%nctaid")
            or name in _CLOCKS
            or name
            in (
                "%laneid",
                "%warpid",
                "%nwarpid",
                "%smid",
                "%nsmid",
                "%lanemask_eq",
                "%lanemask_le",
                "%lanemask_lt",
                "%lanemask_ge",
                "%lanemask_gt",
                "%dynamic_smem_size",
                "%total_smem_size",
                "%gridid",
                "%envreg1",
                "%envreg2",
                "%cluster_ctarank",
                "%cluster_nctarank",
                "%is_explicit_cluster",
            )
            or base in ("%clusterid", "%nclusterid", "%cluster_ctaid", "%cluster_nctaid")
        )

    def dynamic(self, name: str) -> bool:
        """Return whether the register must be evaluated at each read."""
        return name in _CLOCKS

    def reader(self, name: str, number: int) -> Callable[[], Array]:
        """Return a function that reads a clock for all lanes: in SM clocks, or for the timer in nanoseconds.

        Args:
            name: name of the clock.
            number: the instruction that reads it; once the first instruction of its segment runs, the whole segment
                counts as issued.
        """
        segments = self._batch.program.segments
        segment = next(one for one in segments if one.base <= number < one.base + one.stop - one.start)
        ahead = segment.base + segment.stop - segment.start - number
        shift = np.uint64(32 if name.endswith("_hi") else 0)
        tell = self._chip.timer if name.startswith("%globaltimer") else self._chip.clock

        def read() -> Array:
            self.reads += 1
            early = CYCLES_PER_INSTRUCTION * ahead * max(self._batch.active.warps, LEAST_WARPS) // self._warps
            reading = tell(self._read_delay() + np.uint64(max(self._time.cycles + self.cycles - early, 0))) >> shift
            return reading if name in _WIDE else reading.astype(np.uint32)

        return read

    def _read_delay(self) -> Array:
        """Return by how many SM clocks each lane reads later than the first lane; depends on its launch and warp."""
        if self._later is None:
            turn = self._batch.thread // (32 * CONCURRENT_WARPS)
            self._later = (self._batch.launch * LAUNCH_CYCLES + turn).astype(np.uint64)
        return self._later

    def row(self, name: str) -> Array | None:
        """Return the row of a special register; None for unknown registers and for clocks, which have no fixed row."""
        if not self._known(name) or self.dynamic(name):
            return None
        if name not in self._rows:
            value = self._value(name)
            self._rows[name] = np.array(value) if value.shape[0] == 1 else value.copy()
        return self._rows[name]

    def _value(self, name: str) -> Array:
        batch = self._batch
        geometry = batch.geometry
        grid, block = geometry.grid, geometry.block
        lane = (batch.thread % 32).astype(np.uint32)
        one = np.uint32(1)
        base, _, axis = name.partition(".")
        which = "xyz".find(axis) if axis else 0
        if base == "%tid":
            divisor = (1, block[0], block[0] * block[1])[which]
            return (batch.thread // divisor % block[which] if which < 2 else batch.thread // divisor).astype(np.uint32)
        extent = geometry.cluster
        if base in ("%ctaid", "%clusterid", "%cluster_ctaid"):
            divisor = (1, grid[0], grid[0] * grid[1])[which]
            at = batch.block_id // divisor % grid[which]
            in_cluster = {"%clusterid": at // extent[which], "%cluster_ctaid": at % extent[which]}
            return in_cluster.get(base, at).astype(np.uint32)
        if base == "%cluster_ctarank":
            return (batch.block_slot % geometry.ranks).astype(np.uint32)
        if base == "%is_explicit_cluster":
            return np.array([geometry.explicit_cluster])
        constants = {
            "%ntid": block[which],
            "%nctaid": grid[which],
            "%nclusterid": grid[which] // extent[which],
            "%cluster_nctaid": extent[which],
            "%cluster_nctarank": geometry.ranks,
            "%nwarpid": self._chip.warps_per_sm,
            "%nsmid": self._chip.profile.sms,
            "%dynamic_smem_size": self._shared.dynamic,
            "%total_smem_size": self._shared.size,
        }
        if base in constants:
            return np.array([constants[base]], np.uint32)
        if base in ("%envreg1", "%envreg2"):
            if "%workspace" not in self._symbols:  # a normal launch
                return np.zeros(1, np.uint32)
            workspace = self._symbols["%workspace"][batch.launch]
            return (workspace >> np.uint64(32 if base == "%envreg1" else 0)).astype(np.uint32)
        if name == "%gridid":
            return (batch.launch + (self._chip.start_grid + self._time.grids)).astype(np.uint64)
        if name == "%smid":
            return self._chip.sm_of(batch.block_id).astype(np.uint32)
        if name == "%laneid":
            return lane
        if name == "%warpid":
            return (batch.thread // 32).astype(np.uint32)
        equal = one << lane
        masks = {
            "%lanemask_eq": equal, "%lanemask_lt": equal - one, "%lanemask_le": equal | (equal - one),
            "%lanemask_ge": ~(equal - one), "%lanemask_gt": ~(equal | (equal - one)),
        }  # fmt: skip
        return masks[name]
