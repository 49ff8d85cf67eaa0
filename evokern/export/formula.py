"""Formulas over a shape's fields: evaluation, simplification, conversion to C++, and the C++ names of fields."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

_TAKEN = frozenset(
    # keywords (C++ standard, section 5.11), macros of the standard headers and of GCC, names in the program
    word
    for line in (
        "alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t char8_t class",
        "co_await co_return co_yield compl concept const const_cast consteval constexpr constinit continue decltype",
        "default delete do double dynamic_cast else enum explicit export extern false float for friend goto if inline",
        "int long mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public",
        "register reinterpret_cast requires return short signed sizeof static static_assert static_cast struct switch",
        "template this thread_local throw true try typedef typeid typename union unsigned using virtual void volatile",
        "wchar_t while xor xor_eq assert errno linux major makedev minor signals stderr stdin stdout unix NULL EOF",
        "INFINITY NAN I SIZE_MAX Shape Status OK BAD_SHAPE MISALIGNED CUDA_ERROR refusal launch floor_div floor_mod",
        "ceil_div std evokern main shape stream addresses entry arguments config attributes shared_bytes device window",
        "window_limit persisting persisting_limit window_bytes uintptr_t size_t dim3",
        "None True False as async await def del elif except finally from global import in is lambda nonlocal pass",
        "raise with yield",  # Python
    )
    for word in line.split()
)


def cpp_names(names: Iterable[str], *, lower: bool = False) -> dict[str, str]:
    """Return a C++ name for each name; all are different, and none has a meaning in an exported program.

    Args:
        names: the names.
        lower: whether to use lower case.
    """
    found: dict[str, str] = {}
    for name in names:
        plain = re.sub(r"\W", "_", name.lower() if lower else name, flags=re.ASCII)
        plain = f"_{plain}" if plain[:1].isdigit() else plain
        while plain in _TAKEN or plain in found.values() or re.fullmatch(r"argument_\d+|cuda\w*|evokern\w*", plain):
            plain += "_"
        found[name] = plain
    return found


Formula = tuple[Any, ...]
"""A field `("field", name)`, a number `("number", n)`, or an operation on formulas.

Operations are `("neg", a)`, `("bits", a)` for the bit length, and `(operator, a, b)` with `+ - * // %` as in Python.
The formula `("if", guard, a, b)` is a if the guard holds, and otherwise b."""

OPERATORS: Mapping[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
}
COMPARISONS: Mapping[str, Callable[[int, int], bool]] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}
OPPOSITE = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}
"""Comparison → its negation."""


@dataclass(frozen=True)
class ShapeGuard:
    """A condition on the shape under which the formulas are valid."""

    comparison: str
    """A key of `COMPARISONS`."""
    left: Formula
    """Left side of the comparison."""
    right: Formula
    """Right side of the comparison."""
    when: tuple[ShapeGuard, ...] = ()
    """Conditions without which the comparison does not matter."""
    others: tuple[ShapeGuard, ...] = ()
    """Alternatives to the comparison: the condition also holds if one of them does."""

    def holds(self, fields: Mapping[str, int]) -> bool:
        """Return whether a shape meets the condition."""
        if not all(guard.holds(fields) for guard in self.when):
            return True
        own = COMPARISONS[self.comparison](evaluate(self.left, fields), evaluate(self.right, fields))
        return own or any(guard.holds(fields) for guard in self.others)

    def cpp(self) -> str:
        """Return the condition as C++ over `shape`."""
        unless = [f"!({' && '.join(guard.cpp() for guard in self.when)})"] if self.when else []
        return " || ".join([*unless, self.own_cpp(), *(guard.cpp() for guard in self.others)])

    def own_cpp(self) -> str:
        """Return the comparison as C++ over `shape`."""
        return f"{cpp(self.left)} {self.comparison} {cpp(self.right)}"

    def python(self) -> str:
        """Return the condition as Python over `shape`."""
        own = f"{python(self.left)} {self.comparison} {python(self.right)}"
        unless = [f"not ({' and '.join(guard.python() for guard in self.when)})"] if self.when else []
        return " or ".join([*unless, own, *(guard.python() for guard in self.others)])

    def simplified(self, fixed: Mapping[str, int]) -> ShapeGuard:
        """Return the condition with fixed fields replaced and constants folded."""
        return ShapeGuard(
            self.comparison,
            simplified(self.left, fixed),
            simplified(self.right, fixed),
            tuple(guard.simplified(fixed) for guard in self.when),
            tuple(guard.simplified(fixed) for guard in self.others),
        )

    @property
    def fields(self) -> set[str]:
        """Names of the fields in the comparison."""
        return fields_of(self.left) | fields_of(self.right)

    def opposes(self, other: ShapeGuard) -> bool:
        """Return whether always exactly one of the two comparisons holds."""
        return replace(self, comparison=OPPOSITE[self.comparison]) == other

    def excludes(self, other: ShapeGuard) -> bool:
        """Return whether never both comparisons hold; False if their form does not show it."""
        values = self.comparison == other.comparison == "==" and self.right[0] == other.right[0] == "number"
        return self.opposes(other) or (values and self.left == other.left and self.right != other.right)

    def always_holds(self, ranges: Mapping[str, tuple[int, int]]) -> bool:
        """Return whether the comparison holds for all values of the fields in their ranges; False if it is unclear."""
        left, right = bounds(self.left, ranges), bounds(self.right, ranges)
        if left is None or right is None:
            return False
        sides = {
            "<": (left[1], right[0]),
            "<=": (left[1], right[0]),
            ">": (left[0], right[1]),
            ">=": (left[0], right[1]),
        }
        return self.comparison in sides and COMPARISONS[self.comparison](*sides[self.comparison])


def member(name: str) -> str:
    """Return the member of `Shape` for a field, whose name is unique without regard to case."""
    return cpp_names([name], lower=True)[name]


def fields_of(formula: Formula) -> set[str]:
    """Return the names of the fields in a formula."""
    if formula[0] == "field":
        return {formula[1]}
    own = formula[1].fields if formula[0] == "if" else set()
    return own.union(*(fields_of(part) for part in formula[1:] if isinstance(part, tuple)))


def evaluate(formula: Formula, fields: Mapping[str, int]) -> int:
    """Return a formula's value for a shape."""
    match formula:
        case ("field", name):
            return fields[name]
        case ("number", number):
            return int(number)
        case ("neg", inner):
            return -evaluate(inner, fields)
        case ("bits", inner):
            return evaluate(inner, fields).bit_length()
        case ("if", guard, left, right):
            return evaluate(left if guard.holds(fields) else right, fields)
        case (operator, left, right):
            return OPERATORS[operator](evaluate(left, fields), evaluate(right, fields))
    raise AssertionError(formula)


def bounds(formula: Formula, ranges: Mapping[str, tuple[int, int]]) -> tuple[int, int] | None:
    """Return the smallest and the largest value of a formula, or wider bounds; None if they are unknown."""
    match formula:
        case ("field", name):
            return ranges.get(name)
        case ("number", number):
            return number, number
        case ("neg", inner):
            found = bounds(inner, ranges)
            return found and (-found[1], -found[0])
        case ("+" | "-" | "*" | "//" as operator, left, right):
            first, second = bounds(left, ranges), bounds(right, ranges)
            if first is None or second is None or (operator == "//" and second[0] < 1):
                return None
            values = [OPERATORS[operator](a, b) for a in first for b in second]
            return min(values), max(values)
    return None


def simplified(formula: Formula, fixed: Mapping[str, int]) -> Formula:
    """Return a formula with fixed fields replaced, constants folded, and `* 1`, `+ 0`, `// 1` removed."""
    match formula:
        case ("field", name):
            return ("number", fixed[name]) if name in fixed else formula
        case ("number", _):
            return formula
        case ("neg", inner):
            inner = simplified(inner, fixed)
            if inner[0] == "number":
                return ("number", -inner[1])
            return inner[1] if inner[0] == "neg" else ("neg", inner)
        case ("bits", inner):
            inner = simplified(inner, fixed)
            return ("number", inner[1].bit_length()) if inner[0] == "number" else ("bits", inner)
        case ("if", guard, left, right):
            guard, left, right = guard.simplified(fixed), simplified(left, fixed), simplified(right, fixed)
            if left == right or not guard.fields:
                return left if left == right or guard.holds({}) else right
            return ("if", guard, left, right)
        case (operator, left, right):
            left, right = simplified(left, fixed), simplified(right, fixed)
            if left[0] == right[0] == "number" and not (operator in ("//", "%") and right[1] == 0):
                return ("number", OPERATORS[operator](left[1], right[1]))
            if operator in ("+", "*") and left == ("number", 1 if operator == "*" else 0):
                return right
            if (operator in ("+", "-") and right == ("number", 0)) or (
                operator in ("*", "//") and right == ("number", 1)
            ):
                return left
            if operator == "*" and ("number", 0) in (left, right):
                return ("number", 0)
            return (operator, left, right)
    raise AssertionError(formula)


def cpp(formula: Formula) -> str:
    """Return a formula as C++ over the members of `shape`; division rounds down, as in Python."""
    match formula:
        case ("field", name):
            return f"shape.{member(name)}"
        case ("number", number):
            return f"{number}LL" if abs(number) >= 2**31 else str(number)
        case ("if", ShapeGuard("<" | "<=", a, b), left, right) if {a, b} == {left, right}:
            return f"std::{'min' if a == left else 'max'}<long long>({cpp(left)}, {cpp(right)})"
        case ("if", ShapeGuard(">" | ">=", a, b), left, right) if {a, b} == {left, right}:
            return f"std::{'max' if a == left else 'min'}<long long>({cpp(left)}, {cpp(right)})"
        case ("if", guard, left, right):
            return f"({guard.cpp()} ? {cpp(left)} : {cpp(right)})"
        case ("bits", inner):
            return f"bit_length({cpp(inner)})"
        case ("neg", ("//", ("neg", dividend), divisor)):
            return f"ceil_div({cpp(dividend)}, {cpp(divisor)})"
        case ("neg", inner):
            return f"-{_bracketed(inner)}"
        case ("//", left, right):
            return f"floor_div({cpp(left)}, {cpp(right)})"
        case ("%", left, right):
            return f"floor_mod({cpp(left)}, {cpp(right)})"
        case ("*", left, right):
            return f"{_bracketed(left)} * {_bracketed(right)}"
        case ("-", left, right):
            return f"{cpp(left)} - {_bracketed(right)}"
        case ("+", left, right):
            return f"{cpp(left)} + {cpp(right)}"
    raise AssertionError(formula)


def python(formula: Formula) -> str:
    """Return a formula as Python over the members of `shape`, which may also be symbolic integers of torch."""
    match formula:
        case ("field", name):
            return f"shape.{member(name)}"
        case ("number", number):
            return str(number) if number >= 0 else f"({number})"
        case ("if", guard, left, right):
            return f"({python(left)} if {guard.python()} else {python(right)})"
        case ("bits", inner):
            return f"int({python(inner)}).bit_length()"
        case ("neg", inner):
            return f"(-{python(inner)})"
        case (operator, left, right):
            return f"({python(left)} {operator} {python(right)})"
    raise AssertionError(formula)


def _bracketed(formula: Formula) -> str:
    text = cpp(formula)
    return f"({text})" if formula[0] in ("+", "-") else text
