"""Launch arguments of a kernel in a plain CUDA file, as given with `--arg`.

=====================  ==========================================================================================
in:f16[2,128,64]       input: normal random numbers (integers: 0 to 127); a write to it is a finding.
out:f16[2,128,64]      output; a read before a write is a finding.
inout:f32[64]          random like an input, and writable.
zero:f32[64]           zeros, and writable.
in:i32[64]=0..9        random from a range, for in and inout.
in:f32[64]=1           one value everywhere, for in and inout.
i32=128, f32=0.5       a number passed by value.
null                   a null pointer.
=====================  ==========================================================================================
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
from evokern.simt import Buffer, Memory, Param
from evokern.simt.memory.buffers import MEMORY_LIMIT
from evokern.simt.numerics.encoding import encode

ROLES = ("in", "out", "inout", "zero")
"""Roles of a buffer."""
SUGGESTED = 1024
"""Buffer size in elements and integer value in suggested arguments."""

_BUFFER = re.compile(r"(?P<role>\w*):(?P<dtype>\w+)\[(?P<shape>[^\]]*)\](?:=(?P<fill>.+))?")
_SCALAR = re.compile(r"(?P<dtype>\w+)=(?P<value>.+)")
_INTEGERS: dict[str, Any] = {
    "i8": np.int8, "u8": np.uint8, "i16": np.int16, "u16": np.uint16, "i32": np.int32, "u32": np.uint32,
    "i64": np.int64, "u64": np.uint64,
}  # fmt: skip
_FLOATS = ("f64", "f32", "f16", "bf16", "e4m3", "e5m2")
_FORMS = "use for example in:f16[2,128,64], out:f32[1024], zero:i32[1], i32=128, f32=0.5 or null"
_UNWRITTEN = 0xFF


@dataclass(frozen=True)
class Argument:
    """One argument of a launch."""

    text: str
    """Text of the argument as given by the user."""
    role: str
    """Role of the argument: one of `ROLES`, `scalar` or `null`."""
    dtype: str = "u64"
    """Element type of a buffer, or type of a scalar."""
    shape: tuple[int, ...] = ()
    """Shape of a buffer, in elements."""
    low: float | None = None
    """Smallest value of a buffer's elements, or the scalar's value; None for default random numbers."""
    high: float | None = None
    """Largest value of a buffer's elements; equal to `low` for a constant buffer."""

    @property
    def elements(self) -> int:
        """Number of elements of a buffer; 1 for a scalar."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Size in bytes of a buffer, scalar or null pointer."""
        return self.elements * _width(self.dtype)

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
            raise UsageError(f"--arg {text!r}: omit the values; only in: and inout: accept values, not {role}:")
        return Argument(word, role, _dtype(text, buffer["dtype"]), _shape(text, buffer["shape"]), low, high)
    scalar = _SCALAR.fullmatch(word)
    if scalar is None:
        raise UsageError(f"--arg {text!r} is not a valid argument; {_FORMS}")
    dtype = _dtype(text, scalar["dtype"])
    value = _number(text, dtype, scalar["value"])
    return Argument(word, "scalar", dtype, (), value, value)


def _dtype(text: str, dtype: str) -> str:
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
    _dtype(text, dtype)
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
        wanted = " ".join(f"--arg {_suggestion(item)}" for item in entry.parameters)
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
    return [Parameter(f".{param.type}", "", "", False, False, False) for param in params]


def _signature(entry: KernelFunction, params: Sequence[Param]) -> str:
    parts = [f"{item.type} {item.name}".strip() for item in _declared(entry, params)]
    return f"({', '.join(parts)})"


def _suggestion(parameter: Parameter) -> str:
    dtype = ELEMENT_TYPES.get(parameter.base, "f32" if parameter.pointer else "i32")
    if parameter.pointer:
        return f"{'in' if parameter.const else 'out'}:{dtype}[{SUGGESTED}]"
    return f"{dtype}={0.5 if dtype in _FLOATS else 1 if parameter.base == 'bool' else SUGGESTED}"


def _mismatch(argument: Argument, declared: Parameter, param: Param) -> str:
    """Return why an argument does not match a parameter, or an empty string."""
    plain = ELEMENT_TYPES.get(declared.base)
    if declared.pointer and argument.role == "scalar":
        return "the parameter is a pointer; use a buffer such as in:f32[1024], or null"
    if not declared.pointer and plain and argument.role != "scalar":
        return f"the parameter is a number; use for example {_suggestion(declared)}"
    size = 8 if argument.is_buffer or argument.role == "null" else argument.bytes
    if size != param.size:
        structure = " (a structure by value, which --arg does not support)" if param.type == "b8" and not plain else ""
        return f"the parameter has {param.size} bytes{structure}, but the argument has {size}"
    if argument.role == "scalar" and param.type[0] in "fsu":
        real = param.type[0] == "f"
        if real != (argument.dtype in _FLOATS):
            kind = "a floating-point number" if real else "an integer number"
            return f"the parameter is {kind}; use for example {_suggestion(declared)}"
    return ""


def allocate_arguments(
    arguments: Sequence[Argument], labels: Sequence[str], memory: Memory, seed: int
) -> list[Buffer | np.generic[Any]]:
    """Allocate and fill the buffers, and encode the scalars.

    Args:
        arguments: the launch's arguments, in order.
        labels: names of the allocations in findings, one per argument.
        memory: memory for the buffers.
        seed: seed of the random numbers.

    Raises:
        UsageError: the buffers exceed the simulator's memory.
    """
    total = sum(argument.bytes for argument in arguments if argument.is_buffer)
    if total > MEMORY_LIMIT:
        largest = max((argument for argument in arguments if argument.is_buffer), key=lambda argument: argument.bytes)
        raise UsageError(
            f"the buffers need {total / 2**30:.1f} GiB ({largest.text} alone {largest.bytes / 2**30:.1f}), but the "
            f"simulator holds {MEMORY_LIMIT >> 30} GiB; use smaller shapes, which show the same bugs"
        )
    rng = np.random.default_rng(seed)
    placed: list[Buffer | np.generic[Any]] = []
    for argument, label in zip(arguments, labels, strict=True):
        if argument.is_buffer:
            placed.append(
                memory.allocate(
                    label,
                    _contents(argument, rng),
                    writable=argument.role != "in",
                    initialised=argument.role != "out",
                )
            )
        else:
            placed.append(_encoded(np.array([argument.low or 0]), argument.dtype)[0])
    return placed


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
