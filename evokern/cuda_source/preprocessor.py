"""Preprocessor directives of a file: definitions, required macros and includes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from evokern.cuda_source.lexer import Token, TokenStream, directive_body

_T = TypeVar("_T")

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
    """Parameters of a function-like macro, perhaps with ``...`` at the end; None for an object-like macro."""
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


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch of a conditional."""

    opener: int
    """Index of the conditional's `#if`."""
    number: int
    """Number of the branch, counted from 0."""
    directive: int
    """Index of the directive that starts the branch."""


def nested(stream: TokenStream) -> Iterator[tuple[int, Token, tuple[Branch, ...]]]:
    """Yield each token with its index and the branches around it, outermost first.

    A directive of a conditional is outside of the branches of this conditional.
    """
    around: tuple[Branch, ...] = ()
    for index, token in enumerate(stream.tokens):
        name, ended = token.directive, around[-1:]
        if name in ("elif", "else", "endif"):
            around = around[:-1]
        yield index, token, around
        if name in ("if", "ifdef", "ifndef"):
            around += (Branch(index, 0, index),)
        elif name in ("elif", "else") and ended:
            around += (Branch(ended[0].opener, ended[0].number + 1, index),)


def definition(token: Token, index: int = 0, guarded: str = "") -> Definition | None:
    """Return the definition of a ``#define`` directive; None for other tokens.

    Args:
        token: the directive.
        index: its index.
        guarded: macro that the ``#ifndef`` directly around it tests.
    """
    match = _DEFINE.match(directive_body(token.text)) if token.directive == "define" else None
    if match is None:
        return None
    macro, given, value = match.groups()
    names = None if given is None else tuple(part.strip() for part in given[1:-1].split(",") if part.strip())
    return Definition(macro, value.strip(), names, index, guarded == macro)


def definitions(stream: TokenStream) -> tuple[Definition, ...]:
    """Return all ``#define`` directives of a text in order, from every branch."""
    found = []
    for index, token, around in nested(stream):
        guarded = ""
        if token.directive == "define" and around and around[-1].number == 0:
            opener = stream.tokens[around[-1].opener]
            guarded = guard_name(opener.directive, directive_body(opener.text))
        found.append(definition(token, index, guarded))
    return tuple(one for one in found if one is not None)


def guard_name(directive: str, body: str) -> str:
    """Return the macro tested by ``#ifndef NAME`` or ``#if !defined(NAME)``; empty for other conditions."""
    if directive == "ifndef":
        return body.split()[0] if body.split() else ""
    if directive == "if" and (match := re.fullmatch(r"!\s*defined\s*\(?\s*(\w+)\s*\)?", body)):
        return match.group(1)
    return ""


def include_guard(stream: TokenStream) -> str:
    """Return the macro whose absence the whole text requires, as an include guard does; empty if there is none."""
    tokens = stream.tokens
    if len(tokens) < 3 or tokens[-1].directive != "endif" or (made := definition(tokens[1])) is None:
        return ""
    knob = made.value and len(tokens) == 3  # the default of a macro, and nothing else
    guards = guard_name(tokens[0].directive, directive_body(tokens[0].text)) == made.name
    enclosed = all(around and around[0].opener == 0 for _, _, around in [*nested(stream)][1:-1])
    return made.name if guards and enclosed and not knob else ""


def required(stream: TokenStream) -> dict[str, int]:
    """Return the macros whose absence causes an ``#error``, with the index of the condition's token."""
    found: dict[str, int] = {}
    for _, token, around in nested(stream):
        if token.directive == "error" and around:
            index = around[-1].directive
            condition = stream.tokens[index]
            for macro in _absence(condition.directive, directive_body(condition.text)):
                found.setdefault(macro, index)
    return found


def _absence(directive: str, body: str) -> tuple[str, ...]:
    """Return the macros whose absence satisfies a condition (``#ifndef A``, ``#if !defined(A) || !defined(B)``)."""
    if directive == "ifndef":
        return (body.split()[0],) if body.split() else ()
    parts = [guard_name("if", part.strip()) for part in body.split("||")] if directive in ("if", "elif") else []
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
    return {name: frozenset(closure(used, lambda word: direct.get(word, ()))) for name, used in direct.items()}


def closure(start: Iterable[_T], following: Callable[[_T], Iterable[_T]]) -> set[_T]:
    """Return all values that follow some values, directly or through others, together with these."""
    found, waiting = set[_T](), list(start)
    while waiting:
        one = waiting.pop()
        if one not in found:
            found.add(one)
            waiting += following(one)
    return found
