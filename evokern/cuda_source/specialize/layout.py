"""Edits that preserve a readable layout, and a normal form of lines that every compiler reads alike.

Whole lines are removed, kept branches are unindented, and superfluous blank lines disappear.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from evokern.cuda_source.lexer import COMMENT, LITERAL
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


_SPLICE_IN_TOKEN = re.compile(rf"{LITERAL}|(?<=\S)\\\n(?=\S)", re.VERBOSE)
_DIRECTIVE_BEHIND = re.compile(r"(?:[^\S\n]|/\*[^\n]*?\*/)*#")


def plain_lines(text: str) -> str:
    r"""Return a source in which each token and each preprocessor line starts on a line of its own.

    - Line ends are line feeds, and there is no byte order mark.
    - A backslash at the end of a line is only between tokens. Elsewhere, the lines are joined.
    - A ``//`` comment does not end in a backslash and spaces. NVRTC ends such a comment, but GCC continues it.
    - A preprocessor line that follows a comment of several lines starts on its own line.
    """
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    text = _SPLICE_IN_TOKEN.sub(lambda found: found["literal"] or "", text)
    return COMMENT.sub(_plain_comment, text).rstrip("\\\n") + "\n"


def _plain_comment(found: re.Match[str]) -> str:
    comment = found.group()
    if found["literal"]:
        return comment
    if comment.startswith("//"):
        return re.sub(r"\\[^\S\n]+$", "", comment)
    starts_line = "\n" in comment and _DIRECTIVE_BEHIND.match(found.string, found.end())
    return comment + "\n" if starts_line else comment


def squeeze(text: str) -> str:
    """Return a source without trailing spaces, repeated blank lines, and blank lines after an opening brace."""

    def shorter(part: str) -> str:
        part = re.sub(r"(?<!\\)[ \t]+\n", "\n", part)
        return re.sub(r"\n{3,}", "\n\n", re.sub(r"\{\n\n+", "{\n", part))

    return outside_strings(text, shorter)


def outside_strings(text: str, change: Callable[[str], str]) -> str:
    """Apply a change to the parts of a source between string literals of several lines."""
    pieces, position = [], 0
    for found in COMMENT.finditer(text):
        if found["literal"] and "\n" in found["literal"]:
            pieces += [change(text[position : found.start()]), found.group()]
            position = found.end()
    return "".join([*pieces, change(text[position:])])
