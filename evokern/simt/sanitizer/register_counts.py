"""Registers that ``setmaxnreg`` moves between the warpgroups of a block (PTX ISA 9.7.19.5).

A block owns the registers that its launch allocates: their number per thread, times its threads. A warpgroup that
releases registers makes them available to those that request more. A request waits until there are enough, so
requests that exceed the block's registers never end.
"""

from __future__ import annotations

from math import prod

import numpy as np

from evokern.simt.arrays import Active
from evokern.simt.batch import Batch, Occurrence

SM_REGISTERS = 65_536
"""Registers of an SM (CUDA Programming Guide, "Technical Specifications per Compute Capability", 9.0)."""
UNIT = 8
"""Registers per thread are allocated in units of 8."""
GROUP = 4
"""Warps of a warpgroup."""


class RegisterCounts:
    """Registers per thread of each warp in a batch."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._start = _at_launch(batch)
        self._counts = np.zeros(batch.lanes // 32, np.int64)
        self._number = -1

    def load(self) -> None:
        """Reset the counts for new blocks."""
        self._counts.fill(self._start)
        self._number = -1

    def change(self, active: Active, wanted: int, number: int, *, more: bool) -> None:
        """Record that warps release registers or request more."""
        if not self._batch.options.sanitize or not active.count or not self._start:
            return  # Without a limit at launch, the assembler ignores the instruction and says so.
        warps = np.unique(active.lanes >> 5)
        wrong = warps[self._counts[warps] > wanted if more else self._counts[warps] < wanted]
        if wrong.size:
            has, act = int(self._counts[wrong[0]]), "requests" if more else "releases all but"
            detail = f"A warp with {has} registers per thread {act} {wanted}"
            self._batch.report("registers", Occurrence(number, int(wrong[0]) * 32, 32 * wrong.size), detail=detail)
        self._counts[warps] = wanted
        if more or self._number < 0:
            self._number = number

    def finish(self) -> None:
        """Report blocks whose warps hold more registers than the launch allocates, and divided warpgroups."""
        if self._number < 0:
            return
        each = self._batch.geometry.width // 32
        of_blocks = self._counts.reshape(-1, each)
        over = np.flatnonzero(of_blocks.sum(1) > self._start * each)
        whole = of_blocks[:, : each // GROUP * GROUP].reshape(of_blocks.shape[0], -1, GROUP)
        split = np.flatnonzero((whole.min(2) != whole.max(2)).any(1))
        has = f"the launch allocates {self._start} for each of {each} warps"
        for blocks, what in (
            (over, f"Warps hold {'{:,}'} registers, but {has}: {self._start * each * 32:,}"),
            (split, "The four warps of a warpgroup do not execute the same setmaxnreg"),
        ):
            if blocks.size:
                total = int(of_blocks[blocks[0]].sum()) * 32
                at = Occurrence(self._number, int(blocks[0]) * each * 32, blocks.size)
                self._batch.report("registers", at, detail=what.format(total))


def _at_launch(batch: Batch) -> int:
    """Return the registers per thread that a launch allocates; 0 if the kernel sets no limit."""
    directives = batch.program.entry.directives
    if limit := directives.get("maxnreg"):
        return -(-limit[0] // UNIT) * UNIT
    threads = directives.get("reqntid") or directives.get("maxntid")
    blocks = directives.get("minnctapersm")
    if not threads or not blocks:
        return 0
    warps = -(-prod(threads) // 32)
    return min(SM_REGISTERS // (32 * warps * blocks[0]) // UNIT * UNIT, 256)
