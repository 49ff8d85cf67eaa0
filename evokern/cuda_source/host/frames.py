"""Frames of running host functions, with the values of their variables, and records of what the functions do."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from evokern.cuda_source.host.tree import Node
from evokern.cuda_source.host.values import Arithmetic, Dim3, Expr, Name, TypeName, number, operation


@dataclass(eq=False)
class HostBuffer:
    """A buffer that host code passes to a kernel: a pointer parameter, an allocation, or a tensor."""

    name: str
    """Name of the variable."""
    kind: str
    """`parameter`, `allocation` (on the device), `host` (an array or container on the host), or `tensor`."""
    line: int = 0
    """Line of the allocation or declaration."""
    elements: Expr | None = None
    """Number of elements, if the file states it."""
    bytes: Expr | None = None
    """Size in bytes, if the file states it."""
    shape: tuple[Expr, ...] | None = None
    """Extents of a tensor that the file creates, or whose number of dimensions it checks."""
    dtype: str = ""
    """Element type as written, such as `float`, `at::Half` or `torch::kInt`; empty if unknown."""
    copied_in: bool = False
    """Whether the file copies data to the buffer before the launch."""
    copied_out: bool = False
    """Whether the file copies data from the buffer after the launch."""
    asked: set[int] = field(default_factory=set)
    """Axes of a tensor whose extents the file reads."""
    like: str = ""
    """Tensor whose extents it has, as `torch::empty_like` states it; empty if it has its own."""
    labels: dict[int, str] = field(default_factory=dict)
    """Axis of a tensor → the name of the variable to which the file assigns the extent."""


@dataclass(frozen=True, slots=True)
class Pointer:
    """A pointer to a buffer."""

    buffer: HostBuffer
    type: str = ""
    """Element type as written; empty if unknown."""
    offset: Expr = 0
    """Offset in elements."""


Argument: TypeAlias = "Expr | Pointer | Dim3 | TypeName | object"
"""A value that host code passes to a function."""


@dataclass(frozen=True)
class HostLaunch:
    """One launch, as seen from one host function; a launch in a called function is seen from each caller as well."""

    kernel: str
    """Name of the kernel as written, without template arguments."""
    template: tuple[Expr | TypeName, ...]
    """Template arguments; those that the compiler deduces from the arguments are included if they are known."""
    grid: Dim3
    block: Dim3
    shared: Expr
    """Dynamic shared memory in bytes."""
    cluster: Dim3 | None
    """Extents of a cluster that the launch sets; None if it sets none."""
    arguments: tuple[Argument, ...]
    """Arguments of the kernel."""
    function: str
    """Host function that contains the launch."""
    root: str
    """Host function in whose names the expressions are; equal to `function` for the launch itself."""
    line: int
    file: str
    """Header that contains the launch; empty for the main file."""
    conditions: tuple[Expr, ...] = ()
    """Conditions under which the root makes the launch, such as `hidden == 256`."""
    requirements: tuple[Expr, ...] = ()
    """Conditions that the file checks before the launch, such as `x.size(1) % 8 == 0`; others end in an error."""
    bindings: Mapping[str, Expr | TypeName] = field(default_factory=dict)
    """Template parameter of the function, or of a structure template that it gets → value in this view."""
    given: Mapping[str, Argument] = field(default_factory=dict)
    """Parameter of the function that contains the launch → value in this view."""
    types: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Type name that a dispatch macro such as `AT_DISPATCH_FLOATING_TYPES` sets → its types."""

    @property
    def own(self) -> bool:
        """Whether the expressions are in the names of the function that contains the launch."""
        return self.root == self.function


Value: TypeAlias = Any
STEPS = 30_000
"""Maximum number of evaluated nodes of one function with the functions that it calls."""
DEEPEST = 12
"""Maximum number of nested calls."""
NOTHING = object()
"""Result of a call that is not known."""


@dataclass
class FunctionValue:
    """A reference to a function, with its template arguments."""

    name: str
    template: tuple[Value, ...] = ()


@dataclass
class Closure:
    """A lambda function."""

    node: Node
    frame: Frame


@dataclass
class VariableReference:
    """Address of a variable."""

    frame: Frame
    name: str


@dataclass
class ListValue:
    """A list in braces, or an array."""

    items: list[Value]


@dataclass
class Frame:
    """Variables of a running function."""

    function: str
    variables: dict[str, Value] = field(default_factory=dict)
    templates: dict[str, Value] = field(default_factory=dict)
    structure: TypeName | None = None
    given: dict[str, Value] = field(default_factory=dict)
    parent: Frame | None = None
    returned: list[tuple[tuple[Expr, ...], Value]] = field(default_factory=list)

    @property
    def chain(self) -> Iterator[Frame]:
        """Yield the frame and the frames around it."""
        yield self
        if self.parent is not None:
            yield from self.parent.chain

    @property
    def outermost(self) -> Frame:
        """The frame of the function that contains a lambda."""
        return self if self.parent is None else self.parent.outermost


class StepsError(Exception):
    """The function takes too many steps."""


@dataclass
class Sizes:
    """The extents of a tensor."""

    buffer: HostBuffer


def result_of(frame: Frame) -> Value:
    """Return the value that a function returns, as a choice between the values of its return statements."""
    if not frame.returned:
        return None
    shared = min(len(conditions) for conditions, _ in frame.returned)
    made = frame.returned[-1][1]
    for conditions, value in reversed(frame.returned[:-1]):
        own = conditions[shared:] or conditions[-1:]
        if not own:
            made = value
            continue
        condition = own[0]
        for one in own[1:]:
            condition = operation("&&", condition, one)
        made = merge(condition, value, made)
    return made


def merge(condition: Expr, first: Value, second: Value) -> Value:
    """Return the value of a variable that two branches set differently."""
    if isinstance(first, Dim3) and isinstance(second, Dim3):
        return Dim3(*(operation("?:", condition, a, b) for a, b in
                      zip((first.x, first.y, first.z), (second.x, second.y, second.z), strict=True)))  # fmt: skip
    if isinstance(first, int | float | Name | Arithmetic) and isinstance(second, int | float | Name | Arithmetic):
        return operation("?:", condition, first, second)
    return first if first is not None else second


def owner_of(frame: Frame, name: str) -> Frame:
    """Return the frame that declares a variable."""
    return next((scope for scope in frame.chain if name in scope.variables), frame)


def as_expr(value: Value, text: str = "") -> Expr:
    """Return a value as an expression; a value of another kind is a name with the given text."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int | float | Name | Arithmetic):
        return value
    if isinstance(value, ListValue) and len(value.items) == 1:
        return as_expr(value.items[0], text)
    if isinstance(value, Pointer):
        return Name(value.buffer.name, "unknown")
    if isinstance(value, HostBuffer):
        return Name(value.name, "unknown")
    if isinstance(value, Dim3):
        return value.x
    if isinstance(value, TypeName):
        return Name(str(value), "unknown")
    return Name(text or "?", "unknown")


def is_opaque(value: Arithmetic) -> bool:
    """Return whether an expression contains something that cannot be computed."""
    for one in value.operands:
        if isinstance(one, Name) and one.kind == "unknown":
            return True
        if isinstance(one, Arithmetic) and is_opaque(one):
            return True
    return value.operator.startswith(("call ", "real +", "real -", "real *"))


def literal_in(value: Expr) -> int | None:
    """Return the number that one branch of a choice gives, such as the default of a program's argument."""
    if isinstance(value, Arithmetic) and value.operator == "?:":
        for one in value.operands[1:]:
            if (made := number(one)) is not None:
                return made
            if (made := literal_in(one)) is not None:
                return made
    return None


def argument_list(value: Value) -> list[Value]:
    """Return the arguments in the array that `cudaLaunchKernel` takes."""
    items = value.items if isinstance(value, ListValue) else []
    return [one.frame.variables.get(one.name) if isinstance(one, VariableReference) else one for one in items]


def cluster_of(frame: Frame) -> Dim3 | None:
    """Return the cluster that a launch attribute in the frame sets."""
    for scope in frame.chain:
        set_ = {path[-1]: as_expr(v) for path, v in scope.variables.items() if re.search(r"clusterDim\.[xyz]$", path)}
        if set_:
            return Dim3(**set_)
    return None
