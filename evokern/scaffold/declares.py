"""A drafted `kernel.py` declares and does nothing else: its text comes out of files that are anybody's, and will run.

Names, conditions and comments of a CUDA file, a tuning script's call or a T1 file stand in it. Each is written so that
it stays what it is; that the whole holds nothing but declarations is looked at once more before it is written.
"""

from __future__ import annotations

import ast
import json

from evokern.errors import SourceError
from evokern.escaping import visible

_CALLED = frozenset(
    {
        *("Constraint", "Kernel", "Launch", "Parameter", "ProblemField", "Scalar", "Tensor", "Tolerance", "Workload"),
        *("divides", "i32", "i64", "ceil_div", "min", "max", "int", "abs", "ValueError"),
    }
)
"""What a draft calls."""
_STANDS = (
    ast.Module, ast.Expr, ast.ImportFrom, ast.alias, ast.FunctionDef, ast.arguments, ast.arg, ast.Assign, ast.Return,
    ast.Raise, ast.Lambda, ast.Call, ast.keyword, ast.Name, ast.Attribute, ast.Constant, ast.JoinedStr,
    ast.FormattedValue, ast.Tuple, ast.List, ast.Dict, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp,
    ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context,
)  # fmt: skip
"""What a draft is made of."""


def literal(text: str) -> str:
    """Return a string literal of Python with this text, in double quotes and in one line."""
    return visible(json.dumps(text, ensure_ascii=False))


def in_docstring(text: str) -> str:
    """Return text that stays within a docstring in double quotes."""
    return visible(text).replace("\\", "/").replace('"', "'")


def check_declares(text: str, origin: str) -> str:
    """Return a drafted `kernel.py` that imports from evokern, calls what declares, and does nothing else.

    Args:
        text: the draft.
        origin: what it was drafted from, for the message.

    Raises:
        SourceError: something of that file would be run.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise SourceError(f"cannot draft from {origin}: what it holds makes no declaration ({error})") from error
    for node in ast.walk(tree):
        if not _declares(node):
            shown = ast.unparse(node)[:80]
            raise SourceError(f"cannot draft from {origin}: {shown!r} would be run; write it as plain arithmetic there")
    return text


def _declares(node: ast.AST) -> bool:
    match node:
        case ast.ImportFrom(module=module, level=level):
            return (module, level) == ("evokern", 0)
        case ast.FunctionDef(decorator_list=decorators):
            return not decorators
        case ast.Call(func=function):
            return isinstance(function, ast.Name) and function.id in _CALLED
        case ast.Attribute(value=ast.Name(id=owner), attr=name):
            return owner in ("c", "p") and not name.startswith("_")
        case ast.Name(id=name):
            return not name.startswith("__")
    return isinstance(node, _STANDS) and not isinstance(node, ast.Attribute)
