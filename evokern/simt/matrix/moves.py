"""`ldmatrix` and `stmatrix`: mapping between the bytes of each row and the registers of each lane.

Source: PTX ISA 8.5, sections 9.7.14.5.15 `ldmatrix` and 9.7.14.5.16 `stmatrix`. Matrices are 8x8 with 16-bit elements,
so rows have 16 bytes. Lanes 8r to 8r + 7 provide the row addresses of matrix r.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from evokern.errors import InternalError
from evokern.simt.numerics.formats import Array

ROW_BYTES = 16
"""Bytes of a row."""


@dataclass(frozen=True)
class MatrixMove:
    """Locations in memory from which `ldmatrix` loads each register, or to which `stmatrix` stores it.

    A register consists of `parts` pieces of `part_bytes` bytes, lowest first: one piece of four bytes, or with
    `.trans` two pieces of two bytes.
    """

    count: int
    """Number of matrices, and also of registers per lane: 1, 2 or 4."""
    provider: Array
    """Lane that provides the address, int64 [registers, 32 lanes, parts]."""
    offset: Array
    """Bytes from that address, int64 [registers, 32 lanes, parts]."""
    part_bytes: int
    """Bytes of a piece."""

    @property
    def addressing_lanes(self) -> int:
        """Number of lanes whose address is used: 8 times `count`."""
        return 8 * self.count

    def addresses(self, rows: Array) -> Array:
        """Return the address of every piece of a row.

        Args:
            rows: the lanes' address operands, [warps, 32], any integer type.

        Returns:
            [registers, warps, 32, parts], in the type of `rows`.
        """
        taken = rows[:, self.provider].transpose(1, 0, 2, 3)
        addresses: Array = taken + self.offset.astype(rows.dtype)[:, None]
        return addresses

    def registers(self, pieces: Array) -> Array:
        """Join uint16 or uint32 pieces [registers, warps, 32, parts] into uint32 registers [registers, warps, 32]."""
        packed: Array = np.ascontiguousarray(pieces).view(np.uint32)[..., 0]
        return packed

    def pieces(self, registers: Array) -> Array:
        """Split registers [registers, warps, 32] into pieces of `part_bytes` bytes, [registers, warps, 32, parts]."""
        return np.ascontiguousarray(registers)[..., None].view(np.dtype(f"u{self.part_bytes}"))


@cache
def matrix_move(count: int, *, transposed: bool = False) -> MatrixMove:
    """Return the mapping of `ldmatrix` or `stmatrix` `.m8n8.x1/.x2/.x4[.trans].b16`.

    Lane l holds elements (l/4, 2(l%4)) and (l/4, 2(l%4) + 1) of each matrix, or with `.trans` those of its transpose.

    Args:
        count: 1, 2 or 4.
        transposed: `.trans`.

    Raises:
        InternalError: another count.
    """
    if count not in (1, 2, 4):
        raise InternalError(f"ldmatrix and stmatrix move 1, 2 or 4 matrices, not {count}")
    matrix = np.arange(count)[:, None, None]
    lane = np.arange(32)[None, :, None]
    if transposed:
        row = 2 * (lane % 4) + np.arange(2)
        provider, offset, part_bytes = 8 * matrix + row, 2 * (lane // 4) + 0 * row, 2
    else:
        provider, offset, part_bytes = 8 * matrix + lane // 4, 4 * (lane % 4), 4
    shape = (count, 32, 4 // part_bytes)
    return MatrixMove(count, np.broadcast_to(provider, shape), np.broadcast_to(offset, shape), part_bytes)
