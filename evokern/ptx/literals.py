"""Literals and lists in PTX text."""

from __future__ import annotations

import re

_INTEGER = re.compile(r"([+-]?)(0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?$")


def read_integer(text: str) -> int | None:
    """Return the value of a PTX integer literal (section 4.5.1); None for other text."""
    match = _INTEGER.match(text)
    if match is None:
        return None
    digits = match[2]
    if digits[:2] in ("0x", "0X"):
        value = int(digits, 16)
    elif digits[:2] in ("0b", "0B"):
        value = int(digits, 2)
    elif len(digits) > 1 and digits[0] == "0":
        value = int(digits, 8)
    else:
        value = int(digits)
    return -value if match[1] == "-" else value


def split_top(text: str, separator: str = ",") -> list[str]:
    """Split text at separators outside brackets, braces and parentheses."""
    if "{" not in text and "[" not in text and "(" not in text:
        return [part.strip() for part in text.split(separator)] if text.strip() else []
    parts, depth, start = [], 0, 0
    for index, character in enumerate(text):
        if character in "{[(":
            depth += 1
        elif character in "}])":
            depth -= 1
        elif character == separator and depth == 0:
            parts.append(text[start:index].strip())
            start = index + 1
    last = text[start:].strip()
    if last or parts:
        parts.append(last)
    return parts
