"""C integer expressions of a launch, such as `(n + BLOCK - 1) / BLOCK`, as Python over genes and problem fields."""

from __future__ import annotations

import re
from collections.abc import Mapping

_TOKEN = re.compile(r"\s*(?:(sizeof\s*\(\s*[\w:]+\s*\))|((?:\w+::)*[A-Za-z_]\w*)|(\d+)[uUlL]*(?![\w.])|(.))")
_SIZES = {"float": 4, "double": 8, "half": 2, "__half": 2, "int": 4, "char": 1, "__nv_bfloat16": 2, "unsigned": 4}
_CASTS = {"int", "unsigned", "size_t", "long", "dim3"}
_CEIL_DIV = {"cdiv", "ceildiv", "divup", "idivup", "ceil_div", "div_up", "div_ceil", "divceil", "ceil_divide"}


def to_python(expression: str, names: Mapping[str, str], locals_: Mapping[str, str], depth: int = 0) -> str | None:
    """Translate one expression.

    Args:
        expression: C text.
        names: C name → Python expression, for genes, constants and kernel arguments.
        locals_: local variables of the launching function and their initialisers, followed where they are mentioned.
        depth: how many of those were followed already.

    Returns:
        Python text, or None where a part of it is not known.
    """
    if depth > 6:
        return None
    pieces: list[str] = []
    for size, word, number, other in _TOKEN.findall(expression):
        if size:
            kind = size[size.index("(") + 1 : -1].strip()
            if kind not in _SIZES:
                return None
            pieces.append(str(_SIZES[kind]))
        elif word:
            part = _word(word, names, locals_, depth)
            if part is None:
                return None
            pieces.append(part)
        elif number:
            pieces.append(number)
        elif other in "+-*%(),":
            pieces.append(f" {other} " if other in "+-*%" else ", " if other == "," else other)
        elif other == "/":
            pieces.append(" // ")
        elif not other.isspace():
            return None
    text = "".join(pieces).strip()
    try:
        compile(text, "<launch>", "eval")
    except SyntaxError:
        return None
    return text


def _word(word: str, names: Mapping[str, str], locals_: Mapping[str, str], depth: int) -> str | None:
    bare = word.rpartition("::")[2]
    if word in names:
        return names[word]
    if bare in ("min", "max"):
        return bare
    if bare.lower() in _CEIL_DIV:
        return "ceil_div"
    if bare in _CASTS:
        return ""  # a cast or constructor: the brackets behind it stay
    if word in locals_:
        inner = to_python(locals_[word], names, {k: v for k, v in locals_.items() if k != word}, depth + 1)
        return None if inner is None else f"({inner})" if re.search(r"\W", inner) else inner
    return None


def extents(expression: str, names: Mapping[str, str], locals_: Mapping[str, str]) -> str | None:
    """Translate a grid or block: a number, `dim3(x, y)` or the name of one; the result is a Python tuple or number."""
    text = to_python(expression, names, locals_)
    if text is None:
        return None
    while text.startswith("((") and text.endswith("))"):
        text = text[1:-1]
    return text
