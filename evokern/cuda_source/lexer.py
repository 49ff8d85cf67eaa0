"""Fault-tolerant tokeniser for CUDA C++; tokens and the gaps between them add up to the original text.

Files need not be well-formed. An unterminated string ends at its line. An unmatched bracket is closed at the end of its
enclosing block. The first branch of an ``#if`` decides the nesting, so alternative function heads with one body do not
confuse the bracket count.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property

_TOKEN = re.compile(
    r"""
    (?P<directive>^(?:[^\S\n]|\\\n|/\*(?:[^*\n]|\*(?!/))*\*/)*\#(?:\\\n|//(?:\\\n|[^\n])*|/\*[\s\S]*?\*/
                 |"(?:\\[\s\S]|[^"\\\n])*"|[0-9](?:'[0-9A-Za-z]|[\w.])*|\w+|'(?:\\[^\n]|[^'\\\n])*'|[^\n])*)
  | (?P<space>[^\S\n]+|\n|\\\n)
  | (?P<comment>//(?:\\\n|[^\n])*|/\*[\s\S]*?(?:\*/|\Z))
  | (?P<raw>(?:u8|[uUL])?R"(?P<fence>[^()\\\s]{0,16})\([\s\S]*?\)(?P=fence)")
  | (?P<string>(?:u8|[uUL])?"(?:\\[\s\S]|[^"\\\n])*"?)
  | (?P<number>\.?[0-9](?:[eEpP][+-]|'[0-9A-Za-z]|[0-9A-Za-z_.])*)
  | (?P<char>(?:u8|[uUL])?'(?:\\[^\n]|[^'\\\n])*'?)
  | (?P<word>[^\W\d]\w*|\$\w+)
  | (?P<punct><<<|>>>|<<=|>>=|<=>|\.\.\.|->\*|::|->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|\#\#|[^\w\s])
    """,
    re.VERBOSE | re.MULTILINE,
)
_DIRECTIVE_NAME = re.compile(r"(?:\s|\\\n|/\*.*?\*/)*#(?:\s|\\\n|/\*.*?\*/)*(\w*)", re.DOTALL)
LITERAL = r"""(?P<literal>(?:u8|[uUL])?R"(?P<fence>[^()\\\s]{0,16})\([\s\S]*?\)(?P=fence)"|"(?:\\[\s\S]|[^"\\\n])*"
    |[0-9](?:'[0-9A-Za-z]|[\w.])*|'(?:\\[^\n]|[^'\\\n])*'|[^\W\d]\w*)"""
"""Pattern (verbose) of a string, number, character or word, in which no comment starts."""
COMMENT = re.compile(rf"{LITERAL}|//(?:\\\n|[^\n])*|/\*[\s\S]*?(?:\*/|\Z)", re.VERBOSE)
"""A literal, so that no comment starts inside it, or a comment."""
_CLOSER = {"(": ")", "[": "]", "{": "}"}
NESTING = {"if": 1, "ifdef": 1, "ifndef": 1, "endif": -1}
"""Directive → change of the nesting of conditionals."""


@dataclass(frozen=True, slots=True)
class Token:
    """Token of the source text."""

    kind: str
    """``word``, ``number``, ``string``, ``char``, ``punct`` or ``directive`` (a whole preprocessor line)."""
    text: str
    """Characters as written; a directive includes its continuation lines."""
    start: int
    """Offset of the first character."""
    end: int
    """Offset after the last character."""

    @property
    def directive(self) -> str:
        """Name of a preprocessor line (``include``, ``if`` …); empty for other tokens."""
        return directive_name(self.text) if self.kind == "directive" else ""


def directive_name(text: str) -> str:
    """Return the name of a preprocessor line, for example ``ifdef``."""
    found = _DIRECTIVE_NAME.match(text)
    return found.group(1) if found else ""


def directive_body(text: str) -> str:
    """Return a preprocessor line without its name, with continuation lines joined and comments removed."""
    joined = without_comments(text.replace("\\\n", " "))
    return _DIRECTIVE_NAME.sub("", joined, count=1).strip()


def without_comments(text: str) -> str:
    """Replace each comment by one space, as translation phase 3 of the C++ standard does."""
    return COMMENT.sub(lambda found: found["literal"] or " ", text)


def code_of(text: str) -> str:
    """Return what a compiler sees of a text: its tokens, without comments and the white space between them."""
    return "\n".join(
        f"#{token.directive} {' '.join(directive_body(token.text).split())}" if token.directive else token.text
        for token in _tokenise(text)
    )


class TokenStream:
    """Tokens of a text, with line numbers and matching brackets.

    Args:
        text: CUDA C++ with line feeds as line ends.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = _tokenise(text)

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(found.end() for found in re.finditer("\n", self.text))]

    def line(self, offset: int) -> int:
        """Return the line number of an offset, counted from 1."""
        return bisect_right(self._line_starts, offset)

    @cached_property
    def partner(self) -> dict[int, int]:
        """Index of the closing token of each ``(``, ``[`` and ``{``; every opening token has one."""
        return _match_brackets(self.tokens)

    def skip_angles(self, index: int, limit: int) -> int | None:
        """Return the index after the template list that opens at ``index``.

        Args:
            index: index of a ``<`` token.
            limit: end of the search (exclusive).

        Returns:
            The index after the closing ``>``, or None if ``<`` is a comparison.
        """
        depth = 0
        while index < limit:
            text = self.tokens[index].text
            if text in ("(", "["):
                index = self.partner[index]
            elif text == "<":
                depth += 1
            elif text in (">", ">>", ">>>"):
                depth -= len(text)
                if depth <= 0:
                    return index + 1
            elif text in (";", "{", "}", ")", "<<<"):
                return None
            index += 1
        return None

    def source(self, first: int, last: int) -> str:
        """Return the text of the tokens ``first`` to ``last`` without comments, directives or extra white space."""
        pieces: list[str] = []
        index = begin = first
        while index <= last:
            if self.tokens[index].kind == "directive":
                pieces.append(self._between(begin, index - 1))
                index = begin = self.after_alternative(index)
            else:
                index += 1
        pieces.append(self._between(begin, last))
        return " ".join(without_comments(" ".join(pieces)).split())

    def _between(self, first: int, last: int) -> str:
        return self.text[self.tokens[first].start : self.tokens[last].end] if first <= last else ""

    def after_alternative(self, index: int) -> int:
        """Return the index after a preprocessor line, or after ``#endif`` if the line starts another branch."""
        if self.tokens[index].directive not in ("else", "elif"):
            return index + 1
        depth = 0
        for behind in range(index, len(self.tokens)):
            name = self.tokens[behind].directive
            depth += NESTING.get(name, 0)
            if depth < 0:
                return behind + 1
        return index + 1

    def split_commas(self, first: int, last: int) -> list[tuple[int, int]]:
        """Split the tokens ``first`` to ``last`` (inclusive) at the outermost commas.

        Returns:
            Inclusive index pairs; empty if there are no tokens.
        """
        parts: list[tuple[int, int]] = []
        begin = index = first
        while index <= last:
            text = self.tokens[index].text
            if text in _CLOSER:
                index = self.partner[index]
            elif text == "<" and index > first and self.tokens[index - 1].kind == "word":
                behind = self.skip_angles(index, last + 1)
                index = behind - 1 if behind is not None else index
            elif text == ",":
                parts.append((begin, index - 1))
                begin = index + 1
            index += 1
        if begin <= last:
            parts.append((begin, last))
        return parts


def _tokenise(text: str) -> list[Token]:
    """Split a text into tokens, without comments, white space and code under ``#if 0``."""
    tokens: list[Token] = []
    dead = 0
    for found in _TOKEN.finditer(text):
        kind = found.lastgroup
        if kind == "fence":
            kind = "raw"
        if kind in ("space", "comment"):
            continue
        if kind == "directive":
            name = directive_name(found.group())
            if dead:
                # Skip nested conditionals and find the end of the dead branch.
                if name in ("if", "ifdef", "ifndef"):
                    dead += 1
                    continue
                if name == "endif" or (dead == 1 and name in ("else", "elif")):
                    dead -= 1
                if dead:
                    continue
            elif name == "if" and directive_body(found.group()) == "0":
                dead = 1
        elif dead:
            continue
        tokens.append(Token("string" if kind == "raw" else str(kind), found.group(), found.start(), found.end()))
    return tokens


def _match_brackets(tokens: list[Token]) -> dict[int, int]:
    partner: dict[int, int] = {}
    open_: list[int] = []
    branches: list[tuple[list[int], list[int] | None]] = []  # (open before #if, open after its first branch)
    for index, token in enumerate(tokens):
        text = token.text
        if token.kind == "directive":
            name = token.directive
            if name in ("if", "ifdef", "ifndef"):
                branches.append((list(open_), None))
            elif name in ("else", "elif") and branches:
                before, first = branches.pop()
                branches.append((before, list(open_) if first is None else first))
                open_ = list(before)
            elif name == "endif" and branches:
                first = branches.pop()[1]
                open_ = open_ if first is None else first
        elif token.kind != "punct":
            continue
        elif text in _CLOSER:
            open_.append(index)
        elif text in (")", "]", "}"):
            depth = next((d for d in reversed(range(len(open_))) if _CLOSER[tokens[open_[d]].text] == text), None)
            # A ')' whose '(' is outside the enclosing braces is a stray token.
            if depth is None or (text != "}" and any(tokens[i].text == "{" for i in open_[depth:])):
                continue
            for opener in open_[depth + 1 :]:
                partner[opener] = index - 1 if index - 1 > opener else opener
            partner[open_[depth]] = index
            del open_[depth:]
    last = len(tokens) - 1
    for index, token in enumerate(tokens):
        if token.kind == "punct" and token.text in _CLOSER:
            partner.setdefault(index, last)
    return partner
