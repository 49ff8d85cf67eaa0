"""Translate a launch's C integer expressions, such as `(n + BLOCK - 1) / BLOCK`, to Python over genes and fields."""

from __future__ import annotations

import re
from collections.abc import Mapping

_TOKEN = re.compile(r"\s*(?:(sizeof\s*\(\s*[\w: ]+\s*\))|((?:\w+::)*[A-Za-z_]\w*)|(\d+)[uUlL]*(?![\w.])|(<<|>>)|(.))")
_SIZES = {"float": 4, "double": 8, "half": 2, "__half": 2, "int": 4, "char": 1, "__nv_bfloat16": 2, "unsigned": 4,
          "unsigned int": 4, "float2": 8, "float4": 16, "bool": 1, "short": 2, "long long": 8}  # fmt: skip
_CASTS = {"int", "unsigned", "size_t", "long", "dim3", "uint", "uint32_t", "int32_t"}
_STATIC_CAST = re.compile(r"\bstatic_cast\s*<[^<>]*>|\(\s*(?:unsigned int|unsigned|int|size_t|uint)\s*\)")
_CEIL_DIV = {"cdiv", "ceildiv", "divup", "idivup", "ceil_div", "div_up", "div_ceil", "divceil", "ceil_divide"}


def to_python(expression: str, names: Mapping[str, str], locals_: Mapping[str, str], depth: int = 0) -> str | None:
    """Translate one expression.

    Args:
        expression: C text.
        names: C name → Python expression, for genes, constants and kernel arguments; also numbers, and `sizeof T` of
            types that the file defines.
        locals_: local variables of the launching function and their initialisers, which are substituted.
        depth: number of nested substitutions.

    Returns:
        Python text, or None if a part of the expression is unknown.
    """
    if depth > 6:
        return None
    pieces: list[str] = []
    for size, word, number, shift, other in _TOKEN.findall(_STATIC_CAST.sub(" ", expression)):
        if size:
            kind = size[size.index("(") + 1 : -1].strip()
            known = names.get(f"sizeof {kind}", _SIZES.get(kind))
            if known is None:
                return None
            pieces.append(str(known))
        elif word:
            part = _word(word, names, locals_, depth)
            if part is None:
                return None
            pieces.append(part)
        elif number:
            pieces.append(names.get(number, number))
        elif shift:
            pieces.append(f" {shift} ")
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
    if word in locals_ and locals_[word] != word and bare not in _CASTS:
        inner = to_python(locals_[word], names, {k: v for k, v in locals_.items() if k != word}, depth + 1)
        return None if inner is None else f"({inner})" if re.search(r"\W", inner) else inner
    if bare in ("min", "max"):
        return bare
    if bare.lower() in _CEIL_DIV:
        return "ceil_div"
    if bare in _CASTS:
        return ""  # a cast or constructor; keep the brackets that follow
    return None
