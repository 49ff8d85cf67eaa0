"""Frames of running host functions, and the values of their variables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from evokern.cuda_source.host.records import HostBuffer, Pointer
from evokern.cuda_source.host.tree import Node
from evokern.cuda_source.host.values import Arithmetic, Dim3, Expr, Name, TypeName, number, operation

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
