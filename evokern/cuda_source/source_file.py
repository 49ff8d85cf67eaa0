"""Source file of a program, with cached tokens and declarations."""

from __future__ import annotations

from functools import cached_property

from evokern.cuda_source import preprocessor
from evokern.cuda_source.declarations import CppDeclaration, read_declarations
from evokern.cuda_source.lexer import TokenStream


class SourceFile:
    """Source file with its tokens, declarations and preprocessor lines.

    Args:
        name: name as written in ``#include``; empty for the main file.
        text: content of the file, with line feeds as line ends.
    """

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        self.stream = TokenStream(text)

    @cached_property
    def declarations(self) -> tuple[CppDeclaration, ...]:
        """Outermost declarations."""
        return read_declarations(self.stream)

    @cached_property
    def leaves(self) -> tuple[CppDeclaration, ...]:
        """Declarations other than namespaces and linkage blocks, in order."""
        return tuple(leaf for declaration in self.declarations for leaf in declaration.leaves())

    @cached_property
    def definitions(self) -> tuple[preprocessor.Definition, ...]:
        """All ``#define`` directives."""
        return preprocessor.definitions(self.stream)

    def arguments(self, opener: int) -> list[tuple[int, int]]:
        """Return the token ranges of the arguments in brackets, or an empty result if ``opener`` is not a bracket."""
        if opener not in self.stream.partner:
            return []
        parts = self.stream.split_commas(opener + 1, self.stream.partner[opener] - 1)
        return [part for part in parts if part[1] >= part[0]]

    def line(self, index: int) -> int:
        """Return the line of a token's first character, counted from 1."""
        token = self.stream.tokens[index]
        return self.stream.line(token.start + len(token.text) - len(token.text.lstrip()))
