"""Register rows: a register is a row over all lanes of the batch, in one two-dimensional array per width.

Immediates are rows of length one, which NumPy broadcasts.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from evokern.ptx.segments import row_class
from evokern.ptx.syntax import Immediate
from evokern.simt.arrays import DTYPES, Array


class RegisterFile:
    """Register rows of one batch."""

    def __init__(self, rows: Mapping[str, int], lanes: int) -> None:
        self.lanes = lanes
        self.bits = {
            "pred": np.zeros((rows.get("pred", 0), lanes), np.bool_),
            "16": np.zeros((rows.get("16", 0), lanes), np.uint16),
            "32": np.zeros((rows.get("32", 0), lanes), np.uint32),
            "64": np.zeros((rows.get("64", 0), lanes), np.uint64),
        }
        self._views: dict[tuple[str, str], Array] = {}
        self._scratch: dict[str, list[Array]] = {}

    def load(self, constants: Mapping[tuple[str, Immediate], int]) -> None:
        """Reset the rows for new blocks: set all rows to zero except the rows of literals."""
        for kind in self.bits.values():
            kind.fill(0)
        for (kind_name, literal), row in constants.items():
            self.bits[kind_name][row] = immediate_bits(literal, "u64" if kind_name == "64" else "u32")

    def row(self, kind: str, index: int, type_name: str) -> Array:
        """Return a row viewed as a type that is not wider than its register."""
        key = (kind, type_name)
        view = self._views.get(key)
        if view is None:
            view = self.bits[kind]
            dtype = np.dtype(DTYPES[type_name])
            if kind == "pred" or dtype.itemsize == view.itemsize:
                view = view.view(dtype)
            else:
                ratio = view.itemsize // dtype.itemsize
                view = view.view(dtype)[:, ::ratio]
            self._views[key] = view
        row: Array = view[index]
        return row

    def scratch(self, type_name: str, index: int) -> Array:
        """Return the n-th scratch row with the width of a type."""
        kind = row_class(type_name)
        rows = self._scratch.setdefault(kind, [])
        while len(rows) <= index:
            rows.append(np.zeros(self.lanes, self.bits[kind].dtype))
        return rows[index].view(DTYPES[type_name])


def immediate_bits(operand: Immediate, type_name: str) -> Array:
    """Return a literal as a row of length one, in the given type (section 4.5)."""
    value = operand.value
    dtype = np.dtype(DTYPES[type_name])
    if operand.kind in ("f32", "f64"):
        if type_name in ("f32", "f64") and type_name != operand.kind:
            return np.array([operand.number], dtype)
        return np.array([int(value)], np.dtype(f"u{dtype.itemsize}")).view(dtype)
    if operand.kind == "real":
        return np.array(
            [value], np.float32 if type_name == "b32" else np.float64 if type_name == "b64" else dtype
        ).view(dtype)
    if dtype.kind == "f" and dtype.itemsize > 2:
        return np.array([value], dtype)
    if dtype.kind == "b":
        return np.array([bool(value)])
    size = dtype.itemsize
    return np.frombuffer((int(value) & (1 << 8 * size) - 1).to_bytes(size, "little"), dtype)
