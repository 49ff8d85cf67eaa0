"""Properties of PTX instructions that execution and counting need.

`evokern.simt.operations` implements the instructions.
"""

from __future__ import annotations

from dataclasses import dataclass

from evokern.ptx.syntax import Address, Instruction

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
    """Properties of all instructions with one opcode and type family."""

    opcode: str
    """The instruction's first word."""
    family: str
    """``integer``, ``float``, ``half``, ``packed``, or ``*`` for all types."""
    section: str
    """Section of the PTX ISA."""
    pipe: str
    """``tensor``, ``fp32``, ``fp16``, ``fp64``, ``sfu``, ``integer``, ``load_store`` or ``control``."""
    kind: str
    """``lanes``: each lane by itself, without effects other than its results; ``effect``: reads the active lanes;
    ``control``: ends a segment."""
    results: int
    """Number of leading operands that are results."""
    converged: bool
    """Whether the lanes of a warp have to reconverge before it runs."""


def data_type(instruction: Instruction) -> str | None:
    """Return the last modifier that names a type; for most instructions, this is the type of the operands."""
    for word in reversed(instruction.modifiers):
        if word in FAMILY:
            return word
    return None


def pipe_of(instruction: Instruction, operation: Operation) -> str:
    """Return the pipe to which an instruction is issued."""
    if operation.opcode == "ld" and instruction.has("param"):
        return "integer"
    if operation.opcode == "wgmma" and not instruction.has("mma_async"):
        return "control"
    if operation.family == "float" and operation.pipe == "fp32" and data_type(instruction) == "f64":
        return "fp64"
    return operation.pipe


def result_count(instruction: Instruction, operation: Operation) -> int:
    """Return the number of leading operands that are results of an instruction."""
    if instruction.operands and isinstance(instruction.operands[0], Address):
        return 0
    return min(operation.results, len(instruction.operands))
