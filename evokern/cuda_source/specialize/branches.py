"""Edits that resolve branches on ``true`` and ``false`` and remove unused constants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Set

from evokern.cuda_source import preprocessor
from evokern.cuda_source.lexer import NESTING, directive_body
from evokern.cuda_source.source_file import SourceFile
from evokern.cuda_source.specialize.layout import Edit, Layout
from evokern.cuda_source.specialize.statements import declarators, declared_names, skip_statement, statement_starts


def prune_edits(unit: SourceFile, wanted: Set[str] = frozenset()) -> list[Edit]:
    """Return the edits that resolve ``if constexpr``, outermost first, so that each pass is valid.

    A plain ``if`` is kept, because without it the compiler orders some instructions differently.

    Args:
        unit: the text.
        wanted: names that are used elsewhere.
    """
    return [*_Pruner(unit).run(), *_unused_constants(unit, wanted)]


class _Pruner:
    def __init__(self, unit: SourceFile) -> None:
        self.stream = unit.stream
        self.tokens = unit.stream.tokens
        self.partner = unit.stream.partner
        self.layout = Layout(unit)
        self.blocks: list[tuple[int, int]] = []  # the braces around the current token

    def run(self) -> Iterator[Edit]:
        for index, token in enumerate(self.tokens):
            while self.blocks and index > self.blocks[-1][1]:
                self.blocks.pop()
            if token.text == "{":
                self.blocks.append((index, self.partner[index]))
            elif token.text == "if" and self.blocks:
                yield from self._branch(index)

    def _branch(self, index: int) -> Iterator[Edit]:
        end = self.blocks[-1][1]
        words = [token.text for token in self.tokens[index + 1 : index + 5]]
        if len(words) < 4 or words[:2] != ["constexpr", "("] or words[2] not in ("true", "false") or words[3] != ")":
            return
        first = (index + 5, skip_statement(self.tokens, self.partner, index + 5, end))
        behind, second = first[1], None
        if behind < end and self.tokens[behind].text == "else":
            second = (behind + 1, skip_statement(self.tokens, self.partner, behind + 1, end))
            behind = second[1]
        if not all(begin < stop and self._balanced(begin, stop) for begin, stop in filter(None, (first, second))):
            return
        kept = first if words[2] == "true" else second
        if not self._stands_alone(index):
            yield self._inside(index, behind, kept)
        elif kept is None:
            yield self.layout.removal(index, behind - 1)
        else:
            bare = self.tokens[kept[0]].text == "{" and not self._clashes(kept[0], index, behind)
            yield self.layout.replacement(index, behind - 1, kept[0], kept[1] - 1, inner=bare)

    def _stands_alone(self, index: int) -> bool:
        """Return whether a statement is directly in its block, not part of another statement."""
        opener, close = self.blocks[-1]
        at = opener + 1
        while at < index:
            at = skip_statement(self.tokens, self.partner, at, close)
        return at == index

    def _balanced(self, first: int, behind: int) -> bool:
        """Return whether no preprocessor conditional crosses the border of a branch."""
        depth = 0
        for index in range(first, behind):
            depth += NESTING.get(self.tokens[index].directive, 0)
            if depth < 0:
                return False
        return depth == 0

    def _inside(self, index: int, behind: int, kept: tuple[int, int] | None) -> Edit:
        """Return the edit for a statement inside another one, which must remain a single statement."""
        start, end = self.tokens[index].start, self.tokens[behind - 1].end
        if kept is None:
            return Edit(start, end, "{}")
        text = self.layout.text(kept[0], kept[1] - 1)
        return Edit(start, end, f"{{ {text} }}" if self.tokens[kept[0]].text == "if" else text)

    def _clashes(self, opener: int, index: int, behind: int) -> bool:
        """Return whether a name declared directly in a branch also occurs in the enclosing block."""
        declared: set[str] = set()
        at = opener + 1
        while at < self.partner[opener]:
            after = skip_statement(self.tokens, self.partner, at, self.partner[opener])
            while at < after - 1 and self.tokens[at].kind == "directive":
                at += 1
            if self.tokens[at].text not in ("{", "if", "for", "while", "switch", "do"):
                stop = after - 2 if self.tokens[after - 1].text == ";" else after - 1
                declared |= declared_names(self.stream, at, stop) if stop >= at else set()
            at = after
        block = self.blocks[-1]
        outside = (*range(block[0], index), *range(behind, block[1]))
        return bool(declared) and any(self.tokens[i].text in declared for i in outside if self.tokens[i].kind == "word")


def _unused_constants(unit: SourceFile, wanted: Set[str]) -> Iterator[Edit]:
    """Remove unused constexpr variables that are the only declaration of their statement."""
    tokens = unit.stream.tokens
    uses = Counter(wanted) + Counter(token.text for token in tokens if token.kind == "word")
    for token in tokens:
        if token.kind == "directive":
            uses.update(preprocessor.words(directive_body(token.text)))
    layout = Layout(unit)
    for start in statement_starts(unit.stream):
        if start < len(tokens) and tokens[start].text in ("constexpr", "static"):
            stop = skip_statement(tokens, unit.stream.partner, start, len(tokens)) - 1
            found = list(declarators(unit.stream, start, stop - 1)) if tokens[stop].text == ";" else []
            constant = len(found) == 1 and "constexpr" in {tokens[i].text for i in range(start, found[0][0])}
            if constant and found[0][1] <= found[0][2] and uses[tokens[found[0][0]].text] == 1:
                yield layout.removal(start, stop)
