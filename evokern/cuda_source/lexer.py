"""CUDA C++ cut into tokens, tolerantly: whatever is in the file, the tokens and the gaps between them add up to it.

A reader of other people's files cannot ask for well-formed ones. An unterminated string ends at its line, a
bracket without a partner is closed by the end of what surrounds it, and of the branches of an ``#if`` the first
decides the nesting, so that two alternative function heads before one body do not upset the count.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property

_TOKEN = re.compile(
    r"""
    (?P<directive>^(?:[^\S\n]|/\*(?:[^*\n]|\*(?!/))*\*/)*\#(?:\\\n|/\*[\s\S]*?\*/|"(?:\\.|[^"\\\n])*"|[^\n])*)
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
_DIRECTIVE_NAME = re.compile(r"(?:\s|/\*.*?\*/)*#(?:\s|/\*.*?\*/)*(\w*)")
_COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|//(?:\\\n|[^\n])*|/\*[\s\S]*?(?:\*/|\Z)')
_CLOSER = {"(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of the text that the compiler would see as one word."""

    kind: str
    """``word``, ``number``, ``string``, ``char``, ``punct`` or ``directive`` (a whole preprocessor line)."""
    text: str
    """The characters as written; a directive with its continuation lines."""
    start: int
    """Offset of the first character."""
    end: int
    """Offset behind the last character."""

    @property
    def directive(self) -> str:
        """Name of a preprocessor line (``include``, ``if`` …); empty for every other token."""
        return directive_name(self.text) if self.kind == "directive" else ""


def directive_name(text: str) -> str:
    """Return the name of a preprocessor line, for example ``ifdef``."""
    found = _DIRECTIVE_NAME.match(text)
    return found.group(1) if found else ""


def directive_body(text: str) -> str:
    """Return what follows a preprocessor line's name, continuation lines joined and comments removed."""
    joined = without_comments(text.replace("\\\n", " "))
    return _DIRECTIVE_NAME.sub("", joined, count=1).strip()


def without_comments(text: str) -> str:
    """Replace each comment by one space, as translation phase 3 of the C++ standard does."""
    return _COMMENT.sub(lambda found: found.group() if found.group().startswith('"') else " ", text)


class TokenStream:
    """The tokens of one text, with its lines and the partners of its brackets.

    Args:
        text: CUDA C++, every line ending in a line feed.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = _tokenise(text)

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(found.end() for found in re.finditer("\n", self.text))]

    def line(self, offset: int) -> int:
        """Line number, counted from 1, of a character's offset."""
        return bisect_right(self._line_starts, offset)

    @cached_property
    def partner(self) -> dict[int, int]:
        """Index of the closing token for each opening ``(``, ``[``, ``{``; every opening token has one."""
        return _match_brackets(self.tokens)

    def skip_angles(self, index: int, limit: int) -> int | None:
        """Return the index behind a template list that opens at ``index``.

        Args:
            index: index of a ``<`` token.
            limit: index that the list may not pass.

        Returns:
            The index behind the closing ``>``, or None where ``<`` turns out to be a comparison.
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
        """Text of the tokens ``first`` to ``last``: comments and preprocessor lines out, white space squeezed."""
        pieces: list[str] = []
        index = begin = first
        while index <= last:
            if self.tokens[index].kind == "directive":
                pieces.append(self._between(begin, index - 1))
                index = begin = self.behind_alternative(index)
            else:
                index += 1
        pieces.append(self._between(begin, last))
        return " ".join(without_comments(" ".join(pieces)).split())

    def _between(self, first: int, last: int) -> str:
        return self.text[self.tokens[first].start : self.tokens[last].end] if first <= last else ""

    def behind_alternative(self, index: int) -> int:
        """Index behind a preprocessor line; behind ``#endif`` where the line opens another branch of an ``#if``."""
        if self.tokens[index].directive not in ("else", "elif"):
            return index + 1
        depth = 0
        for behind in range(index, len(self.tokens)):
            name = self.tokens[behind].directive
            depth += {"if": 1, "ifdef": 1, "ifndef": 1, "endif": -1}.get(name, 0)
            if depth < 0:
                return behind + 1
        return index + 1

    def split_commas(self, first: int, last: int) -> list[tuple[int, int]]:
        """Cut the tokens ``first`` to ``last`` (inclusive) at their outermost commas.

        Returns:
            Inclusive index pairs; an empty list where there are no tokens.
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
    """Cut the text; comments, white space and what stands under ``#if 0`` leave no token."""
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
                # Only the end of the dead branch counts; its own conditionals are counted and skipped.
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
            # A ')' never reaches outside the braces it stands in: there it is a stray one.
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
