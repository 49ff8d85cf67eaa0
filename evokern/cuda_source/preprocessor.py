"""The preprocessor's side of a file: what is defined, what is expected from outside, what is included."""

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
    """One ``#define``."""

    name: str
    """The macro's name."""
    value: str
    """The replacement, continuation lines joined and comments removed; may be empty."""
    parameters: tuple[str, ...] | None
    """The parameters of a function-like macro; None for a plain one."""
    index: int
    """Index of the directive's token."""
    guard: bool
    """Whether it stands directly in ``#ifndef`` of its own name: a default that a value from outside replaces."""


@dataclass(frozen=True, slots=True)
class Directive:
    """One ``#include`` as written."""

    name: str
    """The header's name."""
    quoted: bool
    """Whether it is written with quotes."""
    index: int
    """Index of the directive's token."""


def definitions(stream: TokenStream) -> tuple[Definition, ...]:
    """Return every ``#define`` of a text in order, whichever branch it stands in."""
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
    """Return the macro that ``#ifndef NAME`` or ``#if !defined(NAME)`` asks about; empty for other conditions."""
    if directive == "ifndef":
        return body.split()[0] if body.split() else ""
    if directive == "if" and (match := re.fullmatch(r"!\s*defined\s*\(?\s*(\w+)\s*\)?", body)):
        return match.group(1)
    return ""


def required(stream: TokenStream) -> dict[str, int]:
    """Return the macros whose absence is an ``#error``, each with the index of the condition's token."""
    found: dict[str, int] = {}
    asked: list[tuple[tuple[str, ...], int]] = []
    for index, token in enumerate(stream.tokens):
        name = token.directive
        if name in ("if", "ifdef", "ifndef"):
            asked.append((_absence(name, directive_body(token.text)), index))
        elif name == "elif" and asked:
            asked[-1] = (_absence("if", directive_body(token.text)), index)
        elif name == "else" and asked:
            asked[-1] = ((), index)
        elif name == "endif" and asked:
            asked.pop()
        elif name == "error" and asked:
            for macro in asked[-1][0]:
                found.setdefault(macro, asked[-1][1])
    return found


def _absence(directive: str, body: str) -> tuple[str, ...]:
    """Macros whose absence makes the condition true: ``#ifndef A``, ``#if !defined(A) || !defined(B)``."""
    if directive == "ifndef":
        return (body.split()[0],) if body.split() else ()
    parts = [guard_name("if", part.strip()) for part in body.split("||")] if directive == "if" else []
    return tuple(parts) if all(parts) else ()


def includes(stream: TokenStream) -> tuple[Directive, ...]:
    """Return every ``#include`` that names its header directly."""
    found: list[Directive] = []
    for index, token in enumerate(stream.tokens):
        if token.directive == "include" and (match := _INCLUDE.match(directive_body(token.text))):
            found.append(Directive(match.group(1) or match.group(2), match.group(1) is not None, index))
    return tuple(found)


def integer(text: str) -> int | None:
    """Return the value of an integer literal, perhaps signed, in parentheses or suffixed; None for anything else."""
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
    except ValueError:  # 089 is no octal number
        return None
    return -value if text.startswith("-") else value


def words(text: str) -> frozenset[str]:
    """Return the identifiers in a replacement text; what stands in strings does not count."""
    return frozenset(_WORD.findall(_STRING.sub(" ", text)))


def macro_words(all_definitions: Iterable[Definition]) -> dict[str, frozenset[str]]:
    """Return, for each macro, the identifiers it brings in, through other macros too."""
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
