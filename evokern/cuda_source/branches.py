"""Decided branches kept without their conditions, decided asserts gone, and the values of choices written out."""

from __future__ import annotations

import re
from collections import Counter

from evokern.cuda_source import preprocessor
from evokern.cuda_source.constant import TYPES, Integer, UndecidableError, Value
from evokern.cuda_source.environment import Environment, Scope, skip_statement
from evokern.cuda_source.layout import Edit, Layout
from evokern.cuda_source.lexer import directive_body
from evokern.cuda_source.unit import Unit
from evokern.cuda_source.walk import Walk

_CHOOSING = frozenset(("==", "!=", "<", ">", "<=", ">=", "&&", "||", "?", "!"))
_CONDITIONALS = {"if": 1, "ifdef": 1, "ifndef": 1, "endif": -1}
_FOLDABLE = frozenset(("int", "bool", "unsigned", "unsigned int"))


class BranchPruner(Walk):
    """Collects the edits that keep the decided branches; the outermost ones first, so that each pass is sound."""

    def __init__(self, unit: Unit, environment: Environment) -> None:
        super().__init__(unit, environment)
        self.edits: list[Edit] = []
        self.layout = Layout(unit)

    def visit_if(self, index: int, end: int, scope: Scope, block: tuple[int, int] | None) -> int | None:
        """Replace a decided ``if constexpr`` by the branch that is taken.

        A plain ``if`` stays: without it the compiler orders some instructions differently.
        """
        opener = index + 2
        close = self.partner[opener]
        try:
            holds = self.environment.truth(opener + 1, close - 1, scope)
        except UndecidableError:
            return None
        first = (close + 1, skip_statement(self.tokens, self.partner, close + 1, end))
        behind, second = first[1], None
        if behind < end and self.tokens[behind].text == "else":
            second = (behind + 1, skip_statement(self.tokens, self.partner, behind + 1, end))
            behind = second[1]
        branches = [branch for branch in (first, second) if branch]
        if not all(begin < stop and self._balanced(begin, stop) for begin, stop in branches):
            return None
        kept = first if holds else second
        if block is None:
            self.edits.append(self._inside(index, behind, kept))
        elif kept is None:
            self.edits.append(self.layout.removal(index, behind - 1))
        else:
            self.edits.append(self._unwrapped(index, behind, kept, block))
        return behind

    def visit_assertion(self, first: int, last: int, scope: Scope) -> None:
        """Take out an assert that holds: it guarded choices that are made."""
        parts = self.unit.arguments(first + 1)
        try:
            holds = bool(parts) and self.environment.truth(*parts[0], scope)
        except UndecidableError:
            return
        if holds:
            self.edits.append(self.layout.removal(first, last))

    def _balanced(self, first: int, behind: int) -> bool:
        """Whether no undecided preprocessor conditional crosses a branch's border."""
        depth = 0
        for index in range(first, behind):
            depth += _CONDITIONALS.get(self.tokens[index].directive, 0)
            if depth < 0:
                return False
        return depth == 0

    def _inside(self, index: int, behind: int, kept: tuple[int, int] | None) -> Edit:
        """A statement inside another must stay one statement."""
        start, end = self.tokens[index].start, self.tokens[behind - 1].end
        if kept is None:
            return Edit(start, end, "{}")
        text = self.layout.text(kept[0], kept[1] - 1)
        return Edit(start, end, f"{{ {text} }}" if self.tokens[kept[0]].text == "if" else text)

    def _unwrapped(self, index: int, behind: int, kept: tuple[int, int], block: tuple[int, int]) -> Edit:
        """The branch in place of the whole statement, without its braces where no name would clash."""
        first, last = kept[0], kept[1] - 1
        bare = self.tokens[first].text == "{" and not self._clashes(first, index, behind, block)
        return self.layout.replacement(index, behind - 1, first, last, inner=bare)

    def _clashes(self, opener: int, index: int, behind: int, block: tuple[int, int]) -> bool:
        """Whether a name declared directly in a branch also stands in the block around the statement."""
        declared: set[str] = set()
        at = opener + 1
        while at < self.partner[opener]:
            after = skip_statement(self.tokens, self.partner, at, self.partner[opener])
            while at < after - 1 and self.tokens[at].kind == "directive":
                at += 1
            if self.tokens[at].text not in ("{", "if", "for", "while", "switch", "do"):
                stop = after - 2 if self.tokens[after - 1].text == ";" else after - 1
                declared |= self.declared_names(at, stop) if stop >= at else set()
            at = after
        outside = (*range(block[0], index), *range(behind, block[1]))
        return bool(declared) and any(self.tokens[i].text in declared for i in outside if self.tokens[i].kind == "word")


class ValueFolder(Walk):
    """Collects edits that write the values of choices out.

    These are calls of constexpr functions on constants, and constants whose initialisers compare or choose. Sums and
    products of names stay: they tell where a number comes from.
    """

    def __init__(self, unit: Unit, environment: Environment) -> None:
        super().__init__(unit, environment)
        self.edits: list[Edit] = []
        self.layout = Layout(unit)
        self._taken: list[tuple[int, int]] = []
        self._uses = Counter(token.text for token in self.tokens if token.kind == "word")
        self._uses.update(
            word for t in self.tokens if t.kind == "directive" for word in preprocessor.words(directive_body(t.text))
        )

    def visit_constant(self, first: int, last: int, value: Value, written: str) -> None:
        """Write out a constant that is the result of a choice; take out one that nothing names any more."""
        if self.tokens[first - 1].text == "=" and self._uses[self.tokens[first - 2].text] == 1:
            start = first - 2
            while start > 0 and not self._ends_statement(start - 1):
                start -= 1
            # Only a declaration of this one constant: nothing before it or behind it in the same statement.
            if self.tokens[start - 1].text not in (",", "(") and self.tokens[last + 1].text == ";":
                self.edits.append(self.layout.removal(start, last + 1))
                return
        if isinstance(value, Integer) and any(self.tokens[i].text in _CHOOSING for i in range(first, last + 1)):
            self._fold(first, last, value)

    def _ends_statement(self, index: int) -> bool:
        return self.tokens[index].kind == "directive" or self.tokens[index].text in (";", "{", "}", ",", "(", ":")

    def visit_choice(self, first: int, last: int, scope: Scope, written: str) -> None:
        """Keep the chosen side of ``A ? b : c``, where the type that it becomes does not depend on the other side."""
        if written not in TYPES and written not in ("float", "double") and not written.endswith("*"):
            return
        index = first
        while index <= last and self.tokens[index].text != "?":
            index = self.partner.get(index, index) + 1
        colon = self._colon(index + 1, last)
        if colon is None or not self.environment.is_pure(first, index - 1):
            return
        try:
            holds = self.environment.truth(first, index - 1, scope)
        except UndecidableError:
            return
        start, end = (index + 1, colon - 1) if holds else (colon + 1, last)
        self._replace(first, last, self.unit.text[self.tokens[start].start : self.tokens[end].end])

    def _colon(self, index: int, last: int) -> int | None:
        """Index of the ``:`` that belongs to a ``?`` before ``index``."""
        depth = 0
        while index <= last:
            text = self.tokens[index].text
            if text == ":" and depth == 0:
                return index
            depth += {"?": 1, ":": -1}.get(text, 0)
            index = self.partner.get(index, index) + 1
        return None

    def visit_expression(self, first: int, last: int, scope: Scope) -> None:
        """Write out calls whose arguments are all known, members of constants, and array bounds that choose."""
        for index in range(first, last + 1):
            if self.tokens[index].text == "[" and self.partner[index] > index + 1:
                self._fold_bound(index + 1, self.partner[index] - 1, scope)
        for index in range(first, last):
            before = self.tokens[index - 1].text if index else ""
            if self.tokens[index].kind != "word" or before in (".", "->", "::"):
                continue
            end = self._foldable(index, last)
            if end is None or scope.find(self.tokens[index].text)[0]:
                continue
            try:
                value = self.environment.value(index, end, scope)
            except UndecidableError:
                continue
            if isinstance(value, Integer):
                self._fold(index, end, value)

    def _foldable(self, index: int, last: int) -> int | None:
        """Index of the last token of ``function(...)`` or ``aggregate.member`` at ``index``; None for anything else."""
        following = self.tokens[index + 1].text
        if following == "(":
            function = self.environment.function(self.tokens[index].text)
            if function is None or function.name_index == index:
                return None
            return self.partner[index + 1] if self.environment.return_type(function) in _FOLDABLE else None
        if following == "." and index + 2 <= last and self.tokens[min(index + 3, last)].text not in ("(", "."):
            return index + 2
        return None

    def _fold_bound(self, first: int, last: int, scope: Scope) -> None:
        if not any(self.tokens[i].text == "?" for i in range(first, last + 1)):
            return
        try:
            value = self.environment.value(first, last, scope)
        except UndecidableError:
            return
        if isinstance(value, Integer):
            self._fold(first, last, value)

    def _fold(self, first: int, last: int, value: Integer) -> None:
        try:
            text = value.literal
        except UndecidableError:
            return
        whole = first > 0 and self.tokens[first - 1].text in ("=", "(", ",", "[")
        self._replace(first, last, text if value.value >= 0 or whole else f"({text})")

    def _replace(self, first: int, last: int, text: str) -> None:
        """Note an edit; a comment behind it on its line stays in its column."""
        start, end = self.tokens[first].start, self.tokens[last].end
        if any(begin < end and start < stop for begin, stop in self._taken):
            return
        self._taken.append((start, end))
        behind = re.match(r"(\)*;)( {2,})//", self.unit.text[end:])
        if behind and "\n" not in self.unit.text[start:end]:
            pad = max(end - start - len(text), 0)
            text, end = text + behind.group(1) + behind.group(2) + " " * pad, end + behind.end() - 2
        self.edits.append(Edit(start, end, text))
