"""Module with the baselines of an operator, copied from the kernel's declaration.

Only the definitions that a baseline uses are copied, so that the package does not need evokern. Baselines that compile
themselves (`torch.compile`) are left out, because they would compile again for each shape and cannot be captured in a
graph. Without any baseline, the float64 reference takes their place.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import linecache
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from evokern.declaration.as_data.declared import Functions, check_functions, functions_of, passing_of
from evokern.declaration.kernel import Kernel
from evokern.errors import KernelError
from evokern.escaping import in_comment
from evokern.tuning.reference import place_of

REFERENCE = "float64 reference"
"""Name of the baseline that is the reference, for kernels without others."""
_NONE: Mapping[str, str] = MappingProxyType({})
_COMPILES = re.compile(r"\btorch\s*\.\s*(compile|_dynamo|jit)\b")


@dataclass(frozen=True)
class BaselineModule:
    """The module, and the names of its baselines."""

    text: str
    """Text of the module."""
    names: tuple[str, ...]
    """Names of the baselines, in the order of their numbers."""
    left_out: tuple[str, ...]
    """Baselines that are not in the module, with reasons."""


def baselines_of(kernel: Kernel) -> BaselineModule:
    """Return the module with the baselines of a kernel; a kernel that was tuned with a call has its reference.

    Raises:
        KernelError: neither a baseline nor the reference can be copied.
    """
    if (source := kernel.file_text("kernel.py")) is not None:
        return baseline_module(kernel, source)
    check_functions(kernel)
    assert kernel.content is not None
    passing, functions = passing_of(kernel.content), functions_of(kernel.content)
    if passing.framework != "torch":
        raise KernelError(
            f"the reference of {kernel.name} takes arrays of {passing.framework}, but an operator of torch needs one "
            "that takes tensors; call evokern.tune with tensors of torch"
        )
    try:
        name, definitions, expression = _function(functions)
    except _NotCopiedError as error:
        raise KernelError(
            f"the reference of {kernel.name} cannot be copied into a package: {error}; write it as a function of a "
            "file that uses only installed packages and this file"
        ) from error
    given = [
        f"inputs[{one!r}]" + (f".to(torch.{passing.dtypes[one]})" if one in passing.dtypes else "")
        if isinstance(one, str)
        else repr(one)
        for one in passing.order
    ]
    call = f"(lambda problem, inputs: _named({passing.outputs!r}, ({expression})({', '.join(given)})))"
    return BaselineModule(_text(kernel.name, [_NAMED, *definitions], {name: [call]}, ["_baseline_0"]), (name,), ())


_NAMED = """\
import torch


def _named(names, answer):
    if isinstance(answer, dict) and set(answer) == set(names):
        return answer
    parts = answer.values() if isinstance(answer, dict) else answer if isinstance(answer, (tuple, list)) else (answer,)
    return dict(zip(names, parts, strict=True))
"""


def _function(functions: Functions) -> tuple[str, list[str], str]:
    """Return the name of a reference, the statements that it needs, and an expression for it.

    Raises:
        _NotCopiedError: the reference is not a function in a file or of torch.
    """
    run: Any = functions.reference
    for module in ("torch", "torch.nn.functional", "torch.linalg", "torch.special"):
        name = getattr(run, "__name__", "")
        if name and getattr(importlib.import_module(module), name, None) is run:
            return name, [f"import {module}\n"], f"{module}.{name}"
    source = "".join(linecache.getlines(functions.file))
    if not source:
        raise _NotCopiedError(f"it is {place_of(run).get('kind') or 'not in a file'}")
    tree, file, line = ast.parse(source), Path(functions.file).name, run.__code__.co_firstlineno
    if run.__name__ != "<lambda>":
        if run.__qualname__ != run.__name__:
            raise _NotCopiedError(f"it is {run.__qualname__}, defined inside another function or class")
        return run.__name__, _definitions(tree, source, [run.__name__], file), run.__name__
    found = [one for one in ast.walk(tree) if isinstance(one, ast.Lambda) and one.lineno == line]
    if len(found) != 1:
        raise _NotCopiedError(f"line {line} of {file} has {len(found)} lambdas")
    expression = _segment(source, found[0])
    return "reference", _definitions(tree, source, [expression], file), expression


def baseline_module(kernel: Kernel, source: str) -> BaselineModule:
    """Return a module that defines `BASELINES`: a name and a function of problem and inputs for each baseline.

    Args:
        kernel: the kernel.
        source: text of the kernel's declaration, `kernel.py`.

    Raises:
        KernelError: neither a baseline nor the reference can be copied.
    """
    tree = ast.parse(source)
    files = {file.name: file.text for file in kernel.files() if file.name.endswith(".py")}
    found: dict[str, list[str]] = {}
    left_out = []
    for baseline in kernel.workload.baselines:
        if baseline.requires is not None:
            left_out.append(f"{baseline.name}: it requires {baseline.requires}")
            continue
        try:
            parts = _expressions(tree, source, baseline.name)
            if _COMPILES.search("\n".join([*parts, *_definitions(tree, source, parts, files=files)])):
                left_out.append(f"{baseline.name}: it compiles itself at each shape")
                continue
        except _NotCopiedError as error:
            left_out.append(f"{baseline.name}: {error}")
            continue
        found[baseline.name] = parts
    try:
        reference = [_reference(tree, source)]
        _definitions(tree, source, reference, files=files)
    except _NotCopiedError as error:
        reference = []
        left_out.append(f"reference: {error}")
    if not found and reference:
        found[REFERENCE] = reference
    if not found:
        raise KernelError(
            f"kernel {kernel.name} has no baseline that a package can contain ({'; '.join(left_out)}); declare a "
            "Baseline whose function uses only torch and this module"
        )
    used = [part for parts in (*found.values(), reference) for part in parts]
    definitions = _definitions(tree, source, used, files=files)
    return BaselineModule(_text(kernel.name, definitions, found, reference), tuple(found), tuple(left_out))


class _NotCopiedError(Exception):
    """A part of the declaration cannot be copied."""


def _text(kernel: str, definitions: Sequence[str], found: dict[str, list[str]], reference: Sequence[str]) -> str:
    lines = [
        in_comment(f"# Baselines of {kernel}, copied from its declaration by evokern. Do not edit.") + "\n",
        "from __future__ import annotations\n",
        *definitions,
        "",
    ]
    for index, (name, parts) in enumerate(found.items()):
        given = "inputs" if len(parts) == 1 else f"({parts[1]})(problem, inputs)"
        if name == REFERENCE:
            given = "{n: t.double() if t.is_floating_point() else t for n, t in inputs.items()}"
        lines += [
            f"_run_{index} = {parts[0]}\n\n",
            f"def _baseline_{index}(problem, inputs):",
            f"    return _run_{index}(problem, {given})\n\n",
        ]
    rows = "".join(f"    ({name!r}, _baseline_{index}),\n" for index, name in enumerate(found))
    return "\n".join([*lines, f"BASELINES = (\n{rows})", f"REFERENCE = {reference[0] if reference else None}\n"])


def _calls(tree: ast.AST, name: str) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and name in (getattr(node.func, "id", ""), getattr(node.func, "attr", "")):
            yield node


def _argument(call: ast.Call, place: int, name: str) -> ast.expr | None:
    """Return an argument that is passed by position or by name; None if it is not passed."""
    if place < len(call.args) and not any(isinstance(one, ast.Starred) for one in call.args):
        return call.args[place]
    return next((one.value for one in call.keywords if one.arg == name), None)


def _expressions(tree: ast.AST, source: str, name: str) -> list[str]:
    """Return the expressions of a baseline's function and, if any, of its `prepare`."""
    for call in _calls(tree, "Baseline"):
        own, run, prepare = (_argument(call, *one) for one in ((0, "name"), (1, "run"), (2, "prepare")))
        if isinstance(own, ast.Constant) and own.value == name and run is not None:
            return [_segment(source, one) for one in (run, prepare) if one is not None and not _is_none(one)]
    raise _NotCopiedError('its declaration is not a call `Baseline("NAME", function)` in kernel.py')


def _reference(tree: ast.AST, source: str) -> str:
    for call in _calls(tree, "Workload"):
        if (found := _argument(call, 1, "reference")) is not None:
            return _segment(source, found)
    raise _NotCopiedError("the declaration has no call `Workload(reference=…)`")


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _segment(source: str, node: ast.AST) -> str:
    found = ast.get_source_segment(source, node) or ast.unparse(node)
    return f"({found})" if "\n" in found else found


def _definitions(
    tree: ast.Module, source: str, expressions: Sequence[str], file: str = "kernel.py", files: Mapping[str, str] = _NONE
) -> list[str]:
    """Return the statements of a module that expressions need, directly or not, in their order.

    Args:
        tree: the module.
        source: its text.
        expressions: the expressions.
        file: name of the module's file, for messages.
        files: text of each Python file of the kernel's folder, for names that `load_name` loads.

    Raises:
        _NotCopiedError: they need something that is not in the module, or that comes from evokern.
    """
    bound: dict[str, list[ast.stmt]] = {}
    for statement in tree.body:
        for name in _bound(statement):
            bound.setdefault(name, []).append(statement)
    needed: set[str] = set()
    kept: set[int] = set()
    waiting = {name for one in expressions for name in _names(ast.parse(one, mode="eval"))}
    while waiting:
        name = waiting.pop()
        needed.add(name)
        if name not in bound:
            if not hasattr(builtins, name):
                raise _NotCopiedError(f"it uses {name}, which {file} does not define")
            continue
        for statement in bound[name]:
            if isinstance(statement, ast.ImportFrom) and _of_evokern(statement):
                raise _NotCopiedError(f"it uses {name} of {statement.module or 'another module'}")
            if id(statement) not in kept:
                kept.add(id(statement))
                if not isinstance(statement, (ast.Import, ast.ImportFrom)) and _loaded(statement, files) is None:
                    waiting |= _names(statement) - needed
    found = []
    for statement in tree.body:
        if id(statement) not in kept:
            continue
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            names = [one for one in statement.names if (one.asname or one.name.split(".")[0]) in needed]
            imported = copy(statement)
            imported.names = names
            found.append(ast.unparse(imported))
        elif (loaded := _loaded(statement, files)) is not None:
            other, name = loaded
            inner = "\n".join(_definitions(ast.parse(files[other]), files[other], [name], other, files))
            body = textwrap.indent(ast.unparse(ast.parse(f"{inner}\nreturn {name}")), "    ")
            found.append(f"\n\ndef _load_{name}():\n{body}\n\n\n{name} = _load_{name}()")
        else:
            first = min([statement.lineno, *(one.lineno for one in getattr(statement, "decorator_list", []))])
            lines = source.splitlines()[first - 1 : statement.end_lineno]
            found.append(
                "\n".join(["\n", *lines, "\n"] if isinstance(statement, (ast.FunctionDef, ast.ClassDef)) else lines)
            )
    return found


def _loaded(statement: ast.stmt, files: Mapping[str, str]) -> tuple[str, str] | None:
    """Return file and name of a statement `NAME = load_name(Path(__file__).with_name("FILE"), "NAME")`, else None."""
    match statement:
        case ast.Assign(
            [ast.Name(own)],
            ast.Call(ast.Name("load_name"), [ast.Call(args=[ast.Constant(str(file))]), ast.Constant(str(name))]),
        ) if own == name and file in files:
            return file, name
    return None


def _of_evokern(statement: ast.ImportFrom) -> bool:
    return statement.level > 0 or (statement.module or "").split(".")[0] == "evokern"


def _bound(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement of a module binds."""
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        yield statement.name
    elif isinstance(statement, (ast.Import, ast.ImportFrom)):
        for one in statement.names:
            yield one.asname or one.name.split(".")[0]
    else:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id


def _names(tree: ast.AST) -> set[str]:
    """Return the names that code reads and does not bind itself."""
    read: set[str] = set()
    own: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else own).add(node.id)
        elif isinstance(node, ast.arg):
            own.add(node.arg)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            own.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            own |= {one.asname or one.name.split(".")[0] for one in node.names}
        elif isinstance(node, ast.ExceptHandler) and node.name:
            own.add(node.name)
    return read - own
