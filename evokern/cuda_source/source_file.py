"""One file of a program, cut into tokens and declarations once."""

from __future__ import annotations

from functools import cached_property

from evokern.cuda_source import preprocessor
from evokern.cuda_source.declarations import CppDeclaration, read_declarations
from evokern.cuda_source.lexer import TokenStream


class SourceFile:
    """One file: its tokens, declarations and preprocessor lines.

    Args:
        name: as written in ``#include``; empty for the file that was asked for.
        text: its text, every line ending in a line feed.
    """

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        self.stream = TokenStream(text)

    @cached_property
    def declarations(self) -> tuple[CppDeclaration, ...]:
        """The outermost declarations."""
        return read_declarations(self.stream)

    @cached_property
    def leaves(self) -> tuple[CppDeclaration, ...]:
        """The declarations that are not namespaces or linkage blocks, in order."""
        return tuple(leaf for declaration in self.declarations for leaf in declaration.leaves())

    @cached_property
    def definitions(self) -> tuple[preprocessor.Definition, ...]:
        """Every ``#define``."""
        return preprocessor.definitions(self.stream)

    def arguments(self, opener: int) -> list[tuple[int, int]]:
        """Cut what stands between a bracket and its partner at the commas; nothing where there is no bracket."""
        if opener not in self.stream.partner:
            return []
        parts = self.stream.split_commas(opener + 1, self.stream.partner[opener] - 1)
        return [part for part in parts if part[1] >= part[0]]

    def line(self, index: int) -> int:
        """Line of a token's first character, counted from 1."""
        token = self.stream.tokens[index]
        return self.stream.line(token.start + len(token.text) - len(token.text.lstrip()))
