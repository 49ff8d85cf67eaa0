"""Preprocessor directives of a file: definitions, required macros and includes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from evokern.cuda_source.lexer import TokenStream, directive_body

_DEFINE = re.compile(r"([^\W\d]\w*)(\([^)]*\))?\s*(.*)", re.DOTALL)
_WORD = re.compile(r"[^\W\d]\w*")
_STRING = re.compile(r'"(?:\\.|[^"\\])*"')
_INTEGER = re.compile(r"[-+]?\s*(0[xX][0-9a-fA-F']+|0[bB][01']+|[0-9][0-9']*)[uUlLzZ]*")
_INCLUDE = re.compile(r'(?:"([^"]+)"|<([^>]+)>)')


@dataclass(frozen=True, slots=True)
class Definition:
    """A ``#define`` directive."""

    name: str
    """Name of the macro."""
    value: str
    """Replacement with continuation lines joined and comments removed; may be empty."""
    parameters: tuple[str, ...] | None
    """Parameters of a function-like macro; None for an object-like macro."""
    index: int
    """Index of the directive's token."""
    guard: bool
    """Whether the directive is directly inside ``#ifndef`` of the same name, so that ``-D`` can replace it."""


@dataclass(frozen=True, slots=True)
class Directive:
    """An ``#include`` directive."""

    name: str
    """Name of the header."""
    quoted: bool
    """Whether the name is in quotes."""
    index: int
    """Index of the directive's token."""


def definitions(stream: TokenStream) -> tuple[Definition, ...]:
    """Return all ``#define`` directives of a text in order, from every branch."""
    found: list[Definition] = []
    guards: list[str] = []
    for index, token in enumerate(stream.tokens):
        name = token.directive
        if name in ("if", "ifdef", "ifndef"):
            guards.append(guard_name(name, directive_body(token.text)))
        elif name in ("else", "elif") and guards:
            guards[-1] = ""
        elif name == "endif" and guards:
            guards.pop()
        elif name == "define" and (match := _DEFINE.match(directive_body(token.text))):
            macro, parameters, value = match.groups()
            names = None if parameters is None else tuple(_WORD.findall(parameters))
            found.append(Definition(macro, value.strip(), names, index, bool(guards) and guards[-1] == macro))
    return tuple(found)


def guard_name(directive: str, body: str) -> str:
    """Return the macro tested by ``#ifndef NAME`` or ``#if !defined(NAME)``; empty for other conditions."""
    if directive == "ifndef":
        return body.split()[0] if body.split() else ""
    if directive == "if" and (match := re.fullmatch(r"!\s*defined\s*\(?\s*(\w+)\s*\)?", body)):
        return match.group(1)
    return ""


def required(stream: TokenStream) -> dict[str, int]:
    """Return the macros whose absence causes an ``#error``, with the index of the condition's token."""
    found: dict[str, int] = {}
    branches: list[tuple[tuple[str, ...], int]] = []
    for index, token in enumerate(stream.tokens):
        name = token.directive
        if name in ("if", "ifdef", "ifndef"):
            branches.append((_absence(name, directive_body(token.text)), index))
        elif name == "elif" and branches:
            branches[-1] = (_absence("if", directive_body(token.text)), index)
        elif name == "else" and branches:
            branches[-1] = ((), index)
        elif name == "endif" and branches:
            branches.pop()
        elif name == "error" and branches:
            for macro in branches[-1][0]:
                found.setdefault(macro, branches[-1][1])
    return found


def _absence(directive: str, body: str) -> tuple[str, ...]:
    """Return the macros whose absence satisfies a condition (``#ifndef A``, ``#if !defined(A) || !defined(B)``)."""
    if directive == "ifndef":
        return (body.split()[0],) if body.split() else ()
    parts = [guard_name("if", part.strip()) for part in body.split("||")] if directive == "if" else []
    return tuple(parts) if all(parts) else ()


def includes(stream: TokenStream) -> tuple[Directive, ...]:
    """Return all ``#include`` directives with a literal header name."""
    found: list[Directive] = []
    for index, token in enumerate(stream.tokens):
        if token.directive == "include" and (match := _INCLUDE.match(directive_body(token.text))):
            found.append(Directive(match.group(1) or match.group(2), match.group(1) is not None, index))
    return tuple(found)


def integer(text: str) -> int | None:
    """Return the value of an integer literal, which may have a sign, parentheses or a suffix; None for other text."""
    text = text.strip()
    while text.startswith("(") and text.endswith(")"):
        text = text[1:-1].strip()
    match = _INTEGER.fullmatch(text)
    if not match:
        return None
    digits = match.group(1).replace("'", "")
    base = 8 if len(digits) > 1 and digits[0] == "0" and digits[1] not in "xXbB" else 0
    try:
        value = int(digits, base)
    except ValueError:  # invalid octal number, such as 089
        return None
    return -value if text.startswith("-") else value


def words(text: str) -> frozenset[str]:
    """Return the identifiers in a replacement text, without those in strings."""
    return frozenset(_WORD.findall(_STRING.sub(" ", text)))


def macro_words(all_definitions: Iterable[Definition]) -> dict[str, frozenset[str]]:
    """Return a map of each macro to the identifiers in its expansion, including those from nested macros."""
    direct: dict[str, frozenset[str]] = {}
    for definition in all_definitions:
        direct[definition.name] = direct.get(definition.name, frozenset()) | words(definition.value)
    closed: dict[str, frozenset[str]] = {}
    for name in direct:
        seen: set[str] = set()
        waiting = [name]
        while waiting:
            for word in direct[waiting.pop()]:
                if word not in seen:
                    seen.add(word)
                    if word in direct:
                        waiting.append(word)
        closed[name] = frozenset(seen)
    return closed
