"""Special registers (PTX ISA chapter 10)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from evokern.simt.arrays import Array
from evokern.simt.batch import Batch
from evokern.simt.memory.shared_memory import SharedSpace
from evokern.simt.schedule import Schedule

_WIDE = frozenset({"%clock64", "%globaltimer", "%gridid"})
_CLOCKS = frozenset({"%clock", "%clock64", "%clock_hi", "%globaltimer", "%globaltimer_lo", "%globaltimer_hi"})
SIMULATED_SMS = 1
"""``%nsmid``: one block after the other."""


class Specials:
    """Rows of the special registers of one batch, made when first asked for.

    Attributes:
        reads: how often a clock was read.
    """

    def __init__(self, batch: Batch, schedule: Schedule, shared: SharedSpace, symbols: Mapping[str, Array]) -> None:
        self._batch, self._schedule, self._shared, self._symbols = batch, schedule, shared, symbols
        self.reads = 0
        self._rows: dict[str, Array] = {}

    def load(self) -> None:
        """New blocks: what depends on them is filled in again, in place."""
        for name, row in self._rows.items():
            row[...] = self._value(name)

    def type(self, name: str) -> str | None:
        """Return the type of a special register, None for ordinary ones."""
        if name in _WIDE:
            return "u64"
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
            )
            or base in ("%clusterid", "%nclusterid", "%cluster_ctaid", "%cluster_nctaid")
        )

    def dynamic(self, name: str) -> bool:
        """Say whether the register has to be read anew each time."""
        return name in _CLOCKS

    def reader(self, name: str) -> Callable[[], int]:
        """Return a function that reads a clock: instructions issued so far, in cycles; nanoseconds for the timer."""
        schedule = self._schedule
        shift = 32 if name.endswith("_hi") else 0
        mask = (1 << 64) - 1 if name in _WIDE else (1 << 32) - 1

        def read() -> int:
            self.reads += 1  # time passes within a segment too
            return schedule.issued + self.reads >> shift & mask

        return read

    def row(self, name: str) -> Array | None:
        """Return the row of a special register, None when it is not known."""
        if not self._known(name):
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
        if base in ("%ctaid", "%clusterid"):
            divisor = (1, grid[0], grid[0] * grid[1])[which]
            return (batch.block_id // divisor % grid[which]).astype(np.uint32)
        constants = {
            "%ntid": block[which],
            "%nctaid": grid[which],
            "%nclusterid": grid[which],
            "%cluster_ctaid": 0,
            "%cluster_nctaid": 1,
            "%cluster_ctarank": 0,
            "%cluster_nctarank": 1,
            "%nwarpid": geometry.width // 32,
            "%smid": 0,
            "%nsmid": SIMULATED_SMS,
            "%dynamic_smem_size": self._shared.dynamic,
            "%total_smem_size": self._shared.size,
        }
        if base in constants:
            return np.array([constants[base]], np.uint32)
        if base in ("%envreg1", "%envreg2"):
            workspace = self._symbols["%workspace"][batch.launch]
            return (workspace >> np.uint64(32 if base == "%envreg1" else 0)).astype(np.uint32)
        if name == "%gridid":
            return np.array([1], np.uint64)
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
