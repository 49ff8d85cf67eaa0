"""Escaping of untrusted text for comments, string literals, shell lines, terminals, Markdown and JSON.

Names, paths, compiler messages and the content of a database are untrusted. A newline would end a `//` comment. A
trailing backslash would continue the comment on the next line, and an escape sequence could control a terminal. This
module handles neither HTML, which templates escape (`evokern.templating`), nor SQL, which uses placeholders.
"""

from __future__ import annotations

import json
import re
import reprlib
import shlex
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any

_CONTROLS = (
    # C0 and C1 (ECMA-48), soft hyphen, Unicode characters that break lines, change the reading direction or are
    # invisible (UAX #9, UTR #36, CVE-2021-42574), tags, and lone surrogates (file names that are not UTF-8).
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
    r"""Escape all control characters, so that the text is one line: newlines become `\n`, ESC becomes `\x1b`."""
    return _CONTROL.sub(_escaped, text)


def visible_lines(text: str) -> str:
    """Escape control characters except newlines and tabs."""
    return _CONTROL_IN_LINES.sub(_escaped, text)


def in_docstring(text: str) -> str:
    """Return a text in a form that cannot end a docstring in double quotes, for use in generated code."""
    return visible(text).replace("\\", "/").replace('"', "'")


def in_comment(text: str) -> str:
    r"""Escape text for a line comment of C++ (`//`) or Python (`#`).

    A trailing backslash, or its trigraph `??/`, would continue the comment on the next line (ISO C++17, 5.2; ISO C++14,
    2.4; GCC also allows blanks after it). The backslash becomes `\x5c`, and the trigraph becomes `??\x2f`.
    """
    line = _CONTROL_IN_COMMENT.sub(_escaped, text).rstrip()
    return _CONTINUED.sub(lambda match: r"\x5c" if match[0] == "\\" else r"??\x2f", line)


def c_string(text: str) -> str:
    """Return a C++ string literal of the text with control characters escaped."""
    shown = visible(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{shown.replace("??", "?" + chr(92) + "?")}"'


def shell_line(words: Iterable[object]) -> str:
    """Quote words as one shell command line.

    A word with control characters is quoted as `$'…'` (POSIX.1-2024, 2.2.4).
    """
    return " ".join(_shell_word(str(word)) for word in words)


def _shell_word(word: str) -> str:
    if not _CONTROL.search(word):
        return shlex.quote(word)
    # Octal bytes give the file name on disk, independent of the shell's locale.
    plain = word.replace("\\", "\\134").replace("'", "\\047")
    octal = _CONTROL.sub(lambda match: "".join(f"\\{byte:03o}" for byte in _bytes(match[0])), plain)
    return f"$'{octal}'"


def _bytes(character: str) -> bytes:
    return character.encode("utf-8", "surrogateescape" if "\udc80" <= character <= "\udcff" else "surrogatepass")


_MARKDOWN = re.compile(r"[\\`*\[\]<>|#&]")


def in_markdown(text: str) -> str:
    """Escape text for a line or table cell in Markdown, so that it cannot create a tag, link or cell."""
    return _MARKDOWN.sub(r"\\\g<0>", visible(text))


def json_text(record: Any, *, indent: int | None = 2, ascii_only: bool = False) -> str:
    """Serialise a record as JSON with all control characters escaped.

    Args:
        record: value for `json.dumps`; values of other types are written as `str(value)`.
        indent: number of blanks per level; None for one line.
        ascii_only: escape all characters outside ASCII.
    """
    text = json.dumps(record, indent=indent, ensure_ascii=ascii_only, default=str)
    # json.dumps escapes only C0. Outside strings the only control characters are its own newlines.
    return _CONTROL_IN_LINES.sub(lambda match: json.dumps(match[0])[1:-1].replace("\x7f", r"\u007f"), text)


def repr_of(*names: str) -> Callable[[Any], str]:
    """Return a `__repr__` that shows the named attributes of a record on at most two lines.

    Args:
        names: attributes, in order; an attribute that is None, empty or False is omitted.
    """

    def short(record: Any) -> str:
        values = {name: getattr(record, name) for name in names}
        plain = {name: value.value if isinstance(value, Enum) else value for name, value in values.items()}
        given = {name: value for name, value in plain.items() if value or (value == 0 and value is not False)}
        return f"{type(record).__name__}({', '.join(f'{name}={_SHORT.repr(value)}' for name, value in given.items())})"

    return short


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60
