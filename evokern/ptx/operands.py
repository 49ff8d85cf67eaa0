"""Registers and symbols in operands; element types of memory instructions."""

from __future__ import annotations

from evokern.ptx.syntax import TYPE_BYTES, Address, Instruction, Operand, Pair, Register, Symbol, Vector
from evokern.ptx.unsupported import Unsupported

_TYPES = frozenset(TYPE_BYTES)


def registers_of(operand: Operand | None) -> list[str]:
    """Return the names of the registers in an operand."""
    if isinstance(operand, Register):
        return [operand.name]
    if isinstance(operand, Address):
        return registers_of(operand.base) + registers_of(operand.coordinates)
    if isinstance(operand, Vector):
        return [name for item in operand.items for name in registers_of(item)]
    if isinstance(operand, Pair):
        return registers_of(operand.first) + registers_of(operand.second)
    return []


def symbols_of(operand: Operand | None) -> list[str]:
    """Return the symbols in an operand."""
    if isinstance(operand, Symbol):
        return [operand.name]
    if isinstance(operand, Address):
        return symbols_of(operand.base)
    if isinstance(operand, Vector):
        return [name for item in operand.items for name in symbols_of(item)]
    return []


def access_type(i: Instruction) -> tuple[str, int]:
    """Return the element type of a memory instruction and the number of elements that it moves.

    Raises:
        Unsupported: it has no type, or a type of 16 bytes.
    """
    kind = next((word for word in reversed(i.modifiers) if word in _TYPES), None)
    if kind is None or TYPE_BYTES[kind] == 16:
        raise Unsupported(f"{i.name}: type")
    count = next((int(word[1]) for word in i.modifiers if word in ("v2", "v4", "v8")), 1)
    return kind, count
