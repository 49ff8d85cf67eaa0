"""Formulas over a shape's fields: evaluation, simplification and conversion to C++."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Formula = tuple[Any, ...]
"""`("field", name)`, `("number", n)`, `("neg", a)`, or `(operator, a, b)` with `+ - * // %` as in Python."""

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

    def holds(self, fields: Mapping[str, int]) -> bool:
        """Return whether a shape meets the condition."""
        return COMPARISONS[self.comparison](evaluate(self.left, fields), evaluate(self.right, fields))

    def cpp(self) -> str:
        """Return the condition as C++ over `shape`."""
        return f"{cpp(self.left)} {self.comparison} {cpp(self.right)}"


def fields_of(formula: Formula) -> set[str]:
    """Return the names of the fields in a formula."""
    if formula[0] == "field":
        return {formula[1]}
    return set().union(*(fields_of(part) for part in formula[1:] if isinstance(part, tuple)))


def evaluate(formula: Formula, fields: Mapping[str, int]) -> int:
    """Return a formula's value for a shape."""
    match formula:
        case ("field", name):
            return fields[name]
        case ("number", number):
            return int(number)
        case ("neg", inner):
            return -evaluate(inner, fields)
        case (operator, left, right):
            return OPERATORS[operator](evaluate(left, fields), evaluate(right, fields))
    raise AssertionError(formula)


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
            return f"shape.{name.lower()}"
        case ("number", number):
            return f"{number}LL" if abs(number) >= 2**31 else str(number)
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


def _bracketed(formula: Formula) -> str:
    text = cpp(formula)
    return f"({text})" if formula[0] in ("+", "-") else text
