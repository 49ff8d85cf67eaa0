"""Exact arithmetic next to the PTX machine: each floating-point value has a shadow in two finite fields.

The real bits decide branches, addresses, selections and maxima. The shadow follows each value through registers and
memory, so that two kernels can be compared without rounding errors. See docs/proof.md.
"""

from evokern.simt.exact.field import (
    CODES,
    NO_P,
    NO_Q,
    NO_RULE,
    REASON_SHIFT,
    UNWRITTEN,
    VANISHES,
    ZERO,
    P,
    Q,
    Value,
    add,
    embedded,
    exponential,
    lost,
    matmul,
    multiply,
    reciprocal,
    root,
)
from evokern.simt.exact.functions import FUNCTIONS, MARK, MARKED, arguments, is_signless
from evokern.simt.exact.memory import OUTPUT, ExactMemory, Obstacle

__all__ = [
    "CODES", "FUNCTIONS", "MARK", "MARKED", "NO_P", "NO_Q", "NO_RULE", "OUTPUT", "REASON_SHIFT", "UNWRITTEN",
    "VANISHES", "ZERO", "ExactMemory", "Obstacle", "P", "Q", "Value", "add", "arguments", "embedded", "exponential",
    "is_signless", "lost", "matmul", "multiply", "reciprocal", "root",
]  # fmt: skip
