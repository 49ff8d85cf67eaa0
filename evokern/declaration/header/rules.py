"""Constraints as C++ conditions over macros, for the `static_assert`s of the generated header.

A constraint is a Python function. It runs on symbolic genes, which record the C++ text of each expression. A symbolic
condition in an `if` or `and` has no value, so the function runs once for each answer. The results become one
conditional expression. A function of `kernel.py` whose result is a macro is written as this macro. A constraint is left
out if it maps genes to other values, or if it contains other Python that cannot be recorded.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any

from evokern.declaration.genes import Value
from evokern.declaration.header.leaves import Leaf, field_leaves, gene_leaf, macro_functions, samples_of
from evokern.declaration.kernel import Kernel, Problem
from evokern.declaration.space import AtMost, Constraint
from evokern.errors import KERNEL_CODE_EXCEPTIONS
from evokern.escaping import c_string

_MOST_PATHS = 64
"""Maximum number of ways through a constraint's function."""
_MOST_TEXT = 2000
"""Maximum length of a condition in characters; a longer one helps no reader."""
HELPERS = (
    "namespace evokern_rules {  // division rounds down, as in Python",
    "constexpr long long floor_div(long long a, long long b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }",
    "constexpr long long floor_mod(long long a, long long b) { return a - floor_div(a, b) * b; }",
    "constexpr long long ceil_div(long long a, long long b) { return -floor_div(-a, b); }",
    "constexpr long long least(long long a, long long b) { return a < b ? a : b; }",
    "constexpr long long most(long long a, long long b) { return a < b ? b : a; }",
    "}",
)
"""Functions that the conditions use."""


class _Untraceable(Exception):  # noqa: N818 (ends a trace; not an error)
    """The constraint cannot be written in C++."""


class _Paths:
    """Ways through a function, one for each combination of answers to its conditions."""

    def __init__(self) -> None:
        self.answers: list[bool] = []
        self.conditions: list[str] = []
        self.domains: dict[Leaf, tuple[Value, ...]] = {}
        self.known: dict[str, bool] = {}

    def decide(self, condition: _Symbolic) -> bool:
        """Return the answer to a condition on the current way."""
        if condition.text in self.known:
            return self.known[condition.text]
        leaf = next(iter(condition.leaves)) if len(condition.leaves) == 1 else None
        domain = self.domains.get(leaf, leaf.values) if leaf else ()
        held = {bool(condition.value({leaf: one})): None for one in domain} if leaf and domain else {}
        if len(held) == 1:
            return next(iter(held))
        if len(self.conditions) == len(self.answers):
            self.answers.append(True)
        answer = self.answers[len(self.conditions)]
        self.conditions.append(condition.text)
        self.known[condition.text] = answer
        if leaf and domain:
            self.domains[leaf] = tuple(one for one in domain if bool(condition.value({leaf: one})) == answer)
        return answer

    def explore(self, function: Callable[[], Any]) -> Any:
        """Return a function's result, with conditional expressions for its conditions."""
        found: list[tuple[list[tuple[str, bool]], Any]] = []
        while True:
            self.conditions, self.domains, self.known = [], {}, {}
            result = self._written(function())
            found.append((list(zip(self.conditions, self.answers, strict=True)), result))
            while self.answers and not self.answers[-1]:
                self.answers.pop()
            if not self.answers:
                return _joined(found, 0)
            if len(found) >= _MOST_PATHS:
                raise _Untraceable
            self.answers[-1] = False

    def _written(self, result: Any) -> str:
        """Return a constraint's result as a C++ condition."""
        if isinstance(result, AtMost):
            result = result.needed <= result.available
        if isinstance(result, _Symbolic):
            result = self.known.get(result.text, result)
        if isinstance(result, _Symbolic):
            return result.text
        if not isinstance(result, (bool, int)):
            raise _Untraceable
        return "true" if result else "false"


def _joined(found: Sequence[tuple[list[tuple[str, bool]], str]], depth: int) -> str:
    first, result = found[0]
    if len(first) == depth:
        return result
    yes, no = (_joined([one for one in found if one[0][depth][1] is answer], depth + 1) for answer in (True, False))
    condition = first[depth][0]
    if yes == no:
        return yes
    if no == "false":
        return condition if yes == "true" else f"({condition} && {yes})"
    if yes == "true":
        return f"({condition} || {no})"
    if yes == "false":
        return f"!{condition}" if no == "true" else f"(!{condition} && {no})"
    return f"(!{condition} || {yes})" if no == "true" else f"({condition} ? {yes} : {no})"


class _Symbolic:
    """A number or condition with its C++ text."""

    __slots__ = ("leaves", "natural", "negated", "paths", "text", "value")
    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self, paths: _Paths, text: str, leaves: frozenset[Leaf], value: Callable[[Mapping[Any, Any]], Any],
        natural: bool = False,
    ) -> None:  # fmt: skip
        self.paths, self.text, self.leaves, self.value, self.natural = paths, text, leaves, value, natural
        self.negated: _Symbolic | None = None

    def join(self, other: Any, function: Callable[[Any, Any], Any], write: Callable[[str, str], str],
             natural: bool | None = None, *, swapped: bool = False) -> _Symbolic:  # fmt: skip
        """Return the result of an operator."""
        if isinstance(other, float) and other.is_integer():
            other = int(other)
        if not isinstance(other, (_Symbolic, int)):
            raise _Untraceable
        left, right = (other, self) if swapped else (self, other)
        texts = write(_text(left), _text(right))
        kept = natural if natural is not None else _natural(left) and _natural(right)
        return _Symbolic(
            self.paths,
            texts,
            _leaves(left) | _leaves(right),
            lambda values: function(_value(left, values), _value(right, values)),
            kept,
        )

    def __bool__(self) -> bool:
        return self.paths.decide(self)

    def __neg__(self) -> _Symbolic:
        if self.negated is not None and self.negated.text.startswith("evokern_rules::floor_div"):
            return self.negated
        made = _Symbolic(self.paths, f"-{self.text}", self.leaves, lambda values: -self.value(values))
        made.negated = self
        return made

    def __pos__(self) -> _Symbolic:
        return self

    def _divide(self, other: Any, swapped: bool) -> _Symbolic:
        left, right = (other, self) if swapped else (self, other)
        if isinstance(left, _Symbolic) and left.negated is not None:
            # -(-a // b) rounds up: the negation of this result is the second text
            up = left.negated.join(right, lambda a, b: -(-a // b), _call("ceil_div"))
            made = self.join(other, operator.floordiv, _call("floor_div"), swapped=swapped)
            return _Rounded(made, up)
        plain = _natural(left) and _natural(right)
        write = _sign("/") if plain else _call("floor_div")
        return self.join(other, operator.floordiv, write, swapped=swapped)

    def __floordiv__(self, other: Any) -> _Symbolic:
        return self._divide(other, False)

    def __rfloordiv__(self, other: Any) -> _Symbolic:
        return self._divide(other, True)

    def _remainder(self, other: Any, swapped: bool) -> _Symbolic:
        plain = self.natural and _natural(other)
        return self.join(other, operator.mod, _sign("%") if plain else _call("floor_mod"), swapped=swapped)

    def __mod__(self, other: Any) -> _Symbolic:
        return self._remainder(other, False)

    def __rmod__(self, other: Any) -> _Symbolic:
        return self._remainder(other, True)


class _Rounded(_Symbolic):
    """A quotient of a negated number; its negation is the quotient rounded up."""

    __slots__ = ("up",)

    def __init__(self, down: _Symbolic, up: _Symbolic) -> None:
        super().__init__(down.paths, down.text, down.leaves, down.value)
        self.up = up

    def __neg__(self) -> _Symbolic:
        return self.up


def _sign(sign: str) -> Callable[[str, str], str]:
    return lambda left, right: f"({left} {sign} {right})"


def _call(name: str) -> Callable[[str, str], str]:
    return lambda left, right: f"evokern_rules::{name}({left}, {right})"


def _text(number: Any) -> str:
    return number.text if isinstance(number, _Symbolic) else str(int(number))


def _natural(number: Any) -> bool:
    return number.natural if isinstance(number, _Symbolic) else number >= 0


def _leaves(number: Any) -> frozenset[Leaf]:
    return number.leaves if isinstance(number, _Symbolic) else frozenset()


def _value(number: Any, values: Mapping[Any, Any]) -> Any:
    return number.value(values) if isinstance(number, _Symbolic) else number


def _operators() -> Iterator[tuple[str, Any]]:
    """Yield the operators of `_Symbolic` that only differ in their sign."""
    plain = (("add", "+", None), ("sub", "-", False), ("and", "&", None), ("or", "|", None), ("xor", "^", None),
             ("rshift", ">>", None))  # fmt: skip
    written = [(name, _sign(sign), natural) for name, sign, natural in plain]
    written.append(("mul", lambda left, right: f"(1LL * {left} * {right})", None))
    written.append(("lshift", lambda left, right: f"(1LL * {left} << {right})", None))
    for name, write, natural in written:
        function = getattr(operator, f"{name}_" if name in ("and", "or") else name)
        for prefix, swapped in (("__", False), ("__r", True)):

            def method(
                self: _Symbolic, other: Any, function: Any = function, write: Any = write, natural: Any = natural,
                swapped: bool = swapped,
            ) -> _Symbolic:  # fmt: skip
                return self.join(other, function, write, natural, swapped=swapped)

            yield f"{prefix}{name}__", method
    for name, sign in (("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">="), ("eq", "=="), ("ne", "!=")):

        def compare(self: _Symbolic, other: Any, name: str = name, sign: str = sign) -> Any:
            return self.join(other, getattr(operator, name), _sign(sign), True)

        yield f"__{name}__", compare


for _name, _method in _operators():
    setattr(_Symbolic, _name, _method)


class _Choice:
    """A symbolic name, which can only be compared with names."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, paths: _Paths, leaf: Leaf) -> None:
        self.paths, self.leaf = paths, leaf

    def __eq__(self, other: object) -> Any:
        if not isinstance(other, (str, int)):
            raise _Untraceable
        if other not in self.leaf.values:
            return False
        leaf = self.leaf
        return _Symbolic(
            self.paths, leaf.conditions[other], frozenset({leaf}), lambda values: values[leaf] == other, True
        )

    def __ne__(self, other: object) -> Any:
        return not (self == other)


class _Values(dict[str, Any]):
    """Genes or fields by name and as attributes; one without a macro raises."""

    def __missing__(self, name: str) -> Any:
        raise _Untraceable

    __getattr__ = dict.__getitem__


def rules(kernel: Kernel, problem: Problem) -> tuple[list[str], list[str]]:
    """Return assertions that follow from a kernel's constraints, and the names of the constraints that are left out.

    Constraints marked as wasteful, and constraints of the chip, are not among either.

    Args:
        kernel: the kernel.
        problem: a problem, whose fields show which macros contain them.
    """
    leaves = [gene_leaf(gene) for gene in kernel.genes if gene.as_ != "template"]
    samples = samples_of(kernel, problem)
    fields = list(field_leaves(kernel, samples))
    named = macro_functions(kernel, samples)
    asserted, left_out = [], []
    for constraint in kernel.constraints:
        if constraint.wasteful or constraint.arity > 2:
            continue
        text = _written(constraint, leaves, fields, named)
        if text is None or len(text) > _MOST_TEXT:
            left_out.append(constraint.name)
        elif text != "true":
            text = text[1:-1] if _is_bracketed(text) else text
            message = c_string(f"{constraint.name}: {constraint.reason}")
            asserted.append(f"static_assert({text}, {message});")
    return asserted, left_out


def _is_bracketed(text: str) -> bool:
    """Return whether one pair of brackets encloses a text."""
    depth = 0
    for place, character in enumerate(text):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth == 0:
            return place == len(text) - 1 and text[:1] == "("
    return False


def _written(
    constraint: Constraint, genes: Sequence[Leaf], fields: Sequence[Leaf], named: Mapping[str, Leaf]
) -> str | None:
    paths = _Paths()
    arguments = [_symbolic(paths, leaves) for leaves in (genes, fields)][: constraint.arity]
    holds = _with_macros(constraint.holds, {name: _number(paths, leaf) for name, leaf in named.items()})
    try:
        text: str = paths.explore(lambda: holds(*arguments))
    except (_Untraceable, *KERNEL_CODE_EXCEPTIONS):
        return None
    return text


def _recorded(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return `min` or `max` that writes a call of a C++ function for two numbers, one or both symbolic."""

    def recorded(*numbers: Any, **options: Any) -> Any:
        one, *others = sorted(numbers, key=lambda number: not isinstance(number, _Symbolic))
        if len(others) != 1 or not isinstance(one, _Symbolic):
            return function(*numbers, **options)
        return one.join(others[0], function, _call(name))

    return recorded


def _with_macros(function: Callable[..., Any], numbers: Mapping[str, _Symbolic]) -> Callable[..., Any]:
    """Return a copy of a function in whose module some functions, `min` and `max` record what they return."""
    if not isinstance(function, FunctionType):
        return function
    module = {"min": _recorded(min, "least"), "max": _recorded(max, "most"), **function.__globals__}

    def copied(one: FunctionType) -> FunctionType:
        made = FunctionType(one.__code__, module, one.__name__, one.__defaults__, one.__closure__)
        made.__kwdefaults__ = one.__kwdefaults__
        return made

    for name, value in function.__globals__.items():
        if name in numbers:
            module[name] = lambda *_, number=numbers[name]: number
        elif isinstance(value, FunctionType) and value.__globals__ is function.__globals__:
            module[name] = copied(value)
    return copied(function)


def _symbolic(paths: _Paths, leaves: Sequence[Leaf]) -> _Values:
    def made(leaf: Leaf) -> Any:
        return _number(paths, leaf) if leaf.text else _Choice(paths, leaf)

    return _Values({leaf.name: made(leaf) for leaf in leaves})


def _number(paths: _Paths, leaf: Leaf) -> _Symbolic:
    natural = all(isinstance(one, int) and one >= 0 for one in leaf.values) if leaf.values else leaf.natural
    return _Symbolic(paths, leaf.text, frozenset({leaf}), lambda values: values[leaf], natural)
