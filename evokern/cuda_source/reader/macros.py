"""Functions that find a file's macros: defined, with a default, required, or undefined."""

from __future__ import annotations

import re
from collections.abc import Iterator

from evokern.cuda_source import preprocessor
from evokern.cuda_source.lexer import NESTING, directive_body
from evokern.cuda_source.reader import known_headers
from evokern.cuda_source.reader.records import Macro
from evokern.cuda_source.source_file import SourceFile

_UPPER = re.compile(r"[A-Z][A-Z0-9_]+")


def macros(unit: SourceFile, known: frozenset[str]) -> Iterator[Macro]:
    """Yield the macros of a file: defined, with a default, required, or used but undefined.

    Args:
        unit: the file.
        known: names defined in other files of the program.
    """
    demanded = preprocessor.required(unit.stream)
    seen: set[str] = set()
    first = unit.definitions[0] if unit.definitions else None
    guards = {first.name} if first and (not first.value or _encloses_the_file(unit, first.name)) else set()
    for definition in unit.definitions:
        if definition.name in seen or (definition.guard and definition.name in guards):
            continue
        seen.add(definition.name)
        yield Macro(
            definition.name,
            definition.value or None,
            "default" if definition.guard else "defined",
            unit.line(definition.index),
            preprocessor.integer(definition.value),
            definition.parameters is not None,
            unit.name,
        )
    for name, index in demanded.items():
        if name not in seen and not name.startswith("__"):
            seen.add(name)
            yield Macro(name, None, "required", unit.line(index), file=unit.name)
    for name, index in _undefined(unit, known | seen):
        yield Macro(name, None, "undefined", unit.line(index), file=unit.name)


def _encloses_the_file(unit: SourceFile, name: str) -> bool:
    """Return whether `#ifndef NAME`, `#define NAME …` and `#endif` enclose the whole file, as an include guard does."""
    tokens, depth = unit.stream.tokens, 0
    outer = [token.directive for token in (*tokens[:2], *tokens[-1:])]
    if len(tokens) < 3 or outer != ["ifndef", "define", "endif"]:
        return False
    for token in tokens[:-1]:
        depth += NESTING.get(token.directive, 0)
        if not depth:
            return False
    return directive_body(tokens[0].text).split()[:1] == [name]


def _undefined(unit: SourceFile, known: frozenset[str]) -> Iterator[tuple[str, int]]:
    """Yield upper-case names that are used but not declared, with the index of the first use."""
    tokens = unit.stream.tokens
    declared = set(known) | known_headers.BUILTIN_MACROS
    declared |= {d.name for d in unit.definitions} | {p for d in unit.definitions for p in d.parameters or ()}
    uses: dict[str, int] = {}
    for index, token in enumerate(tokens):
        if token.kind == "word" and _UPPER.fullmatch(token.text):
            uses.setdefault(token.text, index)
            before, after = tokens[index - 1], tokens[min(index + 1, len(tokens) - 1)].text
            declares = before.kind == "word" and before.text not in ("return", "case", "else") and after in "=;,)[{:>"
            if (
                declares
                or before.text in ("::", ".", "->")
                or after == "::"
                or (before.text in ("*", "&", ">") and after in "=,)[;")
            ):
                declared.add(token.text)
        elif token.directive in ("if", "elif", "ifdef", "ifndef"):
            for word in preprocessor.words(directive_body(token.text)):
                if _UPPER.fullmatch(word):
                    uses.setdefault(word, index)
    declared |= {name for leaf in unit.leaves for name in leaf.names}
    yield from (
        (name, index) for name, index in uses.items() if name not in declared and not name.startswith("CUDART_")
    )
