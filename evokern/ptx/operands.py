"""Which registers and symbols an operand mentions."""

from __future__ import annotations

from evokern.ptx.syntax import Address, Operand, Pair, Register, Symbol, Vector


def registers_of(operand: Operand | None) -> list[str]:
    """Return the names of the registers that an operand mentions."""
    if isinstance(operand, Register):
        return [operand.name]
    if isinstance(operand, Address):
        return registers_of(operand.base)
    if isinstance(operand, Vector):
        return [name for item in operand.items for name in registers_of(item)]
    if isinstance(operand, Pair):
        return registers_of(operand.first) + registers_of(operand.second)
    return []


def symbols_of(operand: Operand | None) -> list[str]:
    """Return the symbols that an operand mentions."""
    if isinstance(operand, Symbol):
        return [operand.name]
    if isinstance(operand, Address):
        return symbols_of(operand.base)
    if isinstance(operand, Vector):
        return [name for item in operand.items for name in symbols_of(item)]
    return []
