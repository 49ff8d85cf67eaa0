"""The table of operations: opcode and type family → what executes it.

Each entry cites its section of the PTX ISA (version 9.0), says on which pipe the instruction is issued (for the
counters) and how many of its leading operands are results. Modules of this package fill the table on import; `lookup`
reads it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from evokern.simt.arrays import Action
from evokern.simt.registers import Binder
from evokern.simt.syntax import Instruction
from evokern.simt.unsupported import Unsupported

Bind = Callable[[Instruction, Binder], Action]
"""Takes rows from the binder and returns the bound work of one instruction."""

INTEGER = ("u8", "s8", "b8", "u16", "s16", "b16", "u32", "s32", "b32", "u64", "s64", "b64", "u16x2", "s16x2", "pred")
SINGLE = ("f32", "f64")
HALF = ("f16", "f16x2", "bf16", "bf16x2")
FAMILY: dict[str, str] = {
    **dict.fromkeys(INTEGER, "integer"),
    **dict.fromkeys(SINGLE, "float"),
    **dict.fromkeys(HALF, "half"),
    "f32x2": "packed",
}


@dataclass(frozen=True, slots=True)
class Operation:
    """One row of the table."""

    opcode: str
    """The instruction's first word."""
    family: str
    """``integer``, ``float``, ``half``, ``packed``, or ``*`` for all types."""
    section: str
    """Section of the PTX ISA."""
    bind: Bind
    """Binds the instruction to its rows."""
    pipe: str
    """``tensor``, ``fp32``, ``fp16``, ``fp64``, ``sfu``, ``integer``, ``load_store`` or ``control``."""
    kind: str
    """``lanes``: each lane by itself, no effect but its results; ``effect``: reads the active lanes itself;
    ``control``: ends a segment."""
    results: int
    """Leading operands that are results."""
    gate: bool
    """True when the lanes of a warp must have met before it runs."""


_TABLE: dict[tuple[str, str], Operation] = {}


def operation(
    opcodes: str,
    section: str,
    *,
    family: str = "*",
    pipe: str = "integer",
    kind: str = "lanes",
    results: int = 1,
    gate: bool = False,
) -> Callable[[Bind], Bind]:
    """Enter a binding function into the table under each of the space-separated opcodes."""

    def enter(bind: Bind) -> Bind:
        for opcode in opcodes.split():
            _TABLE[opcode, family] = Operation(opcode, family, section, bind, pipe, kind, results, gate)
        return bind

    return enter


def data_type(instruction: Instruction) -> str | None:
    """Return the last modifier that names a type, which for most instructions is the type of its operands."""
    for word in reversed(instruction.modifiers):
        if word in FAMILY:
            return word
    return None


def lookup(instruction: Instruction) -> Operation:
    """Return the table's row for an instruction.

    Raises:
        Unsupported: no row fits.
    """
    known = _TABLE.get((instruction.opcode, "*"))
    if known is not None:
        return known
    kind = data_type(instruction)
    family = FAMILY.get(kind or "", "")
    known = _TABLE.get((instruction.opcode, family))
    if known is None:
        raise Unsupported(f"instruction {instruction.name} is not supported by the simulator")
    return known


def entries() -> tuple[Operation, ...]:
    """Return the whole table, for documentation and tests."""
    return tuple(_TABLE.values())


def pipe_of(instruction: Instruction, operation: Operation) -> str:
    """Return the pipe an instruction is issued to."""
    if operation.opcode == "ld" and instruction.has("param"):
        return "integer"
    if operation.opcode == "wgmma" and not instruction.has("mma_async"):
        return "control"
    if operation.family == "float" and operation.pipe == "fp32" and data_type(instruction) == "f64":
        return "fp64"
    return operation.pipe
