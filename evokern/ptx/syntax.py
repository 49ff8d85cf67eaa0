"""Records of a PTX module: instructions, operands, variables and functions.

Section numbers in this package cite the PTX ISA reference, version 9.0
(https://docs.nvidia.com/cuda/parallel-thread-execution/).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

TYPE_BYTES: dict[str, int] = {
    "pred": 1, "b8": 1, "u8": 1, "s8": 1, "e4m3": 1, "e5m2": 1,
    "b16": 2, "u16": 2, "s16": 2, "f16": 2, "bf16": 2, "e4m3x2": 2, "e5m2x2": 2,
    "b32": 4, "u32": 4, "s32": 4, "f32": 4, "f16x2": 4, "bf16x2": 4, "tf32": 4, "u16x2": 4, "s16x2": 4,
    "b64": 8, "u64": 8, "s64": 8, "f64": 8, "f32x2": 8, "b128": 16,
}  # fmt: skip
"""Bytes of each fundamental and packed type (section 5.2)."""


@dataclass(frozen=True, slots=True)
class Register:
    """Register operand."""

    name: str
    """Name, unique in its function, such as ``%r12``; in an inner scope, ``@`` and the scope's number follow."""
    negated: bool = False
    """True for ``!%p1``, the negation of a predicate."""


@dataclass(frozen=True, slots=True)
class Immediate:
    """Literal operand."""

    value: int | float
    """Integer or floating-point value; for ``0f`` and ``0d`` literals, the bit pattern."""
    kind: str
    """``int``, ``f32`` (bits), ``f64`` (bits) or ``real`` (a decimal literal)."""

    @property
    def number(self) -> float:
        """The number that a bit pattern represents; only for the kinds ``f32`` and ``f64``."""
        size = TYPE_BYTES[self.kind]
        return float(struct.unpack({4: "<f", 8: "<d"}[size], int(self.value).to_bytes(size, "little"))[0])


@dataclass(frozen=True, slots=True)
class Symbol:
    """Operand that names a variable (as its address), a function, or a label."""

    name: str
    """Name of the variable, function or label."""
    offset: int = 0
    """Bytes added to the address."""


@dataclass(frozen=True, slots=True)
class Address:
    """Address operand ``[base + offset]`` of a memory instruction."""

    base: Register | Symbol | None
    """Register or variable; None for an absolute address."""
    offset: int
    """Bytes."""
    coordinates: Vector | None = None
    """Coordinates in a tensor, for operands ``[map, {x, y}]``."""


@dataclass(frozen=True, slots=True)
class Vector:
    """Vector operand ``{a, b, c, d}``."""

    items: tuple[Operand, ...]
    """Registers, literals or sinks."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Pair ``d|p`` of a result and a predicate result."""

    first: Operand
    """The result."""
    second: Operand
    """The predicate."""


@dataclass(frozen=True, slots=True)
class Sink:
    """Operand ``_``, an unused result."""


Operand = Register | Immediate | Symbol | Address | Vector | Pair | Sink


@dataclass(frozen=True, slots=True, eq=False)
class Instruction:
    """PTX instruction."""

    opcode: str
    """First word, for example ``add``."""
    modifiers: tuple[str, ...]
    """Words after the dots, in order."""
    operands: tuple[Operand, ...]
    """Operands in the order of the ISA, with results first."""
    guard: Register | None
    """Predicate of ``@p`` or ``@!p``."""
    location: int
    """Index in the module's line table; −1 without line information."""
    text: str
    """The instruction on one line, for messages."""
    ptx_line: int
    """Line in the PTX text, counted from 1."""

    @property
    def name(self) -> str:
        """Opcode with its modifiers."""
        return ".".join((self.opcode, *self.modifiers))

    def has(self, *words: str) -> bool:
        """Return whether at least one of the modifiers is present."""
        return not frozenset(words).isdisjoint(self.modifiers)


@dataclass(frozen=True, slots=True)
class Variable:
    """Variable in a state space other than registers (section 5.1)."""

    name: str
    """Name; unique in the module or, for local and parameter space, in its function."""
    space: str
    """``global``, ``const``, ``shared``, ``local`` or ``param``."""
    type: str
    """Element type."""
    align: int
    """Bytes."""
    size: int
    """Bytes; 0 for an extern array without a bound."""
    data: bytes = b""
    """Initialiser, padded to the size; empty for zeros."""
    pointers: tuple[tuple[int, str, int, bool], ...] = ()
    """(byte offset, symbol, addend, generic) of each address in the initialiser."""
    extern: bool = False
    """True for dynamic shared memory, whose size the launch defines."""


@dataclass(slots=True, eq=False)
class Function:
    """Entry or device function."""

    name: str
    """Name in the PTX: mangled unless ``extern "C"``."""
    is_entry: bool
    """True for a kernel."""
    params: list[Variable]
    """Formal parameters in order."""
    returns: list[Variable]
    """Return parameters."""
    instructions: list[Instruction] = field(default_factory=list)
    """Instructions; empty, with ``has_body`` False, for a prototype."""
    labels: dict[str, int] = field(default_factory=dict)
    """Label → index of the instruction that follows it."""
    branch_targets: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Label → targets in its ``.branchtargets`` or ``.calltargets`` list."""
    registers: dict[str, str] = field(default_factory=dict)
    """Register → type, for declarations of single registers."""
    ranges: dict[str, str] = field(default_factory=dict)
    """Prefix → type, for declarations such as ``%r<12>``."""
    locals: dict[str, Variable] = field(default_factory=dict)
    """Variables in local, shared and parameter space that the function declares."""
    directives: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Performance directives, for example ``maxntid`` → (128, 1, 1)."""
    has_body: bool = False
    """False for a function that is only declared."""

    def register_type(self, name: str) -> str | None:
        """Return the declared type of a register; None if it is not declared."""
        known = self.registers.get(name)
        if known is None:
            known = self.ranges.get(name.rstrip("0123456789"))
            if known is not None:
                self.registers[name] = known
        return known


@dataclass(frozen=True, slots=True)
class Param:
    """Parameter of an entry."""

    name: str
    """Name in the PTX."""
    type: str
    """PTX type; ``b8`` for a structure."""
    size: int
    """Bytes."""
    align: int
    """Bytes."""
    offset: int
    """Bytes from the start of the parameter block."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Signature and resources of a kernel, as needed for launches."""

    name: str
    """Name in the PTX."""
    params: tuple[Param, ...]
    """Parameters in order."""
    static_shared: int
    """Bytes of statically sized shared memory, including alignment gaps."""
    maxntid: tuple[int, int, int] | None
    """Maximum threads per block (``__launch_bounds__``); None if not declared."""
    minnctapersm: int | None
    """Requested minimum number of blocks per SM; None if not declared."""
    reqntid: tuple[int, int, int] | None
    """Required block shape; None if not declared."""
