"""Read the genes and fields that a `kernel.py` declares, without running its code.

Genes and problem fields are nearly always literals. Computed parts are reported as unknown.
"""

from __future__ import annotations

import ast
import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from evokern.declaration.genes import Gene
from evokern.declaration.problem import ProblemField
from evokern.declaration.space import Space
from evokern.errors import SpaceError
from evokern.files import read_text

_MOST_VALUES = 10_000
"""Maximum length of a range that is expanded; genes have few values."""
_MOST_BITS = 64
"""Maximum number of bits of a result, and maximum exponent or shift."""

Constants = Mapping[str, ast.expr]
Part = TypeVar("Part")


@dataclass(frozen=True)
class DeclaredGenes:
    """The genes of a kernel that can be read without running code."""

    space: Space
    """Space of all genes, without the conditions between them."""
    computed: frozenset[str]
    """Names of genes with computed values; the space has a placeholder for them."""


@dataclass(frozen=True)
class DeclaredKernel:
    """The parts of a kernel's declaration that can be read without running code."""

    name: str
    """Name of the kernel, or name of its folder if the kernel's name is computed."""
    genes: DeclaredGenes | None = None
    """Genes, or None if they are computed."""
    fields: tuple[ProblemField, ...] | None = None
    """Problem fields, or None if they are computed."""


def read_declaration(path: Path) -> DeclaredKernel:
    """Return the readable part of a `kernel.py`, or only the folder's name if the file cannot be read."""
    try:
        return _declared(read_text(path), path.parent.name)
    except (OSError, ValueError):
        return DeclaredKernel(path.parent.name)


@lru_cache(maxsize=64)
def _declared(text: str, folder: str) -> DeclaredKernel:
    """Return the readable part of a file's text; cached, because studies of one kernel share the file."""
    try:
        nodes = list(ast.walk(module := ast.parse(text)))
        constants, kernel = _constants(module, nodes), _kernel_call(nodes)
    except (ValueError, SyntaxError, RecursionError):
        return DeclaredKernel(folder)
    name = _read(lambda: _text(_argument(kernel, "name", 0), constants))
    return DeclaredKernel(
        name or folder, _read(lambda: _genes(kernel, constants)), _read(lambda: _fields(kernel, constants))
    )


def _read(part: Callable[[], Part]) -> Part | None:
    """Return a part of the declaration, or None if it is computed."""
    try:
        return part()
    except (ValueError, TypeError, RecursionError, SpaceError):
        return None


def _constants(module: ast.Module, nodes: Sequence[ast.AST]) -> Constants:
    """Return the expressions of names that are assigned once, at module level, and not modified later."""
    stored = Counter(node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    reached_into = {
        node.value.id
        for node in nodes
        if isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.value, ast.Name)
    }
    found: dict[str, ast.expr] = {}
    for statement in module.body:
        match statement:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ):
                if stored[name] == 1 and not (isinstance(value, ast.List) and name in reached_into):
                    found[name] = value
    return found


def _kernel_call(nodes: Sequence[ast.AST]) -> ast.Call:
    calls = [node for node in nodes if isinstance(node, ast.Call) and _called(node) == "Kernel"]
    if len(calls) != 1:
        raise ValueError("the file must call Kernel exactly once")
    return calls[0]


def _called(call: ast.Call) -> str:
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _argument(call: ast.Call, name: str, position: int) -> ast.expr:
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    if position < len(call.args):
        return call.args[position]
    raise ValueError(f"no {name}")


def _genes(kernel: ast.Call, constants: Constants) -> DeclaredGenes:
    calls = _calls(_argument(kernel, "genes", 1), constants, ("Mutation", "Parameter"))
    genes = [_gene(call, known) for call, known in calls]
    computed = frozenset(name for name, values in genes if values is None)
    return DeclaredGenes(Space(tuple(Gene(name, v or (0,), (v or (0,))[0]) for name, v in genes)), computed)


def _gene(call: ast.Call, constants: Constants) -> tuple[str, tuple[Any, ...] | None]:
    """Return a gene's name and values, or None for computed values."""
    name = _text(_argument(call, "name", 0), constants)
    return name, _read(lambda: tuple(_literal(_argument(call, "values", 1), constants)))


def _fields(kernel: ast.Call, constants: Constants) -> tuple[ProblemField, ...]:
    calls = _calls(_argument(kernel, "fields", 2), constants, ("ProblemField",))
    return tuple(_field(call, known) for call, known in calls)


def _field(call: ast.Call, constants: Constants) -> ProblemField:
    names = [entry.name for entry in fields(ProblemField)]
    given = dict(zip(names, call.args, strict=False)) | {keyword.arg: keyword.value for keyword in call.keywords}
    if len(call.args) > len(names) or not set(given) <= set(names):
        raise ValueError("no field")
    given.pop("doc", None)
    return ProblemField(**{name: _literal(value, constants) for name, value in given.items() if name})


def _calls(node: ast.expr, constants: Constants, makers: tuple[str, ...]) -> Iterator[tuple[ast.Call, Constants]]:
    """Yield the calls that create genes or fields, with the constants known at each call."""
    match node:
        case ast.Name(id=name) if name in constants:
            yield from _calls(constants[name], constants, makers)
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            for part in parts:
                yield from _calls(part, constants, makers)
        case ast.Starred(value=inner):
            yield from _calls(inner, constants, makers)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            yield from _calls(left, constants, makers)
            yield from _calls(right, constants, makers)
        case (
            ast.GeneratorExp(elt=made, generators=[ast.comprehension(target=ast.Name(id=name), iter=over, ifs=[])])
            | ast.ListComp(elt=made, generators=[ast.comprehension(target=ast.Name(id=name), iter=over, ifs=[])])
        ):
            for value in _literal(over, constants):
                yield from _calls(made, {**constants, name: ast.Constant(value)}, makers)
        case ast.Call() if _called(node) in makers:
            yield node, constants
        case _:
            raise ValueError("computed")


def _text(node: ast.expr, constants: Constants) -> str:
    name = _literal(node, constants)
    if not isinstance(name, str):
        raise ValueError("no name")
    return name


def _literal(node: ast.expr, constants: Constants) -> Any:
    match node:
        case ast.Name(id=name) if name in constants:
            return _literal(constants[name], constants)
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return tuple(_literal(part, constants) for part in parts)
        case ast.Call(func=ast.Name(id="tuple" | "list"), args=[inner]):
            return _literal(inner, constants)
        case ast.Call(func=ast.Name(id="range"), args=bounds, keywords=[]):
            numbers = range(*(_literal(bound, constants) for bound in bounds))
            if len(numbers) > _MOST_VALUES:
                raise ValueError("too many")
            return numbers
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _SIGNS:
            return _number(_literal(left, constants), type(sign), _literal(right, constants))
    return ast.literal_eval(node)


_SIGNS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.LShift: operator.lshift,
    ast.Pow: operator.pow,
}


def _number(left: object, sign: type[ast.operator], right: object) -> int:
    if not (isinstance(left, int) and isinstance(right, int)):
        raise ValueError("no numbers")
    if sign in (ast.LShift, ast.Pow) and not 0 <= right <= _MOST_BITS:
        raise ValueError("too large")
    worth = _SIGNS[sign](left, right)
    if worth.bit_length() > _MOST_BITS:
        raise ValueError("too large")
    return worth
