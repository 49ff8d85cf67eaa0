"""Declarations of a program that its host code uses: functions, structures, types, constants and macros."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from evokern.cuda_source.host import tree
from evokern.cuda_source.host.text import Preprocessor
from evokern.cuda_source.host.tree import Node
from evokern.cuda_source.host.values import Name, TypeName
from evokern.cuda_source.preprocessor import Definition

_PARAMETERS = ("parameter_declaration", "optional_parameter_declaration", "variadic_parameter_declaration")
_TYPE_PARAMETERS = (
    "type_parameter_declaration", "optional_type_parameter_declaration", "template_template_parameter_declaration",
)  # fmt: skip


@dataclass(frozen=True)
class ParameterNode:
    """A parameter of a function or template."""

    name: str
    type: str
    """Type as written, with `*` and `&`; `typename` for a template parameter that is a type."""
    default: Node | None


def itself(parameter: ParameterNode, scope: str) -> TypeName | Name:
    """Return the value of a template parameter that stands for itself."""
    is_type = parameter.type == "typename"
    return TypeName(parameter.name) if is_type else Name(parameter.name, "template", scope=scope)


@dataclass(frozen=True, eq=False)
class FunctionNode:
    """A function with a body."""

    name: str
    parameters: tuple[ParameterNode, ...]
    template: tuple[ParameterNode, ...]
    body: Node
    file: str
    line: int
    kernel: bool
    """Whether it is a `__global__` function."""
    structure: str
    """Structure that contains it; empty for a free function."""
    words: frozenset[str]
    """Identifiers in the body."""


@dataclass(frozen=True, eq=False)
class Structure:
    """A structure or class with a body."""

    name: str
    template: tuple[ParameterNode, ...]
    bases: tuple[Node, ...]
    members: Mapping[str, Node | None]
    """Static member or enumerator → its value; None for a value that follows the previous enumerator."""
    types: Mapping[str, Node]
    """Type member → the type."""


@dataclass
class HostProgram:
    """Declarations of a file and its headers."""

    functions: dict[str, list[FunctionNode]] = field(default_factory=dict)
    structures: dict[str, Structure] = field(default_factory=dict)
    types: dict[str, Node] = field(default_factory=dict)
    constants: dict[str, Node] = field(default_factory=dict)
    macros: dict[str, Definition] = field(default_factory=dict)


def read_program(texts: Mapping[str, str], truth: Callable[[str], int | None]) -> HostProgram:
    """Parse a program.

    Args:
        texts: text of each file, by the name in ``#include``; the main file's name is empty.
        truth: returns the value of a preprocessor condition without macros, or None if it is unknown.
    """
    preprocessor = Preprocessor(texts, truth)
    preprocessor.run()
    made = HostProgram()
    for file, text in preprocessor.ready.items():
        _declarations(made, tree.parse(text), file, (), "")
    made.macros = {name: macro for name, macro in preprocessor.macros.items() if preprocessor.numeric(name)}
    return made


def _declarations(
    made: HostProgram, node: Node, file: str, template: tuple[ParameterNode, ...], structure: str
) -> None:
    for child in tree.children(node):
        kind = child.type
        if kind == "template_declaration":
            listed = tree.field(child, "parameters")
            _declarations(made, child, file, template_parameters(listed) if listed else (), structure)
        elif kind == "function_definition":
            _function(made, child, file, template, structure)
        elif kind in ("struct_specifier", "class_specifier"):
            _structure(made, child, file, template)
        elif kind == "enum_specifier":
            made.constants |= {k: v for k, v in _enumerators(child).items() if v is not None}
        elif kind in ("alias_declaration", "type_definition"):
            made.types |= _alias(child)
            _declarations(made, child, file, template, structure)
        elif kind == "declaration":
            head = tree.text(child)[:200]
            if "const" in head or structure == "":
                for name, value in _initialised(child):
                    if re.search(r"\bconst(expr)?\b", head):
                        made.constants[name] = value
            _declarations(made, child, file, template, structure)
        elif kind in ("namespace_definition", "linkage_specification", "declaration_list", "field_declaration_list",
                      "ERROR", "translation_unit", "field_declaration", "friend_declaration"):  # fmt: skip
            _declarations(made, child, file, template if kind == "ERROR" else (), structure)


def template_parameters(node: Node) -> tuple[ParameterNode, ...]:
    """Return the parameters of a template."""
    made = []
    for one in tree.children(node):
        if one.type in _TYPE_PARAMETERS:
            name = next((tree.text(c) for c in tree.children(one) if c.type == "type_identifier"), "")
            made.append(ParameterNode(name, "typename", tree.field(one, "default_type")))
        elif one.type in _PARAMETERS:
            name = declared_name(tree.field(one, "declarator"))
            made.append(ParameterNode(name, tree.text(tree.field(one, "type")), tree.field(one, "default_value")))
    return tuple(made)


def declared_name(node: Node | None) -> str:
    """Return the name that a declarator declares; empty if it has none."""
    while node is not None:
        if node.type in ("identifier", "field_identifier", "type_identifier", "qualified_identifier", "operator_name"):
            return tree.text(node).rpartition("::")[2]
        inner = tree.field(node, "declarator")
        node = inner if inner is not None else next(iter(tree.children(node)), None)
    return ""


def function_parameters(node: Node | None) -> tuple[ParameterNode, ...]:
    """Return the parameters in a parameter list."""
    made = []
    for one in tree.children(node) if node is not None else ():
        if one.type not in _PARAMETERS:
            continue
        declarator = tree.field(one, "declarator")
        marks = "".join(c for c in tree.text(declarator) if c in "*&[") if declarator is not None else ""
        head = tree.text(tree.field(one, "type"))
        const = any(c.type == "type_qualifier" and tree.text(c) == "const" for c in tree.children(one))
        kind = f"{'const ' if const else ''}{head}{marks.replace('[', '*')}"
        made.append(ParameterNode(declared_name(declarator), kind, tree.field(one, "default_value")))
    return tuple(made)


def _function(made: HostProgram, node: Node, file: str, template: tuple[ParameterNode, ...], structure: str) -> None:
    body, declarator = tree.field(node, "body"), tree.field(node, "declarator")
    while declarator is not None and declarator.type != "function_declarator":
        inner = tree.field(declarator, "declarator")
        declarator = (
            inner if inner is not None else next((c for c in tree.children(declarator) if "declarator" in c.type), None)
        )
    if body is None or declarator is None:
        return
    whole = tree.field(declarator, "declarator")
    name = declared_name(whole)
    scope = tree.text(whole).rpartition("::")[0].rpartition("::")[2]
    head = (node.text or b"")[: body.start_byte - node.start_byte].decode()
    words = frozenset(
        tree.text(c) for c in tree.walk(body) if c.type in ("identifier", "type_identifier", "field_identifier")
    )
    launches = any(c.type == "kernel_call_syntax" for c in tree.walk(body))
    function = FunctionNode(
        name, function_parameters(tree.field(declarator, "parameters")), template, body, file, tree.line(node),
        "__global__" in head, structure or scope, words | ({"<<<"} if launches else frozenset()),
    )  # fmt: skip
    made.functions.setdefault(name, []).append(function)


def _structure(made: HostProgram, node: Node, file: str, template: tuple[ParameterNode, ...]) -> None:
    name, body = tree.field(node, "name"), tree.field(node, "body")
    if body is None:
        return
    members: dict[str, Node | None] = {}
    types: dict[str, Node] = {}
    for child in tree.children(body):
        if child.type == "field_declaration":
            members |= dict(_initialised(child))
            for inner in tree.children(child):
                if inner.type == "enum_specifier":
                    members |= _enumerators(inner)
        elif child.type == "enum_specifier":
            members |= _enumerators(child)
        elif child.type in ("alias_declaration", "type_definition"):
            types |= _alias(child)
    bases = tuple(
        c for clause in tree.children(node) if clause.type == "base_class_clause"
        for c in tree.children(clause) if "type" in c.type or c.type == "qualified_identifier"
    )  # fmt: skip
    if name is not None and name.type == "type_identifier":
        made.structures[tree.text(name)] = Structure(tree.text(name), template, bases, members, types)
    _declarations(made, body, file, (), tree.text(name))


def _enumerators(node: Node) -> dict[str, Node | None]:
    return {
        tree.text(tree.field(one, "name")): tree.field(one, "value")
        for one in tree.walk(node) if one.type == "enumerator"
    }  # fmt: skip


def _alias(node: Node) -> dict[str, Node]:
    kind = tree.field(node, "type")
    if kind is None:
        return {}
    if node.type == "alias_declaration":
        return {tree.text(tree.field(node, "name")): kind}
    return {declared_name(one): kind for one in node.children_by_field_name("declarator")}


def _initialised(node: Node) -> Iterator[tuple[str, Node]]:
    """Yield the variables of a declaration that have a value."""
    declarators = node.children_by_field_name("declarator")
    values = node.children_by_field_name("default_value")
    for one in declarators:
        value = tree.field(one, "value") if one.type == "init_declarator" else None
        if value is None:
            value = next((v for v in values if v.start_byte > one.end_byte - 1), None)
        if value is not None and "array" not in one.type:
            yield declared_name(one), value
