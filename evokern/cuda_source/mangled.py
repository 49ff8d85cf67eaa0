"""Names as they stand in machine code (Itanium C++ ABI, section 5.1), taken apart."""

from __future__ import annotations

import re


def mangled_parts(symbol: str) -> tuple[list[str], str]:
    """Return the names in a mangled symbol, outermost first, and what follows them: template arguments, parameters.

    Args:
        symbol: for example ``_ZN2ns1kIfEEvPT_``. One that is not mangled gives no names.
    """
    if not symbol.startswith("_Z"):
        return [], symbol
    nested = symbol.startswith("_ZN")
    rest = symbol[3:] if nested else symbol[2:]
    parts: list[str] = []
    while match := re.match(r"L?(\d+)", rest):  # an L marks internal linkage
        length = int(match.group(1))
        parts.append(rest[match.end() : match.end() + length])
        rest = rest[match.end() + length :]
        if not nested:
            break
    return [part for part in parts if not part.startswith("_GLOBAL__N")], rest


def source_name(symbol: str) -> str:
    """Return a function's name as the source has it, without template arguments; a plain symbol is its own name."""
    return "::".join(mangled_parts(symbol)[0]) or symbol
