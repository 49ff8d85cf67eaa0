"""Counters: what a launch issued and moved, per instruction and per source line.

Counted are warp instructions as issued, on the pipe of the PTX instruction (ptxas may turn one PTX instruction into
several or drop it), wavefronts of shared memory and 32-byte sectors of global memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evokern.simt.arrays import Array

PIPES = ("tensor", "fp32", "fp16", "fp64", "sfu", "integer", "load_store", "control")
"""Where instructions are issued."""
SECTOR = 32
"""Bytes of a sector of global memory."""


@dataclass(frozen=True, slots=True)
class LineCounters:
    """Counters of one source line, summed over its instructions."""

    line: int
    """Line of the source, 0 for what has none."""
    file: str
    """The user's header that holds the line; empty for the source itself."""
    warp_instructions: int
    """Instructions issued for a warp."""
    thread_instructions: int
    """The same, counted per active thread."""
    pipes: dict[str, int]
    """Pipe → warp instructions."""
    shared_wavefronts: int
    """Wavefronts of shared memory."""
    ideal_wavefronts: int
    """The same without bank conflicts."""
    load_sectors: int
    """32-byte sectors that global loads ask for, counted per warp instruction."""
    ideal_load_sectors: int
    """The least for that many bytes."""
    store_sectors: int
    """The same for stores, reductions and atomics."""
    ideal_store_sectors: int
    """The least for that many bytes."""
    divergent: int
    """Warp instructions issued while live lanes of the warp were elsewhere."""


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """The order in which one batch of blocks ran its segments."""

    warps: int
    """Warps of the batch, block after block."""
    steps: tuple[tuple[int, Array | None], ...]
    """(segment, bool per warp that ran it); None for all of them."""


@dataclass(frozen=True, slots=True)
class Counters:
    """All counters of a launch, or of those of `launch_many`; arrays go by PTX instruction of the program."""

    blocks: tuple[int, ...]
    """Linear ids of the blocks that ran."""
    launches: int
    """Launches that were counted together."""
    warps_per_block: int
    """Warps of a block."""
    ranks: int
    """Blocks of a cluster, which stand side by side in `blocks`; 1 without clusters."""
    instructions: tuple[str, ...]
    """PTX text."""
    lines: Array
    """Source line of each instruction."""
    files: tuple[str, ...]
    """The user's header that holds the line of each instruction; empty for the source itself."""
    called_from: tuple[tuple[tuple[str, int], ...], ...]
    """(header or empty, line) of the calls through which each instruction was inlined, innermost first."""
    pipes: tuple[str, ...]
    """Pipe of each instruction."""
    warp_instructions: Array
    """Times issued for a warp."""
    thread_instructions: Array
    """The same, counted per active thread."""
    divergent: Array
    """Times issued while live lanes of the warp were elsewhere."""
    shared_wavefronts: Array
    """Wavefronts of shared memory."""
    ideal_wavefronts: Array
    """The same without bank conflicts."""
    load_sectors: Array
    """32-byte sectors of global loads and asynchronous copies, per warp instruction."""
    ideal_load_sectors: Array
    """The least for that many bytes."""
    store_sectors: Array
    """The same for stores, reductions and atomics."""
    ideal_store_sectors: Array
    """The least for that many bytes."""
    local_bytes: Array
    """Bytes of local memory, both ways."""
    cluster_accesses: Array
    """Accesses of threads to the shared memory of another block of their cluster."""
    barriers: int
    """Warps that arrived at barriers of their block."""
    mma: dict[str, tuple[int, float]]
    """Shape and types of a matrix instruction → (warp instructions, floating-point or integer operations)."""
    unique_load_sectors: dict[int, Array]
    """Block → the distinct sectors it loads, as sector numbers of the simulated memory (comparable between blocks)."""
    unique_store_sectors: dict[int, Array]
    """The same for stores."""
    record: tuple[BatchRecord, ...]
    """What ran when, batch after batch; `evokern.simt.time_model.timeline` walks it."""

    @property
    def total_warp_instructions(self) -> int:
        """Warp instructions of all pipes."""
        return int(self.warp_instructions.sum())

    @property
    def flops(self) -> float:
        """Operations of the matrix instructions."""
        return sum(flops for _, flops in self.mma.values())

    def conflicts(self) -> dict[int, float]:
        """Return instruction → further wavefronts of a mean execution, beyond the ones that it needs anyway."""
        further = (self.shared_wavefronts - self.ideal_wavefronts) / np.maximum(self.warp_instructions, 1)
        return {int(number): float(further[number]) for number in np.flatnonzero(further > 0)}

    def by_pipe(self) -> dict[str, int]:
        """Return pipe → warp instructions."""
        return _by_pipe(self.pipes, self.warp_instructions)

    def by_line(self) -> list[LineCounters]:
        """Return the counters of each source line, ascending, the source's own before those of its headers."""
        result = []
        places = [(file, int(line)) for file, line in zip(self.files, self.lines, strict=True)]
        numbers = {place: number for number, place in enumerate(sorted(set(places)))}
        codes = np.array([numbers[place] for place in places], np.int64)
        for (file, line), number in numbers.items():
            mine = codes == number
            if not self.warp_instructions[mine].any():
                continue
            result.append(
                LineCounters(
                    line,
                    file,
                    int(self.warp_instructions[mine].sum()),
                    int(self.thread_instructions[mine].sum()),
                    {
                        k: v
                        for k, v in _by_pipe(
                            [p for p, m in zip(self.pipes, mine, strict=True) if m], self.warp_instructions[mine]
                        ).items()
                        if v
                    },
                    int(self.shared_wavefronts[mine].sum()),
                    int(self.ideal_wavefronts[mine].sum()),
                    int(self.load_sectors[mine].sum()),
                    int(self.ideal_load_sectors[mine].sum()),
                    int(self.store_sectors[mine].sum()),
                    int(self.ideal_store_sectors[mine].sum()),
                    int(self.divergent[mine].sum()),
                )
            )
        return result


def _by_pipe(pipes: tuple[str, ...] | list[str], counts: Array) -> dict[str, int]:
    totals = dict.fromkeys(PIPES, 0)
    for pipe, count in zip(pipes, counts, strict=True):
        totals[pipe] += int(count)
    return totals
