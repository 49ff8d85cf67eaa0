"""Counters of a launch: instructions issued and data moved, per instruction and per source line.

Warp instructions are counted when issued, on the pipe of the PTX instruction. ptxas may translate a PTX instruction
into several machine instructions or into none. Shared memory is counted in wavefronts, global memory in 32-byte
sectors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evokern.simt.arrays import Array

PIPES = ("tensor", "fp32", "fp16", "fp64", "sfu", "integer", "load_store", "control")
"""Pipes to which warps issue instructions."""
SECTOR = 32
"""Bytes of a sector of global memory."""


@dataclass(frozen=True, slots=True)
class BarrierWait:
    """End of a wait at barrier objects."""

    step: int
    """Index of the step in which the warps saw the end of a phase."""
    warps: Array
    """The warps."""
    event: int
    """Index of the step in which the last arrival or copy of that phase was issued."""
    copied: bool
    """Whether that was a copy."""


@dataclass(frozen=True)
class BatchRecord:
    """Order in which one batch of blocks ran its segments."""

    warps: int
    """Warps of the batch, block after block."""
    steps: tuple[tuple[int, Array | None], ...]
    """(segment, bool per warp that ran it); None for all warps."""
    waits: tuple[BarrierWait, ...] = ()
    """Waits at barrier objects that ended."""
    spins: frozenset[int] = frozenset()
    """Steps in which every warp found the phase of its barrier object unfinished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """All counters of a launch, or of all launches of `launch_many`; arrays are indexed by PTX instruction."""

    blocks: tuple[int, ...]
    """Linear ids of the blocks that ran."""
    launches: int
    """Number of launches counted together."""
    warps_per_block: int
    """Warps of a block."""
    ranks: int
    """Blocks of a cluster, which are adjacent in `blocks`; 1 without clusters."""
    instructions: tuple[str, ...]
    """PTX text."""
    lines: Array
    """Source line of each instruction."""
    files: tuple[str, ...]
    """User header that contains the line of each instruction; empty for the source itself."""
    called_from: tuple[tuple[tuple[str, int], ...], ...]
    """(header or empty, line) of the calls through which each instruction was inlined, innermost first."""
    pipes: tuple[str, ...]
    """Pipe of each instruction."""
    warp_instructions: Array
    """Number of times that each instruction was issued for a warp."""
    thread_instructions: Array
    """Number of times that each instruction was issued, counted once per active thread."""
    divergent: Array
    """Number of times that each instruction was issued while other live lanes of the warp were diverged."""
    shared_wavefronts: Array
    """Wavefronts of shared memory."""
    ideal_wavefronts: Array
    """Wavefronts of shared memory without bank conflicts."""
    load_sectors: Array
    """32-byte sectors of global loads and asynchronous copies, per warp instruction."""
    ideal_load_sectors: Array
    """Minimum number of sectors for the loaded bytes."""
    store_sectors: Array
    """Sectors of stores, reductions and atomics."""
    ideal_store_sectors: Array
    """Minimum number of sectors for the stored bytes."""
    multicast_sectors: Array
    """Sectors that multicasts bring to further blocks of the cluster."""
    local_bytes: Array
    """Bytes of local memory that were loaded or stored."""
    cluster_accesses: Array
    """Accesses to another block's shared memory in the cluster, counted per thread."""
    sleep_ns: Array
    """Nanoseconds that warps slept in ``nanosleep``, summed over warps."""
    barriers: int
    """Number of times that warps arrived at barriers of their block."""
    mma: dict[str, tuple[int, float]]
    """Shape and types of a matrix instruction → (warp instructions, floating-point or integer operations)."""
    unique_load_sectors: dict[int, Array]
    """Block → distinct sectors that it loads, as sector numbers of the simulated memory (comparable between blocks)."""
    unique_store_sectors: dict[int, Array]
    """Block → distinct sectors that it stores."""
    record: tuple[BatchRecord, ...]
    """Execution order of each batch; input for `evokern.simt.time_model.timeline`."""

    @property
    def total_warp_instructions(self) -> int:
        """Warp instructions of all pipes."""
        return int(self.warp_instructions.sum())

    @property
    def flops(self) -> float:
        """Number of operations of the matrix instructions."""
        return sum(flops for _, flops in self.mma.values())

    def sleeps(self, clock_mhz: float) -> dict[int, float]:
        """Return instruction → average clocks that a warp sleeps per execution."""
        clocks = self.sleep_ns * (clock_mhz / 1000) / np.maximum(self.warp_instructions, 1)
        return {int(number): float(clocks[number]) for number in np.flatnonzero(clocks > 0)}

    def conflicts(self) -> dict[int, float]:
        """Return, for each instruction, the mean number of extra wavefronts per execution due to bank conflicts."""
        further = (self.shared_wavefronts - self.ideal_wavefronts) / np.maximum(self.warp_instructions, 1)
        return {int(number): float(further[number]) for number in np.flatnonzero(further > 0)}

    def by_pipe(self) -> dict[str, int]:
        """Return the number of warp instructions of each pipe."""
        totals = dict.fromkeys(PIPES, 0)
        for pipe, count in zip(self.pipes, self.warp_instructions, strict=True):
            totals[pipe] += int(count)
        return totals
