"""Values of host code: symbolic integers, extents of a launch, and types."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

VARIABLE = ("parameter", "extent", "local", "unknown")
"""Kinds of names that a problem may set."""
Expr: TypeAlias = "int | float | Name | Arithmetic"
"""A number, a name, or an operation on them."""


@dataclass(frozen=True, slots=True)
class Name:
    """A name that an expression depends on."""

    text: str
    """Name as written, such as `n`, `BLOCK_M` or `q.size(0)`."""
    kind: str
    """Kind of the name.

    `parameter` is one of the host function, and `template` a template parameter that is a number. `constant` has a
    value in the file. `extent` is one of a tensor. `local` is a variable that cannot be computed. The others are
    `macro` and `unknown`."""
    value: Expr | None = None
    """Value in the file: of a macro or constant; of a local, a number that it has in the file. None if unknown."""
    scope: str = ""
    """FunctionNode or structure that declares the name; empty at file scope."""


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """An operation on expressions."""

    operator: str
    """A C operator, `?:`, `ceil_div`, `min` or `max`.

    `real` converts to a floating-point number, and `real/` divides such numbers. `bits` is a logarithm of base 2,
    rounded down. `call NAME` calls an unknown function."""
    operands: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Dim3:
    """Extents of a grid or block."""

    x: Expr = 1
    y: Expr = 1
    z: Expr = 1


@dataclass(frozen=True, slots=True)
class TypeName:
    """A type, or an instantiation of a structure template."""

    name: str
    """Name without template arguments."""
    arguments: tuple[Expr | TypeName, ...] = ()
    """Template arguments."""

    def __str__(self) -> str:
        return f"{self.name}<{', '.join(map(text_of, self.arguments))}>" if self.arguments else self.name


_WHOLE: dict[str, Callable[[int, int], int]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "<<": operator.lshift, ">>": operator.rshift,
    "&": operator.and_, "|": operator.or_, "^": operator.xor, "<": operator.lt, ">": operator.gt, "<=": operator.le,
    ">=": operator.ge, "==": operator.eq, "!=": operator.ne, "min": min, "max": max,
    "&&": lambda a, b: int(bool(a) and bool(b)), "||": lambda a, b: int(bool(a) or bool(b)),
}  # fmt: skip
_DIVIDING: dict[str, Callable[[int, int], int]] = {
    "/": lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
    "%": lambda a, b: int(math.fmod(a, b)),
    "ceil_div": lambda a, b: -(-a // b),
}  # fmt: skip
_MOST_PARTS = 200
_REAL = ("real", "real/", "log", "log2")
_OPPOSITE = {"<": ">=", ">=": "<", ">": "<=", "<=": ">", "==": "!=", "!=": "=="}
_PYTHON = {"&&": "and", "||": "or", "/": "//"}


def operation(symbol: str, *operands: Expr) -> Expr:
    """Return an operation in its shortest form: computed from numbers, and `(a + b - 1) / b` as `ceil_div`."""
    if symbol == "?:" and isinstance(operands[0], int | float):
        return operands[1] if operands[0] else operands[2]
    if symbol == "?:" and (
        operands[1] == operands[2] or (isinstance(operands[0], Name) and operands[0].kind == "extent")
    ):
        return operands[1]  # no tensor is empty
    if symbol == "?:" and isinstance(operands[0], Arithmetic) and operands[0].operator in _OPPOSITE:
        compared = operands[0].operands
        smaller, larger = operands[0].operator in ("<", "<="), operands[0].operator in (">", ">=")
        if (smaller or larger) and set(map(repr, compared)) == set(map(repr, operands[1:])):
            return operation("min" if smaller == (compared == operands[1:]) else "max", *compared)
    if symbol == "!" and isinstance(operands[0], Arithmetic) and operands[0].operator in _OPPOSITE:
        return Arithmetic(_OPPOSITE[operands[0].operator], operands[0].operands)
    if symbol == "real" and isinstance(operands[0], Arithmetic) and operands[0].operator in _REAL:
        return operands[0]
    if symbol == "bits" and isinstance(operands[0], int) and operands[0] > 0:
        return operands[0].bit_length() - 1
    if symbol in ("+", "-", "*", "/") and any(map(is_real, operands)):
        return _real(symbol, operands)
    if len(operands) == 2 and all(isinstance(one, int) for one in operands):
        a, b = operands
        if symbol in _WHOLE and not (symbol in ("<<", ">>") and not 0 <= int(b) < 64):  # type: ignore[arg-type]
            return int(_WHOLE[symbol](a, b))  # type: ignore[arg-type]
        if symbol in _DIVIDING and b:
            return _DIVIDING[symbol](a, b)  # type: ignore[arg-type]
    if len(operands) == 1 and isinstance(operands[0], int) and symbol in ("-", "!", "~", "+"):
        return {"-": -operands[0], "!": int(not operands[0]), "~": ~operands[0], "+": operands[0]}[symbol]
    return _shorter(symbol, operands)


def _shorter(symbol: str, operands: tuple[Expr, ...]) -> Expr:
    if len(operands) == 2:
        a, b = operands
        if (symbol, b) in (
            ("+", 0),
            ("-", 0),
            ("*", 1),
            ("/", 1),
            ("ceil_div", 1),
            ("<<", 0),
            (">>", 0),
            ("||", 0),
            ("&&", 1),
        ):
            return a
        if (symbol, a) in (("+", 0), ("*", 1), ("||", 0), ("&&", 1)):
            return b
        if symbol == "/" and (above := _rounded_up(a, b)) is not None:
            return operation("ceil_div", above, b)
        if symbol in ("min", "max", "&&", "||") and a == b:
            return a
        if isinstance(b, int) and isinstance(a, Arithmetic) and len(a.operands) == 2:
            inner = a.operands[1]
            if isinstance(inner, int) and symbol in ("+", "*") and a.operator == symbol:
                return operation(symbol, a.operands[0], operation(symbol, inner, b))
            if isinstance(inner, int) and symbol == "-" and a.operator == "+":
                return operation("+", a.operands[0], inner - b)
    return Arithmetic(symbol, operands)


def product_of(parts: Iterable[Expr]) -> Expr:
    """Return the product of expressions."""
    made: Expr = 1
    for one in parts:
        made = operation("*", made, one)
    return made


def is_real(value: Expr) -> bool:
    """Return whether a value is a floating-point number."""
    return isinstance(value, float) or (isinstance(value, Arithmetic) and value.operator in _REAL)


def _real(symbol: str, operands: tuple[Expr, ...]) -> Expr:
    """Return arithmetic on floating-point numbers; factors of 1.0 only convert."""
    plain = tuple(
        one.operands[0] if isinstance(one, Arithmetic) and one.operator == "real" else one for one in operands
    )
    if all(isinstance(one, int | float) for one in plain) and len(plain) == 2:
        a, b = (float(one) for one in plain)  # type: ignore[arg-type]
        if symbol == "/" and not b:
            return Arithmetic("real/", operands)
        return {"+": a + b, "-": a - b, "*": a * b, "/": a / b if b else 0.0}[symbol]
    whole = tuple(int(one) if isinstance(one, float) and one == int(one) else one for one in plain)
    if symbol == "/":
        logarithms = [one.operands[0] for one in whole if isinstance(one, Arithmetic) and one.operator == "log"]
        return Arithmetic("log2", (logarithms[0],)) if logarithms[1:] == [2] else Arithmetic("real/", whole)
    if any(isinstance(one, float) for one in whole) or any(
        isinstance(o, Arithmetic) and o.operator == "real/" for o in whole
    ):
        return Arithmetic(f"real {symbol}", whole)
    return Arithmetic("real", (operation(symbol, *whole),))


def whole(value: Expr, up: bool = False) -> Expr:
    """Return a value converted to an integer: rounded down, or up."""
    if isinstance(value, float):
        return math.ceil(value) if up else int(value)
    if isinstance(value, Arithmetic) and value.operator == "real/":
        over, under = value.operands
        return operation("ceil_div" if up else "/", over, under)
    if isinstance(value, Arithmetic) and value.operator == "real":
        return value.operands[0]
    if isinstance(value, Arithmetic) and value.operator == "log2" and not up:
        return operation("bits", *value.operands)
    return value


def _rounded_up(above: Expr, below: Expr) -> Expr | None:
    """Return `a` if an expression is `a + b - 1`, in any order, for a given `b`."""
    terms: list[tuple[int, Expr]] = list(_terms(above, 1))
    constant = sum(sign * one for sign, one in terms if isinstance(one, int))
    others = [(sign, one) for sign, one in terms if not isinstance(one, int)]
    if isinstance(below, int):
        if below <= 1 or constant != below - 1 or not others:
            return None
    elif constant == -1 and (1, below) in others and len(others) > 1:
        others.remove((1, below))
    else:
        value = number(below)
        if value is None or value <= 1 or constant != value - 1 or not others:
            return None
    total: Expr = 0
    for sign, one in others:
        total = operation("+" if sign > 0 else "-", total, one)
    return total


def _terms(value: Expr, sign: int) -> Iterator[tuple[int, Expr]]:
    if isinstance(value, Arithmetic) and value.operator in "+-" and len(value.operands) == 2:
        yield from _terms(value.operands[0], sign)
        yield from _terms(value.operands[1], sign if value.operator == "+" else -sign)
    else:
        yield sign, value


def number(value: object) -> int | None:
    """Return the number that an expression has in the file; None if it depends on something unknown."""
    if isinstance(value, int | float):
        return int(value)
    if isinstance(value, Name):
        return number(value.value) if value.value is not None else None
    if isinstance(value, Arithmetic):
        parts = [number(one) for one in value.operands]
        if value.operator == "?:" and parts[0] is not None:
            return parts[1] if parts[0] else parts[2]
        if None in parts or value.operator.startswith("call "):
            return None
        made = operation(value.operator.removeprefix("real") or "+", *(p for p in parts if p is not None))
        return int(made) if isinstance(made, int | float) else None
    return None


def is_long(value: Expr) -> bool:
    """Return whether an expression has so many parts that it is kept as a name."""
    waiting, count = [value], 0
    while waiting and count <= _MOST_PARTS:
        one = waiting.pop()
        count += 1
        if isinstance(one, Arithmetic):
            waiting += one.operands
    return count > _MOST_PARTS


def names_in(value: object) -> Iterator[Name]:
    """Yield the names in an expression, in order."""
    if isinstance(value, Name):
        yield value
    elif isinstance(value, Arithmetic):
        for one in value.operands:
            yield from names_in(one)
    elif isinstance(value, Dim3):
        for one in (value.x, value.y, value.z):
            yield from names_in(one)
    elif isinstance(value, TypeName):
        for argument in value.arguments:
            yield from names_in(argument)


def substituted(value: Expr, values: Callable[[Name], Expr | None]) -> Expr:
    """Return an expression with names replaced by other expressions.

    Args:
        value: the expression.
        values: returns the replacement of a name, or None to keep the name.
    """
    if isinstance(value, Name):
        made = values(value)
        return value if made is None else made
    if isinstance(value, Arithmetic):
        return operation(value.operator, *(substituted(one, values) for one in value.operands))
    return value


def to_python(value: Expr, names: Callable[[Name], str | None]) -> str | None:
    """Return Python text of an integer expression; None if a part has none.

    Args:
        value: the expression.
        names: returns the Python text of a name, or None if the name is unknown.
    """
    return _python(value, names, 0)


def to_real(value: Expr, names: Callable[[Name], str | None]) -> str | None:
    """Return Python text of a number in floating point; None if a part has none.

    Args:
        value: the number, such as `1.0f / sqrtf(d)`.
        names: returns the Python text of a name, or None if the name is unknown.
    """
    if isinstance(value, float):
        return repr(value)
    if not isinstance(value, Arithmetic):
        return to_python(value, names)
    parts = [to_real(one, names) for one in value.operands]
    if None in parts or (not value.operator.startswith(("real", "call ")) and not any(map(_has_real, value.operands))):
        return to_python(value, names)
    texts = [f"({part})" if " " in (part or "") else part for part in parts]
    function = value.operator.removeprefix("call ").rpartition("::")[2]
    if function in _ROOTS and len(texts) == 1:
        return f"{texts[0]} ** {_ROOTS[function]}"
    if function in ("pow", "powf", "__powf") and len(texts) == 2:
        return f"{texts[0]} ** {texts[1]}"
    if value.operator == "real":
        return parts[0]
    symbol = value.operator.removeprefix("real").strip()
    if symbol == "-" and len(texts) == 1:
        return f"-{texts[0]}"
    return f"{texts[0]} {symbol} {texts[1]}" if symbol in ("+", "-", "*", "/") and len(texts) == 2 else None


_ROOTS = {"sqrt": "0.5", "sqrtf": "0.5", "__fsqrt_rn": "0.5", "rsqrt": "-0.5", "rsqrtf": "-0.5"}


def _has_real(value: Expr) -> bool:
    """Return whether an expression contains a number in floating point or a call, whose result may be one."""
    return isinstance(value, float) or (
        isinstance(value, Arithmetic)
        and (value.operator.startswith(("real", "call ")) or any(map(_has_real, value.operands)))
    )


_RANK = {"||": 1, "&&": 2, "==": 4, "!=": 4, "<": 4, ">": 4, "<=": 4, ">=": 4, "|": 5, "^": 6, "&": 7, "<<": 8,
         ">>": 8, "+": 9, "-": 9, "*": 10, "/": 10, "%": 10}  # fmt: skip


def _python(value: Expr, names: Callable[[Name], str | None], outer: int) -> str | None:
    if isinstance(value, bool | int):
        return str(int(value))
    if isinstance(value, float):
        return str(int(value)) if value == int(value) else None
    if isinstance(value, Name):
        return names(value)
    symbol = value.operator
    if symbol in ("real", "real/", "log2"):
        return _python(whole(value), names, outer)
    rank = _RANK.get(symbol, 0 if symbol == "?:" else 12)
    inner = 0 if rank in (0, 12) else rank
    parts = [_python(one, names, inner + (at > 0 and rank not in (0, 12))) for at, one in enumerate(value.operands)]
    if None in parts:
        return None
    texts = [part for part in parts if part is not None]
    if symbol == "bits":
        return f"(({texts[0]}).bit_length() - 1)"
    if symbol == "?:":
        return f"({texts[1]} if {texts[0]} else {texts[2]})"
    if symbol in ("ceil_div", "min", "max"):
        return f"{symbol}({', '.join(texts)})"
    if len(texts) == 1 and symbol in ("-", "!", "~", "+"):
        return f"({'not ' if symbol == '!' else symbol}{texts[0]})"
    if len(texts) != 2 or symbol not in _RANK:
        return None
    text = f"{texts[0]} {_PYTHON.get(symbol, symbol)} {texts[1]}"
    return f"({text})" if rank < outer else text


def text_of(value: object) -> str:
    """Return the C++ text of a value, for messages and template arguments."""
    if isinstance(value, Arithmetic):
        texts = [text_of(one) for one in value.operands]
        if value.operator == "?:":
            return f"({texts[0]} ? {texts[1]} : {texts[2]})"
        if value.operator == "real":
            return texts[0]
        if len(texts) == 2 and value.operator.removeprefix("real") in _RANK:
            return f"({texts[0]} {value.operator.removeprefix('real')} {texts[1]})"
        return f"{value.operator.removeprefix('call ')}({', '.join(texts)})"
    return value.text if isinstance(value, Name) else str(value)
