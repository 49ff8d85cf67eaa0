"""Translate a launch's C integer expressions, such as `(n + BLOCK - 1) / BLOCK`, to Python over genes and fields."""

from __future__ import annotations

import re
from collections.abc import Mapping

from evokern.cuda_source.lexer import without_comments

_TOKEN = re.compile(
    r"\s*(?:(sizeof\s*\(\s*[\w: ]+\s*\))|((?:\w+::)*[A-Za-z_]\w*)|(\d+)[uUlL]*(?![\w.])"
    r"|(<<|>>|[<>=!]=|[<>]|&&|\|\|)|(.))"
)
_OPERATORS = {"&&": "and", "||": "or"}
_SCOPE = "\0"
"""Stands for `::` while a text is split at colons."""
_SIZES = {"float": 4, "double": 8, "half": 2, "__half": 2, "int": 4, "char": 1, "__nv_bfloat16": 2, "unsigned": 4,
          "unsigned int": 4, "float2": 8, "float4": 16, "bool": 1, "short": 2, "long long": 8}  # fmt: skip
_CASTS = {"int", "unsigned", "size_t", "long", "dim3", "uint", "uint32_t", "int32_t"}
_STATIC_CAST = re.compile(
    r"\bstatic_cast\s*<[^<>]*>|\(\s*(?:unsigned int|unsigned|int|size_t|uint|int64_t)\s*\)|"
    r"(?<=\w)<\s*[a-z_]\w*\s*>(?=\s*\()"
)
_CEIL = re.compile(r"\b(?:std::)?ceilf?\s*\(")
_REAL_CAST = re.compile(
    r"\(\s*(?:float|double)\s*\)|\bstatic_cast\s*<\s*(?:float|double)\s*>|(?<![\w.])1\.0*[fF]?\s*\*|"
    r"\b(?:float|double)\s*(?=\()"
)
_FUNCTION = re.compile(
    r"\b(\w+)\s*\(([^(){};]*)\)\s*(?:const\s*|noexcept\s*)*\{\s*return\s+([^;{}]+);\s*\}|"
    r"^[ \t]*#[ \t]*define[ \t]+(\w+)\(([\w, \t]*)\)[ \t]+((?:.*\\\n)*.*)$", re.MULTILINE
)  # fmt: skip


def one_line_functions(text: str) -> dict[str, tuple[tuple[str, ...], str]]:
    """Return the functions that only return an expression, and the macros with parameters: name → parameters, body."""
    found = {}
    for match in _FUNCTION.finditer(without_comments(text)):
        name, parameters, body = filter(lambda part: part is not None, match.groups())
        words = [re.findall(r"\w+", one.partition("=")[0]) for one in parameters.split(",")]
        if all(words) and name != words[0][-1]:
            found[name] = tuple(one[-1] for one in words), body.replace("\\\n", " ")
    return found


def inlined(text: str, functions: Mapping[str, tuple[tuple[str, ...], str]]) -> str:
    """Return an expression with calls of known one-line functions replaced by their bodies."""
    for _ in range(8):
        for match in re.finditer(r"(?:\w+::)*\b(\w+)\s*(?:<[\w ]*>\s*)?\(", text):
            parameters, body = functions.get(match[1], ((), ""))
            end = _closing(text, match.end())
            given = outer_parts(text[match.end() : end])
            if not parameters or len(given) != len(parameters):
                continue
            words = re.split(r"([A-Za-z_]\w*)", body)
            values = {name: f"({value})" for name, value in zip(parameters, given, strict=True)}
            body = "".join(values.get(word, word) for word in words)
            text = f"{text[: match.start()]}({body}){text[end + 1 :]}"
            break
        else:
            break
    return text


def _closing(text: str, start: int) -> int:
    """Return the index of the bracket that closes the one before `start`."""
    depth = 1
    for index in range(start, len(text)):
        depth += (text[index] in "([{") - (text[index] in ")]}")
        if not depth:
            return index
    return len(text)


def outer_parts(text: str, separator: str = ",", *, angles: bool = False) -> list[str]:
    """Split a text at a separator outside brackets.

    Args:
        text: the text.
        separator: one character.
        angles: whether `<` and `>` are brackets, as in template arguments.
    """
    depth, parts = 0, [""]
    for character in text:
        depth += (character in "([{" or (angles and character == "<")) - (
            character in ")]}" or (angles and character == ">")
        )
        if character == separator and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


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
    expression = _STATIC_CAST.sub(" ", _rounded_up(expression))
    if (chosen := _conditional(expression)) is not None:
        parts = [to_python(part, names, locals_, depth + 1) for part in chosen]
        return None if None in parts else f"({parts[1]} if {parts[0]} else {parts[2]})"
    pieces: list[str] = []
    for size, word, number, shift, other in _TOKEN.findall(expression):
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
            pieces.append(f" {_OPERATORS.get(shift, shift)} ")
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


def _rounded_up(expression: str) -> str:
    """Replace `ceil((double)a / b)` by `ceil_div(a, b)`."""
    match = _CEIL.search(expression)
    if match is None:
        return expression
    end = _closing(expression, match.end())
    inner = _unwrapped(expression[match.end() : end])
    parts = outer_parts(inner, "/")
    made = inner
    if len(parts) == 2 and (_REAL_CAST.search(inner) or "." in inner):
        over, under = (re.sub(r"(?<=\d)\.0*[fF]?(?!\w)", "", _REAL_CAST.sub(" ", part)) for part in parts)
        made = f"ceil_div({over}, {under})"
    return expression[: match.start()] + made + _rounded_up(expression[end + 1 :])


def _conditional(expression: str) -> tuple[str, str, str] | None:
    """Return the condition and both values of `a ? b : c`, or None for another expression."""
    condition, *rest = outer_parts(_unwrapped(expression), "?")
    if not rest:
        return None
    first, *others = outer_parts("?".join(rest).replace("::", _SCOPE), ":")
    if not others:
        return None
    return condition, first.replace(_SCOPE, "::"), ":".join(others).replace(_SCOPE, "::")


def _unwrapped(expression: str) -> str:
    """Return an expression without brackets around the whole."""
    bare = expression.strip()
    while bare.startswith("(") and _closing(bare, 1) == len(bare) - 1:
        bare = bare[1:-1].strip()
    return bare


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
