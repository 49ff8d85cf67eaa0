"""What each module of the package imports, read from its text: for the tests of the rooms and the picture of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

DOTTED = re.compile(r"evokern(\.\w+)+(:\w+)?")
"""A string that names a module, as worker specifications do: `evokern.compile.pool:CompileWorker`."""


@dataclass(frozen=True)
class Import:
    """One name that a module takes from another module of the package."""

    importer: str
    """Dotted name of the module that imports."""
    line: int
    """Line of the import."""
    module: str
    """Dotted name of the imported module (a package's own module is the package)."""
    name: str
    """What is taken from it; empty for the module itself and for strings."""
    annotation: bool
    """Whether only a type checker sees it (under TYPE_CHECKING)."""


@cache
def tree_of(path: Path) -> ast.Module:
    """Return the syntax tree of a module, read once."""
    return ast.parse(path.read_text(encoding="utf-8"))


def modules_of(package: Path) -> dict[str, Path]:
    """Return dotted name → file of every module of a package folder; a package is named without `__init__`."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = (package.name, *path.relative_to(package).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(package: Path) -> list[Import]:
    """Return every import between modules of a package: at the top, inside functions, by string, for annotations."""
    modules = modules_of(package)
    return [
        Import(importer, line, *_split(target, modules), annotation)
        for importer, path in modules.items()
        for line, target, annotation in _targets(tree_of(path), modules, False)
        if target.split(".")[0] == package.name
    ]


def _targets(tree: ast.AST, modules: Mapping[str, Path], annotation: bool) -> Iterator[tuple[int, str, bool]]:
    """Yield line, dotted name with what is taken from it, and whether only a type checker sees it."""
    for node in ast.iter_child_nodes(tree):
        typing = annotation or (isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"))
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield from ((node.lineno, f"{node.module}.{alias.name}", typing) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, typing) for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and DOTTED.fullmatch(node.value):
            named = node.value.partition(":")[0]
            if named in modules:
                yield node.lineno, named, typing
        yield from _targets(node, modules, typing)


def _split(target: str, modules: Mapping[str, Path]) -> tuple[str, str]:
    """Return the module of a dotted name, and what is left of the name."""
    module, name = target, ""
    while module not in modules and "." in module:
        module, _, last = module.rpartition(".")
        name = f"{last}.{name}".rstrip(".")
    return module, name


def circles(edges: Sequence[tuple[str, str]]) -> list[list[str]]:
    """Return the groups of more than one node that reach each other (Tarjan 1972), each sorted."""
    after: dict[str, list[str]] = {}
    for start, end in edges:
        after.setdefault(start, []).append(end)
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        order[node] = lowest[node] = len(order)
        stack.append(node)
        for following in after.get(node, ()):
            if following not in order:
                visit(following)
                lowest[node] = min(lowest[node], lowest[following])
            elif following in stack:
                lowest[node] = min(lowest[node], order[following])
        if lowest[node] == order[node]:
            group = []
            while not group or group[-1] != node:
                group.append(stack.pop())
            if len(group) > 1:
                found.append(sorted(group))

    for node in list(after):
        if node not in order:
            visit(node)
    return found
