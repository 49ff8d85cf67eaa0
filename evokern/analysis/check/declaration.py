"""Genes and fields that a `kernel.py` declares, read without running its code, and checks of its functions.

Genes and problem fields are nearly always literals. Computed parts are reported as unknown. The functions must be fast,
and return the same for the same candidate.
"""

from __future__ import annotations

import ast
import operator
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

from evokern.analysis.check.folder import Folder
from evokern.declaration.feasibility import check, launches_of
from evokern.declaration.genes import Config, Gene
from evokern.declaration.kernel import AtMost, Kernel, Problem
from evokern.declaration.problem import ProblemField
from evokern.declaration.render import macros
from evokern.declaration.space import Space
from evokern.errors import KERNEL_CODE_EXCEPTIONS, SpaceError
from evokern.events import step
from evokern.files import read_text
from evokern.hardware.profiles import CHIPS, Profile

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


MOST_S = 1.0
"""Largest time of a function for one candidate, in seconds; a search calls each function thousands of times."""
MOST_TEXT = 200
"""Maximum length of a returned value in a message."""
_CHIP = CHIPS["h200"]


def slow_function(folder: Folder) -> str:
    """Return a text about a function that takes too long for one candidate, or an empty string."""
    config, problem = folder.kernel.space.default(), folder.problems[0]
    with suppress(*KERNEL_CODE_EXCEPTIONS):  # later checks report them
        for name, call in _functions(folder.kernel, config, problem, _CHIP):
            began = time.perf_counter()
            with step(f"checking: {name} of kernel.py"):
                call()
            seconds = time.perf_counter() - began
            if seconds > MOST_S:
                return (
                    f"{name} took {seconds:.1f} s for one candidate, but a search checks thousands of candidates; use "
                    "at most a few milliseconds (the other checks were skipped)"
                )
    return ""


def varying_function(folder: Folder, configs: Sequence[Config]) -> str:
    """Return a text about a function that returns different values for the same candidate, or an empty string."""
    problem = folder.problems[0]
    for config in configs:
        for name, call in _functions(folder.kernel, config, problem, _CHIP):
            first, second = call(), call()
            if first != second:
                return (
                    f"{name} returned {_shown(first)}, then {_shown(second)} for the same candidate ({dict(config)}); "
                    "it must depend only on the configuration, the problem and the chip, not on random numbers or time"
                )
            if name.startswith("constraint") and not first.holds:
                break  # the other functions may not accept an infeasible candidate
    return ""


def _functions(
    kernel: Kernel, config: Config, problem: Problem, chip: Profile
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the name of each declared function, and a function that calls it for a candidate."""
    for constraint in kernel.constraints:
        yield f"constraint {constraint.name}", partial(constraint.evaluate, config, problem, chip)
    if check(kernel, config, [problem], chip) is None:
        yield "launches", partial(launches_of, kernel, config, problem)
        yield "tensors", lambda: dict(kernel.workload.tensors(problem, config))
        yield "macros", partial(macros, kernel, config, problem)


def _shown(value: Any) -> str:
    """Return a returned value as text of bounded length."""
    text = f"needed {value.needed:g}, available {value.available:g}" if isinstance(value, AtMost) else str(value)
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]} …"
