"""SIMD instructions on the four bytes or two halves of a register (PTX ISA 9.7.18.2), for example for ``__vadd4``."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from evokern.ptx.syntax import Instruction
from evokern.ptx.unsupported import Unsupported
from evokern.simt.arrays import Action, Array
from evokern.simt.binder import Binder
from evokern.simt.operations.table import operation

_FUNCTIONS: dict[str, Callable[[Array, Array], Array]] = {
    "vadd": lambda x, y: x + y,
    "vsub": lambda x, y: x - y,
    "vavrg": lambda x, y: (x + y + (x + y >= 0)) >> 1,
    "vabsdiff": lambda x, y: np.abs(x - y),
    "vmin": np.minimum,
    "vmax": np.maximum,
}


@operation("vadd4 vsub4 vavrg4 vabsdiff4 vmin4 vmax4 vadd2 vsub2 vavrg2 vabsdiff2 vmin2 vmax2", "9.7.18.2")
def video(i: Instruction, b: Binder) -> Action:
    """Compute each element in wider integers, then clamp (``.sat``) or wrap it; ``.add`` adds the elements to c."""
    name, parts = i.opcode[:-1], int(i.opcode[-1])
    kinds = [word for word in i.modifiers if word in ("u32", "s32")]
    if len(kinds) != 3 or any("." in getattr(operand, "name", "").removeprefix("%") for operand in i.operands):
        raise Unsupported(f"{i.name} with element selection is not supported")
    function = _FUNCTIONS[name]
    bits = 32 // parts
    narrow = [np.dtype(f"{kind[0].replace('s', 'i')}{bits // 8}") for kind in kinds]
    x, y, c = (b.src(operand, "u32") for operand in i.operands[1:4])
    out = b.dst(i.operands[0], "u32")
    saturates, adds = i.has("sat"), i.has("add")
    limits = np.iinfo(narrow[0])

    def elements(row: Array, kind: np.dtype[np.generic]) -> Array:
        whole = np.ascontiguousarray(np.broadcast_to(row, out.shape))
        wide: Array = whole[:, None].view(kind).astype(np.int64)
        return wide

    def run() -> None:
        result = function(elements(x, narrow[1]), elements(y, narrow[2]))
        if saturates:
            result = np.clip(result, limits.min, limits.max)
        if adds:
            out[...] = (result.sum(1) + np.broadcast_to(c, out.shape)).astype(np.uint32)
        else:
            out[...] = np.ascontiguousarray(result.astype(narrow[0])).view(np.uint32)[:, 0]

    return run
