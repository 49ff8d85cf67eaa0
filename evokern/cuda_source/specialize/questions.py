"""Search for constant names, and for expressions that select code and that the compiler may evaluate to constants."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from evokern.cuda_source import preprocessor
from evokern.cuda_source.declarations import CppDeclaration
from evokern.cuda_source.source_file import SourceFile
from evokern.cuda_source.specialize.statements import declarators, statement_end, statement_starts

_WORDS = frozenset({
    "bool", "char", "short", "int", "long", "unsigned", "signed", "float", "double", "size_t", "uint", "const",
    "int8_t", "int16_t", "int32_t", "int64_t", "uint8_t", "uint16_t", "uint32_t", "uint64_t",
    "true", "false", "sizeof", "alignof", "static_cast",
})  # fmt: skip
_TYPES = frozenset(("class", "enum", "alias", "typedef", "using"))


@dataclass(frozen=True, slots=True)
class ConstantNames:
    """Names that are constant throughout a text."""

    values: frozenset[str]
    """Constants and types; none of these names is also a variable or parameter."""
    functions: frozenset[str]
    """Names that yield a constant when called with constants: constexpr functions, types, ``sizeof`` and others."""


def constant_names(unit: SourceFile, macros: Mapping[str, str]) -> ConstantNames:
    """Return the names of constants, types and constexpr functions in a text.

    Args:
        unit: the text.
        macros: values of macros defined by ``-D``.
    """
    tokens = unit.stream.tokens
    constant, variable = set(_WORDS), set(_parameters(unit))
    constexpr, other = set(_WORDS), {d.name for d in unit.definitions if d.parameters is not None}
    for leaf in declarations_within(unit):
        if leaf.kind in _TYPES:
            constant |= set(leaf.names)
        elif leaf.kind == "function":
            kind = constexpr if any(tokens[i].text == "constexpr" for i in leaf.head) else other
            kind |= set(leaf.names)
    constant |= set(_template_parameters(unit))
    for start in statement_starts(unit.stream):
        for name, _, _ in declarators(unit.stream, start, statement_end(unit.stream, start)):
            kind = constant if "constexpr" in {token.text for token in tokens[start:name]} else variable
            kind.add(tokens[name].text)
    values = dict(macros) | {d.name: d.value for d in unit.definitions if d.parameters is None}
    constant -= variable
    while found := {n for n in values.keys() - constant - variable if preprocessor.words(values[n]) <= constant}:
        constant |= found
    return ConstantNames(frozenset(constant), frozenset((constexpr | constant) - other))


def declarations_within(unit: SourceFile) -> Iterator[CppDeclaration]:
    """Yield the declarations of a text at file and namespace scope, and the members of its classes."""

    def with_members(leaf: CppDeclaration) -> Iterator[CppDeclaration]:
        yield leaf
        for member in leaf.members:
            yield from with_members(member)

    for leaf in unit.leaves:
        yield from with_members(leaf)


def _parameters(unit: SourceFile) -> Iterator[str]:
    """Yield the parameter names of functions and lambdas."""
    partner = unit.stream.partner
    brackets = [leaf.parameters for leaf in declarations_within(unit) if leaf.parameters]
    tokens = unit.stream.tokens
    lambdas = [i + 1 for i, token in enumerate(tokens[:-1]) if token.text == "]" and tokens[i + 1].text == "("]
    for opener, close in (*brackets, *((opener, partner[opener]) for opener in lambdas)):
        yield from _names(unit, opener + 1, close - 1)


def _template_parameters(unit: SourceFile) -> Iterator[str]:
    tokens = unit.stream.tokens
    for index, token in enumerate(tokens[:-1]):
        if token.text == "template" and tokens[index + 1].text == "<":
            behind = unit.stream.skip_angles(index + 1, len(tokens))
            if behind is not None:
                yield from _names(unit, index + 2, behind - 2)


def _names(unit: SourceFile, first: int, last: int) -> Iterator[str]:
    """Yield the name declared by each part of a parameter list: the last word before ``=`` or ``[``."""
    tokens = unit.stream.tokens
    for begin, end in unit.stream.split_commas(first, last):
        words = []
        for index in range(begin, end + 1):
            if tokens[index].text in ("=", "["):
                break
            if tokens[index].kind == "word":
                words.append(tokens[index].text)
        yield from words[-1:]
        if any(tokens[i].text == "(" for i in range(begin, end + 1)):  # T (&name)[N]
            yield from words


_CHOOSING = frozenset(("==", "!=", "<", ">", "<=", ">=", "&&", "||", "?", "!"))

MUST_BE_CONSTANT = frozenset(("condition", "assertion"))
"""Kinds of questions about expressions that must be constants by the rules of C++."""


@dataclass(frozen=True, slots=True)
class Question:
    """Expression whose value decides which code is kept."""

    kind: str
    """``condition`` of an ``if constexpr``, ``assertion``, ``value`` (written out if known) or ``choice`` (the
    condition before a ``?``)."""
    first: int
    """Index of the expression's first token."""
    last: int
    """Index of the expression's last token."""
    sides: tuple[tuple[int, int], ...] = ()
    """First and last token of the expressions before and after the ``:`` of a choice."""


def questions(unit: SourceFile, macros: Mapping[str, str]) -> list[Question]:
    """Return the expressions to evaluate in a text.

    These are:

    - the conditions of ``if constexpr`` and ``static_assert``;
    - initialisers of constexpr variables and array bounds that contain a comparison or a choice;
    - calls of the text's constexpr functions and members of its constexpr variables;
    - the condition of ``A ? b : c`` if it is a whole initialiser or a whole returned expression.

    If the language does not require a constant, the expression must contain only names of constants. Sums and products
    of names are not evaluated, because they show the origin of a number.

    Args:
        unit: the text.
        macros: values of macros defined by ``-D``.
    """
    return list(_Finder(unit, constant_names(unit, macros)).run())


class _Finder:
    def __init__(self, unit: SourceFile, names: ConstantNames) -> None:
        self.unit = unit
        self.stream = unit.stream
        self.tokens = unit.stream.tokens
        self.partner = unit.stream.partner
        self.names = names
        self.heads = {leaf.name_index for leaf in declarations_within(unit) if leaf.kind == "function"}

    def run(self) -> Iterator[Question]:
        starts = statement_starts(self.stream)
        index = 0
        while index < len(self.tokens):
            text = self.tokens[index].text
            if text in ("static_assert", "_Static_assert") and (parts := self.unit.arguments(index + 1)):
                yield Question("assertion", *parts[0])
                index = self.partner[index + 1]
            elif text == "if" and self._text(index + 1) == "constexpr" and self._text(index + 2) == "(":
                yield from self._condition(index + 2)
            elif text == "return":
                yield from self._choice(index + 1, statement_end(self.stream, index + 1))
            elif text == "[" and self._chooses(index + 1, self.partner[index] - 1, frozenset("?")):
                yield from self._value(index + 1, self.partner[index] - 1)
                yield from self._choice(index + 1, self.partner[index] - 1)
            elif self.tokens[index].kind == "word":
                if index in starts:
                    yield from self._initialisers(index)
                yield from self._named(index)
            index += 1

    def _text(self, index: int) -> str:
        return self.tokens[index].text if index < len(self.tokens) else ""

    def _condition(self, opener: int) -> Iterator[Question]:
        first, last = opener + 1, self.partner[opener] - 1
        first = max([first, *(i + 1 for i in range(first, last) if self.tokens[i].text == ";")])
        if self._repeatable(first, last):
            yield Question("condition", first, last)

    def _initialisers(self, start: int) -> Iterator[Question]:
        """Yield the questions about the initialisers in a statement."""
        for name, first, last in declarators(self.stream, start, statement_end(self.stream, start)):
            if first > last or self.tokens[first].text == "{":
                continue
            constant = "constexpr" in {token.text for token in self.tokens[start:name]}
            if constant and self._repeatable(first, last) and self._chooses(first, last, _CHOOSING):
                yield Question("value", first, last)
            yield from self._choice(first, last)

    def _choice(self, first: int, last: int) -> Iterator[Question]:
        """Yield the question about a ``?`` expression, and about its sides if they are ``?`` expressions too."""
        query = first
        while query <= last and self.tokens[query].text != "?":
            query = self.partner.get(query, query) + 1
        colon = self._colon(query + 1, last)
        if colon is not None and self._certain(first, query - 1) and self._repeatable(first, last):
            sides = ((query + 1, colon - 1), (colon + 1, last))
            yield Question("choice", first, query - 1, sides)
            for side in sides:
                yield from self._choice(*side)

    def _colon(self, index: int, last: int) -> int | None:
        """Return the index of the ``:`` that belongs to the ``?`` before ``index``."""
        depth = 0
        while index <= last:
            text = self.tokens[index].text
            if text == ":" and depth == 0:
                return index
            depth += {"?": 1, ":": -1}.get(text, 0)
            index = self.partner.get(index, index) + 1
        return None

    def _named(self, index: int) -> Iterator[Question]:
        """Yield the question about ``function(...)`` or ``variable.member``."""
        text, following = self.tokens[index].text, self._text(index + 1)
        if index in self.heads or (index and self.tokens[index - 1].text in (".", "->", "::")):
            return
        if text in self.names.functions and following == "(":
            yield from self._value(index, self.partner[index + 1])
        elif text in self.names.values and following == "." and self._text(index + 3) not in ("(", ".", "["):
            yield from self._value(index, index + 2)

    def _value(self, first: int, last: int) -> Iterator[Question]:
        if self._certain(first, last):
            yield Question("value", first, last)

    def _chooses(self, first: int, last: int, operators: frozenset[str]) -> bool:
        return any(token.text in operators for token in self.tokens[first : last + 1])

    def _certain(self, first: int, last: int) -> bool:
        """Return whether an expression contains only names of constants."""
        for index in range(first, last + 1):
            if self.tokens[index].kind == "word" and (index == first or self.tokens[index - 1].text != "."):
                known = self.names.functions if self._text(index + 1) == "(" else self.names.values
                if self.tokens[index].text not in known:
                    return False
        return self._repeatable(first, last)

    def _repeatable(self, first: int, last: int) -> bool:
        """Return whether an expression can be duplicated: complete, and without lambdas or preprocessor lines."""
        inside = self.tokens[first : last + 1]
        return bool(inside) and not any(t.kind == "directive" or t.text in ("{", "}", ";") for t in inside)
