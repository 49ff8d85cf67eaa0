"""Blocks with unequal work: the work of each block in a grid, and the SM on which the block runs.

Blocks differ, for example, under a causal mask, which leaves little work for the first rows of a sequence. If sampled
blocks differ, a line of blocks is simulated along each axis of the grid. The model assumes that the work of a block is
the work at the origin plus one contribution for each of its coordinates. The sampled blocks, which are spread over all
axes, show whether that holds (`predicts_samples`).

Blocks start in the order of their ids, each on the SM with the most free space. Source: Gilman et al., "Demystifying
the Placement Policies of the NVIDIA GPU Thread Block Scheduler for Concurrent Kernels", 2020. The first blocks are
distributed round-robin over the SMs. Once all SMs are full, a block starts when another one ends. `place` does the
same with predicted times: list scheduling (Graham, "Bounds on Multiprocessing Timing Anomalies", 1969).
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from evokern.ptx.program import PtxProgram
from evokern.simt.arrays import Array
from evokern.simt.counters import Counters

EQUAL_WORK_RATIO = 1.05
"""Maximum ratio of warp instructions between the longest and the shortest sampled block if blocks count as equal."""
MAX_LINE_BLOCKS = 16
"""Maximum number of blocks that are simulated along one axis; between them, work is interpolated."""
UNEXPLAINED = 0.1
"""Maximum mean error of the lines' prediction for sampled blocks, as a share of an average block's instructions."""


@dataclass(frozen=True)
class GridWork:
    """Work of each block in a grid, in the order of block ids."""

    pipes: Mapping[str, Array]
    """Pipe → clocks for which a block occupies it."""
    clocks: Array
    """Clocks of a block on an SM that it shares with blocks of the same kind."""
    sectors: Array
    """32-byte sectors that a block transfers to and from L2."""


@dataclass(frozen=True)
class Placed:
    """Placement of a grid's blocks on SMs."""

    sm: Array
    """SM of each block."""
    longest: Array
    """Clocks of the longest chain of consecutive blocks on each SM."""


def block_runs(program: PtxProgram, counters: Counters) -> Array:
    """Return how many warps of each block ran each instruction, one row per block, ordered as `Counters.blocks`."""
    rows = []
    for record in counters.record:
        blocks = record.warps // counters.warps_per_block
        segments: dict[int, Array] = {}
        for segment, mask in record.steps:
            known = segments.setdefault(segment, np.zeros(blocks))
            known += counters.warps_per_block if mask is None else mask.reshape(blocks, -1).sum(1)
        runs = np.zeros((blocks, len(counters.instructions)))
        for index, times in segments.items():
            segment_ = program.segments[index]
            runs[:, segment_.base : segment_.base + segment_.stop - segment_.start] += times[:, None]
        rows.append(runs)
    return np.concatenate(rows)


def are_equal(runs: Array) -> bool:
    """Return whether all blocks ran about the same number of instructions."""
    totals = runs.sum(1)
    return bool(totals.max() <= EQUAL_WORK_RATIO * totals.min())


def lines(grid: tuple[int, int, int]) -> dict[int, tuple[Array, tuple[int, ...]]]:
    """Return a map from each axis with more than one block to (coordinates, ids of the blocks there)."""
    strides = (1, grid[0], grid[0] * grid[1])
    found = {}
    for axis, size in enumerate(grid):
        if size > 1:
            at = np.unique(np.linspace(0, size - 1, min(size, MAX_LINE_BLOCKS)).round().astype(np.int64))
            found[axis] = at, tuple(int(coordinate) * strides[axis] for coordinate in at)
    return found


def line_blocks(grid: tuple[int, int, int]) -> tuple[int, ...]:
    """Return the ids of the blocks on all `lines`, in ascending order, the origin first."""
    return tuple(sorted({0, *(block for _, blocks in lines(grid).values() for block in blocks)}))


def extrapolated(grid: tuple[int, int, int], values: Sequence[float] | Array) -> Array:
    """Return a quantity for every block in a grid, extrapolated from the `line_blocks`."""
    known = dict(zip(line_blocks(grid), values, strict=True))
    ids = np.arange(grid[0] * grid[1] * grid[2])
    coordinates = ids % grid[0], ids // grid[0] % grid[1], ids // (grid[0] * grid[1])
    origin = float(known[0])
    result: Array = np.full(ids.size, origin)
    for axis, (at, blocks) in lines(grid).items():
        result += np.interp(coordinates[axis], at, [known[block] for block in blocks]) - origin
    return result.clip(min=0.0)


def predicts_samples(grid: tuple[int, int, int], along: Array, sampled: Sequence[int], runs: Array) -> bool:
    """Return whether the blocks along the lines correctly predict the work of the sampled blocks.

    Args:
        grid: blocks along x, y, z.
        along: `block_runs` of its `line_blocks`.
        sampled: other blocks.
        runs: their `block_runs`.
    """
    expected, real = extrapolated(grid, along.sum(1))[list(sampled)], runs.sum(1)
    return bool(abs(expected - real).mean() <= UNEXPLAINED * real.mean())


def place(
    clocks: Sequence[float] | Array,
    durations: Sequence[float] | Array,
    sms: int,
    resident: int,
    clusters: Sequence[tuple[int, ...]] | None = None,
    at_once: int | None = None,
) -> Placed:
    """Assign blocks, in order, to the SM that first has space; the blocks of a cluster start together.

    Args:
        clocks: clocks of each block, including waits for pipes.
        durations: clocks of each block if all blocks on a full SM use the same pipe.
        sms: SMs of the chip.
        resident: blocks that an SM holds at once.
        clusters: blocks of each cluster, which starts when there is space for all of them; None without clusters.
        at_once: clusters that run at once; None if every space can be used.
    """
    rooms = [(0.0, slot, sm) for slot in range(resident) for sm in range(sms)]  # A sorted list is already a heap.
    if clusters and at_once is not None:
        del rooms[at_once * len(clusters[0]) :]
    chains = np.zeros((resident, sms))
    where = np.zeros(len(durations), np.int64)
    for blocks in clusters or ():
        taken_rooms = [heapq.heappop(rooms) for _ in blocks[: len(rooms)]]
        together = max(start for start, _, _ in taken_rooms)
        for number, block in enumerate(blocks):
            _, slot, sm = taken_rooms[number % len(taken_rooms)]
            chains[slot, sm] = max(chains[slot, sm], together) + clocks[block]
            where[block] = sm
            heapq.heappush(rooms, (together + float(durations[block]), slot, sm))
    for block, (taken, duration) in enumerate(zip(clocks, durations, strict=True) if clusters is None else ()):
        start, slot, sm = rooms[0]
        heapq.heapreplace(rooms, (start + float(duration), slot, sm))
        chains[slot, sm] += taken
        where[block] = sm
    return Placed(where, chains.max(0))
