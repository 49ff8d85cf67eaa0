"""Table of operations: maps an opcode and type family to the function that binds the instruction.

Each entry cites its section of the PTX ISA (version 9.0). It also contains the pipe of the instruction (for the
counters) and the number of leading operands that are results. Modules of this package fill the table on import.
`lookup` returns the entry of an instruction, and `binding_of` its binding function.
"""

from __future__ import annotations

from collections.abc import Callable

from evokern.ptx.instruction_set import FAMILY, Operation, data_type
from evokern.ptx.syntax import Instruction
from evokern.ptx.unsupported import Unsupported
from evokern.simt.arrays import Action
from evokern.simt.binder import Binder

Bind = Callable[[Instruction, Binder], Action]
"""Function that takes rows from the binder and returns a step that executes one instruction."""

_NOT_SIMULATED = {"textures": ("tex", "tld4", "txq", "istypep"), "surfaces": ("suld", "sust", "sured", "suq")}
"""Plain-English names of unsupported instructions that a kernel may contain."""

_TABLE: dict[tuple[str, str], Operation] = {}
_BINDS: dict[tuple[str, str], Bind] = {}


def operation(
    opcodes: str, section: str, *, family: str = "*", pipe: str = "integer", kind: str = "lanes", results: int = 1
) -> Callable[[Bind], Bind]:
    """Register a binding function in the table for each of the space-separated opcodes.

    Its kind is that of `Operation`, or ``warp``: an effect, before which the lanes of a warp have to reconverge.
    """
    converged = kind == "warp"
    kind = "effect" if converged else kind

    def enter(bind: Bind) -> Bind:
        for opcode in opcodes.split():
            _TABLE[opcode, family] = Operation(opcode, family, section, pipe, kind, results, converged)
            _BINDS[opcode, family] = bind
        return bind

    return enter


def lookup(instruction: Instruction) -> Operation:
    """Return the table's entry for an instruction.

    Raises:
        Unsupported: there is no matching entry.
    """
    known = _TABLE.get((instruction.opcode, "*"))
    if known is not None:
        return known
    kind = data_type(instruction)
    family = FAMILY.get(kind or "", "")
    known = _TABLE.get((instruction.opcode, family))
    if known is None:
        what = next((name for name, opcodes in _NOT_SIMULATED.items() if instruction.opcode in opcodes), "")
        raise Unsupported(
            f"{what} are not simulated"
            if what
            else f"the PTX machine does not support the instruction {instruction.name}"
        )
    return known


def binding_of(operation: Operation) -> Bind:
    """Return the function that binds the instructions of a table entry."""
    return _BINDS[operation.opcode, operation.family]


def entries() -> tuple[Operation, ...]:
    """Return the whole table, for documentation and tests."""
    return tuple(_TABLE.values())
