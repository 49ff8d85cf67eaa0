"""Edits that preserve a readable layout: whole lines are removed, and kept branches are unindented."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from evokern.cuda_source.source_file import SourceFile


@dataclass(frozen=True, slots=True)
class Edit:
    """Replacement of a range of characters."""

    start: int
    """Offset of the first replaced character."""
    end: int
    """Offset after the last replaced character."""
    text: str
    """Replacement text."""


def apply(text: str, edits: Iterable[Edit]) -> str:
    """Apply edits; an edit that overlaps an earlier or outer one is skipped until the next pass."""
    pieces: list[str] = []
    position = 0
    for edit in sorted(edits, key=lambda e: (e.start, -e.end)):
        if edit.start < position:
            continue
        pieces += [text[position : edit.start], edit.text]
        position = edit.end
    return "".join(pieces) + text[position:]


class Layout:
    """Builder of line-based edits for a text."""

    def __init__(self, unit: SourceFile) -> None:
        self.source = unit.text
        self.tokens = unit.stream.tokens

    def text(self, first: int, last: int) -> str:
        """Return the characters from one token to another."""
        return self.source[self.tokens[first].start : self.tokens[last].end]

    def removal(self, first: int, last: int) -> Edit:
        """Remove tokens; if they fill whole lines, also remove these lines and the comment lines directly above."""
        start, end = self.tokens[first].start, self.tokens[last].end
        line_start, line_end = self._line_start(start), self._line_end(end)
        before, after = self.source[line_start:start], self.source[end:line_end]
        if before.strip() or (after.strip() and not after.strip().startswith("//")):
            return Edit(start, end, "")
        while line_start > 0:
            above = self._line_start(line_start - 1)
            line = self.source[above:line_start].strip()
            if not line.startswith("//") or self._indent(above) != self._indent(self._line_start(start)):
                break
            line_start = above
        return Edit(line_start, min(line_end + 1, len(self.source)), "")

    def replacement(self, first: int, last: int, kept_first: int, kept_last: int, *, inner: bool) -> Edit:
        """Replace a statement with a part of itself.

        Args:
            first: index of the statement's first token.
            last: index of the statement's last token.
            kept_first: index of the first token to keep.
            kept_last: index of the last token to keep.
            inner: whether to remove the braces around the kept part.
        """
        start, end = self.tokens[first].start, self.tokens[last].end
        kept_start, kept_end = self.tokens[kept_first].start, self.tokens[kept_last].end
        if inner:
            kept_start, kept_end = kept_start + 1, kept_end - 1
        content = self.source[kept_start:kept_end]
        indent = self._indent(self._line_start(start))
        alone = not self.source[self._line_start(start) : start].strip()
        if not content.strip():
            return self.removal(first, last)
        if "\n" in content and alone and not self._has_raw_lines(kept_first, kept_last):
            content = self._moved(content, indent, inner)
        text = content.strip()
        if text.startswith("#"):  # a preprocessor line keeps its column
            start = self._line_start(start)
        last_line = text.rpartition("\n")[2]
        if self.source[end : self._line_end(end)].strip() and ("//" in last_line or last_line.startswith("#")):
            text += "\n" + " " * indent
        return Edit(start, end, text)

    def _moved(self, content: str, indent: int, inner: bool) -> str:
        """Unindent lines to the given indentation; preprocessor lines keep theirs."""
        head, *lines = content.split("\n")
        movable = [line for line in lines if line.strip() and not line.startswith("#")]
        if not inner and movable:
            movable = movable[-1:]  # the closing brace has the indentation of the whole statement
        least = min((len(line) - len(line.lstrip()) for line in movable), default=indent)
        shift = max(least - indent, 0)
        moved = [line if line.startswith("#") else line[min(shift, len(line) - len(line.lstrip())) :] for line in lines]
        first = head.strip()
        return "\n".join(([first] if first and not inner else [" " * indent + first] if first else []) + moved)

    def _has_raw_lines(self, first: int, last: int) -> bool:
        """Return whether a string spans several lines, so that moving the lines would change it."""
        return any(t.kind == "string" and "\n" in t.text for t in self.tokens[first : last + 1])

    def _line_start(self, offset: int) -> int:
        return self.source.rfind("\n", 0, offset) + 1

    def _line_end(self, offset: int) -> int:
        found = self.source.find("\n", offset)
        return len(self.source) if found < 0 else found

    def _indent(self, line_start: int) -> int:
        line = self.source[line_start : self._line_end(line_start)]
        return len(line) - len(line.lstrip(" "))
