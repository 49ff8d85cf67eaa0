"""Names of a source that a macro given by `-D` replaces, which breaks their declarations."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from evokern.cuda_source.lexer import Token, TokenStream, directive_body
from evokern.cuda_source.preprocessor import words

_NO_TYPES = frozenset(
    {
        *("and", "bitand", "bitor", "case", "co_return", "co_yield", "compl", "const", "constexpr", "delete", "do"),
        *("else", "extern", "goto", "inline", "mutable", "new", "not", "operator", "or", "private", "protected"),
        *("public", "register", "return", "sizeof", "static", "throw", "typename", "volatile", "xor"),
        *("__constant__", "__device__", "__forceinline__", "__global__", "__host__", "__noinline__", "__restrict__"),
        "__shared__",
    }
)
"""Words that may precede a use of a macro; any other word before a name is its type."""
_TYPES = frozenset(
    {
        *("auto", "bool", "char", "double", "float", "half", "int", "long", "short", "signed", "unsigned", "void"),
        *("__half", "__nv_bfloat16"),
    }
)
_AFTER_NAME = frozenset(["=", ";", ",", ")", "[", "(", "{", ">", ":"])


@dataclass(frozen=True)
class Collision:
    """A name of the source that is also a macro."""

    name: str
    """The name."""
    line: int
    """Line of the name."""
    text: str
    """The line, without indentation."""
    defines: bool = False
    """Whether the line is a `#define`, which replaces the value of the macro."""


def collisions(text: str, macros: Collection[str], broken: int | None = None) -> Iterator[Collision]:
    """Yield the first place of each macro at which a text declares its name, refers to a member, or defines it.

    Code under a condition that tests the macro, such as `#ifndef BLOCK_M`, does not count.

    Args:
        text: the source.
        macros: names of the macros.
        broken: line at which the compiler misses a name, so that each macro there counts.
    """
    stream, seen = TokenStream(text), set[str]()
    lines = text.split("\n")
    tested: list[frozenset[str]] = []
    code = [token for token in stream.tokens if token.kind != "directive"]
    position = -1
    for token in stream.tokens:
        name, defines = token.text, False
        if token.kind != "directive":
            position += 1
        elif token.directive in ("if", "ifdef", "ifndef"):
            tested.append(words(directive_body(token.text)))
        elif token.directive in ("elif", "elifdef", "elifndef") and tested:
            tested[-1] |= words(directive_body(token.text))
        elif token.directive == "endif" and tested:
            tested.pop()
        elif token.directive == "define":
            name, defines = (directive_body(token.text).split("(")[0].split() or [""])[0], True
        if name not in macros or name in seen or any(name in one for one in tested):
            continue
        line = stream.line(token.start)
        if defines or (token.kind == "word" and (line == broken or _declares(code, position))):
            seen.add(name)
            yield Collision(name, line, lines[line - 1].strip(), defines)


def _declares(code: Sequence[Token], position: int) -> bool:
    """Return whether the token at a position is a declared name or a member, and not a use of the macro."""
    before, earlier = (code[at] if at >= 0 else None for at in (position - 1, position - 2))
    after = code[position + 1].text if position + 1 < len(code) else ""
    if after == "=" or (before is not None and before.text in (".", "->", "::")):
        return True
    if before is None or after not in _AFTER_NAME:
        return False
    if before.kind == "word":
        return before.text not in _NO_TYPES
    return before.text in ("*", "&") and earlier is not None and earlier.text in _TYPES
