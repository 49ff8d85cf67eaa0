"""Blocks of unequal work: what each block of a grid does, and which SM it falls on.

Where sampled blocks turn out to differ (a causal mask leaves the first rows of a sequence little to do), a line of
blocks runs along each axis of the grid. A block is taken to do what the one at the origin does, and what each of its
coordinates adds along its axis. The sampled blocks, which lie across all axes, tell whether that holds (`explains`).

Blocks start in the order of their ids, each on the SM with the most room (Gilman et al., "Demystifying the Placement
Policies of the NVIDIA GPU Thread Block Scheduler for Concurrent Kernels", 2020): the first ones are dealt out in turn,
one to an SM, then a second one to each, and once all are full a block starts where one ends. `place` does the same with
predicted times: list scheduling (Graham, "Bounds on Multiprocessing Timing Anomalies", 1969).
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from evokern.ptx.program import PtxProgram
from evokern.simt.arrays import Array
from evokern.simt.counters import Counters

EVEN = 1.05
"""Warp instructions of the longest sampled block over those of the shortest, up to which a grid's blocks are equal."""
LINE = 16
"""Most blocks that run along one axis; between them work changes evenly."""
UNEXPLAINED = 0.1
"""Share of a mean block's instructions by which lines may miss the sampled blocks, on the mean, and still hold."""


@dataclass(frozen=True)
class GridWork:
    """What each block of a grid does, in the order of their ids."""

    pipes: Mapping[str, Array]
    """Pipe → clocks for which a block holds it."""
    clocks: Array
    """Clocks that a block takes on an SM that it shares with blocks of its kind."""
    sectors: Array
    """32-byte sectors that a block moves to and from L2."""


@dataclass(frozen=True)
class Placed:
    """Where the blocks of a grid run."""

    sm: Array
    """SM of each block."""
    longest: Array
    """Clocks that blocks which follow one another on an SM take, the longest such chain of each SM."""


def block_runs(program: PtxProgram, counters: Counters) -> Array:
    """Return how many warps of each block ran each instruction: a row per block, in the order of `Counters.blocks`."""
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
    """Tell whether blocks ran about as many instructions each."""
    totals = runs.sum(1)
    return bool(totals.max() <= EVEN * totals.min())


def lines(grid: tuple[int, int, int]) -> dict[int, tuple[Array, tuple[int, ...]]]:
    """Return axis → coordinates along it and the ids of the blocks there, for each axis with more than one block."""
    strides = (1, grid[0], grid[0] * grid[1])
    found = {}
    for axis, size in enumerate(grid):
        if size > 1:
            at = np.unique(np.linspace(0, size - 1, min(size, LINE)).round().astype(np.int64))
            found[axis] = at, tuple(int(coordinate) * strides[axis] for coordinate in at)
    return found


def line_blocks(grid: tuple[int, int, int]) -> tuple[int, ...]:
    """Return the ids of the blocks of all `lines`, ascending, the origin first."""
    return tuple(sorted({0, *(block for _, blocks in lines(grid).values() for block in blocks)}))


def extrapolated(grid: tuple[int, int, int], values: Sequence[float] | Array) -> Array:
    """Return a quantity of every block of a grid from that of its `line_blocks`."""
    known = dict(zip(line_blocks(grid), values, strict=True))
    ids = np.arange(grid[0] * grid[1] * grid[2])
    coordinates = ids % grid[0], ids // grid[0] % grid[1], ids // (grid[0] * grid[1])
    origin = float(known[0])
    result: Array = np.full(ids.size, origin)
    for axis, (at, blocks) in lines(grid).items():
        result += np.interp(coordinates[axis], at, [known[block] for block in blocks]) - origin
    return result.clip(min=0.0)


def explains(grid: tuple[int, int, int], along: Array, sampled: Sequence[int], runs: Array) -> bool:
    """Tell whether what blocks along the lines ran says what the sampled ones did.

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
) -> Placed:
    """Deal blocks out to SMs, in order, each to where room comes up first; those of a cluster start together.

    Args:
        clocks: those that each block takes, waits for pipes included.
        durations: clocks that it takes where all blocks of a full SM keep the same pipe busy.
        sms: SMs of the chip.
        resident: blocks that an SM holds at once.
        clusters: blocks of each cluster, which starts when there is room for all of them; None without clusters.
    """
    rooms = [(0.0, slot, sm) for slot in range(resident) for sm in range(sms)]  # in order, so a heap already
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
