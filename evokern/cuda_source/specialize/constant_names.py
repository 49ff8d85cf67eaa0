"""Search for names that are constant throughout a text and that the compiler can therefore evaluate."""

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
