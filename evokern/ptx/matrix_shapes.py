"""Shapes, types and operation counts of matrix instructions, read from their modifiers."""

from __future__ import annotations

import re
from collections.abc import Sequence

from evokern.ptx.syntax import Instruction
from evokern.ptx.unsupported import Unsupported

_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)$")


def shape_of(i: Instruction) -> tuple[int, int, int]:
    """Return the shape (M, N, K) of a matrix instruction."""
    for word in i.modifiers:
        match = _SHAPE.match(word)
        if match is not None:
            return int(match[1]), int(match[2]), int(match[3])
    raise Unsupported(f"{i.name} has no shape")


_NO_TYPE = frozenset({"sync", "aligned", "row", "col", "mma", "mma_async", "satfinite"})


def matrix_name(words: Sequence[str]) -> str:
    """Return the shape and types of a matrix instruction from the words after its opcode, as a name for counters."""
    return ".".join(word for word in words if word not in _NO_TYPE)


def operations_of(i: Instruction) -> float:
    """Return the number of operations per warp in a matrix product: for ``wgmma``, a quarter of the warpgroup's."""
    m, n, k = shape_of(i)
    return 2.0 * m * n * k / (4 if i.opcode == "wgmma" else 1)
