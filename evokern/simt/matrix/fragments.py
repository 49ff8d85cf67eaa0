"""Mapping of matrix elements to lanes, for the fragments of `mma.sync` and `wmma`.

The ISA fixes the fragments of `mma` (8.5, section 9.7.14.5, figures of the fragments of m8n8k4 to m16n8k32);
`evokern.simt.matrix.mma` contains the common rule. For `wmma` the ISA defines only the number and type of registers
(section 9.7.14.4.1: "each thread holds a fragment; the distribution is unspecified"). This module uses its own
distribution: a wmma tile is split into `mma` tiles, as on all generations since sm_80, and m8n32k16 is the transpose
of m32n8k16. A kernel that uses `wmma.load` and `wmma.store` cannot detect a difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from evokern.errors import InternalError, suggestion
from evokern.simt.numerics import STORAGE
from evokern.simt.numerics.formats import Array

Shape = tuple[int, int, int]

LANES = np.arange(32)
_GROUP, _THREAD = LANES // 4, LANES % 4


@dataclass(frozen=True)
class Fragment:
    """Layout of one operand of a matrix instruction in the registers of a warp.

    Raises:
        InternalError: the elements do not fill whole registers.
    """

    kind: str
    """Element type, for example `f16`."""
    rows: Array
    """Row of each element, int64 [32 lanes, elements]."""
    columns: Array
    """Column of each element, int64 [32 lanes, elements]."""

    def __post_init__(self) -> None:
        if self.rows.shape != self.columns.shape or self.rows.shape[0] != 32:
            found = f"{self.rows.shape}, {self.columns.shape}"
            raise InternalError(f"a fragment needs row and column arrays of shape [32, elements], not {found}")
        if self.elements % self.per_register:
            raise InternalError(f"{self.elements} elements of .{self.kind} do not fill whole registers")

    @property
    def elements(self) -> int:
        """Number of elements per lane, including repeated elements."""
        return int(self.rows.shape[1])

    @property
    def per_register(self) -> int:
        """Number of elements per register: two for f16, four for 8-bit types, one for other types."""
        return max(1, 4 // STORAGE[self.kind].itemsize)

    @property
    def registers(self) -> int:
        """Number of registers per lane; a register has 64 bits for f64 and 32 bits otherwise."""
        return self.elements // self.per_register

    def unpack(self, registers: Array) -> Array:
        """Convert registers [registers, warps, 32] to elements in storage type [elements, warps, 32]."""
        parts = np.ascontiguousarray(registers)[..., None].view(STORAGE[self.kind])
        return np.ascontiguousarray(parts.transpose(0, 3, 1, 2)).reshape(self.elements, *registers.shape[1:])

    def pack(self, elements: Array) -> Array:
        """Convert elements [elements, warps, 32] to registers [registers, warps, 32], uint32 (uint64 for f64)."""
        parts = elements.reshape(self.registers, self.per_register, *elements.shape[1:]).transpose(0, 2, 3, 1)
        word = np.uint64 if STORAGE[self.kind].itemsize == 8 else np.uint32
        packed: Array = np.ascontiguousarray(parts, dtype=STORAGE[self.kind]).view(word)[..., 0]
        return packed

    def offsets(self, layout: str, leading: Array | int) -> Array:
        """Return the position of each element, in elements from the start of the matrix.

        Args:
            layout: `row` or `col`.
            leading: elements between the starts of two rows (`row`) or columns (`col`); an array broadcasts on the
                left.

        Returns:
            int64 [..., 32, elements].
        """
        if layout not in ("row", "col"):
            raise InternalError(f"unknown layout {layout!r}; known: row, col")
        major, minor = (self.rows, self.columns) if layout == "row" else (self.columns, self.rows)
        step = np.asarray(leading, dtype=np.int64)
        return major * step[..., None, None] + minor

    def gather(self, registers: Array, shape: tuple[int, int]) -> Array:
        """Convert registers to one matrix per warp, in storage type [warps, rows, columns]."""
        elements = self.unpack(registers)
        matrix = np.empty((registers.shape[1], *shape), STORAGE[self.kind])
        matrix[:, self.rows, self.columns] = elements.transpose(1, 2, 0)
        return matrix

    def scatter(self, matrix: Array) -> Array:
        """Convert matrices in storage type [warps, rows, columns] to registers [registers, warps, 32]."""
        return self.pack(matrix[:, self.rows, self.columns].transpose(2, 0, 1))


def mma_fragment(operand: str, kind: str, shape: Shape) -> Fragment:
    """Return the layout (fragment) of an `mma.sync` operand.

    Args:
        operand: `a`, `b`, `c` or `d`.
        kind: element type.
        shape: M, N, K, with M a multiple of 8 and N = 8.
    """
    m, _, k = shape
    tiles = m // 8
    group, thread = _GROUP[:, None], _THREAD[:, None]
    if operand in "cd":
        index = np.arange(2 * tiles)
        return Fragment(kind, group + 8 * (index // 2), thread * 2 + index % 2)
    each = max(1, 4 // STORAGE[kind].itemsize)
    steps = k // (4 * each)
    if operand == "b":
        step, inner = np.divmod(np.arange(steps * each), each)
        along = (4 * step + thread) * each + inner
        return Fragment(kind, along, np.broadcast_to(group, along.shape))
    register, inner = np.divmod(np.arange(steps * tiles * each), each)
    step, tile = np.divmod(register, tiles)
    return Fragment(kind, group + 8 * tile, (4 * step + thread) * each + inner)


WMMA_SHAPES: Mapping[str, tuple[Shape, ...]] = {
    "f16": ((16, 16, 16), (32, 8, 16), (8, 32, 16)),
    "bf16": ((16, 16, 16), (32, 8, 16), (8, 32, 16)),
    "s8": ((16, 16, 16), (32, 8, 16), (8, 32, 16)),
    "u8": ((16, 16, 16), (32, 8, 16), (8, 32, 16)),
    "tf32": ((16, 16, 8),),
    "f64": ((8, 8, 4),),
}
"""Type of A and B -> shapes of `wmma` (PTX ISA 9.7.14.4, table of shapes)."""


def _turned(fragment: Fragment) -> Fragment:
    return Fragment(fragment.kind, fragment.columns, fragment.rows)


def _concatenated(first: Fragment, *, down: int = 0, right: int = 0) -> Fragment:
    """Concatenate a fragment with a shifted copy of itself."""
    rows = np.concatenate([first.rows, first.rows + down], axis=1)
    return Fragment(first.kind, rows, np.concatenate([first.columns, first.columns + right], axis=1))


@cache
def wmma_fragment(shape: Shape, operand: str, kind: str) -> Fragment:
    """Return the layout (fragment) of a `wmma` operand, with the register count of the ISA (section 9.7.14.4.1).

    The fragments of A and B in f16 have 16 elements per lane for all shapes. If the matrix has fewer, every element is
    held twice, as on hardware.

    Args:
        shape: M, N, K.
        operand: `a`, `b`, `c` or `d`.
        kind: element type of that operand.

    Raises:
        InternalError: the combination is unknown.
    """
    m, n, k = shape
    if operand not in ("a", "b", "c", "d"):
        raise InternalError(f"wmma has no operand {operand!r}: {suggestion(operand, 'abcd')}")
    if shape not in {known for shapes in WMMA_SHAPES.values() for known in shapes}:
        raise InternalError(f"wmma has no shape m{m}n{n}k{k}; known: {WMMA_SHAPES}")
    if shape == (8, 32, 16):
        mirrored = {"a": "b", "b": "a"}.get(operand, operand)
        return _turned(wmma_fragment((32, 8, 16), mirrored, kind))
    if operand in "cd":
        fragment = mma_fragment("c", kind, (min(m, 16), 8, k))
        if n == 16:
            return _concatenated(fragment, right=8)
        return _concatenated(fragment, down=16) if m == 32 else fragment
    if shape not in WMMA_SHAPES.get(kind, ()):
        raise InternalError(f"wmma m{m}n{n}k{k} does not support operands of type .{kind}")
    fragment = mma_fragment(operand, kind, (min(m, 16), 8, k))
    if operand == "a" and m == 32:
        fragment = _concatenated(fragment, down=16)
    elif operand == "b" and n == 16:
        fragment = _concatenated(fragment, right=8)
    while kind == "f16" and fragment.elements < 16:
        fragment = _concatenated(fragment)
    return fragment


def wmma_elements(shape: Shape, operand: str, kind: str) -> tuple[Array, Array]:
    """Return the row and column of each element of a `wmma_fragment`, int64 [32 lanes, elements]."""
    fragment = wmma_fragment(shape, operand, kind)
    return fragment.rows, fragment.columns
