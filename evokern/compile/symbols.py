"""Names of variables as PTX has them: plain at file scope, mangled inside a namespace or with internal linkage."""

from __future__ import annotations

import re
from collections.abc import Iterable

_CONSTANT = re.compile(r"^[^\n/]*\.const\b[^\n;]*?([\w$]+)(?:\[\d*\])?\s*(?:=|;)", re.MULTILINE)


def symbol_of(name: str, symbols: Iterable[str]) -> str | None:
    """Return the symbol of a variable that a person names, or None where there is none.

    Args:
        name: the variable's name, without namespaces.
        symbols: the module's variables.
    """
    known = list(symbols)
    if name in known:
        return name
    mangled = re.compile(rf"_Z.*{len(name)}{re.escape(name)}E?")  # Itanium C++ ABI, section 5.1.2
    return next((symbol for symbol in known if mangled.fullmatch(symbol)), None)


def constant_symbols(ptx: str) -> list[str]:
    """Return the `__constant__` variables that PTX declares."""
    return _CONSTANT.findall(ptx)
