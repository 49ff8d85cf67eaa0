"""Layout of lines: a normal form that every compiler reads alike, and removal of superfluous blank lines."""

from __future__ import annotations

import re
from collections.abc import Callable

from evokern.cuda_source.lexer import COMMENT, LITERAL

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
