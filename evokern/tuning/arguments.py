"""Arguments of a call, matched with the parameters of the kernel by position, kind and type."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evokern.cuda_source import CudaSource, KernelFunction
from evokern.cuda_source import Parameter as CudaParameter
from evokern.cuda_source.c_types import ELEMENT_TYPES, REAL, WHOLE
from evokern.declaration.kernel import DTYPE_BYTES
from evokern.errors import UsageError, suggestion
from evokern.scaffold.reading import DRAFTED_FOR, resolved_types
from evokern.tuning.arrays import DTYPES, Example, framework_of, number_of
from evokern.tuning.marks import InOut, OutLike

_RANGES = {"i32": (-(2**31), 2**31 - 1), "u32": (0, 2**32 - 1), "i64": (-(2**63), 2**63 - 1), "u64": (0, 2**64 - 1)}


@dataclass(frozen=True)
class TunedArgument:
    """One argument with the parameter that it is passed to."""

    name: str
    """Name of the parameter."""
    where: str
    """The argument in messages."""
    dtype: str
    """evokern's name of its type."""
    role: str = ""
    """Role of an array, as in `evokern.Tensor`; empty for a number."""
    shape: tuple[int, ...] = ()
    """Shape of an array."""
    framework: str = ""
    """Library of an array."""
    kept: str = ""
    """Dtype in which the reference gets integers or bool; empty for floating point."""
    number: int | float | None = None
    """Value of a number."""
    drawn: Mapping[str, Any] | None = None
    """Range of generated values."""
    values: Mapping[str, Any] | None = None
    """Values of an integer input, which the gate keeps."""
    draw: Any = None
    """Function that generates values."""
    example: Example | None = None
    """The array itself; None for a number."""

    def data(self) -> dict[str, Any]:
        """Return the argument as JSON."""
        if not self.role:
            return {"name": self.name, "scalar": self.dtype, "value": self.number}
        made = {"name": self.name, "role": self.role, "dtype": self.dtype, "shape": list(self.shape)}
        return made | ({"kept": self.kept} if self.kept else {}) | dict(self.drawn or {})


def arguments_of(
    args: Any, function: KernelFunction, template: Mapping[str, str], source: CudaSource, draw: Any
) -> list[TunedArgument]:
    """Return the arguments.

    Args:
        args: arguments as given.
        function: the kernel.
        template: template parameter → its argument.
        source: the CUDA source, for names of types.
        draw: input → range or function.

    Raises:
        UsageError: an argument does not fit its parameter; the message names both.
    """
    if isinstance(args, (str, Mapping)) or not isinstance(args, Sequence):
        raise UsageError(f"args is {type(args).__name__}; pass a list with one entry for each parameter of the kernel")
    parameters = function.parameters
    if len(args) != len(parameters):
        raise UsageError(f"args has {len(args)} entries, but {function.signature} takes {len(parameters)} parameters")
    types = _types(parameters, template, source)
    names = _names(parameters)
    _check_roles(args, parameters, names)
    found = [
        _argument(given, parameter, name, f"args[{position}] ({name})", types, draw)
        for position, (given, parameter, name) in enumerate(zip(args, parameters, names, strict=True))
    ]
    inputs = [one.name for one in found if one.role and one.role != "output"]
    for name in draw:
        if name not in inputs:
            raise UsageError(f"draw: there is no input {name!r}: {suggestion(name, inputs)}")
    frameworks = sorted({one.framework for one in found if one.framework})
    if len(frameworks) > 1:
        raise UsageError(f"args mixes arrays of {' and '.join(frameworks)}; pass arrays of one library")
    return found


def _names(parameters: Sequence[CudaParameter]) -> list[str]:
    names: list[str] = []
    for position, parameter in enumerate(parameters):
        name = parameter.name or f"argument{position}"
        names.append(name if name not in names else f"{name}_{position}")
    return names


def _types(parameters: Sequence[CudaParameter], template: Mapping[str, str], source: CudaSource) -> Mapping[str, str]:
    """Return a map of types as written to actual types."""
    found = {p.base: template[p.base] for p in parameters if p.base in template}
    unknown = {found.get(p.base, p.base) for p in parameters} - {*ELEMENT_TYPES}
    resolved: Mapping[str, str] = {}
    if unknown - {"void"}:
        resolved = resolved_types(source.device_text, unknown, (), DRAFTED_FOR[0])
    return {**resolved, **{name: resolved.get(part, part) for name, part in found.items()}}


def _argument(
    given: Any, parameter: CudaParameter, name: str, where: str, types: Mapping[str, str], draw: Any
) -> TunedArgument:
    written = f"{parameter.type} {name}"
    base = types.get(parameter.base, parameter.base)
    array = given.array if isinstance(given, (OutLike, InOut)) else given
    if not framework_of(array):
        number = number_of(given)
        if isinstance(given, (OutLike, InOut)) or (number is None and parameter.pointer):
            raise UsageError(f"{where} is {_kind(given)}; pass a torch, NumPy or CuPy array for {written}")
        if number is None:
            raise UsageError(f"{where} is {_kind(given)}; pass a number for {written}")
        if parameter.pointer:
            raise UsageError(f"{where} is the number {given!r}, but the kernel takes a pointer: {written}")
        return TunedArgument(name, where, *_number(number, base, where, written))
    example = Example(array, where)
    if not parameter.pointer:
        if len(example.shape) == 1 and example.shape[0] == 1 and not isinstance(given, (OutLike, InOut)):
            raise UsageError(f"{where} is an array, but the kernel takes a number: {written}; pass {name}.item()")
        raise UsageError(f"{where} is an array of shape {example.shape}, but the kernel takes a number: {written}")
    example.check()
    dtype = _fitting(example, base, where, written)
    role = "output" if isinstance(given, OutLike) else "inout" if isinstance(given, InOut) else "input"
    if role != "input" and parameter.const:
        raise UsageError(f"{where} is an output, but the kernel cannot write it: {written}; pass the array itself")
    whole = dtype[0] in "iu"
    made = TunedArgument(
        name, where, dtype, role, example.shape, example.framework,
        kept=example.dtype_name if whole else "", example=example,
    )  # fmt: skip
    return made if role == "output" else _with_values(made, example, draw, whole=whole)


def _with_values(made: TunedArgument, example: Example, draw: Any, *, whole: bool) -> TunedArgument:
    """Return an input with the rule for its generated values."""
    from dataclasses import replace

    given = draw.get(made.name) if made.name in draw else None
    if callable(given):
        return replace(made, draw=given)
    if given is not None:
        if not isinstance(given, (tuple, list)) or len(given) != 2 or not all(_finite(one) for one in given):
            raise UsageError(f"draw[{made.name!r}] is {given!r}; use (low, high), or a function of a torch.Generator")
        low, high = given
        if low > high or (whole and not all(isinstance(one, int) for one in given)):
            raise UsageError(f"draw[{made.name!r}] is {given!r}; use {'whole numbers ' if whole else ''}low <= high")
        if whole:
            return replace(made, drawn={"low": low, "high": high})
        return replace(
            made, drawn={"span": [float(low), float(high)], "scale": (high - low) / 4 or abs(low), "given": True}
        )
    if whole:
        return replace(made, values=example.kept())
    drawn = example.drawn_like()
    if made.role == "input" and math.prod(made.shape) > 1 and drawn["span"][0] == drawn["span"][1]:
        raise UsageError(
            f"{made.where} has the value {drawn['span'][0]:g} in every element, so no check sees whether the kernel "
            f"reads it; pass varied values, or draw={{{made.name!r}: (low, high)}}"
        )
    return replace(made, drawn=drawn)


def _finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _kind(given: Any) -> str:
    return "None" if given is None else f"a {type(given).__name__}"


def _number(number: int | float, base: str, where: str, written: str) -> tuple[Any, ...]:
    """Return the fields of a number from its type on: dtype, role, shape, library, kept, number."""
    if base == "bool":
        if number not in (0, 1):
            raise UsageError(f"{where} is {number!r}, but the kernel takes {written}; pass True or False")
        return "bool", "", (), "", "", bool(number)
    if base in REAL:
        return REAL[base], "", (), "", "", float(number)
    if base not in WHOLE:
        raise UsageError(
            f"{where}: the kernel takes {written} by value, and evokern passes only numbers and arrays; change the "
            "parameter to a number or a pointer"
        )
    if isinstance(number, float):
        raise UsageError(f"{where} is {number!r}, but the kernel takes a whole number: {written}; pass an int")
    low, high = _RANGES[WHOLE[base]]
    if not low <= number <= high:
        raise UsageError(f"{where} is {number}, which does not fit in {written}; use {low} to {high}")
    return WHOLE[base], "", (), "", "", int(number)


def _fitting(example: Example, base: str, where: str, written: str) -> str:
    """Return the dtype of a buffer, which must fit the pointer's type."""
    own = DTYPES[example.dtype_name]
    wanted = ELEMENT_TYPES.get(base)
    if wanted is None or wanted == own:
        return own
    same_size = DTYPE_BYTES[own] == DTYPE_BYTES[wanted]
    if same_size and own[0] in "iu" and wanted[0] in "iu":
        return own
    short = next((name for name, one in DTYPES.items() if one == wanted), wanted)
    call = f"to(torch.{short})" if example.framework == "torch" else f"astype({short!r})"
    raise UsageError(f"{where} is {example.dtype_name}, but the kernel takes {written}; pass {example.name}.{call}")


def _check_roles(args: Sequence[Any], parameters: Sequence[CudaParameter], names: Sequence[str]) -> None:
    """Require an output."""
    if any(isinstance(given, (OutLike, InOut)) for given in args):
        return
    able = [position for position, one in enumerate(parameters) if one.pointer and not one.const]
    if not able:
        raise UsageError("args has no output, and every pointer of the kernel is const; choose a kernel that writes")
    listed = " or ".join(f"args[{position}] ({names[position]})" for position in able)
    raise UsageError(
        f"args has no output; mark the array that the kernel writes, {listed}: evokern.out_like({names[able[-1]]}), or "
        f"evokern.inout({names[able[-1]]}) if the kernel also reads it"
    )


def device_of(arguments: Sequence[TunedArgument], device: str | None) -> str | None:
    """Return the device of a call: the given one, else the GPU of the arrays, else None.

    Raises:
        UsageError: arrays are on several GPUs, or on another than the given one.
    """
    on = {one.example.device: one for one in arguments if one.example and one.example.device != "cpu"}
    if len(on) > 1:
        (first, one), (second, other) = list(on.items())[:2]
        raise UsageError(f"{one.where} is on {first}, but {other.where} is on {second}; move both to one GPU")
    for place, one in on.items():
        if device is None:
            return place
        named = "cuda:0" if device == "cuda" else device
        if (
            named.startswith("cuda:")
            and place.removeprefix("cuda:") not in named.removeprefix("cuda:").split(",")
            and named != "cuda:all"
        ):
            raise UsageError(
                f"{one.where} is on {place}, but device={device!r}; pass {one.name}.to({named!r}) or device={place!r}"
            )  # fmt: skip
    return device
