"""Names of variables in PTX: plain at file scope, mangled inside a namespace or with internal linkage."""

from __future__ import annotations

import re
from collections.abc import Iterable

from evokern.cuda_source.mangled import source_name

_CONSTANT = re.compile(r"^[^\n/]*\.const\b[^\n;]*?([\w$]+)(?:\[\d*\])?\s*(?:=|;)", re.MULTILINE)


def symbol_of(name: str, symbols: Iterable[str]) -> str | None:
    """Return the symbol of a variable, or None if the module has no such variable.

    Args:
        name: the variable's name, without namespaces.
        symbols: symbols of the module's variables.
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
    """Return a variable's name in the source, with namespaces; `function::name` for a static variable in a function."""
    # Itanium C++ ABI, section 5.1.6: _Z Z <function> E <name> [<discriminator>]
    for end in re.finditer(r"E(\d+)", symbol) if symbol.startswith("_ZZ") else ():
        name = symbol[end.end() :][: int(end[1])]
        behind = symbol[end.end() + len(name) :]
        if len(name) == int(end[1]) and re.fullmatch(r"(?:_\d+|__\d+_)?", behind):
            return f"{_scope('_Z' + symbol[3 : end.start()])}::{name}"
    return _scope(symbol)


def _scope(symbol: str) -> str:
    """Return a name in the source without the compiler's namespace for internal linkage."""
    return "::".join(part for part in source_name(symbol).split("::") if not part.startswith("_INTERNAL_"))


def symbols_named(name: str, symbols: Iterable[str]) -> list[str]:
    """Return the symbols of all variables that match a name.

    Args:
        name: name with any number of its enclosing namespaces, or a symbol.
        symbols: symbols of the module's variables.
    """
    return [symbol for symbol in symbols if name == symbol or name_matches(name, variable_name(symbol))]


def name_matches(name: str, variable: str) -> bool:
    """Return whether a name, with any number of its namespaces, matches a result of `variable_name`."""
    return name == variable or variable.endswith(f"::{name}")
