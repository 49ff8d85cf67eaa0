"""Can a study be searched? As far as its kernel's declaration can be read without running it.

`kernel.py` is code that runs when a kernel is loaded, and listing what is there must run nobody's code. Its genes are
nearly always written out: those are read from its syntax tree, and where one is computed, nothing is said of it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evokern.discovery import find_kernel_folder
from evokern.errors import KernelError, SpaceError, StudyError
from evokern.feasibility import narrowed
from evokern.space import Gene, Space
from evokern.study import Study

_MOST_VALUES = 10_000
"""A gene has a few values; a longer range is not worth its memory."""


@dataclass(frozen=True)
class Declared:
    """What can be read of a kernel's genes."""

    space: Space
    """Every gene by name; conditions between genes are left out."""
    computed: frozenset[str]
    """Genes whose values are computed; the space has a stand-in for them."""


def require_sound(study: Study) -> None:
    """Refuse a study that names no kernel there is, or narrows a gene to what it cannot be; no kernel's code runs.

    Raises:
        StudyError: it cannot be searched; the message says why in one line.
    """
    if study.device.startswith("replay:"):  # its genes are the recording's
        return
    try:
        folder = find_kernel_folder(study.kernel, study.path.parent if study.path else None)
    except KernelError as error:
        raise StudyError(f"{study.path or study.name}: {error}") from error
    declared = read_genes(folder / "kernel.py")
    if declared is None:
        return
    with study.blamed("[genes]", SpaceError):
        genes = {declared.space.gene(name).name: values for name, values in study.genes.items()}
        narrowed(declared.space, {name: v for name, v in genes.items() if name not in declared.computed})


def read_genes(path: Path) -> Declared | None:
    """Return the genes that a `kernel.py` writes out, None where it computes them or cannot be read."""
    try:
        module = ast.parse(path.read_text(encoding="utf-8"))
        constants = _constants(module)
        genes = [_gene(call, constants) for call in _calls(_argument(_kernel_call(module), "genes", 1), constants)]
        computed = frozenset(name for name, values in genes if values is None)
        space = Space(tuple(Gene(name, values or (0,), (values or (0,))[0]) for name, values in genes))
    except (OSError, ValueError, TypeError, SyntaxError, RecursionError, SpaceError):
        return None
    return Declared(space, computed)


def _constants(module: ast.Module) -> Mapping[str, ast.expr]:
    """Return the expressions of names that are bound once, at the top, to something that nothing changes later."""
    stored = [node.id for node in ast.walk(module) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    reached_into = {
        node.value.id
        for node in ast.walk(module)
        if isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.value, ast.Name)
    }
    found: dict[str, ast.expr] = {}
    for statement in module.body:
        match statement:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ):
                if stored.count(name) == 1 and not (isinstance(value, ast.List) and name in reached_into):
                    found[name] = value
    return found


def _kernel_call(module: ast.Module) -> ast.Call:
    calls = [node for node in ast.walk(module) if isinstance(node, ast.Call) and _called(node) == "Kernel"]
    if len(calls) != 1:
        raise ValueError("not one kernel")
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


def _calls(node: ast.expr, constants: Mapping[str, ast.expr]) -> Iterator[ast.Call]:
    """Yield the calls that make the genes."""
    match node:
        case ast.Name(id=name) if name in constants:
            yield from _calls(constants[name], constants)
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            for part in parts:
                yield from _calls(part, constants)
        case ast.Starred(value=inner):
            yield from _calls(inner, constants)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            yield from _calls(left, constants)
            yield from _calls(right, constants)
        case ast.Call() if _called(node) in ("Mutation", "Parameter"):
            yield node
        case _:
            raise ValueError("computed")


def _gene(call: ast.Call, constants: Mapping[str, ast.expr]) -> tuple[str, tuple[Any, ...] | None]:
    """Return a gene's name and values, None for values that are computed."""
    name = ast.literal_eval(_argument(call, "name", 0))
    if not isinstance(name, str):
        raise ValueError("no name")
    try:
        return name, tuple(_literal(_argument(call, "values", 1), constants))
    except (ValueError, TypeError):
        return name, None


def _literal(node: ast.expr, constants: Mapping[str, ast.expr]) -> Any:
    match node:
        case ast.Name(id=name) if name in constants:
            return _literal(constants[name], constants)
        case ast.Call(func=ast.Name(id="tuple" | "list"), args=[inner]):
            return _literal(inner, constants)
        case ast.Call(func=ast.Name(id="range"), args=bounds, keywords=[]):
            numbers = range(*(ast.literal_eval(bound) for bound in bounds))
            if len(numbers) > _MOST_VALUES:
                raise ValueError("too many")
            return numbers
    return ast.literal_eval(node)
