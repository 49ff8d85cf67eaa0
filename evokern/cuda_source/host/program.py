"""Declarations of a program that its host code uses: functions, structures, types, constants and macros.

For the parser, inactive branches become blank, and macros that are not numbers expand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from evokern.cuda_source import preprocessor
from evokern.cuda_source.host import tree
from evokern.cuda_source.host.tree import Node
from evokern.cuda_source.host.values import Name, TypeName
from evokern.cuda_source.lexer import Token, TokenStream, directive_body
from evokern.cuda_source.preprocessor import Definition

_DEFINED = {"__CUDACC__": "1", "__cplusplus": "201703", "__NVCC__": "1", "CUDART_VERSION": "12040",
            "CUDA_VERSION": "12040", "__CUDACC_VER_MAJOR__": "12", "__CUDACC_VER_MINOR__": "4"}  # fmt: skip
"""Macros of the compiler in host code."""
_NUMERIC = re.compile(r"(?:\(|\)|\s|[-+*/%<>&|^~!?:]|\d[\w.']*|[A-Za-z_]\w*)+")
_TYPES = frozenset(("float", "double", "half", "int", "unsigned", "char", "void", "const", "auto", "static", "inline",
                    "struct", "long", "short", "bool", "return", "__restrict__", "__half", "typename"))  # fmt: skip
_DEEPEST = 12


class Preprocessor:
    """Preprocessor of a program's files.

    Args:
        texts: text of each file, by the name in ``#include``; the main file's name is empty.
        truth: returns the value of a condition without macros, or None if it is not known.
    """

    def __init__(self, texts: Mapping[str, str], truth: Callable[[str], int | None]) -> None:
        self._texts = texts
        self._truth = truth
        self.macros: dict[str, preprocessor.Definition] = {}
        self.ready: dict[str, str] = {}
        """Name of a file → its text for the parser, headers before the files that include them."""

    def run(self, file: str = "") -> None:
        """Preprocess a file and the headers that it includes."""
        stream = TokenStream(self._texts[file])
        pieces: list[str] = []
        active: list[list[bool]] = []  # for each open conditional: whether this branch is active, whether one was
        position = index = 0
        tokens, ends = stream.tokens, _statement_ends(stream)
        while index < len(tokens):
            token = tokens[index]
            pieces.append(_blank(stream.text[position : token.start]))
            position, end = token.end, index
            if token.kind == "directive":
                self._directive(token, active)
                pieces.append(_blank(token.text))
            elif all(branch[0] for branch in active):
                before = [one.text for one in tokens[max(0, index - 3) : max(0, index - 1)]]
                if token.text == "{" and "dim3" in before and tokens[index - 1].kind == "word":
                    pieces.append("=")  # the grammar takes `dim3 grid{unsigned(n)}` for a function
                text, end = self._expanded(stream, index, frozenset(), 0)
                original = stream.text[token.start : tokens[end].end]
                pieces.append(text + "\n" * (original.count("\n") - text.count("\n")) if end > index else text)
            else:
                pieces.append(_blank(token.text))
            if end in ends and not pieces[-1].rstrip().endswith((";", "}")):
                pieces.append(";")
            position, index = tokens[end].end, end + 1
        self.ready[file] = "".join([*pieces, _blank(stream.text[position:])])

    def _directive(self, token: Token, active: list[list[bool]]) -> None:
        name, body = token.directive, directive_body(token.text)
        if name in ("if", "ifdef", "ifndef"):
            holds = self._holds(name, body) if all(branch[0] for branch in active) else False
            active.append([holds, holds])
        elif name in ("elif", "else") and active:
            holds = not active[-1][1] and (name == "else" or self._holds("if", body))
            active[-1] = [holds, holds or active[-1][1]]
        elif name == "endif" and active:
            active.pop()
        elif not all(branch[0] for branch in active):
            return
        elif made := preprocessor.definition(token):
            self.macros[made.name] = made
        elif name == "undef" and body.split():
            self.macros.pop(body.split()[0], None)
        elif name == "include":
            for found in preprocessor.includes(TokenStream(token.text)):
                if found.name in self._texts and found.name not in self.ready:
                    self.ready[found.name] = ""
                    self.run(found.name)

    def _holds(self, name: str, body: str) -> bool:
        word = body.split()[0] if body.split() else ""
        if name in ("ifdef", "ifndef"):
            return (word in self.macros or word in _DEFINED) == (name == "ifdef")
        defined = re.compile(r"\bdefined\s*(?:\(\s*(\w+)\s*\)|(\w+))")
        text = defined.sub(lambda m: str(int((m[1] or m[2]) in self.macros or (m[1] or m[2]) in _DEFINED)), body)
        for _ in range(_DEEPEST):
            text = re.sub(r"[A-Za-z_]\w*(\s*\([^()]*\))?", self._number, text)
        return bool(self._truth(text))

    def _number(self, found: re.Match[str]) -> str:
        word = re.match(r"\w+", found[0])
        name = word[0] if word else ""
        macro = self.macros.get(name)
        if macro is not None and macro.parameters is None:
            return f"({macro.value or '1'}){found[1] or ''}"
        return _DEFINED.get(name, "0")

    def numeric(self, name: str, within: AbstractSet[str] = frozenset()) -> bool:
        """Return whether a macro stands for a number, so that its name stays in the text.

        Args:
            name: name of the macro.
            within: macros that are being defined.
        """
        macro, inner = self.macros[name], within | {name}
        if macro.parameters is not None or not macro.value or not _NUMERIC.fullmatch(macro.value):
            return False
        words = preprocessor.words(re.sub(r"\d[\w.']*", " ", macro.value))
        return not words & _TYPES and all(w in self.macros and w not in inner and self.numeric(w, inner) for w in words)

    def _expanded(self, stream: TokenStream, index: int, busy: AbstractSet[str], depth: int) -> tuple[str, int]:
        """Return the text of a token or macro call, and the index of its last token."""
        token = stream.tokens[index]
        macro = self.macros.get(token.text) if token.kind == "word" else None
        if macro is None or token.text in busy or depth > _DEEPEST:
            return token.text, index
        inner = busy | {token.text}
        if macro.parameters is None:
            return (token.text if self.numeric(token.text) else self._again(macro.value, inner, depth)), index
        if index + 1 >= len(stream.tokens) or stream.tokens[index + 1].text != "(":
            return token.text, index
        close = stream.partner[index + 1]
        given = [stream.text[stream.tokens[a].start : stream.tokens[b].end] if b >= a else ""
                 for a, b in _commas(stream, index + 2, close - 1)]  # fmt: skip
        given = [self._again(" ".join(one.split("\n")), busy, depth) for one in given]
        return self._again(_replaced(macro, given), inner, depth), close

    def _again(self, text: str, busy: AbstractSet[str], depth: int) -> str:
        stream = TokenStream(text.replace("\\\n", " "))
        pieces, index = [], 0
        while index < len(stream.tokens):
            made, end = self._expanded(stream, index, busy, depth + 1)
            pieces.append(made)
            index = end + 1
        return " ".join(pieces)


def _commas(stream: TokenStream, first: int, last: int) -> list[tuple[int, int]]:
    """Split a macro's arguments at commas outside round brackets, as the preprocessor does."""
    parts, begin, index = [], first, first
    while index <= last:
        if stream.tokens[index].text == "(":
            index = stream.partner[index]
        elif stream.tokens[index].text == ",":
            parts.append((begin, index - 1))
            begin = index + 1
        index += 1
    return [*parts, (begin, last)]


def _replaced(macro: preprocessor.Definition, given: list[str]) -> str:
    names = list(macro.parameters or ())
    values: dict[str, str] = {}
    if names and names[-1].endswith("..."):
        rest = given[len(names) - 1 :]
        values[names[-1].removesuffix("...") or "__VA_ARGS__"] = ", ".join(rest)
        names = names[:-1]
    values |= dict(zip(names, given, strict=False))
    body = re.sub(r"(?<!#)#\s*(\w+)", lambda m: '"' + values.get(m[1], m[1]).replace('"', "'") + '"', macro.value)
    pieces = re.split(r'("(?:\\.|[^"\\])*"|[A-Za-z_]\w*)', body)
    return re.sub(r"\s*##\s*", "", "".join(values.get(piece, piece) for piece in pieces))


def _statement_ends(stream: TokenStream) -> AbstractSet[int]:
    """Return the indices of the brackets that end a macro call on a line of its own without a semicolon."""
    tokens, found = stream.tokens, set()
    for index, token in enumerate(tokens[:-2]):
        if token.kind != "word" or not token.text.isupper() or tokens[index + 1].text != "(":
            continue
        if index and tokens[index - 1].text not in (";", "{", "}", ")") and tokens[index - 1].kind != "directive":
            continue
        last = stream.partner[index + 1]
        after = tokens[last + 1] if last + 1 < len(tokens) else token
        if after.kind == "word" and "\n" in stream.text[tokens[last].end : after.start]:
            found.add(last)
    return found


def _blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


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
