"""Preprocessor conditionals resolved where the chosen macros decide them, and the user's own headers put in place."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from evokern.cuda_source import preprocessor
from evokern.cuda_source.constant import Integer, UndecidableError, Value, parse_expression, truth
from evokern.cuda_source.environment import NO_VALUE
from evokern.cuda_source.lexer import Token, TokenStream, directive_body

_DEFINED = re.compile(r"\bdefined\s*(?:\(\s*(\w+)\s*\)|(\w+))")
_ALWAYS = {"__CUDACC__": "1"}  # nvcc and NVRTC both define it, in every pass


def inline_headers(text: str, headers: Mapping[str, str]) -> str:
    """Replace each ``#include`` of a given header by its text, once; later ones go.

    Args:
        text: the source.
        headers: texts by the name in ``#include``.

    Returns:
        One text. Include guards and ``#pragma once`` of the headers are taken off.
    """
    done: set[str] = set()

    def expand(content: str) -> str:
        stream = TokenStream(content)
        pieces: list[str] = []
        position = 0
        for directive in preprocessor.includes(stream):
            if directive.name not in headers:
                continue
            token = stream.tokens[directive.index]
            pieces.append(content[position : token.start])
            position = token.end
            if directive.name not in done:
                done.add(directive.name)
                body = expand(_unguarded(headers[directive.name])).strip("\n")
                pieces.append(f"// ---- {directive.name}\n{body}")
        return "".join(pieces) + content[position:]

    return expand(text)


def _unguarded(text: str) -> str:
    """A header's text without ``#pragma once`` or the guard around all of it."""
    stream = TokenStream(text)
    tokens = stream.tokens
    once = [t for t in tokens if t.directive == "pragma" and directive_body(t.text) == "once"]
    spans = [(t.start, t.end) for t in once]
    if len(tokens) > 2 and tokens[-1].directive == "endif" and tokens[1].directive == "define":
        name = preprocessor.guard_name(tokens[0].directive, directive_body(tokens[0].text))
        if name and directive_body(tokens[1].text) == name:
            spans += [(t.start, t.end) for t in (tokens[0], tokens[1], tokens[-1])]
    for start, end in sorted(spans, reverse=True):
        text = text[:start] + text[end:].removeprefix("\n")
    return text


@dataclass
class _Open:
    """A conditional that is being read."""

    wrote: bool
    """Whether a branch of it stays with its directive, so that ``#endif`` stays too."""
    done: bool
    """Whether a branch was certainly taken, so that the rest goes."""
    live: bool
    """Whether the current branch's text stays."""
    outer_live: bool
    """Whether the text around the conditional stays."""
    sure: bool
    """Whether the current branch is certainly compiled when the text around it is."""


def resolve_conditionals(text: str, macros: Mapping[str, str], closed: bool = False) -> str:
    """Drop the branches of ``#if`` that the macros rule out, and the directives that are decided.

    Args:
        text: the source.
        macros: the chosen macros with their values, as ``-D`` gives them.
        closed: whether every other name that the text does not define is undefined (names with a leading
            underscore and upper-case names with the prefix CUDA excepted: the compiler's own).

    Returns:
        The text without what is ruled out; whole lines go.
    """
    return _Resolver(text, macros, closed).run()


class _Resolver:
    def __init__(self, text: str, macros: Mapping[str, str], closed: bool) -> None:
        self.stream = TokenStream(text)
        self.text = text
        self.closed = closed
        self.defined: dict[str, str | None] = {**_ALWAYS, **macros}  # None: undefined; missing: nobody knows
        self.unsure: set[str] = set()
        self.open: list[_Open] = []
        self.pieces: list[str] = []

    def run(self) -> str:
        position = 0
        for token in self.stream.tokens:
            if token.kind != "directive":
                continue
            self._text(position, token.start)
            position = token.end + (1 if self.text[token.end : token.end + 1] == "\n" else 0)
            kept = self._directive(token)
            if kept is not None:
                self.pieces.append(kept + self.text[token.end : position])
        self._text(position, len(self.text))
        return "".join(self.pieces)

    def _text(self, begin: int, end: int) -> None:
        if all(o.live for o in self.open):
            self.pieces.append(self.text[begin:end])

    def _directive(self, token: Token) -> str | None:
        """Take note of a directive; return its text as it stays, or None."""
        name, body = token.directive, directive_body(token.text)
        if name in ("if", "ifdef", "ifndef"):
            return self._begin(token.text, name, body)
        if name in ("elif", "else") and self.open:
            return self._next(token.text, name, body)
        if name == "endif" and self.open:
            ended = self.open.pop()
            return token.text if ended.wrote and ended.outer_live else None
        if not all(o.live for o in self.open):
            return None
        if name in ("define", "undef") and body:
            self._define(name, body)
        return token.text

    def _begin(self, text: str, name: str, body: str) -> str | None:
        outer = all(o.live for o in self.open)
        holds = self._holds(name, body) if outer else False
        self.open.append(_Open(holds is None, holds is True, outer and holds is not False, outer, holds is True))
        return text if outer and holds is None else None

    def _next(self, text: str, name: str, body: str) -> str | None:
        state = self.open[-1]
        if not state.outer_live or state.done:
            state.live = state.sure = False
            return None
        holds = True if name == "else" else self._holds("if", body)
        state.live, state.done = holds is not False, holds is True
        state.sure = holds is True and not state.wrote
        if holds is False or (holds is True and not state.wrote):
            return None
        if not state.wrote:  # the first branch that stays becomes the #if
            state.wrote = True
            return text.replace("elif", "if", 1)
        return text if holds is None or name == "else" else "#else"

    def _define(self, name: str, body: str) -> None:
        macro = re.match(r"\w+", body)
        if not macro:
            return
        word, value = macro.group(), body[macro.end() :]
        if not all(o.sure for o in self.open):
            self.unsure.add(word)
        elif name == "undef":
            self.defined[word] = None
        else:
            self.defined[word] = NO_VALUE if value.startswith("(") else value.strip()

    def _holds(self, name: str, body: str) -> bool | None:
        """Whether a condition holds; None where that is not certain."""
        if name in ("ifdef", "ifndef"):
            body = f"{'!' if name == 'ifndef' else ''}defined({body.split()[0] if body.split() else ''})"
        try:
            return self._evaluate(body)
        except UndecidableError:
            return None

    def _evaluate(self, body: str) -> bool:
        unknown = "__evokern_unknown"

        def replace(found: re.Match[str]) -> str:
            known = self._is_defined(found.group(1) or found.group(2))
            return unknown if known is None else str(int(known))

        tokens = self._expand(parse_expression(_DEFINED.sub(replace, body)), frozenset())
        return truth(tokens, self._lookup, _no_call)

    def _expand(self, tokens: list[Token], hidden: frozenset[str]) -> list[Token]:
        result: list[Token] = []
        for token in tokens:
            value = self.defined.get(token.text) if token.kind == "word" and token.text not in self.unsure else None
            if value is not None and token.text not in hidden:
                result += self._expand(parse_expression(value), hidden | {token.text})
            else:
                result.append(token)
        return result

    def _is_defined(self, name: str) -> bool | None:
        if name in self.unsure:
            return None
        if name in self.defined:
            return self.defined[name] is not None
        return False if self.closed and not name.startswith(("_", "CUDA")) else None

    def _lookup(self, name: str) -> Value:
        """A name that is no macro counts as 0 (ISO C++17, 19.1 paragraph 9)."""
        if self._is_defined(name) is False:
            return Integer(0, 64)
        raise UndecidableError(f"{name} is not known")


def _no_call(name: str, arguments: list[Value]) -> Value:
    raise UndecidableError(f"{name} is a macro with arguments")
