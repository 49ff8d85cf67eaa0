"""`wmma.mma.sync`: one or two `mma` tiles, with the mapping of elements to lanes from `fragments`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from evokern.errors import InternalError
from evokern.simt.matrix.fragments import WMMA_SHAPES, Fragment, Shape, wmma_fragment
from evokern.simt.matrix.mma import Mma, bind_mma
from evokern.simt.numerics.formats import Array


@dataclass(frozen=True)
class Wmma:
    """One `wmma.mma.sync` instruction (PTX ISA 8.5, section 9.7.14.4.5); only loads and stores depend on the layout.

    Raises:
        InternalError: PTX does not have the combination.
    """

    shape: Shape
    """M, N, K."""
    d_type: str
    """Type of the result: `f16`, `f32`, `s32` or `f64`."""
    a_type: str
    """Type of A and B: `f16 bf16 tf32 s8 u8 f64`."""
    c_type: str
    """Accumulator."""
    satfinite: bool = False
    """Whether integer results are clamped to 32 bits instead of wrapping."""

    def __post_init__(self) -> None:
        if self.shape not in WMMA_SHAPES.get(self.a_type, ()):
            raise InternalError(
                f"wmma {self.shape} does not support operands of type .{self.a_type}; known: {WMMA_SHAPES}"
            )

    @cached_property
    def fragments(self) -> dict[str, Fragment]:
        """Fragment of each operand."""
        kinds = {"a": self.a_type, "b": self.a_type, "c": self.c_type, "d": self.d_type}
        return {operand: wmma_fragment(self.shape, operand, kind) for operand, kind in kinds.items()}

    def __call__(self, a: Array, b: Array, c: Array) -> Array:
        """Execute the instruction for a batch of warps.

        Args:
            a: registers of A, [registers, warps, 32], uint32 (uint64 or float64 for f64).
            b: registers of B.
            c: registers of C.

        Returns:
            Registers of D, [registers, warps, 32].
        """
        tile = self._tile
        if self.shape == (8, 32, 16):  # The transposed product is D' = B' A'.
            a, b = b, a
        a_step, b_step, c_step = (tile.registers[operand] for operand in "abc")
        results = []
        for index in range(c.shape[0] // c_step):
            left = a[index * a_step :] if self._rows_differ else a
            right = b if self._rows_differ else b[index * b_step :]
            results.append(tile(left[:a_step], right[:b_step], c[index * c_step :][:c_step]))
        return np.concatenate(results) if len(results) > 1 else results[0]

    @cached_property
    def _tile(self) -> Mma:
        """The `mma` that computes one tile of the result."""
        rows = 8 if self.a_type == "f64" else 16
        kinds = (self.d_type, self.a_type, self.a_type, self.c_type)
        return bind_mma((rows, 8, self.shape[2]), *kinds, self.satfinite)

    @cached_property
    def _rows_differ(self) -> bool:
        """Whether the tiles are above each other (m32, and m8n32 transposed) rather than side by side."""
        return 32 in self.shape


@cache
def bind_wmma(shape: Shape, d_type: str, a_type: str, c_type: str, satfinite: bool = False) -> Wmma:
    """Return the instruction from a cache; see `Wmma`."""
    return Wmma(shape, d_type, a_type, c_type, satfinite)
