"""Preprocessing of host code for the parser: inactive branches become blank, and other macros than numbers expand."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet

from evokern.cuda_source import preprocessor
from evokern.cuda_source.lexer import Token, TokenStream, directive_body

_DEFINED = {"__CUDACC__": "1", "__cplusplus": "201703", "__NVCC__": "1", "CUDART_VERSION": "12040",
            "CUDA_VERSION": "12040", "__CUDACC_VER_MAJOR__": "12", "__CUDACC_VER_MINOR__": "4"}  # fmt: skip
"""Macros of the compiler in host code."""
_NUMERIC = re.compile(r"(?:\(|\)|\s|[-+*/%<>&|^~!?:]|\d[\w.']*|[A-Za-z_]\w*)+")
_TYPES = frozenset(("float", "double", "half", "int", "unsigned", "char", "void", "const", "auto", "static", "inline",
                    "struct", "long", "short", "bool", "return", "__restrict__", "__half", "typename"))  # fmt: skip
_DEEPEST = 12


class Preprocessor:
    """Preprocessor of a program's files.

    Args:
        texts: text of each file, by the name in ``#include``; the main file's name is empty.
        truth: returns the value of a condition without macros, or None if it is not known.
    """

    def __init__(self, texts: Mapping[str, str], truth: Callable[[str], int | None]) -> None:
        self._texts = texts
        self._truth = truth
        self.macros: dict[str, preprocessor.Definition] = {}
        self.ready: dict[str, str] = {}
        """Name of a file → its text for the parser, headers before the files that include them."""

    def run(self, file: str = "") -> None:
        """Preprocess a file and the headers that it includes."""
        stream = TokenStream(self._texts[file])
        pieces: list[str] = []
        active: list[list[bool]] = []  # for each open conditional: whether this branch is active, whether one was
        position = index = 0
        tokens, ends = stream.tokens, _statement_ends(stream)
        while index < len(tokens):
            token = tokens[index]
            pieces.append(_blank(stream.text[position : token.start]))
            position, end = token.end, index
            if token.kind == "directive":
                self._directive(token, active)
                pieces.append(_blank(token.text))
            elif all(branch[0] for branch in active):
                before = [one.text for one in tokens[max(0, index - 3) : max(0, index - 1)]]
                if token.text == "{" and "dim3" in before and tokens[index - 1].kind == "word":
                    pieces.append("=")  # the grammar takes `dim3 grid{unsigned(n)}` for a function
                text, end = self._expanded(stream, index, frozenset(), 0)
                original = stream.text[token.start : tokens[end].end]
                pieces.append(text + "\n" * (original.count("\n") - text.count("\n")) if end > index else text)
            else:
                pieces.append(_blank(token.text))
            if end in ends and not pieces[-1].rstrip().endswith((";", "}")):
                pieces.append(";")
            position, index = tokens[end].end, end + 1
        self.ready[file] = "".join([*pieces, _blank(stream.text[position:])])

    def _directive(self, token: Token, active: list[list[bool]]) -> None:
        name, body = token.directive, directive_body(token.text)
        if name in ("if", "ifdef", "ifndef"):
            holds = self._holds(name, body) if all(branch[0] for branch in active) else False
            active.append([holds, holds])
        elif name in ("elif", "else") and active:
            holds = not active[-1][1] and (name == "else" or self._holds("if", body))
            active[-1] = [holds, holds or active[-1][1]]
        elif name == "endif" and active:
            active.pop()
        elif not all(branch[0] for branch in active):
            return
        elif made := preprocessor.definition(token):
            self.macros[made.name] = made
        elif name == "undef" and body.split():
            self.macros.pop(body.split()[0], None)
        elif name == "include":
            for found in preprocessor.includes(TokenStream(token.text)):
                if found.name in self._texts and found.name not in self.ready:
                    self.ready[found.name] = ""
                    self.run(found.name)

    def _holds(self, name: str, body: str) -> bool:
        word = body.split()[0] if body.split() else ""
        if name in ("ifdef", "ifndef"):
            return (word in self.macros or word in _DEFINED) == (name == "ifdef")
        defined = re.compile(r"\bdefined\s*(?:\(\s*(\w+)\s*\)|(\w+))")
        text = defined.sub(lambda m: str(int((m[1] or m[2]) in self.macros or (m[1] or m[2]) in _DEFINED)), body)
        for _ in range(_DEEPEST):
            text = re.sub(r"[A-Za-z_]\w*(\s*\([^()]*\))?", self._number, text)
        return bool(self._truth(text))

    def _number(self, found: re.Match[str]) -> str:
        word = re.match(r"\w+", found[0])
        name = word[0] if word else ""
        macro = self.macros.get(name)
        if macro is not None and macro.parameters is None:
            return f"({macro.value or '1'}){found[1] or ''}"
        return _DEFINED.get(name, "0")

    def numeric(self, name: str, within: AbstractSet[str] = frozenset()) -> bool:
        """Return whether a macro stands for a number, so that its name stays in the text.

        Args:
            name: name of the macro.
            within: macros that are being defined.
        """
        macro, inner = self.macros[name], within | {name}
        if macro.parameters is not None or not macro.value or not _NUMERIC.fullmatch(macro.value):
            return False
        words = preprocessor.words(re.sub(r"\d[\w.']*", " ", macro.value))
        return not words & _TYPES and all(w in self.macros and w not in inner and self.numeric(w, inner) for w in words)

    def _expanded(self, stream: TokenStream, index: int, busy: AbstractSet[str], depth: int) -> tuple[str, int]:
        """Return the text of a token or macro call, and the index of its last token."""
        token = stream.tokens[index]
        macro = self.macros.get(token.text) if token.kind == "word" else None
        if macro is None or token.text in busy or depth > _DEEPEST:
            return token.text, index
        inner = busy | {token.text}
        if macro.parameters is None:
            return (token.text if self.numeric(token.text) else self._again(macro.value, inner, depth)), index
        if index + 1 >= len(stream.tokens) or stream.tokens[index + 1].text != "(":
            return token.text, index
        close = stream.partner[index + 1]
        given = [stream.text[stream.tokens[a].start : stream.tokens[b].end] if b >= a else ""
                 for a, b in _commas(stream, index + 2, close - 1)]  # fmt: skip
        given = [self._again(" ".join(one.split("\n")), busy, depth) for one in given]
        return self._again(_replaced(macro, given), inner, depth), close

    def _again(self, text: str, busy: AbstractSet[str], depth: int) -> str:
        stream = TokenStream(text.replace("\\\n", " "))
        pieces, index = [], 0
        while index < len(stream.tokens):
            made, end = self._expanded(stream, index, busy, depth + 1)
            pieces.append(made)
            index = end + 1
        return " ".join(pieces)


def _commas(stream: TokenStream, first: int, last: int) -> list[tuple[int, int]]:
    """Split a macro's arguments at commas outside round brackets, as the preprocessor does."""
    parts, begin, index = [], first, first
    while index <= last:
        if stream.tokens[index].text == "(":
            index = stream.partner[index]
        elif stream.tokens[index].text == ",":
            parts.append((begin, index - 1))
            begin = index + 1
        index += 1
    return [*parts, (begin, last)]


def _replaced(macro: preprocessor.Definition, given: list[str]) -> str:
    names = list(macro.parameters or ())
    values: dict[str, str] = {}
    if names and names[-1].endswith("..."):
        rest = given[len(names) - 1 :]
        values[names[-1].removesuffix("...") or "__VA_ARGS__"] = ", ".join(rest)
        names = names[:-1]
    values |= dict(zip(names, given, strict=False))
    body = re.sub(r"(?<!#)#\s*(\w+)", lambda m: '"' + values.get(m[1], m[1]).replace('"', "'") + '"', macro.value)
    pieces = re.split(r'("(?:\\.|[^"\\])*"|[A-Za-z_]\w*)', body)
    return re.sub(r"\s*##\s*", "", "".join(values.get(piece, piece) for piece in pieces))


def _statement_ends(stream: TokenStream) -> AbstractSet[int]:
    """Return the indices of the brackets that end a macro call on a line of its own without a semicolon."""
    tokens, found = stream.tokens, set()
    for index, token in enumerate(tokens[:-2]):
        if token.kind != "word" or not token.text.isupper() or tokens[index + 1].text != "(":
            continue
        if index and tokens[index - 1].text not in (";", "{", "}", ")") and tokens[index - 1].kind != "directive":
            continue
        last = stream.partner[index + 1]
        after = tokens[last + 1] if last + 1 < len(tokens) else token
        if after.kind == "word" and "\n" in stream.text[tokens[last].end : after.start]:
            found.add(last)
    return found


def _blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)
