"""Pieces of HTML that several sections use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numeric: int = 0) -> str:
    """Return a table of ready HTML cells; the last `numeric` columns are aligned to the right."""
    first = len(head) - numeric

    def cells(row: Sequence[str], tag: str) -> str:
        return "".join(f"<{tag}{' class=n' if n >= first else ''}>{cell}</{tag}>" for n, cell in enumerate(row))

    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    top = f"<thead><tr>{cells(head, 'th')}</tr></thead>"
    return f'<div class="wide" tabindex="0"><table>{top}<tbody>{body}</tbody></table></div>'


def missing(text: str) -> str:
    """Return a remark that a section has nothing to show, and what would fill it."""
    return f'<p class="missing">{text}</p>'


def nested(given: Mapping[str, Any], prefix: str = "") -> str:
    """Return nested values as one table, names joined along the way."""
    flat: list[tuple[str, str]] = []

    def walk(part: Any, name: str) -> None:
        if isinstance(part, Mapping):
            for key, value in part.items():
                walk(value, f"{name} {key}".strip())
        else:
            flat.append((name, str(part)))

    walk(given, prefix)
    return table(("", ""), [(escape(name), escape(text)) for name, text in flat])
