"""Names, types and members of structures in host code."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace

from evokern.cuda_source.host import tree
from evokern.cuda_source.host.frames import DEEPEST, Frame, FunctionValue, HostBuffer, HostLaunch, Pointer, Value
from evokern.cuda_source.host.program import FunctionNode, HostProgram, itself
from evokern.cuda_source.host.tree import Node
from evokern.cuda_source.host.values import Arithmetic, Expr, Name, TypeName


class TypeEvaluator(ABC):
    """Evaluator of names and types.

    Args:
        program: declarations.
        root: host function to evaluate.
        templates: template parameter → value; parameters without one stand for themselves.
    """

    def __init__(self, program: HostProgram, root: FunctionNode, templates: dict[str, Value] | None = None) -> None:
        self.program = program
        self.root = root
        self.launches: list[HostLaunch] = []
        self._templates = templates or {}
        self._steps = 0
        self._depth = 0
        self._file = root.file
        self._conditions: list[Expr] = []
        self._guards: list[Expr] = []
        self._checks: list[Expr] = []
        self._types: dict[str, tuple[str, ...]] = {}
        self._busy: list[FunctionNode] = [root]

        self._extents: dict[str, HostBuffer] = {}
        self._ranks: dict[str, HostBuffer] = {}

    @abstractmethod
    def _evaluate(self, node: Node | None, frame: Frame) -> Value: ...

    def _lookup(self, name: str, frame: Frame) -> Value:
        for scope in frame.chain:
            if name in scope.variables:
                return scope.variables[name]
            if name in scope.templates:
                return scope.templates[name]
            if scope.structure is not None and (made := self._member(scope.structure, name)) is not None:
                return made
        if name in self.program.macros:
            return self._macro(name)
        if name in self.program.constants:
            node = self.program.constants[name]
            value = None if self._depth > DEEPEST else self._deeper(lambda: self._evaluate(node, Frame("")))
            if isinstance(value, int | float | Name | Arithmetic):
                return Name(name, "constant", value)
            return value
        if name in self.program.functions:
            return FunctionValue(name)
        if name in self.program.structures or name in self.program.types:
            return self._type_of_name(name, frame)
        return Name(name, "unknown")

    def _deeper(self, action: Callable[[], Value]) -> Value:
        self._depth += 1
        try:
            return action()
        finally:
            self._depth -= 1

    def _macro(self, name: str) -> Value:
        if self._depth > DEEPEST:
            return Name(name, "macro")
        nodes = tree.expressions(self.program.macros[name].value)
        value = self._deeper(lambda: self._evaluate(nodes[0], Frame(""))) if len(nodes) == 1 else None
        return Name(name, "macro", value if isinstance(value, int | float | Name | Arithmetic) else None)

    def _of_qualified_identifier(self, node: Node, frame: Frame) -> Value:
        scope, name = tree.field(node, "scope"), tree.field(node, "name")
        if name is not None and name.type in ("template_function", "qualified_identifier", "template_type"):
            return self._evaluate(name, frame) if name.type != "template_type" else self._type(name, frame)
        word = tree.text(name)
        if scope is not None:
            owner = self._type(scope, frame)
            if isinstance(owner, TypeName):
                made = self._member(owner, word)
                if made is not None:
                    return made
                if owner.name in frame.templates or owner.name not in self.program.structures:
                    known = frame.templates.get(owner.name)
                    if isinstance(known, TypeName) and known.name == owner.name:
                        return Name(f"{owner}::{word}", "template", scope=frame.function)
        return self._lookup(word, frame)

    def _member(self, owner: TypeName, name: str) -> Value:
        """Return a static member or a type member of a structure; None if it has none."""
        structure = self.program.structures.get(owner.name)
        if structure is None or self._depth > DEEPEST:
            return None
        inner = Frame(owner.name, structure=owner)
        for at, one in enumerate(structure.template):
            if at < len(owner.arguments):
                inner.templates[one.name] = owner.arguments[at]
            elif one.default is not None:
                default = one.default
                inner.templates[one.name] = self._deeper(
                    lambda d=default, k=one.type: self._type(d, inner) if k == "typename" else self._evaluate(d, inner)  # type: ignore[misc]
                )
            else:
                inner.templates[one.name] = itself(one, owner.name)
        if name in inner.templates:
            return inner.templates[name]
        if name in structure.members:
            node = structure.members[name]
            if node is None:
                return Name(f"{owner}::{name}", "constant")
            value = self._deeper(lambda: self._evaluate(node, inner))
            known = isinstance(value, int) and not owner.arguments
            return Name(f"{owner.name}::{name}", "constant", value) if known else value
        if name in structure.types:
            return self._deeper(lambda: self._type(structure.types[name], inner))
        for base in structure.bases:
            made = self._deeper(lambda b=base: self._member(self._type(b, inner), name))  # type: ignore[misc]
            if made is not None:
                return made
        return None

    def _of_template_function(self, node: Node, frame: Frame) -> Value:
        name, arguments = tree.text(tree.field(node, "name")), tree.field(node, "arguments")
        return FunctionValue(name.rpartition("::")[2], self._template_arguments(arguments, frame))

    def _template_arguments(self, node: Node | None, frame: Frame) -> tuple[Value, ...]:
        return tuple(self._type_or_value(one, frame) for one in tree.children(node)) if node is not None else ()

    def _type_or_value(self, node: Node, frame: Frame) -> Value:
        """Return a template argument: a type, or a number that the grammar may take for a type."""
        if node.type == "type_descriptor":
            kind = tree.field(node, "type")
            marks = "".join(c for c in tree.text(tree.field(node, "declarator")) if c in "*&")
            if kind is None:
                return Name(tree.text(node), "unknown")
            value = self._type_or_value(kind, frame)
            if isinstance(value, TypeName):
                const = "const " if tree.text(node).startswith("const ") else ""
                return TypeName(f"{const}{value}{marks}") if marks or const else value
            return value
        if node.type in ("type_identifier", "identifier"):
            value = self._lookup(tree.text(node), frame)
            return TypeName(value.text) if isinstance(value, Name) and value.kind == "unknown" else value
        if node.type in ("primitive_type", "sized_type_specifier", "template_type"):
            return self._type(node, frame)
        if node.type == "qualified_identifier":
            value = self._evaluate(node, frame)
            if isinstance(value, Name) and value.kind == "unknown":
                return TypeName(tree.text(node))
            return value
        if node.type == "dependent_type":
            return self._type(node, frame)
        return self._evaluate(node, frame)

    def _type(self, node: Node, frame: Frame) -> Value:
        kind = node.type
        if kind == "type_descriptor":
            return self._type_or_value(node, frame)
        if kind in ("type_identifier", "identifier", "namespace_identifier"):
            return self._type_of_name(tree.text(node), frame)
        if kind == "template_type":
            name = tree.text(tree.field(node, "name"))
            return TypeName(name, self._template_arguments(tree.field(node, "arguments"), frame))
        if kind == "qualified_identifier":
            name_node, scope = tree.field(node, "name"), tree.field(node, "scope")
            owner = self._type(scope, frame) if scope is not None else None
            if isinstance(owner, TypeName) and name_node is not None:
                made = self._member(owner, tree.text(name_node))
                if isinstance(made, TypeName):
                    return made
            if name_node is not None and name_node.type in ("template_type", "qualified_identifier"):
                inner = self._type(name_node, frame)
                foreign = isinstance(inner, TypeName) and inner.name not in self.program.structures
                return replace(inner, name=f"{tree.text(scope)}::{inner.name}") if foreign else inner
            if name_node is not None and tree.text(name_node) in self.program.structures:
                return TypeName(tree.text(name_node))
            return TypeName(tree.text(node))
        if kind == "dependent_type":
            return self._type(next(iter(tree.children(node))), frame)
        if kind == "decltype":
            value = self._evaluate(next(iter(tree.children(node)), None), frame)
            return TypeName(value.type) if isinstance(value, Pointer) else TypeName(tree.text(node))
        return TypeName(tree.text(node))

    _of_template_type = _type

    def _type_of_name(self, name: str, frame: Frame) -> TypeName:
        for scope in frame.chain:
            value = scope.templates.get(name)
            if isinstance(value, TypeName):
                return value
            if scope.structure is not None and scope.structure.name != name:
                made = self._member(scope.structure, name)
                if isinstance(made, TypeName):
                    return made
        if name in self.program.types and name not in self.program.structures and self._depth <= DEEPEST:
            made = self._deeper(lambda: self._type(self.program.types[name], Frame("")))
            return made if isinstance(made, TypeName) else TypeName(name)
        return TypeName(name)

    def _type_text(self, written: str, frame: Frame) -> str:
        """Return the name of a type that is given as text."""
        bare = re.sub(r"\b(?:const|static|constexpr|struct|typename|volatile)\b|__restrict__|&", " ", written)
        bare = " ".join(bare.split())
        if re.fullmatch(r"\w+", bare):
            return str(self._type_of_name(bare, frame))
        if re.fullmatch(r"\w+::\w+", bare):
            made = self._member(self._type_of_name(bare.partition("::")[0], frame), bare.partition("::")[2])
            return str(made) if isinstance(made, TypeName) else bare
        return bare
