"""Text of others where it must stay text: in comments and literals of programs, shell lines, terminals and Markdown.

Names, paths, compilers' messages and all that a database holds may be anybody's. A line end would leave a `//` comment,
a backslash before it would draw the next line in, and an escape sequence would command a terminal. HTML is escaped by
its templates (`evokern.templating`), SQL by placeholders.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable
from typing import Any

_CONTROLS = (
    # C0 and C1 (ECMA-48), soft hyphen, and of Unicode what breaks lines, turns the reading direction or is not shown
    # (UAX #9, UTR #36, CVE-2021-42574), tags, and halves of surrogate pairs: file names that are no UTF-8.
    "\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f\ud800-\udfff"
)
_CONTROL = re.compile(f"[{_CONTROLS}]")
_CONTROL_IN_LINES = re.compile(f"(?![\n\t])[{_CONTROLS}]")
_CONTROL_IN_COMMENT = re.compile(f"(?!\t)[{_CONTROLS}]")
_CONTINUED = re.compile(r"(\\|\?\?/)$")


def _escaped(match: re.Match[str]) -> str:
    number = ord(match[0])
    short = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}.get(match[0])
    wide = f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
    return short or (f"\\x{number:02x}" if number < 0x100 else wide)


def visible(text: str) -> str:
    r"""Return text as one line that a terminal shows and does not obey: a line end reads `\n`, an escape `\x1b`."""
    return _CONTROL.sub(_escaped, text)


def visible_lines(text: str) -> str:
    """Return text of several lines that a terminal shows and does not obey: line feeds and tabs stay."""
    return _CONTROL_IN_LINES.sub(_escaped, text)


def in_comment(text: str) -> str:
    r"""Return text that ends with its line behind `//` or `#`, for compilers of C++ and for Python.

    A backslash at the end, or its trigraph `??/`, would draw the next line in (ISO C++17, 5.2; ISO C++14, 2.4; GCC
    allows blanks behind it): it reads `\x5c` or `??\x2f`.
    """
    line = _CONTROL_IN_COMMENT.sub(_escaped, text).rstrip()
    return _CONTINUED.sub(lambda match: r"\x5c" if match[0] == "\\" else r"??\x2f", line)


def c_string(text: str) -> str:
    """Return a string literal of C++ with this text; what a terminal would obey stands escaped in the text itself."""
    shown = visible(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{shown.replace("??", "?" + chr(92) + "?")}"'


def shell_line(words: Iterable[object]) -> str:
    """Return a command line that a shell takes as it stands, in one line that a terminal shows and does not obey.

    A word with a control character is quoted as `$'…'` (POSIX.1-2024, 2.2.4).
    """
    return " ".join(_shell_word(str(word)) for word in words)


def _shell_word(word: str) -> str:
    if not _CONTROL.search(word):
        return shlex.quote(word)
    # Bytes in octal: what a file's name is on disk, whatever the shell's locale.
    plain = word.replace("\\", "\\134").replace("'", "\\047")
    octal = _CONTROL.sub(lambda match: "".join(f"\\{byte:03o}" for byte in _bytes(match[0])), plain)
    return f"$'{octal}'"


def _bytes(character: str) -> bytes:
    return character.encode("utf-8", "surrogateescape" if "\udc80" <= character <= "\udcff" else "surrogatepass")


_MARKDOWN = re.compile(r"[\\`*\[\]<>|#&]")


def in_markdown(text: str) -> str:
    """Return text that is text in a line or cell of Markdown: no tag, no link behind other words, no second cell."""
    return _MARKDOWN.sub(r"\\\g<0>", visible(text))


def json_text(record: Any, *, indent: int | None = 2, ascii_only: bool = False) -> str:
    """Return a record as JSON that a terminal shows and does not obey; readers get the same text back.

    Args:
        record: what `json.dumps` takes; what it does not know is written as its text.
        indent: blanks per level, None for one line.
        ascii_only: write escapes for all that is not ASCII.
    """
    text = json.dumps(record, indent=indent, ensure_ascii=ascii_only, default=str)
    # json.dumps escapes C0 alone; outside strings only line ends are left, which are its own.
    return _CONTROL_IN_LINES.sub(lambda match: json.dumps(match[0])[1:-1].replace("\x7f", r"\u007f"), text)
