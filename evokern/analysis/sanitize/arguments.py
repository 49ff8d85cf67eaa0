"""Launch arguments of a kernel in a plain CUDA file, as given with `--arg`.

=====================  ==========================================================================================
in:f16[2,128,64]       input: normal random numbers (integers: 0 to 127); a write to it is a finding.
out:f16[2,128,64]      output; a read before a write is a finding.
inout:f32[64]          random like an input, and writable.
zero:f32[64]           zeros, and writable.
in:i32[64]=0..9        random from a range, for in and inout.
in:f32[64]=1           one value everywhere, for in and inout.
in:f32[64]+3           a pointer to element 3 of the buffer, as in `kernel<<<…>>>(d_in + RADIUS)`.
i32=128, f32=0.5       a number passed by value; bool=1 for a flag.
null                   a null pointer.
struct:[i32=4,f32[3]]  a structure passed by value, member by member: numbers, arrays (f32[3], u8[16]=0), buffers, null.
table:[in:f32[8],...]  an array of these members in memory, such as the pointers of a `float* const*` parameter.
=====================  ==========================================================================================

A member of a structure is aligned to its size, as C++ aligns it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from evokern.cuda_source import ELEMENT_TYPES, KernelFunction, Parameter
from evokern.declaration.kernel import DTYPE_BYTES
from evokern.errors import UsageError, suggestion
from evokern.simt import MEMORY_LIMIT, Buffer, Memory, Param, encode

ROLES = ("in", "out", "inout", "zero")
"""Roles of a buffer."""
SUGGESTED = 1024
"""Buffer size in elements and integer value in suggested arguments."""

_BUFFER = re.compile(r"(?P<role>\w*):(?P<dtype>\w+)\[(?P<shape>[^\]]*)\](?:\+(?P<offset>\d+))?(?:=(?P<fill>.+))?")
_MEMBERS = re.compile(r"(?P<role>struct|table):\[(?P<members>.*)\]", re.DOTALL)
_ARRAY = re.compile(r"(?P<dtype>\w+)\[(?P<shape>[^\]]*)\](?:=(?P<value>.+))?")
_SCALAR = re.compile(r"(?P<dtype>\w+)=(?P<value>.+)")
_INTEGERS: dict[str, Any] = {
    "i8": np.int8, "u8": np.uint8, "i16": np.int16, "u16": np.uint16, "i32": np.int32, "u32": np.uint32,
    "i64": np.int64, "u64": np.uint64,
}  # fmt: skip
_FLOATS = ("f64", "f32", "f16", "bf16", "e4m3", "e5m2")
_FORMS = "use for example in:f16[2,128,64], out:f32[1024], zero:i32[1], i32=128, f32=0.5, struct:[i32=4,f32=1] or null"
_UNWRITTEN = 0xFF


@dataclass(frozen=True)
class Argument:
    """One argument of a launch."""

    text: str
    """Text of the argument as given by the user."""
    role: str
    """Role of the argument: one of `ROLES`, `scalar`, `null`, `struct` or `table`; `array` for a member of those."""
    dtype: str = "u64"
    """Element type of a buffer, or type of a scalar."""
    shape: tuple[int, ...] = ()
    """Shape of a buffer, in elements."""
    low: float | None = None
    """Smallest value of a buffer's elements, or the scalar's value; None for default random numbers."""
    high: float | None = None
    """Largest value of a buffer's elements; equal to `low` for a constant buffer."""
    offset: int = 0
    """Number of elements between the start of a buffer and the pointer that is passed."""
    members: tuple[Argument, ...] = ()
    """Members of a structure or table, in order."""

    @property
    def elements(self) -> int:
        """Number of elements of a buffer; 1 for a scalar."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Size in bytes of a buffer, scalar or null pointer."""
        if self.members:
            return _layout(self.members)[1]
        return self.elements * _width(self.dtype)

    @property
    def passed_bytes(self) -> int:
        """Size in bytes of the parameter that receives the argument."""
        return 8 if self.is_buffer or self.role in ("null", "table") else self.bytes

    @property
    def buffers(self) -> tuple[Argument, ...]:
        """The buffers of the argument: itself, or those of its members."""
        return (self,) if self.is_buffer else tuple(buffer for member in self.members for buffer in member.buffers)

    @property
    def is_buffer(self) -> bool:
        """Whether the argument is a buffer."""
        return self.role in ROLES


def parse_argument(text: str) -> Argument:
    """Parse a value of `--arg`.

    Raises:
        UsageError: the form, type, shape or value is invalid.
    """
    word = text.strip()
    if word == "null":
        return Argument(word, "null", low=0)
    buffer = _BUFFER.fullmatch(word)
    if buffer:
        role = buffer["role"]
        if role not in ROLES:
            raise UsageError(f"--arg {text!r}: {role!r} is not a role: {suggestion(role, ROLES)}")
        low, high = _fill(text, buffer["dtype"], buffer["fill"])
        if role in ("out", "zero") and low is not None:
            raise UsageError(f"--arg {text!r}: drop the values; only in: and inout: accept them, not {role}:")
        dtype, shape, offset = _dtype(text, buffer["dtype"]), _shape(text, buffer["shape"]), int(buffer["offset"] or 0)
        if offset >= prod(shape):
            raise UsageError(f"--arg {text!r}: element {offset} is outside the buffer; use at most {prod(shape) - 1}")
        return Argument(word, role, dtype, shape, low, high, offset)
    if listed := _MEMBERS.fullmatch(word):
        members = tuple(_member(part) for part in _split(listed["members"]))
        return Argument(word, listed["role"], members=members)
    scalar = _SCALAR.fullmatch(word)
    if scalar is None:
        raise UsageError(f"--arg {text!r} is not a valid argument; {_FORMS}")
    value = _number(text, scalar["dtype"], scalar["value"])
    return Argument(word, "scalar", _dtype(text, scalar["dtype"]), (), value, value)


def _split(text: str) -> list[str]:
    """Split at the commas that are not inside brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += {"[": 1, "]": -1}.get(letter, 0)
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _member(text: str) -> Argument:
    """Parse a member of a structure or table: an array by value, or any argument."""
    array = _ARRAY.fullmatch(text.strip())
    if array is None:
        return parse_argument(text)
    dtype = _dtype(text, array["dtype"])
    value = _number(text, array["dtype"], array["value"]) if array["value"] else 0.0
    return Argument(text.strip(), "array", dtype, _shape(text, array["shape"]), value, value)


def _layout(members: Sequence[Argument]) -> tuple[list[int], int]:
    """Return the offset of each member, and the size of the structure."""
    offsets, end, widest = [], 0, 1
    for member in members:
        width = 8 if member.passed_bytes == 8 and member.role != "array" else _alignment(member)
        end = -(-end // width) * width
        offsets.append(end)
        end += member.passed_bytes
        widest = max(widest, width)
    return offsets, -(-end // widest) * widest


def _alignment(member: Argument) -> int:
    if member.role == "struct":
        return max(8 if part.passed_bytes == 8 else _alignment(part) for part in member.members)
    return _width(member.dtype)


def _dtype(text: str, dtype: str) -> str:
    if dtype == "bool":
        return "u8"
    known = (*_FLOATS, *_INTEGERS)
    if dtype not in known:
        raise UsageError(f"--arg {text!r}: {dtype!r} is not an element type: {suggestion(dtype, known)}")
    return dtype


def _width(dtype: str) -> int:
    return 2 if dtype == "u16" else DTYPE_BYTES[dtype]


def _shape(text: str, shape: str) -> tuple[int, ...]:
    parts = [part.strip() for part in shape.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) for part in parts):
        raise UsageError(f"--arg {text!r}: the shape must be positive integers, for example [2,128,64]")
    return tuple(int(part) for part in parts)


def _fill(text: str, dtype: str, fill: str | None) -> tuple[float | None, float | None]:
    if fill is None:
        return None, None
    low, dots, high = fill.partition("..")
    least = _number(text, dtype, low)
    most = _number(text, dtype, high) if dots else least
    if most < least:
        raise UsageError(f"--arg {text!r}: the range {fill} is empty; put the smaller number first")
    return least, most


def _number(text: str, dtype: str, value: str) -> float:
    value = {"true": "1", "false": "0"}.get(value.strip().lower(), value)
    if dtype == "bool" and value not in ("0", "1"):
        raise UsageError(f"--arg {text!r}: {value!r} is not a bool; use true or false")
    dtype = _dtype(text, dtype)
    try:
        if dtype in _FLOATS:
            return float(value)
        whole = int(value, 0)
    except ValueError:
        raise UsageError(f"--arg {text!r}: {value!r} is not a value of type {dtype}") from None
    limits = np.iinfo(_INTEGERS[dtype])
    if not limits.min <= whole <= limits.max:
        raise UsageError(f"--arg {text!r}: {whole} does not fit {dtype}; use {limits.min} to {limits.max}")
    return whole


def check_arguments(arguments: Sequence[Argument], entry: KernelFunction, params: Sequence[Param]) -> list[str]:
    """Check that arguments match a kernel's parameters.

    Args:
        arguments: arguments given by the user.
        entry: the kernel's declaration in the source.
        params: the kernel's parameters in the PTX.

    Returns:
        Notes on element types that differ from the declaration, which may be intended.

    Raises:
        UsageError: the number, kinds or sizes of the arguments do not match; the message lists the parameters.
    """
    listed = _signature(entry, params)
    if len(arguments) != len(params):
        wanted = " ".join(f"--arg {_suggestion(item, param)}" for item, param in zip(_declared(entry, params), params,
                                                                                  strict=True))  # fmt: skip
        count = "1 argument" if len(params) == 1 else f"{len(params)} arguments"
        raise UsageError(
            f"{entry.qualified} takes {count}, but {len(arguments)} were given: {listed}; pass one --arg for each "
            f"parameter, in order{f', for example {wanted}' if wanted else ''}"
        )
    remarks = []
    for argument, declared, param in zip(arguments, _declared(entry, params), params, strict=True):
        name = declared.name or param.name
        wrong = _mismatch(argument, declared, param)
        if wrong:
            raise UsageError(f"--arg {argument.text!r} does not fit {name}: {wrong}; {entry.qualified} takes {listed}")
        element = ELEMENT_TYPES.get(declared.base)
        if argument.is_buffer and element and _width(element) != _width(argument.dtype):
            remarks.append(f"{name} is declared as {declared.type}, but its elements are {argument.dtype}")
    return remarks


def names(entry: KernelFunction, params: Sequence[Param]) -> list[str]:
    """Return the argument names to print in a report."""
    return [
        item.name or f"argument {number}" for number, item in enumerate(_declared(entry, params), 1)
    ]  # fmt: skip


def _declared(entry: KernelFunction, params: Sequence[Param]) -> Sequence[Parameter]:
    """Return the parameters from the source, or from the PTX if a macro or a pack hides them."""
    if len(entry.parameters) == len(params):
        return entry.parameters
    return [Parameter(f".{param.type}", "", "", pointer=False, const=False) for param in params]


def _signature(entry: KernelFunction, params: Sequence[Param]) -> str:
    parts = [f"{item.type} {item.name}".strip() for item in _declared(entry, params)]
    return f"({', '.join(parts)})"


def _suggestion(parameter: Parameter, param: Param) -> str:
    if _is_structure(parameter, param):
        return f"struct:[u8[{param.size}]=0]"
    dtype = ELEMENT_TYPES.get(parameter.base, "f32" if parameter.pointer else param.type.replace("s", "i", 1))
    if parameter.of_pointers:
        return f"table:[in:{dtype}[{SUGGESTED}]]"
    if parameter.pointer:
        return f"{'in' if parameter.const else 'out'}:{dtype}[{SUGGESTED}]"
    return f"{dtype}={0.5 if dtype in _FLOATS else 1 if parameter.base == 'bool' else SUGGESTED}"


def _mismatch(argument: Argument, declared: Parameter, param: Param) -> str:
    """Return why an argument does not match a parameter, or an empty string."""
    example = _suggestion(declared, param)
    if declared.pointer and argument.role in ("scalar", "struct"):
        return "the parameter is a pointer; use a buffer such as in:f32[1024], or null"
    if declared.of_pointers and argument.is_buffer and argument.dtype not in ("u64", "i64"):
        return f"the parameter points to pointers, not to numbers; use for example {example}"
    if not declared.pointer and ELEMENT_TYPES.get(declared.base) and argument.role not in ("scalar", "struct"):
        return f"the parameter is a number; use for example {example}"
    size = argument.passed_bytes
    if size != param.size:
        structure = "" if declared.pointer else f" (use for example {example})"
        if _is_structure(declared, param):
            structure = f" (a structure by value; name its members, or all bytes at once: {example})"
        return f"the parameter has {param.size} bytes{structure}, but the argument has {size}"
    if argument.role == "scalar" and param.type[0] in "fsu":
        real = param.type[0] == "f"
        if real != (argument.dtype in _FLOATS):
            kind = "a floating-point number" if real else "an integer number"
            return f"the parameter is {kind}; use for example {example}"
    return ""


def _is_structure(declared: Parameter, param: Param) -> bool:
    plain = ELEMENT_TYPES.get(declared.base)
    return not declared.pointer and param.type == "b8" and (plain is None or _width(plain) != param.size)


def allocate_arguments(
    arguments: Sequence[Argument], labels: Sequence[str], memory: Memory, seed: int
) -> PlacedArguments:
    """Allocate and fill the buffers, and encode the scalars.

    Args:
        arguments: the launch's arguments, in order.
        labels: names of the allocations in findings, one per argument.
        memory: memory for the buffers.
        seed: seed of the random numbers.

    Raises:
        UsageError: the buffers exceed the simulator's memory.
    """
    buffers = [buffer for argument in arguments for buffer in argument.buffers]
    total = sum(buffer.bytes for buffer in buffers)
    if total > MEMORY_LIMIT:
        largest = max(buffers, key=lambda argument: argument.bytes)
        raise UsageError(
            f"the buffers need {total / 2**30:.1f} GiB ({largest.text} alone {largest.bytes / 2**30:.1f}), but the "
            f"simulator holds {MEMORY_LIMIT >> 30} GiB; use smaller shapes, which show the same bugs"
        )
    rng = np.random.default_rng(seed)
    placer = _Placer(memory, rng)
    values = tuple(placer.value(argument, label) for argument, label in zip(arguments, labels, strict=True))
    return PlacedArguments(values, tuple(placer.buffers))


@dataclass(frozen=True)
class PlacedArguments:
    """Arguments of a launch in memory."""

    values: tuple[Buffer | np.generic[Any], ...]
    """Values to pass, one per argument."""
    buffers: tuple[tuple[Argument, Buffer], ...]
    """Buffers of all arguments and of their members."""


class _Placer:
    def __init__(self, memory: Memory, rng: np.random.Generator) -> None:
        self._memory, self._rng = memory, rng
        self.buffers: list[tuple[Argument, Buffer]] = []

    def value(self, argument: Argument, label: str) -> Buffer | np.generic[Any]:
        """Allocate the buffers of an argument, and return the value to pass."""
        if argument.is_buffer:
            made = self._memory.allocate(
                label, _contents(argument, self._rng), writable=argument.role != "in",
                initialised=argument.role != "out",
            )  # fmt: skip
            self.buffers.append((argument, made))
            return np.uint64(made.address + argument.offset * _width(argument.dtype)) if argument.offset else made
        if argument.members:
            raw = self._members(argument, label)
            return self._memory.allocate(label, raw, writable=False) if argument.role == "table" else np.void(raw)
        values = _encoded(np.full(argument.elements, argument.low or 0), argument.dtype)
        return np.void(values.tobytes()) if argument.role == "array" else values[0]

    def _members(self, argument: Argument, label: str) -> Any:
        """Return the bytes of a structure or table."""
        offsets, size = _layout(argument.members)
        raw = bytearray(size)
        for number, (member, offset) in enumerate(zip(argument.members, offsets, strict=True)):
            value = self.value(member, f"{label}[{number}]")
            plain = np.uint64(value.address) if isinstance(value, Buffer) else value
            raw[offset : offset + member.passed_bytes] = plain.tobytes()
        return np.frombuffer(bytes(raw), np.uint8) if argument.role == "table" else bytes(raw)


def _contents(argument: Argument, rng: np.random.Generator) -> Any:
    if argument.role == "out":
        return np.full(argument.bytes, _UNWRITTEN, np.uint8)
    if argument.role == "zero":
        return _encoded(np.zeros(argument.elements), argument.dtype)
    whole = argument.dtype in _INTEGERS
    if argument.low is None or argument.high is None:
        values = rng.integers(0, 128, argument.elements) if whole else rng.standard_normal(argument.elements)
    elif argument.low == argument.high:
        values = np.full(argument.elements, argument.low)
    elif whole:
        kind = _INTEGERS[argument.dtype]
        values = rng.integers(int(argument.low), int(argument.high), argument.elements, kind, endpoint=True)
    else:
        values = rng.uniform(argument.low, argument.high, argument.elements)
    return _encoded(values, argument.dtype)


def _encoded(values: Any, dtype: str) -> Any:
    """Return numbers in the simulator's storage format of a type."""
    if dtype in _INTEGERS:
        return values.astype(_INTEGERS[dtype])
    return encode(dtype, values.astype(np.float64 if dtype == "f64" else np.float32))
