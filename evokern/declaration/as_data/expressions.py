"""Evaluation of arithmetic over genes and problem fields, such as `ceil_div(p.N, c.BLOCK)`; no other code can run."""

from __future__ import annotations

import ast
import functools
from collections.abc import Mapping
from types import CodeType
from typing import Any


def ceil_div(a: int, b: int) -> int:
    """Return a / b, rounded up."""
    return -(-a // b)


def _divides(divisor: int, number: int) -> bool:
    return bool(divisor) and number % divisor == 0


_KNOWN: Mapping[str, Any] = {
    "__builtins__": {}, "ceil_div": ceil_div, "divides": _divides, "min": min, "max": max, "int": int,
}  # fmt: skip
_ALLOWED = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Call, ast.Name, ast.Attribute,
    ast.Constant, ast.Load, ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.Tuple,
)  # fmt: skip


def value_of(text: str, config: object, problem: object = None) -> Any:
    """Evaluate an expression over `c.NAME` (genes) and `p.NAME` (problem fields).

    Args:
        text: the expression.
        config: object with the genes as attributes.
        problem: object with the fields as attributes.

    Raises:
        ValueError: the text contains anything but arithmetic.
        ZeroDivisionError: the expression divides by zero.
    """
    return eval(_compiled(text), {**_KNOWN, "c": config, "p": problem})


@functools.lru_cache(maxsize=1 << 14)
def _compiled(text: str) -> CodeType:
    tree = ast.parse(text.strip(), mode="eval")
    for node in ast.walk(tree):
        hidden = isinstance(node, ast.Attribute) and node.attr.startswith("__")
        called = isinstance(node, ast.Call) and not (
            (isinstance(node.func, ast.Name) and node.func.id in _KNOWN)
            or (isinstance(node.func, ast.Attribute) and node.func.attr == "bit_length")
        )
        if not isinstance(node, _ALLOWED) or hidden or called:
            raise ValueError(f"{text!r} is not an arithmetic expression")
    return compile(tree, "<expression>", "eval")
