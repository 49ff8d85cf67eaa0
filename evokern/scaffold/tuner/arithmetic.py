"""Translate or evaluate a tuner's Python expressions, such as `block_size_x * tile_size_x <= 1024`, without `eval`."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

MOST_VALUES = 100_000
"""Maximum length of a list; longer ones are rejected."""
_SIGNS: Mapping[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv, ast.Mod: operator.mod, ast.Pow: operator.pow, ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
}  # fmt: skip
_CALLS: Mapping[str, Callable[..., Any]] = {
    "range": range, "list": list, "min": min, "max": max, "int": int, "len": len, "ceil": math.ceil, "abs": abs,
}  # fmt: skip


def over_genes(text: str, genes: Sequence[str], fields: Mapping[str, str] | None = None) -> str | None:
    """Return an expression with each parameter as `c.NAME`, or None if it contains other names.

    Args:
        text: Python text.
        genes: names of parameters.
        fields: additional names → Python text.
    """
    known = {name: f"c.{name}" for name in genes} | dict(fields or {})

    class Rename(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.AST:
            if node.id in known:
                return ast.parse(known[node.id], mode="eval").body
            if node.id in ("min", "max", "int", "abs", "ceil_div"):
                return node
            raise ValueError(node.id)

        def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
            self.generic_visit(node)
            if isinstance(node.left, ast.Constant) and isinstance(node.right, ast.Constant):
                return ast.Constant(_value(node, {}))
            return node

    try:
        tree = ast.parse(text.strip(), mode="eval")
        for node in ast.walk(tree):
            if isinstance(node, (ast.Attribute, ast.Subscript, ast.Lambda, ast.Await, ast.NamedExpr)):
                return None
        return ast.unparse(Rename().visit(tree).body)
    except (ArithmeticError, SyntaxError, ValueError, RecursionError):
        return None


MOST_CASES = 64
"""Maximum number of entries of a table that becomes an expression."""


def expressions(rule: Mapping[str, Any], *, condition: bool = False) -> list[str] | None:
    """Return a stored function of the parameters as expressions over their names; None if it is a large table.

    Args:
        rule: function as `evokern.scaffold.tuner.rules` stores it.
        condition: whether the function is a condition, whose value is 1 or 0.
    """
    if "table" in rule:
        return _table_expressions(rule, condition=condition)
    texts: list[str] = []
    for at in range(len(rule["cases"][0]["value"])):
        text = ""
        for case in reversed(rule["cases"]):
            value = case["value"][at]
            value = {"1": "True", "0": "False"}.get(value, value) if condition else value
            when = " and ".join(f"({one})" for one in case["when"])
            chosen = when if (value, text) == ("True", "False") else f"({value} if {when} else {text})"
            text = chosen if text else value
        texts.append(re.sub(r"\bc\.", "", text))
    return texts


def _table_expressions(rule: Mapping[str, Any], *, condition: bool) -> list[str] | None:
    names, table = rule["of"], dict(rule["table"])
    key = f"({', '.join(names)},)"

    def entry(text: str) -> str:
        parts = text.split(",") if names else []
        return f"({', '.join(p if re.fullmatch(r'-?[0-9]+', p) else repr(p) for p in parts)},)"

    if condition:
        held = [entry(one) for one, values in table.items() if values[0]]
        failed = [entry(one) for one, values in table.items() if not values[0]]
        few, word = (held, "in") if len(held) <= len(failed) else (failed, "not in")
        return [f"{key} {word} ({', '.join(few)},)"] if 0 < len(few) <= MOST_CASES else ["True"] if not few else None
    if len(table) > MOST_CASES:
        return None
    texts = []
    for at in range(len(next(iter(table.values())))):
        *others, last = table.items()
        text = str(last[1][at])
        for one, values in reversed(others):
            text = f"({values[at]} if {key} == {entry(one)} else {text})"
        texts.append(text)
    return texts


def values_of(text: str, names: Mapping[str, Any] | None = None) -> tuple[Any, ...]:
    """Evaluate a list such as `[16*i for i in range(1, 9)]` without executing it as code.

    Raises:
        ValueError: the text is not arithmetic on numbers and lists.
    """
    made = _value(ast.parse(text.strip(), mode="eval").body, dict(names or {}))
    values = tuple(made) if isinstance(made, (list, tuple, range)) else (made,)
    if len(values) > MOST_VALUES:
        raise ValueError(f"{len(values)} values")
    return values


def value_over(text: str, names: Mapping[str, Any]) -> Any:
    """Evaluate arithmetic over names without executing it as code.

    Raises:
        ValueError: the text is not arithmetic.
    """
    return _value(ast.parse(text.strip(), mode="eval").body, names)


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name) if name in names:
            return names[name]
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return [_value(part, names) for part in parts]
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _SIGNS:
            a, b = _value(left, names), _value(right, names)
            if isinstance(sign, (ast.Pow, ast.LShift)) and not (isinstance(b, int) and -64 <= b <= 64):
                raise ValueError("too large a power")
            return _SIGNS[type(sign)](a, b)
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_value(inner, names)
        case ast.Subscript(value=inner, slice=index):
            return _value(inner, names)[_value(index, names)]
        case ast.Call(func=ast.Name(id=name), args=given, keywords=[]) if name in _CALLS:
            made = _CALLS[name](*(_value(item, names) for item in given))
            if isinstance(made, range) and len(made) > MOST_VALUES:
                raise ValueError("too many values")
            return made
        case ast.ListComp(
            elt=made, generators=[ast.comprehension(target=ast.Name(id=name), iter=over, ifs=conditions)]
        ):
            found = []
            for value in _value(over, names):
                inner_names = {**names, name: value}
                if all(_value(condition, inner_names) for condition in conditions):
                    found.append(_value(made, inner_names))
            return found
        case ast.IfExp(test=test, body=held, orelse=other):
            return _value(held if _value(test, names) else other, names)
        case ast.Compare(left=left, ops=[sign], comparators=[right]) if type(sign) in _COMPARISONS:
            return _COMPARISONS[type(sign)](_value(left, names), _value(right, names))
    raise ValueError(f"{ast.unparse(node)!r} is not arithmetic")


_COMPARISONS: Mapping[type[ast.AST], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip
