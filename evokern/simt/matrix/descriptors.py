"""Location of a `wgmma` operand in shared memory, as encoded in a matrix descriptor.

A descriptor contains a start address, two offsets and a swizzle. Together with the operand's major-ness they define the
address of each piece of 16 bytes. Source: PTX ISA 9.0, section 9.7.15.5.1.2 "Shared Memory Matrix Layout", its table of
canonical layouts and section 9.7.15.5.1.2.2 "Matrix Descriptor Format". W is the number of pieces in the swizzle's
width: 8, 4 or 2 for 128, 64 or 32 bytes, and 1 without a swizzle. Elements have 16 bits, so a piece has eight elements:

    K-major, row r, piece j of K        ->  `(r % 8) * 16W + (r / 8) * stride + j * 16` (without swizzle: `j * leading`)
    MN-major, row k of K, piece q of MN ->  `(q % W) * 16 + (q / W) * leading + (k % 8) * 16W + (k / 8) * stride`
    the same without swizzle            ->  `q * stride + (k % 8) * 16 + (k / 8) * leading`

A swizzle then permutes pieces by their address: bits 4 to 6 are xored with as many of the bits 7 to 9 as W needs. The
same rule therefore covers an operand that starts inside a pattern (the next step of K).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from evokern.simt.numerics.formats import Array

PIECE = 16
"""Bytes of a piece, eight elements of 16 bits."""
ELEMENTS = 8
"""Elements of a piece."""
STEP = 16
"""Elements along K of one instruction with 16-bit operands."""
BASE_OFFSET = np.uint64(7 << 49)
"""Bits that hold the offset of a swizzle pattern from a multiple of its size; only offset 0 is supported."""
_WIDTHS = (1, 8, 4, 2)
"""Swizzle mode -> pieces in its width."""


@dataclass(frozen=True)
class Descriptor:
    """Matrix descriptor of 64 bits."""

    bits: int
    """The 64 bits, as the instruction receives them."""

    def _field(self, first: int) -> int:
        return (self.bits >> first & 0x3FFF) * 16

    @cached_property
    def start(self) -> int:
        """Byte address of the operand in shared memory."""
        return self._field(0)

    @cached_property
    def leading(self) -> int:
        """Leading dimension byte offset."""
        return self._field(16)

    @cached_property
    def stride(self) -> int:
        """Stride dimension byte offset."""
        return self._field(32)

    @cached_property
    def width(self) -> int:
        """Number of pieces in the swizzle's width: 8, 4, 2, or 1 without a swizzle."""
        return _WIDTHS[self.bits >> 62 & 3]

    def pieces(self, extent: int, *, transposed: bool) -> Array:
        """Return the addresses of the operand's pieces, in bytes.

        Args:
            extent: rows along M or N.
            transposed: whether the operand is MN-major, as given by `imm-trans`.

        Returns:
            int64 [extent, 2] for K-major operands, [16, extent / 8] for MN-major ones.
        """
        width = self.width
        if transposed:
            k, q = np.arange(STEP)[:, None], np.arange(extent // ELEMENTS)
            along, across = (self.leading, self.stride) if width > 1 else (self.stride, self.leading)
            plain = q % width * PIECE + q // width * along + k % 8 * (PIECE * width) + k // 8 * across
        else:
            row, j = np.arange(extent)[:, None], np.arange(STEP // ELEMENTS)
            plain = row % 8 * (PIECE * width) + row // 8 * self.stride + j * (PIECE if width > 1 else self.leading)
        address = self.start + plain.astype(np.int64)
        swizzled: Array = address ^ (address >> 7 & width - 1) << 4
        return swizzled


@lru_cache(maxsize=4096)
def pieces_of(bits: int, extent: int, transposed: bool) -> Array:
    """Return the cached `Descriptor.pieces` of a descriptor; do not modify the result."""
    return Descriptor(bits).pieces(extent, transposed=transposed)
