"""Boundaries and declared variables of statements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from evokern.cuda_source.lexer import Token, TokenStream

_NO_DECLARATION = frozenset({
    "return", "goto", "break", "continue", "delete", "throw", "asm", "__asm__", "new", "else", "case", "default",
    "using", "static_assert", "typedef", "co_return", "printf", "assert",
})  # fmt: skip
_QUALIFIERS = frozenset({
    "const", "constexpr", "static", "volatile", "extern", "register", "inline", "mutable", "friend", "typename",
    "__host__", "__device__", "__global__", "__shared__", "__constant__", "__managed__", "__forceinline__",
})  # fmt: skip
_TYPE_WORDS = frozenset(("unsigned", "signed", "long", "short", "int", "char", "bool", "auto"))


def skip_statement(tokens: Sequence[Token], partner: Mapping[int, int], index: int, end: int) -> int:
    """Return the index after the statement at ``index``; preprocessor lines in front belong to the statement."""
    while index < end and tokens[index].kind == "directive":
        index += 1
    if index >= end:
        return end
    text = tokens[index].text
    if text == "{":
        return partner[index] + 1
    if text in ("if", "for", "while", "switch"):
        opener = index + 1
        while opener < end and tokens[opener].text != "(":
            opener += 1
        behind = skip_statement(tokens, partner, partner.get(opener, opener) + 1, end)
        if text == "if" and behind < end and tokens[behind].text == "else":
            behind = skip_statement(tokens, partner, behind + 1, end)
        return behind
    if text == "do":
        index = skip_statement(tokens, partner, index + 1, end)
    while index < end and tokens[index].text != ";":
        index = partner.get(index, index) + 1
    return min(index + 1, end)


def statement_starts(stream: TokenStream) -> frozenset[int]:
    """Return the indices of tokens at which a statement or declaration may start."""
    tokens, found = stream.tokens, {0}
    expressions: set[int] = set()  # after the first part of a loop's head
    for index, token in enumerate(tokens):
        if token.kind == "directive" or token.text in (";", "{", "}", "else", "do"):
            found.add(index + 1)
        elif token.text in ("if", "for", "while", "switch"):
            opener = index + 1 + (index + 1 < len(tokens) and tokens[index + 1].text == "constexpr")
            close = stream.partner.get(opener, opener)
            found |= {opener + 1, close + 1}
            if token.text == "for":
                expressions |= {i + 1 for i in range(opener, close) if tokens[i].text == ";"}
        elif token.text in ("case", "default", "public", "private", "protected"):
            found.add(next((i for i in range(index, len(tokens)) if tokens[i].text == ":"), index) + 1)
    return frozenset(index for index in found - expressions if index < len(tokens))


def statement_end(stream: TokenStream, index: int) -> int:
    """Return the index of the last token of the statement at ``index``, without its ``;``, ``)`` or ``}``."""
    while index < len(stream.tokens) and stream.tokens[index].text not in (";", ")", "}"):
        index = stream.partner.get(index, index) + 1
    return index - 1


def declared_names(stream: TokenStream, first: int, last: int) -> set[str]:
    """Return the names declared by the statement ``first`` to ``last``."""
    tokens = stream.tokens
    if tokens[first].text in ("using", "typedef", "struct", "class", "enum", "union"):
        return {tokens[i].text for i in range(first, last + 1) if tokens[i].kind == "word"}
    return {tokens[index].text for index, _, _ in declarators(stream, first, last)}


def declarators(stream: TokenStream, first: int, last: int) -> Iterator[tuple[int, int, int]]:
    """Yield each variable that a statement declares.

    Args:
        stream: the text.
        first: index of the statement's first token.
        last: index of the statement's last token before the ``;``.

    Yields:
        Indices of the name and of the initialiser's first and last token; an empty range if there is none.
    """
    tokens = stream.tokens
    parts = stream.split_commas(first, last)
    if not parts or tokens[first].text in _NO_DECLARATION:
        return
    name = _name_after_type(stream, first, parts[0][1])
    if name is None:
        return
    if tokens[name].text == "[":  # auto [a, b] = ...
        for index in range(name + 1, stream.partner[name]):
            if tokens[index].kind == "word":
                yield index, 1, 0
        return
    initialiser = _initialiser(stream, name, parts[0][1])
    condition = first > 0 and tokens[first - 1].text == "(" and tokens[name - 1].text in ("*", "&", "&&")
    if condition and initialiser[0] > initialiser[1] and (name == last or tokens[name + 1].text != ":"):
        return  # `if (A && B)` declares no B
    yield name, *initialiser
    for begin, end in parts[1:]:
        index = begin
        while index <= end and tokens[index].text in ("*", "&", "const", "__restrict__"):
            index += 1
        if index <= end and tokens[index].kind == "word":
            yield index, *_initialiser(stream, index, end)


def _name_after_type(stream: TokenStream, first: int, last: int) -> int | None:
    """Return the index of the name in ``type name``, or None if the tokens are not a declaration."""
    tokens = stream.tokens
    texts = [token.text for token in tokens[first : last + 2]] + ["", ""]
    index, typed = first, False
    while index <= last:
        text, following = texts[index - first], texts[index - first + 1]
        word = tokens[index].kind == "word"
        if word and text in ("__align__", "alignas") and following == "(":
            index = stream.partner[index + 1] + 1
        elif word:
            if typed and following != "::" and text not in _QUALIFIERS | _TYPE_WORDS:
                return index
            typed = typed or text not in _QUALIFIERS
            index += 1
            if following == "<" and index <= last:
                index = stream.skip_angles(index, last + 1) or last + 1
            if index <= last and tokens[index].text == "::":
                typed, index = False, index + 1
        elif typed and text in ("*", "&", "&&"):
            index += 1
        elif typed and text == "(" and following in ("*", "&"):  # T (&name)[N]
            return index + 2
        elif typed and text == "[" and tokens[index - 1].text in ("auto", "&"):
            return index
        else:
            return None
    return None


def _initialiser(stream: TokenStream, name: int, last: int) -> tuple[int, int]:
    """Return the first and last token of a variable's initialiser; an empty range if there is none."""
    following = stream.tokens[name + 1].text if name < last else ""
    if following == "=":
        return name + 2, last
    if following == "{":
        return name + 1, last
    return 1, 0
