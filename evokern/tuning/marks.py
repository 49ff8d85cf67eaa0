"""Marks for the arguments of `evokern.tune`, and arithmetic for its functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class OutLike:
    """An output with the shape and dtype of an array; its contents do not matter."""

    array: Any
    """The array."""


@dataclass(frozen=True)
class InOut:
    """An output that the kernel also reads."""

    array: Any
    """Its contents before the call."""


def out_like(array: Any) -> OutLike:
    """Mark an argument that the kernel writes and does not read.

    Args:
        array: array with the shape and dtype of the output.
    """
    return OutLike(array)


def inout(array: Any) -> InOut:
    """Mark an argument that the kernel reads and writes, for example a histogram that it adds to.

    The reference gets the contents before the call as an input, and returns those after it as an output. Each call of
    the kernel starts from the same contents.

    Args:
        array: typical contents before the call; zeros stay zeros.
    """
    return InOut(array)


def cdiv(a: int, b: int) -> int:
    """Return a / b, rounded up: the number of blocks of b elements that cover a elements."""
    return -(-a // b)
