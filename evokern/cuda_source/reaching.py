"""Names whose values can reach a line of CUDA source: a conservative slice without types or aliases.

A name reaches a line if it occurs there, in a condition around it or in a statement that may set such a name. The slice
may contain too many names. It follows calls in both directions, macros, and conditions that leave a function early.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from evokern.cuda_source.lexer import Token, TokenStream, directive_body

_WORD = re.compile(r"[^\W\d]\w*")
_ASSIGNMENTS = frozenset({"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="})
_LEAVES = frozenset({"return", "break", "continue", "goto"})
_CONTROLS = frozenset({"if", "for", "while", "switch", "constexpr"})
_TYPES = frozenset({
    "void", "bool", "char", "short", "int", "long", "float", "double", "half", "unsigned", "signed", "auto", "const",
    "constexpr", "static", "inline", "restrict", "__restrict__", "volatile", "struct", "class", "typename",
    "template", "if", "else", "for", "while", "do", "switch", "case", "return", "break", "continue", "goto", "sizeof",
    "size_t", "true", "false", "__global__", "__device__", "__shared__", "__forceinline__", "__launch_bounds__",
    "pragma", "unroll",
})  # fmt: skip
"""Words that carry no value from one statement to another."""


@dataclass(frozen=True)
class _Statement:
    """A statement, the header of a block or a macro definition."""

    first: int
    """First line."""
    last: int
    """Last line."""
    words: frozenset[str]
    """Names in the statement."""
    addresses: frozenset[str]
    """Names that decide which elements the statement reads and writes."""
    arrays: frozenset[str]
    """Names that are followed by an index."""
    sets: frozenset[str]
    """Names that the statement may set."""
    around: frozenset[str]
    """Names in the conditions around the statement."""
    function: str
    """Name of the function around the statement; empty outside functions."""
    leaves: bool
    """Whether the statement may leave a function or a loop."""
    shared: bool
    """Whether the statement declares shared memory."""
    compile_time: bool
    """Whether the statement may define a type or a value that the compiler knows."""
    conditions: frozenset[str]
    """Those names in `around` that the compiler knows: conditions of the preprocessor and of `if constexpr`."""
    template: str = ""
    """Name of the template function whose head the statement is."""


@dataclass
class _Block:
    words: frozenset[str]
    function: str
    compile_time: bool


def names_reaching(
    texts: Mapping[str, str],
    file: str,
    line: int | None,
    *,
    entries: frozenset[str],
    fixed: frozenset[str],
    addresses: bool = False,
    compile_time: bool = False,
) -> frozenset[str] | None:
    """Return the names whose values can reach a line, or the declarations of shared memory.

    Args:
        texts: text of each source file by name.
        file: file with the line.
        line: number of the line; None stands for all declarations of shared memory.
        entries: names of the entry points, whose parameters are set by the launch.
        fixed: names that no statement can set: macros of the compile options and built-in variables.
        addresses: whether only the addresses of the line's accesses count.
        compile_time: whether only types and values count that the compiler knows.

    Returns:
        The names; None if the line is in none of the texts.
    """
    by_file = {name: [*_statements(TokenStream(text))] for name, text in texts.items()}
    everything = [one for statements in by_file.values() for one in statements]
    templates = {one.template for one in everything if one.template}
    if line is None:
        start = [one for one in everything if one.shared]
    else:
        start = [one for one in by_file.get(file, ()) if one.first <= line <= one.last]
    if not start:
        return None
    functions = {one.function for one in everything}
    reached = set(start)
    names: set[str] = set()
    pointers = frozenset[str]().union(*(one.arrays for one in start)) if addresses else frozenset[str]()
    while True:
        for one in reached:
            names |= one.conditions if compile_time else one.around
            names |= one.addresses if addresses and one in start else one.words
        inside = {one.function for one in reached} - {""}
        if compile_time:
            grown = {
                one
                for one in everything
                if one in reached
                or (one.compile_time and (one.sets - fixed) & names)
                or one.words & (inside & templates)
            }
        else:
            grown = {
                one
                for one in everything
                if one in reached
                or (one.sets - fixed) & names
                or (one.sets - one.arrays) & pointers  # an element that changes does not move the array
                or (one.leaves and one.function in inside)
                or (one.function and one.function in names & functions)
                or one.words & (inside - entries)
            }
        if grown == reached:
            return frozenset(names)
        reached = grown


def _statements(stream: TokenStream) -> Iterator[_Statement]:
    """Yield the statements of a text; a block's header is a statement before the statements in the block."""
    blocks: list[_Block] = []
    conditions: list[frozenset[str]] = []
    begin = index = 0
    tokens = stream.tokens
    before: frozenset[str] = frozenset()  # names of the latest statement, which decides about a following `else`

    def statement(end: int, function: str) -> _Statement:
        nonlocal before
        part = [token for token in tokens[begin:end] if token.kind != "directive"]
        texts = [token.text for token in part]
        # Members, such as the x of blockIdx.x, are not variables.
        words = frozenset(
            token.text for place, token in enumerate(part)
            if token.kind == "word" and not (place and texts[place - 1] in (".", "->"))
        ) - _TYPES  # fmt: skip
        signs = [place for place, text in enumerate(texts) if text in _ASSIGNMENTS]
        # Without an assignment, a statement declares names or calls a function that may set its arguments.
        sets = words if not signs or "(" in texts[: signs[0]] else words & frozenset(texts[: signs[-1]])
        sets = frozenset() if texts[0] == "static_assert" else sets
        around = frozenset[str]().union(*(block.words for block in blocks), *conditions)
        around |= before if texts[:1] == ["else"] else frozenset()
        known = frozenset[str]().union(*(block.words for block in blocks if block.compile_time), *conditions)
        before = words | around
        lines = stream.line(part[0].start), stream.line(part[-1].end - 1)
        leaves, shared = bool(_LEAVES & set(texts)), "__shared__" in texts
        arrays = words & {text for text, following in pairwise(texts) if following == "["}
        if shared:  # the size of an array does not depend on its content
            words -= arrays
        return _Statement(
            *lines, words, words & _address_names(part), arrays, sets, around, function, leaves, shared,
            _is_compile_time(texts), known,
        )  # fmt: skip

    while index < len(tokens):
        token = tokens[index]
        text = token.text
        if token.kind == "directive":
            names, name = frozenset(_WORD.findall(directive_body(text))) - _TYPES, token.directive
            place = stream.line(token.start), stream.line(token.end - 1)
            if name in ("if", "ifdef", "ifndef"):
                conditions.append(names)
            elif name in ("elif", "else") and conditions:
                conditions[-1] |= names
            elif name == "endif" and conditions:
                conditions.pop()
            around = frozenset[str]().union(*conditions)
            sets = frozenset(_WORD.findall(directive_body(text))[:1]) if name == "define" else frozenset[str]()
            function = blocks[-1].function if blocks else ""
            known = name == "define"
            yield _Statement(*place, names, names, frozenset(), sets, around, function, False, False, known, around)
        elif text in ("(", "["):
            index = stream.partner[index]
        elif text in (";", "{", "}"):
            function = blocks[-1].function if blocks else ""
            header = any(one.kind != "directive" for one in tokens[begin:index])
            if text == "{" and not function:
                function = _function_name(stream, begin, index)
            if header:
                found = statement(index, function)
                # The parameters of a function are set where it is called.
                head = text == "{" and function != (blocks[-1].function if blocks else "")
                template = function if head and "template" in (one.text for one in tokens[begin:index]) else ""
                yield replace(found, sets=frozenset(), template=template) if head else found
            if text == "{":
                outer = not blocks or function != blocks[-1].function
                known = "constexpr" in (one.text for one in tokens[begin:index])
                blocks.append(_Block(frozenset() if outer or not header else before, function, known))
            elif text == "}" and blocks:
                blocks.pop()
            begin = index + 1
        index += 1


def _is_compile_time(texts: list[str]) -> bool:
    """Return whether a statement may define a type or a value that the compiler knows."""
    words = set(texts)
    if words & {"constexpr", "using", "typedef", "enum", "static_assert", "template"}:
        return True
    if "const" in words:
        return not words & {"threadIdx", "blockIdx", "blockDim", "gridDim", "["}
    return "<" in words and "(" not in words


def _address_names(part: list[Token]) -> frozenset[str]:
    """Return the names in indices and conditions; all names of a statement with pointers or calls."""
    names: set[str] = set()
    depth = conditions = 0
    for place, token in enumerate(part):
        before, after = part[place - 1] if place else None, part[place + 1].text if place + 1 < len(part) else ""
        # A star that does not follow a value dereferences a pointer; a multiplication does.
        pointer = token.text == "*" and (before is None or (before.kind == "punct" and before.text not in (")", "]")))
        call = token.kind == "word" and after == "(" and token.text not in _TYPES
        if pointer or call or token.text == "->" or (token.text == "[" and before is not None and before.text == ")"):
            return frozenset(token.text for token in part)
        depth += {"[": 1, "]": -1}.get(token.text, 0)
        if token.text == "(" and (conditions or (before is not None and before.text in _CONTROLS)):
            conditions += 1
        elif token.text == ")" and conditions:
            conditions -= 1
        if token.kind == "word" and (depth or conditions):
            names.add(token.text)
    return frozenset(names)


def _function_name(stream: TokenStream, begin: int, end: int) -> str:
    """Return the name before the parameters of a function's head; empty for other heads."""
    index, name = begin, ""
    while index < end:
        text = stream.tokens[index].text
        if text == "(":
            if index > begin and stream.tokens[index - 1].kind == "word":
                name = stream.tokens[index - 1].text
                if name != "__launch_bounds__" and name != "alignas":
                    return name
            index = stream.partner[index]
        index += 1
    return ""
