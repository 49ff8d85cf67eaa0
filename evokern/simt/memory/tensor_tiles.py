"""Pieces of a bulk copy: where each lies in global and in shared memory (PTX ISA 5.5 "Tensors", 9.7.9.25.5).

A tile is stored densely, its first dimension without gaps. With a swizzle, chunks of 16 bytes change places within the
span of the swizzle: bits 7 and up of a chunk's address are added, without carry, to bits 4 and up.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from evokern.hardware.tensor_map import SWIZZLES, TensorMap
from evokern.simt.arrays import Array

CHUNK = 16
"""Bytes of shared memory that move together."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Pieces:
    """Pieces of the copies of several lanes, in the order of shared memory without swizzle, lane after lane."""

    owner: Array
    """Position of each piece's lane among the lanes that copy."""
    width: int
    """Bytes of a piece, at most a chunk."""
    memory: Array
    """Address of each piece in global memory."""
    inside: Array
    """Whether each piece is inside the tensor."""
    chunks: Array
    """Distance of each chunk from the start of its copy in shared memory, bytes."""
    chunk_owner: Array
    """Position of each chunk's lane among the lanes that copy."""
    blank: bytes = bytes(CHUNK)
    """Bytes outside the tensor."""


def linear_pieces(memory: Array, sizes: Array) -> Pieces:
    """Return the pieces of copies of adjacent bytes, given the address and the bytes of each lane's copy."""
    counts = sizes // CHUNK
    owner = np.repeat(np.arange(sizes.size), counts)
    at = (np.arange(owner.size) - np.repeat(np.cumsum(counts) - counts, counts)) * CHUNK
    return Pieces(
        owner=owner, width=CHUNK, memory=memory[owner] + at, inside=np.ones(owner.size, np.bool_), chunks=at,
        chunk_owner=owner,
    )  # fmt: skip


@lru_cache(maxsize=64)
def _tile(shape: TensorMap, unit: int) -> tuple[Array, Array]:
    """Return, for each piece of a tile, its element along each dimension, and its byte in the first one."""
    steps = (1, *(shape.steps or (1,) * shape.rank)[1:])
    extents = [shape.tile[0] * shape.element_bytes // unit, *shape.tile[1:]]
    grid = np.indices(extents[::-1]).reshape(shape.rank, -1)[::-1]
    return grid * np.array(steps)[:, None], grid[0] * unit


def _nan(size: int) -> bytes:
    """Return a chunk of NaNs; a GPU's are documented only as a special constant."""
    return (b"\xff" * (size - 1) + b"\x7f") * (CHUNK // size)


def tile_pieces(shape: TensorMap, address: Array, corner: Array, shared: Array) -> Pieces:
    """Return the pieces of tiles.

    Args:
        shape: the tensor map.
        address: address of each lane's tensor.
        corner: coordinates of each lane's tile, as [lanes, dimensions].
        shared: address of each lane's tile in shared memory.
    """
    size = shape.element_bytes
    edge = int(np.bitwise_or.reduce(corner[:, 0] * size)) | shape.shape[0] * size | CHUNK
    unit = edge & -edge  # The largest power of two that divides the starts and the end of all rows.
    steps, first = _tile(shape, unit)
    count, lanes = first.size, address.size
    owner = np.repeat(np.arange(lanes), count)
    along = corner[:, 0, None] * size + first
    inside = (along >= 0) & (along < shape.shape[0] * size)
    memory = address[:, None].astype(np.int64) + along
    for axis in range(1, shape.rank):
        at = corner[:, axis, None] + steps[axis]
        inside &= (at >= 0) & (at < shape.shape[axis])
        memory = memory + at * shape.strides[axis - 1]
    chunks = np.arange(shape.tile_bytes // CHUNK) * CHUNK
    start = shared[:, None].astype(np.int64)
    target = start + chunks
    if span := SWIZZLES[shape.swizzle]:
        target ^= target >> 3 & span - CHUNK
    return Pieces(
        owner=owner, width=unit, memory=memory.reshape(-1), inside=inside.reshape(-1),
        chunks=(target - start).reshape(-1), chunk_owner=np.repeat(np.arange(lanes), chunks.size),
        blank=_nan(size) if shape.fill == "nan" else bytes(CHUNK),
    )  # fmt: skip
