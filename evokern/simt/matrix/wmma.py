"""`wmma.mma.sync`: the product of two fragments, with evokern's distribution of elements (`fragments`)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from evokern.errors import InternalError
from evokern.simt.matrix.fragments import WMMA_SHAPES, Fragment, Shape, wmma_fragment
from evokern.simt.numerics import decode, encode
from evokern.simt.numerics.formats import Array


@dataclass(frozen=True)
class Wmma:
    """One `wmma.mma.sync` instruction (PTX ISA 8.5, section 9.7.14.4.5). Layouts belong to loads and stores alone.

    Raises:
        InternalError: a combination that PTX does not have.
    """

    shape: Shape
    """M, N, K."""
    d_type: str
    """Result: `f16`, `f32`, `s32` or `f64`."""
    a_type: str
    """Both factors: `f16 bf16 tf32 s8 u8 f64`."""
    c_type: str
    """Accumulator."""
    satfinite: bool = False
    """Clamp integer results to 32 bits instead of wrapping."""

    def __post_init__(self) -> None:
        if self.shape not in WMMA_SHAPES.get(self.a_type, ()):
            raise InternalError(f"wmma {self.shape} has no factors of type .{self.a_type}; known: {WMMA_SHAPES}")

    @cached_property
    def fragments(self) -> dict[str, Fragment]:
        """Operand -> fragment."""
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
        m, n, k = self.shape
        left = self.fragments["a"].gather(a, (m, k))
        right = self.fragments["b"].gather(b, (k, n))
        addend = self.fragments["c"].gather(c, (m, n))
        if self.a_type in ("s8", "u8"):
            product = np.matmul(left.astype(np.float32), right.astype(np.float32)).astype(np.int64)
            total = product + addend
            if self.satfinite:
                total = np.clip(total, -(1 << 31), (1 << 31) - 1)
            return self.fragments["d"].scatter(total.astype(np.int32))
        total = np.matmul(decode(self.a_type, left).astype(np.float64), decode(self.a_type, right).astype(np.float64))
        total += decode(self.c_type, addend)
        return self.fragments["d"].scatter(encode(self.d_type, total))


@cache
def bind_wmma(shape: Shape, d_type: str, a_type: str, c_type: str, satfinite: bool = False) -> Wmma:
    """Return the (cached) instruction; see `Wmma`."""
    return Wmma(shape, d_type, a_type, c_type, satfinite)
