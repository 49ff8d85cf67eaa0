"""`wgmma.mma_async.m64nNk16` over warps: each warp computes 16 of the 64 rows, all with the same B.

Fragments (PTX ISA 9.0, section 9.7.15.5.1.1.1): A has the fragment of `mma.m16n8k16`.
With g = lane / 4 and t = lane % 4:

    D, register 4*j + 2*h + c   ->  row 8*h + g of the warp's 16,  column 8*j + 2*t + c    (f16: both c in one register)

As in `mma`, sums are exact and rounded once to the accumulator's type. The four lanes of a group hold 16 adjacent
bytes of a row. This requires even columns of each tile first for `f32`, and the original column order for `f16`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from evokern.errors import InternalError
from evokern.simt.matrix.descriptors import ELEMENTS, STEP
from evokern.simt.matrix.mma import WARP, doubles, quads
from evokern.simt.numerics import STORAGE, decode, encode
from evokern.simt.numerics.formats import Array

ROWS = 64
"""Rows of D that a warpgroup computes."""
WARPS = 4
"""Warps of a warpgroup."""
WARP_ROWS = ROWS // WARPS
"""Rows of one warp."""
_KINDS = {"f16": ("f16", "f32"), "bf16": ("f32",)}


@dataclass(frozen=True)
class WarpgroupProduct:
    """One `wgmma.mma_async` instruction with 16-bit operands.

    Raises:
        InternalError: PTX does not have the combination, or this module does not support it.
    """

    shape: tuple[int, int, int]
    """M, N, K."""
    d_type: str
    """Type of the accumulator: `f16` or `f32`."""
    a_type: str
    """Type of A and B: `f16` or `bf16`."""
    negated: bool = False
    """Whether the product is subtracted, because exactly one of A and B is scaled by -1."""

    def __post_init__(self) -> None:
        m, n, k = self.shape
        name = f"wgmma m{m}n{n}k{k}.{self.d_type}.{self.a_type}"
        if self.d_type not in _KINDS.get(self.a_type, ()):
            raise InternalError(f"{name}: unsupported types; known: f16 to f16 or f32, bf16 to f32")
        if m != ROWS or k != STEP or n % 8 or not 8 <= n <= 256:
            raise InternalError(f"{name}: unsupported shape; M must be 64, K 16, and N a multiple of 8 up to 256")

    @property
    def columns(self) -> int:
        """Number of columns of the product (N)."""
        return self.shape[1]

    @property
    def registers(self) -> int:
        """Number of registers of D per lane."""
        return self.columns // (4 if self.d_type == "f16" else 2)

    def left_of_registers(self, registers: Array) -> Array:
        """Return A from registers, uint32 [4, warps, 32], as values [warps, 16, 16]."""
        warps = registers.shape[1]
        items = quads(registers, self.a_type).reshape(2, 2, warps, 8).transpose(2, 1, 3, 0)
        return self._values(items).reshape(warps, WARP_ROWS, STEP)

    def left(self, pieces: Array, *, transposed: bool) -> Array:
        """Return A from shared memory as values [units, rows, 16]; pieces are [units, *`Descriptor.pieces`]."""
        return self._factor(pieces, transposed).swapaxes(1, 2) if transposed else self._factor(pieces, transposed)

    def right(self, pieces: Array, *, transposed: bool) -> Array:
        """Return B from shared memory as values [units, 16, N], with columns in the order of the accumulators."""
        if self.d_type == "f32":
            pieces = _even_first(pieces, transposed)
        factor = self._factor(pieces, transposed)
        return factor if transposed else factor.swapaxes(1, 2)

    def _factor(self, pieces: Array, transposed: bool) -> Array:
        """Convert pieces to values [units, extent, 16] or, with `transposed`, [units, 16, extent]."""
        units = pieces.shape[0]
        return self._values(pieces).reshape(units, STEP if transposed else -1, pieces.shape[2] * ELEMENTS)

    def _values(self, items: Array) -> Array:
        patterns = np.ascontiguousarray(items).view(np.uint16)
        values: Array = doubles(self.a_type).take(patterns, mode="wrap")
        return values

    def __call__(self, left: Array, right: Array, accumulators: Array, keep: Array) -> Array:
        """Execute the instruction.

        Args:
            left: values of A, [units, 16 or 64, 16]; a unit is a warp or a whole warpgroup.
            right: B of each unit, [units, 16, N], from `right`.
            accumulators: previous registers of D, uint32 [registers, warps, 32].
            keep: bool [warps]; whether the product is added to D.

        Returns:
            Registers of D, uint32 [registers, warps, 32].
        """
        warps = accumulators.shape[1]
        total = np.matmul(left, right).reshape(warps, WARP_ROWS, self.columns)
        if self.negated:
            np.negative(total, out=total)
        if keep.all():
            total += self._before(accumulators)
        elif keep.any():
            total[keep] += self._before(np.ascontiguousarray(accumulators[:, keep]))
        return self._after(encode(self.d_type, total))

    def _before(self, registers: Array) -> Array:
        """Convert registers of D to values [warps, 16, N] in the column order of the product."""
        warps, tiles = registers.shape[1], self.columns // 8
        items = quads(registers, self.d_type)
        if self.d_type == "f16":
            items = items.reshape(tiles, 2, warps, 8).transpose(2, 1, 3, 0)
        else:
            items = items.reshape(tiles, 2, 2, warps, 8).transpose(3, 1, 4, 0, 2)
        flat = np.ascontiguousarray(items).view(STORAGE[self.d_type])
        return decode(self.d_type, flat.reshape(warps, WARP_ROWS, self.columns))

    def _after(self, patterns: Array) -> Array:
        """Convert bit patterns [warps, 16, N] to registers of D."""
        warps, tiles = patterns.shape[0], self.columns // 8
        items = quads(patterns, self.d_type)
        if self.d_type == "f16":
            items = items.reshape(warps, 2, 8, tiles).transpose(3, 1, 0, 2)
        else:
            items = items.reshape(warps, 2, 8, tiles, 2).transpose(3, 1, 4, 0, 2)
        return np.ascontiguousarray(items).view(np.uint32).reshape(self.registers, warps, WARP)


def _even_first(pieces: Array, transposed: bool) -> Array:
    """Reorder the columns of each tile of eight to match the registers of f32 accumulators."""
    if transposed:
        inner = np.ascontiguousarray(pieces).view(np.uint16).reshape(*pieces.shape, 4, 2).swapaxes(-1, -2)
        return np.ascontiguousarray(inner).reshape(*pieces.shape[:-1], -1).view(pieces.dtype)
    units, rows, steps = pieces.shape
    return pieces.reshape(units, rows // 8, 4, 2, steps).swapaxes(2, 3).reshape(units, rows, steps)


@cache
def bind_wgmma(shape: tuple[int, int, int], d_type: str, a_type: str, negated: bool = False) -> WarpgroupProduct:
    """Return the instruction from a cache; see `WarpgroupProduct`."""
    return WarpgroupProduct(shape, d_type, a_type, negated)
