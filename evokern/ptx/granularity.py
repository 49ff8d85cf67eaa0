"""Granularity of shadow memory: the smallest width of any access that may overlap another access."""

from __future__ import annotations

from collections.abc import Sequence

from evokern.ptx.instruction_set import Operation
from evokern.ptx.syntax import Instruction

_OTHER_SPACES = ("local", "param", "const")


def shared_granularity(instructions: Sequence[Instruction], operations: Sequence[Operation]) -> int:
    """Return the smallest width of any access that can reach shared memory, but at most 4 bytes."""
    granularity = 4
    for instruction, operation in zip(instructions, operations, strict=True):
        if operation.pipe == "load_store" and not instruction.has("global", *_OTHER_SPACES):
            granularity = min(granularity, _narrowest(instruction))
    return granularity


def global_granularity(instructions: Sequence[Instruction]) -> int:
    """Return the smallest width of any access that may overlap a store in global memory, but at most 4 bytes."""
    granularity = 4
    for instruction in instructions:
        named = instruction.opcode in ("st", "ld", "atom", "red") and not instruction.has("shared", *_OTHER_SPACES)
        if named or instruction.opcode == "wmma":
            granularity = min(granularity, _narrowest(instruction))
    return granularity


def _narrowest(instruction: Instruction) -> int:
    if instruction.has("b8", "u8", "s8"):
        return 1
    return 2 if instruction.has("b16", "u16", "s16", "f16", "bf16") else 4
