"""Factors and divisors in expressions of a launch."""

from __future__ import annotations

from collections.abc import Iterator

from evokern.cuda_source.host import Arithmetic, Dim3, Expr, HostBuffer, Name, names_in, number
from evokern.cuda_source.host.values import VARIABLE, operation, product_of


def factors(value: Expr) -> Iterator[Expr]:
    """Yield the factors of a product; another expression is its only factor."""
    if isinstance(value, Arithmetic) and value.operator == "*":
        for one in value.operands:
            yield from factors(one)
    else:
        yield value


def divisors(grid: Dim3) -> Iterator[Name]:
    """Yield the names by which the grid divides the work."""
    waiting: list[Expr] = [grid.x, grid.y, grid.z]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Arithmetic):
            waiting += one.operands
            if one.operator in ("ceil_div", "/"):
                yield from names_in(one.operands[1])


def divided(part: Expr, value: int, mark: Name) -> Expr:
    """Return an expression in which divisors with a number as factor have a name instead."""
    if not isinstance(part, Arithmetic):
        return part
    operands = tuple(divided(one, value, mark) for one in part.operands)
    if part.operator in ("ceil_div", "/"):
        operands = (operands[0], with_factor(operands[1], value, mark))
    return operation(part.operator, *operands)


def with_factor(value: Expr, factor: int, mark: Name) -> Expr:
    """Return an expression in which a number that is a factor becomes a name."""
    parts = list(factors(value))
    at = next((at for at, one in enumerate(parts) if isinstance(one, int | Name) and number(one) == factor
               and not (isinstance(one, Name) and one.kind in VARIABLE)), None)  # fmt: skip
    if at is None:
        whole = next(
            (at for at, one in enumerate(parts) if isinstance(one, int) and one > factor and one % factor == 0), None
        )
        if whole is None or len(parts) < 2:
            return value
        parts[whole : whole + 1] = [parts[whole] // factor, mark]  # type: ignore[operator]
    else:
        parts[at] = mark
    return product_of(parts)


def elements(buffer: HostBuffer, width: int) -> Expr:
    """Return the number of elements of an allocation."""
    if buffer.elements is not None:
        return buffer.elements
    total = buffer.bytes if buffer.bytes is not None else 1
    if isinstance(total, Name) and isinstance(total.value, Arithmetic):
        total = total.value
    parts = list(factors(total))
    for at, one in enumerate(parts):
        if isinstance(one, int) and one % width == 0:
            parts = [*parts[:at], *parts[at + 1 :], one // width]  # elements of a vector type are the last axis
            break
        if isinstance(one, Name) and "sizeof" in one.text:
            parts[at] = 1
            break
    else:
        return operation("/", total, width)
    return product_of(parts)
