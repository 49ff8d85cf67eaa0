"""Parser of mangled names (Itanium C++ ABI, section 5.1)."""

from __future__ import annotations

import re

BUILTIN_TYPES = {
    "f": "float", "d": "double", "i": "int", "j": "unsigned int", "l": "long", "m": "unsigned long",
    "x": "long long", "y": "unsigned long long", "s": "short", "t": "unsigned short",
    "a": "signed char", "h": "unsigned char", "c": "char", "b": "bool",
}  # fmt: skip
"""Letter → builtin type (section 5.1.5.2)."""
_NAME = re.compile(r"L?(\d+)")
"""Start of a name; L marks internal linkage."""
_WITHOUT_NAME = re.compile(r"S[0-9A-Z]*_|S[abdiost]|T\d*_|A\d*_|D.|[a-zKMOPR]|L(?:D.|[a-z])n?[0-9a-f]*E")
"""Template arguments without names: substitutions, parameters, extents, builtin types, pointers, references, and
numbers of builtin types (sections 5.1.5, 5.1.6 and 5.1.10)."""
_LIST = re.compile(r"[IJNFX]|LN")
"""Start of a list that E ends: arguments, packs, nested names, functions, expressions, or a number with a nested type
name."""
_VALUE = re.compile(r"n?\d+E")
"""Value of an enumeration, after the name of its type."""


def mangled_parts(symbol: str) -> tuple[list[str], str]:
    """Return the names in a mangled symbol, outermost first, and the rest (template arguments, parameters).

    Args:
        symbol: for example ``_ZN2ns1kIfEEvPT_``; a plain symbol has no names.
    """
    parts, rest, _ = _parse_symbol(symbol)
    return parts, rest


def is_of_template(symbol: str) -> bool:
    """Return whether a symbol is a template instantiation or a member of a template instantiation."""
    _, rest, inside = _parse_symbol(symbol)
    return symbol.startswith("_Z") and (inside or rest.startswith("I"))


def source_name(symbol: str) -> str:
    """Return a function's name as in the source, without template arguments; a plain symbol is returned unchanged."""
    return "::".join(mangled_parts(symbol)[0]) or symbol


def _parse_symbol(symbol: str) -> tuple[list[str], str, bool]:
    """Return the names, the rest, and whether a name other than the last has template arguments."""
    if not symbol.startswith("_Z"):
        return [], symbol, False
    nested = symbol.startswith("_ZN")
    rest = symbol[3:] if nested else symbol[2:]
    parts = ["std"] if rest.startswith("St") else []  # section 5.1.10
    rest = rest.removeprefix("St")
    inside = False
    while match := _NAME.match(rest):
        end = match.end() + int(match[1])
        parts.append(rest[match.end() : end])
        rest = rest[end:]
        if not nested:
            break
        behind = _behind_arguments(rest)
        if behind is not None and _NAME.match(rest, behind):
            rest, inside = rest[behind:], True
    return [part for part in parts if not part.startswith("_GLOBAL__N")], rest, inside


def _behind_arguments(text: str) -> int | None:
    """Return the end of the template arguments that start a text, or None if there are none or they are invalid."""
    try:
        return _behind_list(text, 1) if text.startswith("I") else None
    except ValueError:
        return None


def _behind_list(text: str, at: int) -> int:
    """Return the position after the E that ends the list whose first item is at ``at``.

    Raises:
        ValueError: if an item is invalid.
    """
    while not text.startswith("E", at):
        enumeration = text[at : at + 1] == "L"
        if match := _WITHOUT_NAME.match(text, at):
            at = match.end()
            continue
        if match := _NAME.match(text, at):
            at = match.end() + int(match[1])
        elif match := _LIST.match(text, at):
            at = _behind_list(text, match.end())
        else:
            raise ValueError(f"invalid template argument: {text[at:]!r}")
        if enumeration:
            value = _VALUE.match(text, at)
            if value is None:
                raise ValueError(f"invalid enumeration value: {text[at:]!r}")
            at = value.end()
    return at + 1
