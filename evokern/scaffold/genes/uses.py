"""Uses of names in device code: conditions, array extents, comparisons and arithmetic."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from evokern.cuda_source.host import tree
from evokern.cuda_source.host.tree import Node

_LOGIC = frozenset({"&&", "||"})
_EQUALITY = frozenset({"==", "!="})
_ORDER = frozenset({"<", "<=", ">", ">="})
_CONDITIONAL = frozenset({
    "if_statement", "while_statement", "conditional_expression", "preproc_if", "preproc_elif", "switch_statement",
})  # fmt: skip
_IDENTIFIERS = frozenset({"identifier", "type_identifier"})


@dataclass
class Uses:
    """Uses of one name."""

    kinds: set[str] = field(default_factory=set)
    """`condition`, `extent` (of an array), `bound` (compared), `assertion`, `launch` (bounds), `other`."""
    compared: set[int] = field(default_factory=set)
    """Numbers with which conditions compare the name for equality."""


@dataclass(frozen=True)
class DeviceUses:
    """Uses of all names in device code, and what its assertions require."""

    names: Mapping[str, Uses]
    """Name → uses; a definition is none."""
    assertions: tuple[str, ...]
    """Conditions of the `static_assert`s, divided at `&&`."""
    bodies: Mapping[str, str]
    """Macro without parameters → its replacement."""
    template_parameters: frozenset[str]
    """Names of template parameters that are numbers."""


def device_uses(text: str) -> DeviceUses:
    """Return the uses of the names in device code.

    Args:
        text: device code.
    """
    names: dict[str, Uses] = defaultdict(Uses)
    assertions: list[str] = []
    bodies: dict[str, str] = {}
    parameters: set[str] = set()
    for node in tree.walk(tree.parse(text)):
        if node.type in _IDENTIFIERS:
            _add(names, node)
        elif node.type == "preproc_arg":
            definition = node.parent
            for word in tree.walk(tree.parse(f"void f() {{ g({_code(node)}); }}")):
                if word.type in _IDENTIFIERS:
                    _add(names, word)
            if definition is not None and definition.type == "preproc_def":
                bodies[tree.text(tree.field(definition, "name"))] = _code(node)
        elif node.type == "static_assert_declaration":
            condition = tree.field(node, "condition")
            assertions += map(tree.text, tree.conjuncts(condition)) if condition is not None else ()
        elif node.type == "template_parameter_list":
            parameters |= {tree.text(tree.field(one, "declarator")) for one in tree.children(node)}
    return DeviceUses(names, tuple(assertions), bodies, frozenset(parameters))


def _code(node: Node) -> str:
    """Return the replacement of a macro without comments, which the grammar leaves in it."""
    words = tree.text(node)
    return words.partition("//")[0].partition("/*")[0].replace("\\ ", " ").strip()


def _add(names: dict[str, Uses], node: Node) -> None:
    kind, number = _kind(node)
    if kind:
        name = tree.text(node)
        names[name].kinds.add(kind)
        if number is not None:
            names[name].compared.add(number)


def _kind(node: Node) -> tuple[str, int | None]:
    """Return the kind of use of an identifier, and the number with which a condition compares it."""
    number: int | None = None
    compared = False
    child, parent = node, node.parent
    if parent is None or _is_definition(node, parent):
        return "", None
    while parent is not None:
        operator = tree.text(tree.field(parent, "operator"))
        if parent.type == "binary_expression" and operator in _EQUALITY and child is node and number is None:
            other = tree.field(parent, "right") if tree.field(parent, "left") == node else tree.field(parent, "left")
            number = int(tree.text(other)) if other is not None and tree.text(other).isdigit() else None
            compared = True
            if number is None:
                break
        elif parent.type == "binary_expression" and operator in _ORDER:
            compared = True
            if not _in_directive(parent):
                break
        elif parent.type in ("parenthesized_expression", "condition_clause", "preproc_defined") or (
            parent.type in ("binary_expression", "unary_expression") and operator in (*_LOGIC, "!")
        ):
            pass
        else:
            break
        child, parent = parent, parent.parent
    if parent is not None and parent.type in _CONDITIONAL and tree.field(parent, "condition") == child:
        return "condition", number
    for outer in tree.above(node):
        if outer.type in ("compound_statement", "translation_unit", "declaration"):
            break
        if outer.type == "static_assert_declaration":
            return "assertion", None
        if outer.type == "launch_bounds":
            return "launch", None
        size = tree.field(outer, "size") if outer.type == "array_declarator" else None
        if size is not None and size.start_byte <= node.start_byte and node.end_byte <= size.end_byte:
            return "extent", None
    return ("bound", None) if compared else ("other", None)


def _is_definition(node: Node, parent: Node) -> bool:
    if parent.type in ("preproc_def", "preproc_function_def", "preproc_ifdef", "preproc_undef", "preproc_defined"):
        return True
    return parent.type in ("init_declarator", "enumerator") and node in (
        tree.field(parent, "declarator"), tree.field(parent, "name")
    )  # fmt: skip


def _in_directive(node: Node) -> bool:
    inner = ("binary_expression", "parenthesized_expression", "unary_expression")
    outer = next((one for one in tree.above(node) if one.type not in inner), None)
    return outer is not None and outer.type in ("preproc_if", "preproc_elif")
