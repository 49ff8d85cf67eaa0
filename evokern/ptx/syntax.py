"""Records of a PTX module: instructions, operands, variables, functions.

Section numbers in this package cite the PTX ISA reference, version 9.0
(https://docs.nvidia.com/cuda/parallel-thread-execution/).
"""

from __future__ import annotations

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
    """A register with a name that is unique in its function."""

    name: str
    """For example ``%r12``; a register of an inner scope carries ``@`` and the scope's number."""
    negated: bool = False
    """True for ``!%p1``, the negation of a predicate."""


@dataclass(frozen=True, slots=True)
class Immediate:
    """A literal operand."""

    value: int | float
    """The integer or floating-point value; for ``0f``/``0d`` literals the bit pattern."""
    kind: str
    """``int``, ``f32`` (bits), ``f64`` (bits) or ``real`` (a decimal literal)."""


@dataclass(frozen=True, slots=True)
class Symbol:
    """The address of a variable, a function's name, or a label."""

    name: str
    """The variable, function or label."""
    offset: int = 0
    """Bytes added to the address."""


@dataclass(frozen=True, slots=True)
class Address:
    """``[base + offset]`` of a memory instruction."""

    base: Register | Symbol | None
    """None for an absolute address."""
    offset: int
    """Bytes."""


@dataclass(frozen=True, slots=True)
class Vector:
    """``{a, b, c, d}``."""

    items: tuple[Operand, ...]
    """Registers, immediates or sinks."""


@dataclass(frozen=True, slots=True)
class Pair:
    """``d|p``: a result and a predicate result."""

    first: Operand
    """The result."""
    second: Operand
    """The predicate."""


@dataclass(frozen=True, slots=True)
class Sink:
    """``_``: an unused result."""


Operand = Register | Immediate | Symbol | Address | Vector | Pair | Sink


@dataclass(frozen=True, slots=True, eq=False)
class Instruction:
    """One PTX instruction of the text."""

    opcode: str
    """The first word, for example ``add``."""
    modifiers: tuple[str, ...]
    """The words after the dots, in order."""
    operands: tuple[Operand, ...]
    """In the order of the ISA: results first."""
    guard: Register | None
    """The predicate of ``@p`` or ``@!p``."""
    location: int
    """Index into the module's line table, −1 without line information."""
    text: str
    """The instruction on one line, for messages."""
    ptx_line: int
    """Its line in the PTX text, from 1."""

    @property
    def name(self) -> str:
        """The opcode with its modifiers."""
        return ".".join((self.opcode, *self.modifiers))

    def has(self, *words: str) -> bool:
        """Return whether any of the modifiers is present."""
        return any(word in self.modifiers for word in words)


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable in a state space other than registers (section 5.1)."""

    name: str
    """Name, unique in the module, or in its function for local and parameter space."""
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
    """(byte offset, symbol, addend, generic) for addresses in the initialiser."""
    extern: bool = False
    """True for shared memory whose size the launch defines."""


@dataclass(slots=True, eq=False)
class Function:
    """An entry or a device function."""

    name: str
    """Name in the PTX: mangled unless ``extern "C"``."""
    is_entry: bool
    """True for a kernel."""
    params: list[Variable]
    """Formal parameters in order."""
    returns: list[Variable]
    """Return parameters."""
    instructions: list[Instruction] = field(default_factory=list)
    """Body; empty with ``has_body`` False for a prototype."""
    labels: dict[str, int] = field(default_factory=dict)
    """Label → index of the instruction it precedes."""
    branch_targets: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """``.branchtargets`` and ``.calltargets`` lists by label."""
    registers: dict[str, str] = field(default_factory=dict)
    """Register → type, for plain declarations."""
    ranges: dict[str, str] = field(default_factory=dict)
    """Prefix → type, for declarations such as ``%r<12>``."""
    locals: dict[str, Variable] = field(default_factory=dict)
    """Variables of local, shared and parameter space declared in the function."""
    directives: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Performance directives, for example ``maxntid`` → (128, 1, 1)."""
    has_body: bool = False
    """False for an external function."""

    def register_type(self, name: str) -> str | None:
        """Return the declared type of a register, None if it is not declared."""
        known = self.registers.get(name)
        if known is None:
            known = self.ranges.get(name.rstrip("0123456789"))
            if known is not None:
                self.registers[name] = known
        return known


@dataclass(frozen=True, slots=True)
class Param:
    """One parameter of an entry."""

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
    """Signature and resources of a kernel, for launches."""

    name: str
    """Name in the PTX."""
    params: tuple[Param, ...]
    """Parameters in order."""
    static_shared: int
    """Bytes of shared memory declared with a size, including alignment gaps."""
    maxntid: tuple[int, int, int] | None
    """Maximum threads of a block (``__launch_bounds__``), None if not declared."""
    minnctapersm: int | None
    """Requested minimum number of blocks per SM, None if not declared."""
    reqntid: tuple[int, int, int] | None
    """Required block shape, None if not declared."""
