"""Arguments and results of an operator, and how the fields of the problem follow from the shapes of its inputs.

The inputs are those of the workload, in its order. A field follows from the shapes if an extent of an input is the
field, or a multiple or fraction of it. All other numeric fields become keyword arguments. Fields with names as values,
for example `dtype`, follow from the data types of the inputs.
"""

from __future__ import annotations

import keyword
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evokern.declaration.kernel import Kernel, Problem, ProblemField, Tensor
from evokern.errors import KernelError
from evokern.export.formula import Formula, cpp_names, simplified
from evokern.export.trace import Traces
from evokern.export.traced import formula_of

_RESERVED = ("self", "out", "copy")
"""Names with a meaning in a schema or in the operator's function."""


@dataclass(frozen=True)
class OperatorBuffer:
    """An input or output of the operator."""

    name: str
    """Name in C++ and Python."""
    declared: str
    """Name in the workload."""
    dtype: str
    """Data type."""
    shape: tuple[Formula, ...]
    """Extents."""
    changed: bool = False
    """Whether the operator changes this input."""
    scale: float = 1.0
    """Scale of random values of an input, for the self-test."""
    low: float = 0
    """Smallest random value of integers, or of floating-point numbers that are limited."""
    high: float = 0
    """Largest such value; for floating-point numbers, 0 if they are not limited and `low` is 0."""
    drawn: bool = False
    """Whether only the kernel's declaration can generate an input."""


@dataclass(frozen=True)
class Derived:
    """A field that follows from an extent of an input."""

    field: str
    """Name of the field."""
    buffer: int
    """Index of the input."""
    axis: int
    """Index of the extent."""
    times: int = 1
    """Factor: the field is the extent × `times` // `over`."""
    over: int = 1
    """Divisor."""


@dataclass(frozen=True)
class Mode:
    """Inputs and outputs for one combination of names, such as `dtype=f16`."""

    names: Mapping[str, str]
    """Field with names as values → value."""
    inputs: tuple[OperatorBuffer, ...]
    """Inputs in the order of the workload."""
    outputs: tuple[OperatorBuffer, ...]
    """Results in the order of the workload, without inputs that the operator changes."""
    derived: tuple[Derived, ...]
    """Fields that follow from shapes, in an order in which each step needs only earlier ones."""


@dataclass(frozen=True)
class OperatorArgument:
    """A numeric field that the caller passes."""

    name: str
    """Name in C++ and Python."""
    field: str
    """Name of the field."""
    default: int | None
    """Default value; None if the argument is required."""


@dataclass(frozen=True)
class Signature:
    """Signature of an operator."""

    fields: tuple[ProblemField, ...]
    """Numeric fields of the problem, in declared order."""
    modes: tuple[Mode, ...]
    """Combinations of names, which the data types of the inputs distinguish."""
    arguments: tuple[OperatorArgument, ...]
    """Keyword arguments."""

    @property
    def inputs(self) -> tuple[OperatorBuffer, ...]:
        """Inputs of the first mode; those of other modes have the same names."""
        return self.modes[0].inputs

    @property
    def outputs(self) -> tuple[OperatorBuffer, ...]:
        """Results of the first mode."""
        return self.modes[0].outputs

    @property
    def arguments_schema(self) -> str:
        """The arguments in the schema of the operator."""
        marks = iter("abcdefghijklmnopqrstuvwxyz")
        parts = [f"Tensor({next(marks)}!) {b.name}" if b.changed else f"Tensor {b.name}" for b in self.inputs]
        parts += [f"int {a.name}" + ("" if a.default is None else f"={a.default}") for a in self.arguments]
        return ", ".join(parts)


def signature_of(kernel: Kernel, traced: Sequence[tuple[Problem, Traces]]) -> Signature:
    """Return the signature of an operator.

    Args:
        kernel: the kernel.
        traced: problem and traces of each variant.

    Raises:
        KernelError: the kernel cannot become an operator; the message gives the reason.
    """
    fields = tuple(entry for entry in kernel.fields if entry.name in traced[0][1].fields)
    modes: dict[tuple[tuple[str, str], ...], Mode] = {}
    for problem, traces in traced:
        names = {e.name: str(problem[e.name]) for e in kernel.fields if e.name not in traces.fields}
        mode = _mode(kernel, names, traces)
        known = modes.setdefault(tuple(names.items()), mode)
        if (known.inputs, known.outputs) != (mode.inputs, mode.outputs):
            raise KernelError(
                f"kernel {kernel.name}: the buffers at {problem} have other formulas than at another problem, so one "
                "operator cannot take both; pack the problems separately"
            )
    found = tuple(modes.values())
    _check_modes(kernel, found)
    missing = [e for e in fields if any(e.name not in {d.field for d in mode.derived} for mode in found)]
    plain = _identifiers([*(b.declared for b in found[0].inputs), *(e.name.lower() for e in missing)])
    arguments = tuple(
        OperatorArgument(name, e.name, e.default if isinstance(e.default, int) else None)
        for e, name in zip(missing, plain[len(found[0].inputs) :], strict=True)
    )
    return Signature(fields, found, arguments)


def _identifiers(names: Sequence[str]) -> list[str]:
    """Return a different name for each name; none is a keyword of C++ or Python."""
    found: list[str] = []
    for name in names:
        plain = cpp_names([name])[name]
        while keyword.iskeyword(plain) or plain in found or plain in _RESERVED:
            plain += "_"
        found.append(plain)
    return found


def _mode(kernel: Kernel, names: Mapping[str, str], traces: Traces) -> Mode:
    constant = [name for name, tensor in traces.tensors.items() if tensor.role == "constant"]
    if constant:
        raise KernelError(
            f"kernel {kernel.name} copies {constant[0]!r} to a __constant__ array before each call, so two calls on "
            "different streams would disturb each other; declare it as an ordinary input instead"
        )
    given = {n: t for n, t in traces.tensors.items() if t.role in ("input", "inout")}
    made = {n: t for n, t in traces.tensors.items() if t.role == "output"}
    if not given:
        raise KernelError(f"kernel {kernel.name} has no input, so an operator has no shape and no device; add an input")
    plain = _identifiers([*given, *made])
    inputs = tuple(_buffer(*one) for one in zip(plain, given, given.values(), strict=False))
    outputs = tuple(_buffer(*one) for one in zip(plain[len(given) :], made, made.values(), strict=True))
    return Mode(names, inputs, outputs, _derived(inputs))


def _buffer(name: str, declared: str, tensor: Tensor) -> OperatorBuffer:
    shape = tuple(simplified(formula_of(extent), {}) for extent in tensor.shape)
    low, high = (tensor.low, tensor.high) if tensor.dtype[0] in "iu" else tensor.span or (0, 0)
    changed, drawn = tensor.role == "inout", tensor.draw is not None
    return OperatorBuffer(name, declared, tensor.dtype, shape, changed, float(tensor.scale), low, high, drawn)


def _derived(inputs: Sequence[OperatorBuffer]) -> tuple[Derived, ...]:
    """Return the fields that follow from extents; a plain extent is preferred to a multiple or fraction."""
    found: dict[str, Derived] = {}
    for plain in (True, False):
        for index, buffer in enumerate(inputs):
            for axis, formula in enumerate(buffer.shape):
                one = _solved(formula, index, axis)
                if one is not None and one.field not in found and ((one.times, one.over) == (1, 1)) == plain:
                    found[one.field] = one
    return tuple(found.values())


def _solved(formula: Formula, index: int, axis: int) -> Derived | None:
    """Return the field that an extent determines, if its formula is a field, or a product or quotient of one."""
    match formula:
        case ("field", name):
            return Derived(name, index, axis)
        case ("*", ("field", name), ("number", factor)) | ("*", ("number", factor), ("field", name)) if factor > 0:
            return Derived(name, index, axis, over=factor)
        case ("//", ("field", name), ("number", factor)) if factor > 0:
            return Derived(name, index, axis, times=factor)
    return None


def _check_modes(kernel: Kernel, modes: Sequence[Mode]) -> None:
    """Refuse modes that the data types of the inputs do not distinguish, or with different inputs.

    Raises:
        KernelError: two modes are too similar or too different.
    """

    def words(mode: Mode) -> str:
        return " ".join(f"{name}={value}" for name, value in mode.names.items())

    def buffers(mode: Mode) -> list[list[str]]:
        return [[b.name for b in mode.inputs], [b.name for b in mode.outputs]]

    for index, mode in enumerate(modes):
        if buffers(mode) != buffers(modes[0]):
            raise KernelError(
                f"kernel {kernel.name}: {words(mode)} has other inputs or outputs than {words(modes[0])}; pack these "
                "problems separately"
            )
        for other in modes[:index]:
            if [b.dtype for b in mode.inputs] == [b.dtype for b in other.inputs]:
                raise KernelError(
                    f"kernel {kernel.name}: the data types of the inputs do not distinguish {words(mode)} from "
                    f"{words(other)}; pack these problems separately"
                )
