"""Type checks of a declaration, so that a mistake in `kernel.py` is reported by the name of the field or function."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

from evokern.errors import KernelError

_MOST_CHARACTERS = 80
"""Length up to which a message quotes a value."""


@dataclass(frozen=True)
class Kind:
    """Values that a field accepts."""

    accepts: Callable[[Any], bool]
    """Whether the field accepts a value."""
    wanted: str
    """Description of the accepted values, for messages."""


def is_whole(value: object) -> bool:
    """Return whether a value is an `int`, but not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


FUNCTION = Kind(callable, "a function")
TEXT = Kind(lambda value: isinstance(value, str) and bool(value), "a non-empty string")
WHOLE = Kind(is_whole, "a whole number")
COUNT = Kind(lambda value: is_whole(value) and value >= 0, "a whole number of at least 0")
NUMBER = Kind(lambda value: isinstance(value, Real) and not isinstance(value, bool), "a number")
EXTENT = Kind(
    lambda value: hasattr(value, "__index__") and not isinstance(value, bool),
    "a whole number (a // b divides, and -(-a // b) rounds up)",
)
FLAG = Kind(lambda value: isinstance(value, bool), "True or False")


def one_of(kind: type, wanted: str) -> Kind:
    """Return the kind of a single record."""
    return Kind(lambda value: isinstance(value, kind), wanted)


def optional(kind: Kind) -> Kind:
    """Return a kind that also accepts None."""
    return Kind(lambda value: value is None or kind.accepts(value), f"{kind.wanted}, or None")


def require(owner: str, record: object, kinds: Mapping[str, Kind], error: type[Exception] = KernelError) -> None:
    """Check fields of a record.

    Args:
        owner: the record as messages name it, for example `kernel mix`.
        record: the record.
        kinds: field → accepted values.
        error: exception to raise.
    """
    for name, kind in kinds.items():
        value = getattr(record, name)
        if not kind.accepts(value):
            raise error(f"{owner}: {name} is {quoted(value)}; use {kind.wanted}")


def members(owner: str, name: str, values: object, kind: Kind, error: type[Exception] = KernelError) -> tuple[Any, ...]:
    """Return the members of a sequence as a tuple after checking each of them.

    Args:
        owner: the record as messages name it.
        name: name of the field, or of the function that returned the sequence.
        values: any iterable except a string and a mapping.
        kind: accepted members.
        error: exception to raise.
    """
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        comma = "; put a comma after a single one" if kind.accepts(values) else ""
        raise error(f"{owner}: {name} is {quoted(values)}; use a tuple, each entry {kind.wanted}{comma}")
    found = tuple(values)
    for position, value in enumerate(found, 1):
        if not kind.accepts(value):
            raise error(f"{owner}: entry {position} of {name} is {quoted(value)}; use {kind.wanted}")
    return found


def entries(owner: str, name: str, values: object, kind: Kind) -> Mapping[str, Any]:
    """Return a mapping from names after checking its keys and values; the arguments are those of `members`."""
    if not isinstance(values, Mapping):
        raise KernelError(f"{owner}: {name} is {quoted(values)}; use a mapping from names, each value {kind.wanted}")
    for key, value in values.items():
        if not isinstance(key, str):
            raise KernelError(f"{owner}: {name} has the key {quoted(key)}; use a string")
        if not kind.accepts(value):
            raise KernelError(f"{owner}: {name}[{key!r}] is {quoted(value)}; use {kind.wanted}")
    return values


def returning(function: Callable[..., Any], check: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return a function of a declaration with its result replaced by that of `check`, once."""
    if hasattr(function, "returns_checked"):
        return function

    @functools.wraps(function)
    def checked(*args: Any) -> Any:
        return check(function(*args))

    checked.returns_checked = True  # type: ignore[attr-defined]
    return checked


def quoted(value: object) -> str:
    """Return a value as source text, cut to a length that fits in a message."""
    text = repr(value)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 1]}…"


def whole(number: int | float) -> int:
    """Convert a number to `int`; a traced integer keeps its formula (see `evokern.export.trace`)."""
    return number if isinstance(number, int) and not isinstance(number, bool) else int(number)
