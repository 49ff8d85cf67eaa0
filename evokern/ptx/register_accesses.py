"""Registers that instructions read and write, including those that wgmma products keep in use."""

from __future__ import annotations

from collections.abc import Sequence

from evokern.ptx.instruction_set import Operation, result_count
from evokern.ptx.operands import registers_of
from evokern.ptx.syntax import Function, Instruction, Vector

RegisterAccess = tuple[frozenset[object], frozenset[object]]
"""(registers read, registers written)."""


def registers_accessed(instruction: Instruction, operation: Operation) -> tuple[list[str], list[str]]:
    """Return the registers that an instruction reads and the registers that it writes, in operand order.

    A register also counts as read if it keeps its value under a false guard, or if the instruction adds to it.
    """
    results = result_count(instruction, operation)
    reads = [name for operand in instruction.operands[results:] for name in registers_of(operand)]
    writes = [name for operand in instruction.operands[:results] for name in registers_of(operand)]
    if instruction.guard is not None:
        reads.append(instruction.guard.name)
    if instruction.guard is not None or is_product(instruction):
        reads += writes
    return reads, writes


def register_access(instruction: Instruction, operation: Operation) -> RegisterAccess:
    """Return the registers that an instruction reads and writes; the carry flag counts as a register."""
    reads, writes = registers_accessed(instruction, operation)
    carries = instruction.has("cc") or instruction.opcode in ("addc", "subc", "madc")
    return frozenset(reads), frozenset([*writes, "carry"] if carries else writes)


def is_product(instruction: Instruction) -> bool:
    """Return whether an instruction is ``wgmma.mma_async``."""
    return instruction.opcode == "wgmma" and "mma_async" in instruction.modifiers


def sums_of(instruction: Instruction) -> list[str]:
    """Return the registers in which a ``wgmma`` instruction accumulates its product."""
    return registers_of(instruction.operands[0])


def factors_of(instruction: Instruction) -> list[str]:
    """Return the registers that hold operand A of a product; empty if A is in shared memory."""
    return registers_of(instruction.operands[1]) if isinstance(instruction.operands[1], Vector) else []


def with_awaited_registers(
    function: Function, instructions: Sequence[Instruction], accesses: list[RegisterAccess]
) -> list[RegisterAccess]:
    """Return the registers that each instruction of a segment accesses; a wait writes all registers in flight.

    Therefore, instructions after a wait are not moved before it.
    """
    waits = [at for at, item in enumerate(instructions) if item.opcode == "wgmma" and item.has("wait_group")]
    if not waits:
        return accesses
    here = frozenset[object]().union(*(reads | writes for reads, writes in accesses))
    flying = {name for item in function.instructions if is_product(item) for name in sums_of(item) + factors_of(item)}
    changed = list(accesses)
    for at in waits:
        changed[at] = accesses[at][0], accesses[at][1] | (flying & here)
    return changed
