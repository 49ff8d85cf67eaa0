"""Text tables for the page's templates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TextTable:
    """A table whose cells are text."""

    head: Sequence[str]
    """Column titles; all empty for a table without a head."""
    rows: Sequence[Sequence[str]]
    """Rows of cells."""
    numbers: Iterable[int] = ()
    """Indices of right-aligned columns."""

    @property
    def titled(self) -> bool:
        """Whether any column has a title."""
        return any(self.head)


@dataclass(frozen=True)
class Cell:
    """A cell of a matrix shaded by time."""

    text: str = ""
    """Bold text at the top."""
    note: str = ""
    """Small text at the bottom."""
    kind: str = ""
    """CSS class: `dim` if no trial has these values, `none` if no such trial was correct."""
    heat: str = ""
    """Shade from 0.00 to 1.00; empty for none."""
    link: str = ""
    """URL fragment of the cell's link; empty for none."""
    tip: str = ""
    """Tooltip of the link."""


def flattened(given: Mapping[str, Any]) -> TextTable:
    """Return nested values as one table, with the names joined."""
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
    """Return a text, cut at a word boundary and followed by an ellipsis if it is too long."""
    return text if len(text) <= most else f"{text[:most].rpartition(' ')[0] or text[:most]} …"
