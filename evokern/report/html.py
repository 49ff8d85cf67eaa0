"""Pieces of HTML that several sections use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: Iterable[int] = ()) -> str:
    """Return a table of ready HTML cells.

    Args:
        head: column titles.
        rows: cells.
        numbers: places of columns that are aligned to the right.
    """
    right = set(numbers)

    def cells(row: Sequence[str], tag: str) -> str:
        return "".join(f"<{tag}{' class=n' if n in right else ''}>{cell}</{tag}>" for n, cell in enumerate(row))

    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    top = f"<thead><tr>{cells(head, 'th')}</tr></thead>" if any(head) else ""
    return f'<div class="wide"><table>{top}<tbody>{body}</tbody></table></div>'


def missing(text: str) -> str:
    """Return a remark that a section has nothing to show, and what would fill it."""
    return f'<p class="missing">{text}</p>'


def side_by_side(*parts: str) -> str:
    """Return figures in columns, where the page is wide enough."""
    return f'<div class="beside">{"".join(parts)}</div>'


def nested(given: Mapping[str, Any], prefix: str = "") -> str:
    """Return nested values as one table, names joined along the way."""
    flat: list[tuple[str, str]] = []

    def walk(part: Any, name: str) -> None:
        if isinstance(part, Mapping):
            for key, value in part.items():
                walk(value, f"{name} {key}".strip())
        else:
            flat.append((name, _plain(part)))

    walk(given, prefix)
    return table(("", ""), [(escape(name), escape(text)) for name, text in flat])


def _plain(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_plain, value))
    if isinstance(value, float):
        return f"{value:.4g}"
    return "not given" if value is None else str(value)
