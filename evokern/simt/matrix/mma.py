"""Tensor-core instruction `mma.sync` over warps; `wmma` is built from it.

All `mma` shapes of PTX distribute their matrices over a warp by one rule. Source: ISA 8.5, 9.7.14.5,
"Matrix Fragments for mma.m8n8k4" to "m16n8k32". With g = lane / 4, t = lane % 4 and e elements in a register:

    A, register rk*RM + rm, element i  ->  row 8*rm + g,            column (4*rk + t)*e + i;
    B, register rk,         element i  ->  row (4*rk + t)*e + i,    column g;
    C, register 2*rm + h               ->  row 8*rm + g,            column 2*t + h        (f16: two h in one register)

RM is M / 8. The four lanes of a group therefore hold 16 adjacent bytes of a row, and rearranging 16-byte items
rearranges a whole operand without index arrays. `Fragment` applies the same rule per lane and element, for address
computation and for `wmma`.

Accumulation: products are exact; their sum is computed in float64 and rounded once to the accumulator's type. Hardware
adds blocks of 4 to 16 products. It aligns the products of a block and the running sum to the largest exponent. It then
drops the bits below the 23rd to 25th fraction bit and truncates. Source: M. Fasi, N. Higham, M. Mikaitis, S. Pranesh,
"Numerical behavior of NVIDIA tensor cores", PeerJ CS 7:e330, 2021. Therefore f32 results differ in the last bits,
within `accumulation_bound`; integer results are equal.

An NVIDIA H200 aligns all K products of an instruction and the sum at once, keeps 25 fraction bits of each and
truncates. This rule reproduces every bit of its f32 results for f16, bf16 and tf32 operands. With f16 accumulators,
the H200 returns the exact sum rounded to nearest, like this module. Native 8-bit floating-point units keep fewer bits,
about 13 (DeepSeek-V3 report, arXiv 2412.19437, section 3.3.2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from evokern.errors import InternalError, suggestion
from evokern.simt.matrix.fragments import Shape
from evokern.simt.numerics import STORAGE, decode, encode
from evokern.simt.numerics.formats import Array

WARP = 32

_ELEMENT_BYTES: Mapping[str, int] = {
    "f64": 8, "tf32": 4, "f16": 2, "bf16": 2, "s8": 1, "u8": 1, "e4m3": 1, "e5m2": 1,
}  # fmt: skip

_SHAPES: Mapping[str, tuple[Shape, ...]] = {
    "f16": ((16, 8, 8), (16, 8, 16)),
    "bf16": ((16, 8, 8), (16, 8, 16)),
    "tf32": ((16, 8, 4), (16, 8, 8)),
    "s8": ((8, 8, 16), (16, 8, 16), (16, 8, 32)),
    "u8": ((8, 8, 16), (16, 8, 16), (16, 8, 32)),
    "e4m3": ((16, 8, 16), (16, 8, 32)),
    "e5m2": ((16, 8, 16), (16, 8, 32)),
    "f64": ((8, 8, 4), (16, 8, 4), (16, 8, 8), (16, 8, 16)),
}
"""Type of A -> shapes of `mma.sync` (PTX ISA 9.7.14.5.14, table of shapes)."""

_ACCUMULATORS: Mapping[str, tuple[str, ...]] = {
    "f16": ("f16", "f32"), "bf16": ("f32",), "tf32": ("f32",), "s8": ("s32",), "u8": ("s32",),
    "e4m3": ("f16", "f32"), "e5m2": ("f16", "f32"), "f64": ("f64",),
}  # fmt: skip


@dataclass(frozen=True)
class Mma:
    """One `mma.sync` instruction: its shape, its types, and the register layout that follows from them.

    Raises:
        InternalError: PTX does not have the combination, or this module does not support it.
    """

    shape: Shape
    """M, N, K."""
    d_type: str
    """Type of the result: `f16`, `f32`, `s32` or `f64`."""
    a_type: str
    """Type of A: `f16 bf16 tf32 s8 u8 e4m3 e5m2 f64`."""
    b_type: str
    """Type of B; differs from `a_type` only within `s8 u8` and within `e4m3 e5m2`."""
    c_type: str
    """Type of the accumulator C; for f16 and fp8 operands, it may differ from `d_type`."""
    satfinite: bool = False
    """Whether integer results are clamped to 32 bits instead of wrapping."""

    def __post_init__(self) -> None:
        m, n, k = self.shape
        name = f"mma.m{m}n{n}k{k}.{self.d_type}.{self.a_type}.{self.b_type}.{self.c_type}"
        families = ({"s8", "u8"}, {"e4m3", "e5m2"})
        if self.a_type != self.b_type and not any({self.a_type, self.b_type} <= family for family in families):
            raise InternalError(f"{name}: A and B have incompatible types")
        if self.shape not in _SHAPES.get(self.a_type, ()):
            known = suggestion(self.a_type, _SHAPES) if self.a_type not in _SHAPES else f"known: {_SHAPES[self.a_type]}"
            raise InternalError(f"{name}: unsupported shape for .{self.a_type}; {known}")
        for accumulator in (self.c_type, self.d_type):
            if accumulator not in _ACCUMULATORS[self.a_type]:
                known = str(_ACCUMULATORS[self.a_type])
                raise InternalError(
                    f"{name}: an accumulator of .{accumulator} is not supported for .{self.a_type}; known: {known}"
                )
        if self.satfinite and self.d_type != "s32":
            raise InternalError(f"{name}: .satfinite requires an integer result")

    @cached_property
    def row_tiles(self) -> int:
        """Number of groups of eight rows (RM)."""
        return self.shape[0] // 8

    @cached_property
    def column_steps(self) -> int:
        """Number of registers per lane along K (RK)."""
        bytes_a_lane = self.shape[2] // 4 * _ELEMENT_BYTES[self.a_type]
        return bytes_a_lane // (8 if self.a_type == "f64" else 4)

    @cached_property
    def registers(self) -> Mapping[str, int]:
        """Number of registers per lane of each operand; they have 64 bits for f64 and 32 bits otherwise."""
        halves = {"c": self.c_type, "d": self.d_type}
        counts = {"a": self.row_tiles * self.column_steps, "b": self.column_steps}
        counts.update({key: self.row_tiles * (1 if kind == "f16" else 2) for key, kind in halves.items()})
        return counts

    def __call__(self, a: Array, b: Array, c: Array) -> Array:
        """Execute the instruction for a batch of warps.

        Args:
            a: registers of A, [registers, warps, 32], uint32 (uint64 or float64 for f64).
            b: registers of B.
            c: registers of C.

        Returns:
            Registers of D, [registers, warps, 32], uint32 (float64 for f64).
        """
        left = self._left(a)
        right = self._right(b)
        if self.a_type in ("s8", "u8"):
            # K products of 8 bits stay below 2^24, so every float32 sum is exact in any order.
            return self._integer_result(np.matmul(left, right.swapaxes(1, 2)), c)
        total = np.matmul(left, right.swapaxes(1, 2))
        total += self._addend(c)
        return self._result(total)

    def _left(self, a: Array) -> Array:
        """Convert registers of A to values [warp, row, k]."""
        warps = a.shape[1]
        order = (2, 1, 3, 0)  # [rk, rm, warp, g] -> [warp, rm, g, rk]
        items = quads(a, self.a_type).reshape(self.column_steps, self.row_tiles, warps, 8, -1)
        return self._values(self.a_type, items.transpose(*order, 4), warps, self.shape[0])

    def _right(self, b: Array) -> Array:
        """Convert registers of B to values [warp, column, k], with columns in the order of `_column_order`."""
        warps = b.shape[1]
        items = quads(b, self.b_type)
        if self._split_columns:
            items = items.reshape(self.column_steps, warps, 4, 2, -1).transpose(1, 3, 2, 0, 4)
        else:
            items = items.reshape(self.column_steps, warps, 8, -1).transpose(1, 2, 0, 3)
        return self._values(self.b_type, items, warps, 8)

    @cached_property
    def _split_columns(self) -> bool:
        """Whether even columns precede odd columns, as in accumulators with one element per register."""
        return self.d_type != "f16" and self.c_type != "f16"

    def _values(self, kind: str, items: Array, warps: int, rows: int) -> Array:
        """Decode rearranged 16-byte items to values [warp, row, k], in the type used for the multiplication."""
        flat = np.ascontiguousarray(items)
        if kind in ("s8", "u8"):
            return flat.view(np.int8 if kind == "s8" else np.uint8).reshape(warps, rows, -1).astype(np.float32)
        patterns = flat.view(STORAGE[kind])
        if kind in ("f16", "e4m3", "e5m2"):
            values = doubles(kind).take(patterns.view(f"u{patterns.dtype.itemsize}"), mode="wrap")
        else:
            values = decode(kind, patterns).astype(np.float64, copy=False)
        return values.reshape(warps, rows, self.shape[2])

    def _accumulators(self, c: Array, kind: str) -> Array:
        """Convert registers of C to bit patterns [warp, row, column] in the column order of the product."""
        warps = c.shape[1]
        if kind == "f16":
            items = quads(c, kind).reshape(self.row_tiles, warps, 8, -1).transpose(1, 0, 2, 3)
            flat = np.ascontiguousarray(items).view(np.uint16)
            return flat.reshape(warps, self.shape[0], 8)
        items = quads(c, kind).reshape(self.row_tiles, 2, warps, 8, -1).transpose(2, 0, 3, 1, 4)
        flat = np.ascontiguousarray(items).view(STORAGE[kind]).reshape(warps, self.shape[0], 8)
        if self._split_columns:
            return flat
        return flat.reshape(warps, -1, 2, 4).swapaxes(2, 3).reshape(flat.shape)

    def _addend(self, c: Array) -> Array:
        return decode(self.c_type, np.ascontiguousarray(self._accumulators(c, self.c_type)))

    def _result(self, total: Array) -> Array:
        """Round float64 sums [warp, row, column] once and return them as registers of D."""
        return self._registers(encode(self.d_type, total))

    def _integer_result(self, product: Array, c: Array) -> Array:
        addend = self._accumulators(c, "s32")
        if self.satfinite:
            total = np.clip(product.astype(np.int64) + addend, -(1 << 31), (1 << 31) - 1).astype(np.int32)
        else:
            total = product.astype(np.int32)
            total += addend
        return self._registers(total)

    def _registers(self, patterns: Array) -> Array:
        """Convert bit patterns [warp, row, column] to registers [register, warp, 32]."""
        warps = patterns.shape[0]
        if self.d_type == "f16":
            items = quads(patterns, "f16").reshape(warps, self.row_tiles, 8, -1).transpose(1, 0, 2, 3)
            return np.ascontiguousarray(items).view(np.uint32).reshape(-1, warps, WARP)
        if not self._split_columns:
            patterns = patterns.reshape(warps, -1, 4, 2).swapaxes(2, 3)
        items = quads(np.ascontiguousarray(patterns), self.d_type).reshape(warps, self.row_tiles, 8, 2, -1)
        flat = np.ascontiguousarray(items.transpose(1, 3, 0, 2, 4))
        word = np.float64 if self.d_type == "f64" else np.uint32
        return flat.view(word).reshape(-1, warps, WARP)


def quads(registers: Array, kind: str) -> Array:
    """View an array as 16-byte items: one register (for f64, half a register) of the four lanes of a group."""
    return np.ascontiguousarray(registers).view(np.complex128).reshape(-1, 2 if kind == "f64" else 1)


@cache
def doubles(kind: str) -> Array:
    """Return all values of an 8-bit or 16-bit format as float64, for use as a look-up table."""
    word = np.dtype(f"u{STORAGE[kind].itemsize}")
    return decode(kind, np.arange(1 << 8 * word.itemsize, dtype=word)).astype(np.float64)


@cache
def bind_mma(shape: Shape, d_type: str, a_type: str, b_type: str, c_type: str, satfinite: bool = False) -> Mma:
    """Return the instruction from a cache; see `Mma`."""
    return Mma(shape, d_type, a_type, b_type, c_type, satfinite)


def accumulation_bound(a: Array, b: Array, c: Array, fraction_bits: int = 23) -> Array:
    """Return an upper bound on the difference between hardware and this module for each element in f32 accumulators.

    Each product, running sum (at most K/4) and truncation loses less than 2^-fraction_bits of the largest partial sum.
    That sum is at most |c| + sum |a_k b_k|.

    Args:
        a: values [..., M, K].
        b: values [..., K, N].
        c: values [..., M, N].
        fraction_bits: fraction bits that the hardware's alignment keeps; the known minimum is 23 for 16-bit operands
            and tf32.
    """
    k = a.shape[-1]
    total = np.abs(c) + np.abs(a) @ np.abs(b)
    bound: Array = (1.5 * k + 1) * 2.0**-fraction_bits * total
    return bound
