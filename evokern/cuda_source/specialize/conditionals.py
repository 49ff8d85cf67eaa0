"""Inlining of local headers, and edits that resolve preprocessor conditionals as the compiler did."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from itertools import pairwise

from evokern.cuda_source import preprocessor
from evokern.cuda_source.lexer import TokenStream, directive_body
from evokern.cuda_source.source_file import SourceFile
from evokern.cuda_source.specialize.layout import Edit

_ALWAYS_DEFINED = frozenset({"__CUDACC__", "__has_include"})  # the same for nvcc and NVRTC in every pass


def inline_headers(text: str, headers: Mapping[str, str]) -> str:
    """Replace the first ``#include`` of each header by the header's text, and remove later includes of it.

    If several branches of an ``#if`` include a header, each branch contains its text inside a new include guard.

    Args:
        text: the source.
        headers: texts of the headers by the name in ``#include``.

    Returns:
        The text without the headers' include guards and ``#pragma once``.
    """
    repeated: set[str] = set()
    while True:
        places: dict[str, list[_Branches]] = {}
        inlined = _inlined(text, headers, (), places, repeated)
        more = {name for name, branches in places.items() if len(branches) > 1} - repeated
        if not more:
            return inlined
        repeated |= more


_Branches = tuple[tuple[str, int, int], ...]
"""Conditional branches around an include, outermost first: file, token of ``#if``, number of the branch."""


def _inlined(
    text: str,
    headers: Mapping[str, str],
    outer: _Branches,
    places: dict[str, list[_Branches]],
    repeated: Set[str],
    file: str = "",
) -> str:
    """Inline the headers and record in ``places`` the branches around each one."""
    stream = TokenStream(text)
    includes = {directive.index: directive.name for directive in preprocessor.includes(stream)}
    pieces: list[str] = []
    position = 0
    for index, token, around in preprocessor.nested(stream):
        name = includes.get(index)
        if name is None or name not in headers:
            continue
        pieces.append(text[position : token.start])
        position = token.end
        here = (*outer, *((file, branch.opener, branch.number) for branch in around))
        stands = places.setdefault(name, [])
        if any(here[: len(branches)] == branches for branches in stands):
            continue
        stands.append(here)
        body = _inlined(unguarded(headers[name]), headers, here, places, repeated, name).strip("\n")
        if name in repeated:
            guard = "INCLUDED_" + re.sub(r"\W+", "_", name).strip("_").upper()
            body = f"#ifndef {guard}\n#define {guard}\n{body}\n#endif"
        pieces.append(f"// ---- {name}\n{body}")
    return "".join(pieces) + text[position:]


def unguarded(text: str) -> str:
    """Return a header's text without ``#pragma once`` or its include guard."""
    stream = TokenStream(text)
    tokens = stream.tokens
    once = [t for t in tokens if t.directive == "pragma" and directive_body(t.text) == "once"]
    once += [tokens[0], tokens[1], tokens[-1]] if preprocessor.include_guard(stream) else []
    spans = [(t.start, t.end) for t in once]
    for start, end in sorted(spans, reverse=True):
        text = text[:start] + text[end:].removeprefix("\n")
    return text


@dataclass(frozen=True, slots=True)
class Conditional:
    """An ``#if`` … ``#endif`` group with the groups nested in it."""

    branches: tuple[int, ...]
    """Indices of ``#if``, ``#elif`` and ``#else``."""
    end: int
    """Index of ``#endif``."""
    inner: tuple[tuple[Conditional, ...], ...]
    """Nested conditionals of each branch."""


def conditionals(unit: SourceFile) -> tuple[Conditional, ...]:
    """Return the outermost conditionals of a text in order; a conditional without ``#endif`` is omitted."""
    found: list[Conditional] = []
    opened: list[tuple[list[int], list[list[Conditional]]]] = []
    for index, token in enumerate(unit.stream.tokens):
        name = token.directive
        if name in ("if", "ifdef", "ifndef"):
            opened.append(([index], [[]]))
        elif name in ("elif", "else") and opened:
            opened[-1][0].append(index)
            opened[-1][1].append([])
        elif name == "endif" and opened:
            branches, inner = opened.pop()
            whole = Conditional(tuple(branches), index, tuple(tuple(part) for part in inner))
            (opened[-1][1][-1] if opened else found).append(whole)
    return tuple(found)


def branch_lines(outermost: tuple[Conditional, ...]) -> list[int]:
    """Return the indices of all directives that start a branch."""
    found: list[int] = []
    for conditional in outermost:
        found += conditional.branches
        for inner in conditional.inner:
            found += branch_lines(inner)
    return found


def conditional_edits(unit: SourceFile, outermost: tuple[Conditional, ...], taken: frozenset[int]) -> Iterator[Edit]:
    """Yield the edits that keep only the compiled branches and remove their directives.

    A condition on a compiler macro (a leading underscore or the prefix CUDA) can differ between compilers. It is kept
    with everything up to ``#endif``.

    Args:
        unit: the text.
        outermost: the outermost conditionals.
        taken: indices of the directives whose branches were compiled.
    """
    brought = preprocessor.macro_words(unit.definitions)
    for conditional in outermost:
        yield from _edits(unit, conditional, taken, brought)


def _edits(
    unit: SourceFile, conditional: Conditional, taken: frozenset[int], brought: Mapping[str, frozenset[str]]
) -> Iterator[Edit]:
    tokens, text = unit.stream.tokens, unit.text
    borders = (*conditional.branches, conditional.end)
    requires = _requires(unit, conditional, taken)
    for number, (index, following) in enumerate(pairwise(borders)):
        if not requires and _depends_on_compiler(tokens[index].text, brought):
            if number:  # the first directive that is kept becomes the `#if`
                start = tokens[index].start
                yield Edit(start, tokens[index].end, tokens[index].text.replace("elif", "if", 1))
            return
        start, behind = tokens[index].start, tokens[following].start
        if index in taken:
            yield Edit(start, _next_line(text, tokens[index].end), "")
            for inner in conditional.inner[number]:
                yield from _edits(unit, inner, taken, brought)
            yield Edit(behind, _next_line(text, tokens[conditional.end].end), "")
            return
        yield Edit(start, behind, "")
    yield Edit(tokens[conditional.end].start, _next_line(text, tokens[conditional.end].end), "")


def _requires(unit: SourceFile, conditional: Conditional, taken: frozenset[int]) -> bool:
    """Return whether a conditional only requires an architecture by ``#error``, which nvcc's host pass would report."""
    tokens = unit.stream.tokens
    return any(
        index not in taken and any(token.directive == "error" for token in tokens[index + 1 : following])
        for index, following in pairwise((*conditional.branches, conditional.end))
    )


def untaken_spans(
    unit: SourceFile, outermost: tuple[Conditional, ...], taken: frozenset[int]
) -> Iterator[tuple[int, int]]:
    """Yield the token ranges of the branches that were not compiled, as in `conditional_edits`."""
    for conditional in outermost:
        for number, span in enumerate(pairwise((*conditional.branches, conditional.end))):
            if span[0] not in taken:
                yield span
            else:
                yield from untaken_spans(unit, conditional.inner[number], taken)


def _next_line(text: str, offset: int) -> int:
    return offset + (text[offset : offset + 1] == "\n")


def _depends_on_compiler(line: str, brought: Mapping[str, frozenset[str]]) -> bool:
    words = set(preprocessor.words(directive_body(line)))
    words |= {word for name in words for word in brought.get(name, ())}
    return any(word.startswith(("_", "CUDA")) for word in words - _ALWAYS_DEFINED)
