"""Ensure that a drafted `kernel.py` contains only declarations: its text comes from untrusted files and is executed.

It contains names, conditions and comments from CUDA files, tuning scripts and T1 files. Each is written as an inert
literal, and the complete text is checked for anything but declarations before it is saved.
"""

from __future__ import annotations

import ast
import json

from evokern.errors import SourceError
from evokern.escaping import visible

_CALLED = frozenset((
    "Constraint", "GoldenValues", "Kernel", "Launch", "Parameter", "ProblemField", "SameAsDefault", "Scalar", "Tensor",
    "Tolerance", "Workload", "divides", "i32", "i64", "ceil_div", "min", "max", "int", "abs", "ValueError",
))  # fmt: skip
"""Functions that a draft may call."""
_ALLOWED_NODES = (
    ast.Module, ast.Expr, ast.ImportFrom, ast.alias, ast.FunctionDef, ast.arguments, ast.arg, ast.Assign, ast.Return,
    ast.Raise, ast.Lambda, ast.Call, ast.keyword, ast.Name, ast.Attribute, ast.Constant, ast.JoinedStr,
    ast.FormattedValue, ast.Tuple, ast.List, ast.Dict, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp,
    ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context,
)  # fmt: skip
"""Syntax nodes that a draft may contain."""


def literal(text: str) -> str:
    """Return a text as a Python string literal, in double quotes on one line."""
    return visible(json.dumps(text, ensure_ascii=False))


def check_declares(text: str, origin: str) -> str:
    """Return a drafted `kernel.py` if it contains only imports from evokern and declarations.

    Args:
        text: text of the draft.
        origin: source of the draft, for the message.

    Raises:
        SourceError: the draft would execute something else.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise SourceError(f"cannot draft from {origin}: its contents do not form a declaration ({error})") from error
    for node in ast.walk(tree):
        if not _declares(node):
            shown = ast.unparse(node)[:80]
            raise SourceError(f"cannot draft from {origin}: {shown!r} would be executed; use plain arithmetic")
    return text


def _declares(node: ast.AST) -> bool:
    match node:
        case ast.ImportFrom(module=module, level=level):
            return (module, level) == ("evokern", 0)
        case ast.FunctionDef(decorator_list=decorators):
            return not decorators
        case ast.Call(func=ast.Name(id=name)):
            return name in _CALLED
        case ast.Call(func=ast.Attribute(attr="bit_length"), args=[], keywords=[]):
            return True
        case ast.Call():
            return False
        case ast.Attribute(attr="bit_length"):
            return True
        case ast.Attribute(value=ast.Name(id=owner), attr=name):
            return owner in ("c", "p") and (name.isupper() or not name.startswith("_")) and not name.startswith("__")
        case ast.Name(id=name):
            return not name.startswith("__")
    return isinstance(node, _ALLOWED_NODES) and not isinstance(node, ast.Attribute)
