"""Tables of plain text, which the page's templates draw."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TextTable:
    """A table whose cells are text."""

    head: Sequence[str]
    """Titles of the columns; all empty for none."""
    rows: Sequence[Sequence[str]]
    """Cells."""
    numbers: Iterable[int] = ()
    """Places of columns that are aligned to the right."""

    @property
    def titled(self) -> bool:
        """Whether any column has a title."""
        return any(self.head)


@dataclass(frozen=True)
class Cell:
    """A cell of a matrix that is shaded by time."""

    text: str = ""
    """What stands first, in bold."""
    note: str = ""
    """What stands below, small."""
    kind: str = ""
    """Class: `dim` for nothing tried, `none` for nothing that was right."""
    heat: str = ""
    """How dark, from 0.00 to 1.00; empty for no shade."""
    link: str = ""
    """Address behind `#` that a click leads to; empty for none."""
    tip: str = ""
    """What is said where the link is pointed at."""


def flattened(given: Mapping[str, Any]) -> TextTable:
    """Return nested values as one table, names joined along the way."""
    flat: list[tuple[str, str]] = []

    def walk(part: Any, name: str) -> None:
        if isinstance(part, Mapping):
            for key, value in part.items():
                walk(value, f"{name} {key}".strip())
        else:
            flat.append((name, plain(part)))

    walk(given, "")
    return TextTable(("", ""), flat)


def plain(value: Any) -> str:
    """Return a stored value as text."""
    if isinstance(value, list | tuple):
        return ", ".join(map(plain, value))
    if isinstance(value, float):
        return f"{value:.4g}"
    return "not given" if value is None else str(value)


def clipped(text: str, most: int) -> str:
    """Return a text's beginning of whole words, with an ellipsis where something is left out."""
    return text if len(text) <= most else f"{text[:most].rpartition(' ')[0] or text[:most]} …"
