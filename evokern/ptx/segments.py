"""Functions and segments of a program, and the lanes for which its warp-synchronous instructions wait.

A segment is a run of instructions that the same lanes execute together without interruption.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from evokern.ptx.syntax import TYPE_BYTES, Function, Immediate, Instruction, Operand, Register, Symbol
from evokern.ptx.unsupported import Unsupported

_CLASS = {1: "pred", 2: "16", 4: "32", 8: "64"}


def row_class(type_name: str) -> str:
    """Return the register class of a type: ``pred``, ``16``, ``32`` or ``64``."""
    if type_name == "pred":
        return "pred"
    size = TYPE_BYTES[type_name]
    if size == 16:
        raise Unsupported("128-bit registers are not supported")
    return _CLASS[max(size, 2)]


@dataclass(slots=True, eq=False)
class Routine:
    """Function of a program."""

    function: Function
    """The function in the PTX."""
    number: int
    """Index of the function in the program."""
    first_segment: int = 0
    """Segment at which a call enters the function."""
    slots: dict[str, tuple[str, int, str]] = field(default_factory=dict)
    """Register → (class, row, declared type)."""
    local_names: set[str] = field(default_factory=set)
    """Registers used in only one segment."""
    params: dict[str, int] = field(default_factory=dict)
    """Parameter-space variable → byte offset in the parameter area of a lane; without the parameters of an entry."""
    depot: dict[str, int] = field(default_factory=dict)
    """Local variable → byte offset in the local memory of a lane."""

    def type_of(self, name: str) -> str | None:
        """Return the declared type of a register."""
        return self.function.register_type(name)


@dataclass(slots=True, eq=False)
class Segment:
    """Instructions from ``start`` to before ``stop`` of a routine; only the last may be a control instruction."""

    index: int
    """Number of the segment in the program, ascending in code order."""
    routine: Routine
    """Its function."""
    start: int
    """Index of the first instruction in the function."""
    stop: int
    """Index after the last instruction in the function."""
    reconverges: bool
    """Whether the lanes of a warp reconverge before the first instruction runs."""
    control: bool = False
    """Whether a control instruction ends the segment; otherwise it falls through."""
    base: int = 0
    """Number of its first instruction in the program."""

    @property
    def polls(self) -> bool:
        """Whether the segment may read memory that other lanes write while its lanes wait for it."""
        return any(
            item.opcode in ("atom", "nanosleep", "mbarrier") or item.has("volatile", "acquire", "relaxed")
            for item in self.routine.function.instructions[self.start : self.stop]
        )


def following(segment: Segment, labels: Mapping[tuple[int, str], int]) -> list[int]:
    """Return the segments of the same function that may run after a segment.

    Args:
        segment: the segment.
        labels: (number of the function, label) → segment that starts there.
    """
    function = segment.routine.function
    last = function.instructions[segment.stop - 1]
    fall = [segment.index + 1]
    if not segment.control or last.opcode not in ("bra", "brx", "ret", "exit", "trap"):
        return fall
    names = [operand.name for operand in last.operands if isinstance(operand, Symbol)]
    if last.opcode == "brx":
        names = list(function.branch_targets.get(names[0], ()))
    targets = [labels[segment.routine.number, name] for name in names]
    return targets + (fall if last.guard is not None else [])


def is_warp_barrier(instruction: Instruction) -> bool:
    """Return whether the instruction is ``bar.warp.sync`` (9.7.13.2)."""
    return instruction.opcode in ("bar", "barrier") and "warp" in instruction.modifiers


def member_mask_key(instruction: Instruction) -> object:
    """Return a key for a warp-synchronous instruction, equal for instructions that wait for the same lanes."""
    operand = member_mask(instruction)
    if isinstance(operand, Immediate):
        value = int(operand.value) & 0xFFFFFFFF
        return None if value == 0xFFFFFFFF else value
    return operand.name if isinstance(operand, Register) else None


def member_mask(instruction: Instruction) -> Operand | None:
    """Return the member-mask operand of a warp-synchronous instruction; None if the mask contains all 32 lanes."""
    if instruction.opcode in ("shfl", "vote", "match", "redux", "elect"):
        return instruction.operands[-1]
    if is_warp_barrier(instruction):
        return instruction.operands[0]
    return None
