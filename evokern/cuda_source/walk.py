"""A walk through a text, statement by statement, that knows what each name means where it stands."""

from __future__ import annotations

from collections.abc import Iterator

from evokern.cuda_source.constant import TYPES, UndecidableError, Value
from evokern.cuda_source.declarations import Declaration
from evokern.cuda_source.environment import Environment, Scope, skip_statement
from evokern.cuda_source.unit import Unit

_NO_DECLARATION = frozenset(
    (
        "return",
        "goto",
        "break",
        "continue",
        "delete",
        "throw",
        "asm",
        "new",
        "else",
        "case",
        "default",
        "using",
        "static_assert",
        "typedef",
        "co_return",
        "__asm__",
        "printf",
        "assert",
    )
)
_QUALIFIERS = frozenset(("const", "constexpr", "static", "volatile", "extern", "register", "typename", "__shared__"))
_INTEGERS = frozenset(TYPES) | {"signed", "auto"}
_BODY_AFTER = frozenset((")", "]", "mutable", "noexcept"))


class Walk:
    """Visits expressions, statements and declarations with the scope that holds for them.

    Subclasses override the ``visit_`` methods; the walk itself changes nothing.

    Args:
        unit: the text.
        environment: the meaning of the names outside functions.
    """

    def __init__(self, unit: Unit, environment: Environment) -> None:
        self.unit = unit
        self.environment = environment
        self.stream = unit.stream
        self.tokens = unit.stream.tokens
        self.partner = unit.stream.partner
        self._returns = ""  # type that the current function returns; empty where nobody knows

    def visit_expression(self, first: int, last: int, scope: Scope) -> None:
        """Called for every stretch of code that is no statement with parts: conditions, initialisers, heads."""

    def visit_constant(self, first: int, last: int, value: Value, written: str) -> None:
        """Called for every initialiser of a constexpr integer: its tokens, value and type."""

    def visit_choice(self, first: int, last: int, scope: Scope, written: str) -> None:
        """Called for every initialiser and returned expression: its tokens and the type that it becomes."""

    def visit_if(self, index: int, end: int, scope: Scope, block: tuple[int, int] | None) -> int | None:
        """Called for every ``if constexpr``; an index makes the walk go on there."""
        return None

    def visit_assertion(self, first: int, last: int, scope: Scope) -> None:
        """Called for every static_assert, from its first token to the ``;``."""

    def run(self) -> None:
        """Walk through the whole text."""
        for leaf in self.unit.leaves:
            self._declaration(leaf, Scope())

    def _declaration(self, leaf: Declaration, scope: Scope) -> None:
        scope = scope.inner(self._template_names(leaf))
        if leaf.kind == "assertion":
            self.visit_assertion(leaf.first, leaf.last, scope)
        elif leaf.kind == "class" and leaf.body:
            inner = scope.inner(name for member in leaf.members if member.kind == "variable" for name in member.names)
            for member in leaf.members:
                if member.kind == "variable":
                    self._declare(member.first, self._without_semicolon(member), inner)
            for member in leaf.members:
                if member.kind != "variable":
                    self._declaration(member, inner)
        elif leaf.kind == "variable":
            self._declare(leaf.first, self._without_semicolon(leaf), scope)
        elif leaf.kind in ("function", "call"):
            inner = scope.inner(self._parameter_names(leaf.parameters) if leaf.parameters else ())
            if leaf.head:
                self.visit_expression(leaf.first, leaf.head[-1], inner)
            if leaf.body:
                self._returns = self.environment.return_type(leaf)
                self.block(*leaf.body, inner)
                self._returns = ""
        else:
            self.visit_expression(leaf.first, leaf.last, scope)

    def _without_semicolon(self, leaf: Declaration) -> int:
        return leaf.last - 1 if self.tokens[leaf.last].text == ";" else leaf.last

    def _template_names(self, leaf: Declaration) -> Iterator[str]:
        for index in leaf.head:
            if self.tokens[index].text == "template" and self.tokens[index + 1].text == "<":
                behind = self.stream.skip_angles(index + 1, leaf.last + 1)
                if behind is not None:
                    yield from self._names(index + 2, behind - 2)

    def _parameter_names(self, brackets: tuple[int, int]) -> Iterator[str]:
        yield from self._names(brackets[0] + 1, brackets[1] - 1)

    def _names(self, first: int, last: int) -> Iterator[str]:
        """What each part of a parameter list declares: every word before its ``=`` or ``[`` that is no macro.

        That is a few words too many (types), which costs nothing: a word that counts as unknown only keeps code.
        """
        for begin, end in self.stream.split_commas(first, last):
            words = []
            for index in range(begin, end + 1):
                if self.tokens[index].text in ("=", "["):
                    break
                if self.tokens[index].kind == "word":
                    words.append(self.tokens[index].text)
            yield from words[-1:]
            if "(" in {self.tokens[i].text for i in range(begin, end + 1)}:  # T (&name)[N]
                yield from words

    def block(self, opener: int, close: int, scope: Scope) -> None:
        """Walk through the statements between two braces."""
        inner = scope.inner()
        index = opener + 1
        while index < close:
            index = self.statement(index, close, inner, (opener, close))

    def statement(self, index: int, end: int, scope: Scope, block: tuple[int, int] | None) -> int:
        """Walk through one statement.

        Args:
            index: its first token.
            end: where what surrounds it ends.
            scope: what names mean; declarations enter it.
            block: the braces that the statement stands directly in; None for the body of an ``if`` or a loop.

        Returns:
            Index behind it.
        """
        if index >= len(self.tokens):
            return index  # the text breaks off where a statement should begin
        token, text = self.tokens[index], self.tokens[index].text
        if token.kind == "directive" or text in ("else", ";", "}"):
            return index + 1
        if text == "{":
            self.block(index, self.partner[index], scope)
            return self.partner[index] + 1
        if text in ("if", "for", "while", "switch"):
            return self._compound(index, end, scope, block)
        if text == "do":
            behind = self.statement(index + 1, end, scope.inner(), None)
            return self._simple(behind, end, scope)
        if text in ("case", "default") or (token.kind == "word" and self._text(index + 1) == ":"):
            while index < end and self.tokens[index].text != ":":
                index += 1
            return index + 1
        return self._simple(index, end, scope)

    def _text(self, index: int) -> str:
        return self.tokens[index].text if index < len(self.tokens) else ""

    def _compound(self, index: int, end: int, scope: Scope, block: tuple[int, int] | None) -> int:
        """``if``, ``for``, ``while``, ``switch``: brackets, then a statement, perhaps ``else`` and another."""
        text = self.tokens[index].text
        opener = index + 1
        while opener < end and self.tokens[opener].text != "(":
            opener += 1
        if opener >= end:
            return end
        if text == "if" and self._text(index + 1) == "constexpr":
            behind = self.visit_if(index, end, scope, block)
            if behind is not None:
                return behind
        inner = scope.inner()
        close = self.partner[opener]
        semicolon = next((i for i in range(opener + 1, close) if self.tokens[i].text in (";", ":")), close)
        self._declare(opener + 1, semicolon - 1, inner)
        if semicolon < close:
            self.visit_expression(semicolon + 1, close - 1, inner)
        behind = self._body(close + 1, end, inner)
        if text == "if" and self._text(behind) == "else" and behind < end:
            behind = self._body(behind + 1, end, inner)
        return behind

    def _body(self, index: int, end: int, scope: Scope) -> int:
        """A statement that belongs to another; pragmas may stand before it."""
        while index < end and self.tokens[index].kind == "directive":
            index += 1
        return self.statement(index, end, scope.inner(), None) if index < end else end

    def _simple(self, index: int, end: int, scope: Scope) -> int:
        if index >= end:
            return end
        behind = skip_statement(self.tokens, self.partner, index, end)
        last = behind - 1 if self.tokens[behind - 1].text != ";" else behind - 2
        if self.tokens[index].text in ("static_assert", "_Static_assert"):
            self.visit_assertion(index, behind - 1, scope)
        elif last >= index:
            if self.tokens[index].text == "return" and last > index:
                self.visit_choice(index + 1, last, scope, self._returns)
            self._declare(index, last, scope)
            self._lambdas(index, last, scope)
        return max(behind, index + 1)

    def _lambdas(self, first: int, last: int, scope: Scope) -> None:
        """Walk through the bodies of the lambdas in a statement."""
        index = first
        while index <= last:
            if self.tokens[index].text == "{" and self.tokens[index - 1].text in _BODY_AFTER:
                opener = next((o for o, c in self.partner.items() if c == index - 1 and self._text(o) == "("), None)
                names = self._parameter_names((opener, index - 1)) if opener is not None else ()
                returns, self._returns = self._returns, ""
                self.block(index, self.partner[index], scope.inner(names))
                self._returns = returns
                index = self.partner[index]
            index += 1

    def _declare(self, first: int, last: int, scope: Scope) -> None:
        """Enter what a statement declares, with its value where it is a constant; then visit its expressions."""
        for name_index, begin, end in self._declarators(first, last):
            name = self.tokens[name_index].text
            scope.names[name] = None
            if begin > end:
                continue
            head = {self.tokens[i].text for i in range(first, name_index)}
            written = self.environment.declared_type(first, self._first_name(first, last))
            if self.tokens[begin].text != "{":
                self.visit_choice(begin, end, scope, written)
            if not head & {"constexpr", "const"} or not head & _INTEGERS or "*" in head:
                continue
            try:
                value = self.environment.initialised(begin, end, scope, written)
            except UndecidableError:
                continue
            scope.names[name] = value
            if "constexpr" in head:
                self.visit_constant(begin, end, value, written)
        if last >= first:
            self.visit_expression(first, last, scope)

    def _first_name(self, first: int, last: int) -> int:
        return next((name for name, _, _ in self._declarators(first, last)), first)

    def declared_names(self, first: int, last: int) -> set[str]:
        """Names that the statement ``first`` to ``last`` introduces."""
        if self.tokens[first].text in ("using", "typedef", "struct", "class", "enum", "union"):
            return {self.tokens[i].text for i in range(first, last + 1) if self.tokens[i].kind == "word"}
        return {self.tokens[index].text for index, _, _ in self._declarators(first, last)}

    def _declarators(self, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        """Yield (name, first, last of the initialiser) of each variable that a statement declares."""
        parts = self.stream.split_commas(first, last)
        if not parts or self.tokens[first].text in _NO_DECLARATION:
            return
        name = self._name_after_type(first, parts[0][1])
        if name is None:
            return
        if self.tokens[name].text == "[":  # auto [a, b] = ...
            for index in range(name + 1, self.partner[name]):
                if self.tokens[index].kind == "word":
                    yield index, 1, 0
            return
        yield name, *self._initialiser(name, parts[0][1])
        for begin, end in parts[1:]:
            index = begin
            while index <= end and self.tokens[index].text in ("*", "&", "const", "__restrict__"):
                index += 1
            if index <= end and self.tokens[index].kind == "word":
                yield index, *self._initialiser(index, end)

    def _name_after_type(self, first: int, last: int) -> int | None:
        """Index of the name in ``type name``; None where the tokens are no declaration."""
        index, typed = first, False
        while index <= last:
            token = self.tokens[index]
            if token.kind == "word" and token.text in ("__align__", "alignas") and self._text(index + 1) == "(":
                index = self.partner[index + 1] + 1
            elif token.kind == "word":
                if typed and self._text(index + 1) != "::" and token.text not in _QUALIFIERS | _INTEGERS | {"long"}:
                    return index
                typed = typed or token.text not in _QUALIFIERS
                index += 1
                if self._text(index) == "<" and index <= last:
                    index = self.stream.skip_angles(index, last + 1) or last + 1
                if self._text(index) == "::":
                    typed, index = False, index + 1
            elif typed and token.text in ("*", "&", "&&"):
                index += 1
            elif typed and token.text == "(" and self._text(index + 1) in ("*", "&"):  # T (&name)[N]
                return index + 2
            elif typed and token.text == "[" and self.tokens[index - 1].text in ("auto", "&"):
                return index
            else:
                return None
        return None

    def _initialiser(self, name: int, last: int) -> tuple[int, int]:
        """First and last token of a variable's initialiser; an empty stretch where it has none."""
        following = self._text(name + 1) if name < last else ""
        if following == "=":
            return name + 2, last
        if following == "{":
            return name + 1, last
        return 1, 0
