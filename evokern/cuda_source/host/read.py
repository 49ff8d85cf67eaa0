"""Launches of a CUDA program, as its host functions make them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from evokern.cuda_source.host import tree
from evokern.cuda_source.host.evaluate import HostEvaluator
from evokern.cuda_source.host.program import FunctionNode, HostProgram, itself, read_program
from evokern.cuda_source.host.records import HostLaunch
from evokern.cuda_source.host.values import Arithmetic, Expr, Name, TypeName, number, to_python

_LAUNCHING = frozenset(
    ("<<<", "cudaLaunchKernel", "cudaLaunchCooperativeKernel", "cudaLaunchKernelEx", "cudaLaunchKernelExC")
)
_MOST_ROOTS = 200
"""Maximum number of host functions that are evaluated."""


def host_launches(texts: Mapping[str, str]) -> tuple[HostLaunch, ...]:
    """Return the launches in the host code of a program.

    Each launch is returned once for the function that contains it, and once for each function that calls that one. In
    the first, template parameters stand for themselves; of a parameter that is a structure template in all calls, the
    structure's parameters do.

    Args:
        texts: text of each file, by the name in ``#include``; the main file's name is empty.
    """
    program = read_program(texts, lambda text: number(expression(text)))
    roots = _roots(program)
    views = {root: HostEvaluator(program, root).run() for root in roots}
    made: list[HostLaunch] = []
    for root, launches in views.items():
        symbolic = _structures(program, root, [one for others in views.values() for one in others])
        made += HostEvaluator(program, root, symbolic).run() if symbolic else launches
    return tuple(made)


def _roots(program: HostProgram) -> list[FunctionNode]:
    """Return the functions that launch a kernel, directly or through other functions."""
    functions = [one for same in program.functions.values() for one in same if not one.kernel]
    found = [one for one in functions if one.words & _LAUNCHING]
    names = {one.name for one in found}
    while more := [one for one in functions if one not in found and one.words & names]:
        found += more
        names |= {one.name for one in more}
    return found[:_MOST_ROOTS]


def _structures(program: HostProgram, root: FunctionNode, launches: list[HostLaunch]) -> dict[str, TypeName]:
    """Return structure templates with their own parameters, for the template parameters of a function that get them."""
    made: dict[str, TypeName] = {}
    for one in root.template:
        if one.type != "typename":
            continue
        given = [view.bindings.get(one.name) for view in launches if view.function == root.name and not view.own]
        types = {value.name for value in given if isinstance(value, TypeName)}
        structure = program.structures.get(types.pop()) if len(types) == 1 else None
        if structure is not None and structure.template:
            made[one.name] = TypeName(structure.name, tuple(itself(p, structure.name) for p in structure.template))
    return made


def expression(text: str) -> Expr | None:
    """Return the value of a C expression in which all names stand for themselves; None if the text is none."""
    nodes = tree.expressions(text)
    if len(nodes) != 1 or nodes[0].has_error:
        return None
    value = _evaluator(nodes[0]).value(nodes[0])
    return value if isinstance(value, int | float | Name | Arithmetic) else None


def _evaluator(node: tree.Node) -> HostEvaluator:
    """Return an evaluator without declarations."""
    return HostEvaluator(HostProgram(), FunctionNode("", (), (), node, "", 0, False, "", frozenset()))


def translated(
    text: str, names: Mapping[str, str], definitions: Mapping[str, str] = MappingProxyType({})
) -> str | None:
    """Return Python text of a C integer expression; None if a part is unknown.

    Args:
        text: the expression.
        names: C name → Python text.
        definitions: C name → C expression that replaces it.
    """
    made = expression(text)
    inner = {name: body for name, body in definitions.items() if body != text}

    def python(name: Name) -> str | None:
        if name.text in names:
            return names[name.text]
        if name.text in inner:
            rest = {other: body for other, body in inner.items() if other != name.text}
            found = translated(inner[name.text], names, rest)
            return found if found is None or found.isidentifier() or found.isdigit() else f"({found})"
        return None

    return None if made is None else to_python(made, python)


def template_arguments(text: str) -> tuple[Expr | TypeName, ...]:
    """Return template arguments that are written as text, such as `float, 128`."""
    found = [n for n in tree.walk(tree.parse(f"void f() {{ k<{text}>(0); }}")) if n.type == "template_argument_list"]
    values = _evaluator(found[0]).arguments(found[0]) if found else ()
    return tuple(v if isinstance(v, int | Name | Arithmetic | TypeName) else TypeName(text) for v in values)
