"""What names mean in one text: chosen macros, constants, enumerators, plain constexpr functions, aggregates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from evokern.cuda_source.constant import (
    TYPES,
    Integer,
    Lookup,
    UndecidableError,
    Value,
    convert,
    evaluate,
    parse_expression,
    truth,
)
from evokern.cuda_source.declarations import Declaration
from evokern.cuda_source.lexer import Token
from evokern.cuda_source.unit import Unit

_SPECIFIERS = frozenset(
    ("constexpr", "const", "inline", "static", "extern", "volatile", "friend", "nodiscard", "&", "[", "]")
)
NO_VALUE = "("
"""Stands for the value of a macro that has several or takes arguments: no expression at all."""
_DEPTH = 64  # nested calls; deeper is recursion that is not worth following


@dataclass
class Scope:
    """Names declared in a template list, a parameter list, a class or a block."""

    names: dict[str, Value | None] = field(default_factory=dict)
    """Each name's value; None where it has none that is certain."""
    outer: Scope | None = None
    """The scope around it; None for the text itself."""

    def inner(self, names: Iterable[str] = ()) -> Scope:
        """Return a scope inside this one, with names whose values are not known."""
        return Scope(dict.fromkeys(names), self)

    def find(self, name: str) -> tuple[bool, Value | None]:
        """Return whether a name is declared in here, and its value."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return True, scope.names[name]
            scope = scope.outer
        return False, None


class Environment:
    """The meaning of the names at file and namespace scope.

    Args:
        unit: the text.
        macros: the chosen macros with their values.
    """

    def __init__(self, unit: Unit, macros: Mapping[str, str]) -> None:
        self.unit = unit
        self.macros: dict[str, str] = dict(macros)
        for definition in unit.definitions:
            if definition.parameters is None:
                same = self.macros.get(definition.name, definition.value) == definition.value
                self.macros[definition.name] = definition.value if same else NO_VALUE
        self._by_name: dict[str, list[Declaration]] = {}
        for leaf in unit.leaves:
            for name in leaf.names:
                self._by_name.setdefault(name, []).append(leaf)
        self._values: dict[str, Value | UndecidableError] = {}
        self._depth = 0

    def expand(self, tokens: Sequence[Token], hidden: frozenset[str] = frozenset()) -> list[Token]:
        """Replace macros without parameters by their values, as the preprocessor does."""
        result: list[Token] = []
        for token in tokens:
            if token.kind == "word" and token.text in self.macros and token.text not in hidden:
                result += self.expand(parse_expression(self.macros[token.text]), hidden | {token.text})
            elif token.kind != "directive":
                result.append(token)
        return result

    def tokens(self, first: int, last: int) -> list[Token]:
        """The tokens ``first`` to ``last`` (inclusive), macros expanded."""
        return self.expand(self.unit.stream.tokens[first : last + 1])

    def value(self, first: int, last: int, scope: Scope) -> Value:
        """Evaluate the tokens ``first`` to ``last`` (inclusive).

        Raises:
            UndecidableError: the value is not certain.
        """
        return evaluate(self.tokens(first, last), self._lookup_in(scope), self.call)

    def truth(self, first: int, last: int, scope: Scope) -> bool:
        """Evaluate a condition, the tokens ``first`` to ``last`` (inclusive).

        Raises:
            UndecidableError: the value is not certain.
        """
        return truth(self.tokens(first, last), self._lookup_in(scope), self.call)

    def function(self, name: str) -> Declaration | None:
        """Return the one plain constexpr function of a name, if that is what the name means."""
        found = [leaf for leaf in self._by_name.get(name, ()) if leaf.kind == "function"]
        if len(found) != 1 or len(self._by_name[name]) != 1 or found[0].body is None or found[0].template:
            return None
        head = {token.text for token in self.expand([self.unit.stream.tokens[i] for i in found[0].head])}
        return found[0] if "constexpr" in head else None

    def is_pure(self, first: int, last: int) -> bool:
        """Whether evaluating the tokens ``first`` to ``last`` does nothing but give a value."""
        tokens = self.unit.stream.tokens
        for index in range(first, last + 1):
            text = tokens[index].text
            if text in ("++", "--", "=", "<<<") or (text.endswith("=") and text not in ("==", "!=", "<=", ">=")):
                return False
            calls = tokens[index].kind == "word" and index < last and tokens[index + 1].text == "("
            if calls and text not in TYPES and text != "sizeof" and self.function(text) is None:
                return False
        return True

    def return_type(self, function: Declaration) -> str:
        """The type before a function's name, without specifiers."""
        return self._type(range(function.first, function.name_index))

    def call(self, name: str, arguments: list[Value]) -> Value:
        """Evaluate a call of a plain constexpr function.

        Raises:
            UndecidableError: there is no such function, or it does what is not followed here.
        """
        function = self.function(name)
        if function is None or function.parameters is None or function.body is None:
            raise UndecidableError(f"{name} is no plain constexpr function")
        stream = self.unit.stream
        parts = [p for p in stream.split_commas(function.parameters[0] + 1, function.parameters[1] - 1) if p[1] >= p[0]]
        if len(parts) != len(arguments):
            raise UndecidableError(f"{name} takes {len(parts)} arguments")
        if self._depth >= _DEPTH:
            raise UndecidableError(f"{name} calls itself too deeply")
        scope = Scope()
        for (first, last), argument in zip(parts, arguments, strict=True):
            written = self._type(range(first, last))
            scope.names[stream.tokens[last].text] = convert(argument, written)
        self._depth += 1
        try:
            result = _Body(self, scope).run(function.body[0] + 1, function.body[1])
        finally:
            self._depth -= 1
        if result is None:
            raise UndecidableError(f"{name} ends without a return")
        return convert(result, self.return_type(function))

    def lookup(self, name: str) -> Value:
        """Return the value of a constant at file or namespace scope.

        Raises:
            UndecidableError: there is none, or not one only.
        """
        if name not in self._values:
            self._values[name] = UndecidableError(f"{name} depends on itself")
            try:
                self._values[name] = self._constant(name)
            except UndecidableError as reason:
                self._values[name] = reason
        value = self._values[name]
        if isinstance(value, UndecidableError):
            raise value
        return value

    def initialised(self, first: int, last: int, scope: Scope, written: str) -> Value:
        """Evaluate an initialiser, perhaps a braced one, for a type as written.

        Raises:
            UndecidableError: the value is not certain.
        """
        stream = self.unit.stream
        if stream.tokens[first].text == "{" and stream.partner[first] == last:
            fields = self._fields(written)
            parts = [part for part in stream.split_commas(first + 1, last - 1) if part[1] >= part[0]]
            if fields is None and len(parts) == 1:
                return convert(self.value(*parts[0], scope), written)
            if fields is None or len(fields) != len(parts) or any(stream.tokens[p[0]].text == "." for p in parts):
                raise UndecidableError(f"{written} is no plain aggregate of as many members")
            values: dict[str, Integer] = {}
            for (name, kind), part in zip(fields, parts, strict=True):
                value = convert(self.value(*part, scope), kind)
                if isinstance(value, Integer):
                    values[name] = value
            return values
        return convert(self.value(first, last, scope), written)

    def declared_type(self, first: int, before: int) -> str:
        """The type among the tokens from ``first`` up to a declarator's name at ``before``."""
        return self._type(range(first, before))

    def _type(self, indices: Iterable[int]) -> str:
        tokens = self.expand([self.unit.stream.tokens[i] for i in indices])
        written = " ".join(t.text for t in tokens if t.text not in _SPECIFIERS and not t.text.startswith("__"))
        return self._behind_alias(written, frozenset())

    def _behind_alias(self, written: str, seen: frozenset[str]) -> str:
        """What a ``using`` or ``typedef`` of the text stands for; the name itself where it is none."""
        places = self._by_name.get(written, [])
        if len(places) != 1 or places[0].kind not in ("alias", "typedef") or places[0].template or written in seen:
            return written
        leaf, tokens = places[0], self.unit.stream.tokens
        indices = [i for i in range(leaf.first + 1, leaf.last) if i != leaf.name_index and tokens[i].text != "="]
        inside = " ".join(tokens[i].text for i in indices if tokens[i].text not in _SPECIFIERS)
        return self._behind_alias(inside, seen | {written})

    def _lookup_in(self, scope: Scope) -> Lookup:
        def find(name: str) -> Value:
            declared, value = scope.find(name)
            if not declared:
                return self.lookup(name)
            if value is None:
                raise UndecidableError(f"{name} has no value here")
            return value

        return find

    def _constant(self, name: str) -> Value:
        places = self._by_name.get(name, [])
        if len(places) != 1:
            raise UndecidableError(f"{name} is declared {len(places)} times")
        leaf, stream = places[0], self.unit.stream
        if leaf.kind == "enum":
            return self._enumerator(leaf, name)
        head = {stream.tokens[i].text for i in leaf.head}
        if leaf.kind != "variable" or leaf.template or not head & {"constexpr", "const"}:
            raise UndecidableError(f"{name} is no constant")
        last = leaf.last - 1 if stream.tokens[leaf.last].text == ";" else leaf.last
        for first, end in stream.split_commas(leaf.first, last):
            for index in range(first, end):
                if stream.tokens[index].text == name and stream.tokens[index + 1].text in ("=", "{"):
                    begin = index + 2 if stream.tokens[index + 1].text == "=" else index + 1
                    return self.initialised(begin, end, Scope(), self.declared_type(leaf.first, leaf.name_index))
        raise UndecidableError(f"{name} has no initialiser")

    def _enumerator(self, leaf: Declaration, name: str) -> Value:
        stream = self.unit.stream
        if leaf.body is None or "class" in {stream.tokens[i].text for i in leaf.head}:
            raise UndecidableError(f"{name} is a scoped enumerator")
        current = -1
        for first, last in stream.split_commas(leaf.body[0] + 1, leaf.body[1] - 1):
            if last > first and stream.tokens[first + 1].text == "=":
                value = self.value(first + 2, last, Scope())
                if not isinstance(value, Integer):
                    raise UndecidableError(f"{name} is no integer")
                current = value.value
            else:
                current += 1
            if stream.tokens[first].text == name:
                return Integer(current)
        raise UndecidableError(f"{name} is no enumerator")

    def _fields(self, written: str) -> list[tuple[str, str]] | None:
        """(name, type) of a plain struct's members in order; None for anything but a plain struct."""
        places = [
            leaf for leaf in self._by_name.get(written.split(" ")[-1] if written else "", ()) if leaf.kind == "class"
        ]
        if len(places) != 1 or places[0].template or any(member.kind != "variable" for member in places[0].members):
            return None
        members = places[0].members
        return [(name, self.declared_type(m.first, m.name_index)) for m in members for name in m.names]


class _Body:
    """The statements of a plain constexpr function: declarations of constants, ``if`` and ``return``."""

    def __init__(self, environment: Environment, scope: Scope) -> None:
        self.environment = environment
        self.scope = scope
        self.stream = environment.unit.stream

    def run(self, index: int, end: int) -> Value | None:
        """Run statements up to a ``return``; None where there is none."""
        while index < end:
            result, index = self._statement(index, end)
            if result is not None:
                return result
        return None

    def _statement(self, index: int, end: int) -> tuple[Value | None, int]:
        text = self.stream.tokens[index].text
        if text == "{":
            close = self.stream.partner[index]
            return _Body(self.environment, self.scope.inner()).run(index + 1, close), close + 1
        if text == "if":
            return self._branch(index, end)
        stop = index
        while stop < end and self.stream.tokens[stop].text != ";":
            stop = self.stream.partner.get(stop, stop) + 1
        if text == "return":
            return self.environment.value(index + 1, stop - 1, self.scope), stop + 1
        if text not in ("const", "constexpr") and text not in TYPES:
            raise UndecidableError(f"{text} begins a statement that is not followed")
        self._declare(index, stop - 1)
        return None, stop + 1

    def _declare(self, first: int, last: int) -> None:
        written = ""
        for begin, end in self.stream.split_commas(first, last):
            equals = next((i for i in range(begin, end) if self.stream.tokens[i].text == "="), None)
            if equals is None:
                raise UndecidableError("a variable without an initialiser")
            written = written or self.environment.declared_type(begin, equals - 1)
            value = self.environment.initialised(equals + 1, end, self.scope, written)
            self.scope.names[self.stream.tokens[equals - 1].text] = value

    def _branch(self, index: int, end: int) -> tuple[Value | None, int]:
        opener = index + 2 if self.stream.tokens[index + 1].text == "constexpr" else index + 1
        close = self.stream.partner[opener]
        holds = self.environment.truth(opener + 1, close - 1, self.scope)
        behind = self._skip(close + 1, end)
        has_else = behind < end and self.stream.tokens[behind].text == "else"
        after = self._skip(behind + 1, end) if has_else else behind
        if holds:
            return self._statement(close + 1, end)[0], after
        return (self._statement(behind + 1, end)[0] if has_else else None), after

    def _skip(self, index: int, end: int) -> int:
        """Index behind a statement."""
        return skip_statement(self.stream.tokens, self.stream.partner, index, end)


def skip_statement(tokens: Sequence[Token], partner: Mapping[int, int], index: int, end: int) -> int:
    """Return the index behind the statement at ``index``; preprocessor lines before it belong to it."""
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
