"""Layout of thread-block clusters: their blocks, in order, and the block to which an address belongs.

The blocks of a cluster run concurrently and access each other's shared memory (PTX ISA 9.0, "Cooperative Thread
Arrays" and "State spaces", ``.shared::cluster``). The bits of an address from `RANK_BITS` up hold the rank of its
block, even for a thread's own block: every address of ``.shared::cta`` is also an address of ``.shared::cluster``.

An H100 confirms this: a variable in the block of rank 2 has the address 0x2000400, and ``mapa`` returns 0x400 for rank
0. Without the rank bits, ``ld.shared`` is an illegal instruction and ``ld.shared::cluster`` reads the block of rank 0.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from evokern.errors import UsageError
from evokern.hardware.profiles import MIN_CLUSTER_CAPABILITY, PORTABLE_CLUSTER_BLOCKS
from evokern.ptx.syntax import Function
from evokern.simt.arrays import Array

RANK_BITS = 24
"""Number of low bits that hold the offset in a ``shared::cluster`` address; the rank is above them."""
MAX_RANK = 255
"""Largest rank in a 32-bit address; larger ranks, which no cluster has, are reduced to this value."""

Three = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Cluster:
    """Shape of the clusters of a launch."""

    extent: Three
    """Blocks of a cluster along x, y, z."""
    explicit: bool
    """Whether the launch or the kernel sets the cluster size."""

    @property
    def blocks(self) -> int:
        """Number of blocks in a cluster."""
        return self.extent[0] * self.extent[1] * self.extent[2]

    def whole_grid(self, grid: Three) -> Three:
        """Return a grid with each extent rounded up to whole clusters."""
        x, y, z = (-(-blocks // size) * size for blocks, size in zip(grid, self.extent, strict=True))
        return x, y, z

    def require_whole(self, grid: Three, called: str) -> None:
        """Raise an error if a grid does not consist of whole clusters.

        Args:
            grid: blocks along x, y, z.
            called: name of the kernel in messages.

        Raises:
            UsageError: the grid is not a multiple of the cluster size.
        """
        for axis, along, size in zip("xyz", grid, self.extent, strict=True):
            if along % size:
                raise UsageError(
                    f"{called}: a grid of {grid} has {along} blocks along {axis}, not a multiple of the cluster size "
                    f"{self.extent}: launch a multiple of {size}"
                )

    def whole(self, grid: Three, blocks: Iterable[int]) -> tuple[int, ...]:
        """Return all blocks of the clusters that contain the given blocks, sorted by cluster and rank.

        Args:
            grid: blocks along x, y, z.
            blocks: linear ids.
        """
        if self.blocks == 1:
            return tuple(blocks)
        of_block = cluster_numbers(grid, self.extent)
        return self.members(grid, dict.fromkeys(int(of_block[block]) for block in blocks))

    def members(self, grid: Three, numbers: Iterable[int]) -> tuple[int, ...]:
        """Return the blocks of some clusters by cluster and rank; cluster ids are linear indices into `grid_of`."""
        if self.blocks == 1:
            return tuple(numbers)
        members = members_of(grid, self.extent)
        return tuple(block for number in numbers for block in members[number])

    def grid_of(self, grid: Three) -> Three:
        """Return the extents of a grid in clusters along x, y, z."""
        return grid[0] // self.extent[0], grid[1] // self.extent[1], grid[2] // self.extent[2]

    def drawn(self, grid: Three, most: int, rng: random.Random) -> tuple[int, ...]:
        """Return the blocks of randomly chosen clusters, at most `most` blocks but at least one cluster."""
        clusters = grid[0] * grid[1] * grid[2] // self.blocks
        return self.members(grid, rng.sample(range(clusters), min(clusters, max(most // self.blocks, min(most, 1)))))


def cluster_of(
    function: Function,
    wanted: Three | None,
    capability: int,
    called: str = "",
    remedy: str = "launch it with a cluster",
) -> Cluster:
    """Return the cluster shape of a launch, as requested by the launch or required by its kernel.

    Args:
        function: the kernel.
        wanted: blocks of a cluster that the launch requests; None if it does not.
        capability: compute capability × 10 of the chip.
        called: name of the kernel in messages; default: its name in the PTX.
        remedy: how to launch a kernel that requires a cluster.

    Raises:
        UsageError: the cluster sizes of launch and kernel differ, the chip does not support clusters, or the cluster
            exceeds the portable size.
    """
    called = called or function.name
    directives = function.directives
    required = directives.get("reqnctapercluster")
    demanded = _three(required) if required and min(required) > 0 else None
    if wanted is not None and min(wanted) < 1:
        raise UsageError(f"{called}: a cluster of {wanted} has no blocks: use at least 1 along each axis")
    if wanted is not None and demanded is not None and wanted != demanded:
        raise UsageError(
            f"{called} requires clusters of {demanded} blocks (__cluster_dims__), but the launch uses {wanted}: use "
            "the same size, or omit one of the two sizes"
        )
    if wanted is None and demanded is None and "explicitcluster" in directives:
        raise UsageError(f"{called} must be launched with a cluster (.explicitcluster): {remedy}")
    cluster = Cluster(wanted or demanded or (1, 1, 1), wanted is not None or demanded is not None)
    extent, blocks = cluster.extent, cluster.blocks
    if blocks == 1:
        return cluster
    if capability < 10 * MIN_CLUSTER_CAPABILITY[0] + MIN_CLUSTER_CAPABILITY[1]:
        raise UsageError(f"{called}: clusters of {extent} need sm_90 or later, not sm_{capability}")
    if "blocksareclusters" in directives:
        raise UsageError(f"{called}: grids that count clusters (__block_size__ with a cluster) are not simulated")
    if blocks > PORTABLE_CLUSTER_BLOCKS:
        raise UsageError(
            f"{called}: a cluster of {extent} has {blocks} blocks, but the portable maximum is "
            f"{PORTABLE_CLUSTER_BLOCKS}: use a smaller cluster"
        )
    most = directives.get("maxclusterrank", (blocks,))[0]
    if blocks > most:
        raise UsageError(
            f"{called}: a cluster of {extent} has {blocks} blocks, but its __launch_bounds__ allow {most}: use a "
            "smaller cluster or change the bounds"
        )
    return cluster


def _three(numbers: tuple[int, ...]) -> Three:
    x, y, z = (*numbers, 1, 1)[:3]
    return x, y, z


def cluster_numbers(grid: Three, extent: Three) -> Array:
    """Return the linear id of each block's cluster, by the block's linear id."""
    x, y, z = _coordinates(grid)
    along = grid[0] // extent[0], grid[1] // extent[1]
    numbers: Array = (z // extent[2] * along[1] + y // extent[1]) * along[0] + x // extent[0]
    return numbers


def members_of(grid: Three, extent: Three) -> list[tuple[int, ...]]:
    """Return the blocks of each cluster in rank order (x fastest, then y, then z), by the cluster's linear id."""
    x, y, z = _coordinates(grid)
    rank = (z % extent[2] * extent[1] + y % extent[1]) * extent[0] + x % extent[0]
    order = np.lexsort((rank, cluster_numbers(grid, extent)))
    return [tuple(row) for row in order.reshape(-1, extent[0] * extent[1] * extent[2]).tolist()]


def _coordinates(grid: Three) -> tuple[Array, Array, Array]:
    blocks = np.arange(grid[0] * grid[1] * grid[2])
    return blocks % grid[0], blocks // grid[0] % grid[1], blocks // (grid[0] * grid[1])
