"""Names of variables as PTX has them: plain at file scope, mangled inside a namespace or with internal linkage."""

from __future__ import annotations

import re
from collections.abc import Iterable

from evokern.cuda_source.mangled import source_name

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


def variable_name(symbol: str) -> str:
    """Return a variable's name as the source has it, with namespaces; of a function's static one `function::name`."""
    # Itanium C++ ABI, section 5.1.6: _Z Z <function> E <name> [<discriminator>]
    local = re.fullmatch(r"_ZZ(.+)E(\d+)(\w+?)(?:_\d+|__\d+_)?", symbol)
    if local and len(local[3]) == int(local[2]):
        return f"{source_name('_Z' + local[1])}::{local[3]}"
    parts = source_name(symbol).split("::")
    return "::".join(part for part in parts if not part.startswith("_INTERNAL_"))


def named(name: str, symbols: Iterable[str]) -> list[str]:
    """Return the symbols of all variables that a name stands for.

    Args:
        name: with as many of the namespaces around it as the caller cares for, or a symbol.
        symbols: the module's variables.
    """
    return [symbol for symbol in symbols if name == symbol or stands_for(name, variable_name(symbol))]


def stands_for(name: str, variable: str) -> bool:
    """Tell whether a name stands for a variable, which is given as `variable_name` has it."""
    return name == variable or variable.endswith(f"::{name}")
