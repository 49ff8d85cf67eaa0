"""Reader for the sections and symbols of a cubin, and the names of its variables in PTX.

A cubin is a 64-bit little-endian ELF file (System V ABI, chapter 4). CUDA adds its own section names and types, which
`cuobjdump -elf` prints. A name in PTX is plain at file scope, and mangled inside a namespace or with internal linkage.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from evokern.cuda_source.mangled import source_name
from evokern.errors import InternalError

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_NOBITS = 8
_PARAMETER = 0x17
_SIZED = 4
_ALLOCATED = 2
_SYMBOL = struct.Struct("<IBBHQQ")
_OBJECT = 1
_EDGE = struct.Struct("<ii")
_GLOBALS = {".nv.global": "zeroed", ".nv.global.init": "initialised", ".nv.constant3": "constant"}
"""Section of module variables → kind: `__device__` without initial value, `__device__` with one, `__constant__`."""


@dataclass(frozen=True)
class Section:
    """One section of a cubin."""

    name: str
    """Name, for example `.text.kernel`."""
    kind: int
    """ELF section type."""
    flags: int
    """ELF section flags; the upper bits hold an entry's number of barriers."""
    data: bytes
    """Contents; for a section that only reserves memory, its size as text."""

    @property
    def allocated(self) -> bool:
        """Whether the section is loaded: code, constants, shared memory, globals."""
        return bool(self.flags & _ALLOCATED)


def sections(cubin: bytes) -> Iterator[Section]:
    """Yield a cubin's sections in file order.

    Raises:
        InternalError: the bytes are not an ELF file.
    """
    if cubin[:4] != b"\x7fELF" or len(cubin) < _HEADER.size:
        raise InternalError(f"machine code is not an ELF file; it starts with {cubin[:8]!r}")
    header = _HEADER.unpack_from(cubin)
    offset, size, count, names_index = header[6], header[11], header[12], header[13]
    entries = [_SECTION.unpack_from(cubin, offset + index * size) for index in range(count)]
    names_at = entries[names_index][4]
    for name, kind, flags, _, start, length, *_ in entries[1:]:
        end = cubin.index(b"\0", names_at + name)
        data = str(length).encode() if kind == _NOBITS else cubin[start : start + length]
        yield Section(cubin[names_at + name : end].decode(), kind, flags, data)


def is_readable(cubin: bytes, symbols: Iterable[str]) -> bool:
    """Return whether machine code is an ELF file whose sections, variables and entry points can be read."""
    try:
        data_symbols(cubin)
        return all(runtime_calls(cubin, one) is not None and parameter_sizes(cubin, one) is not None for one in symbols)
    except (InternalError, struct.error, ValueError, LookupError, MemoryError, OverflowError):
        return False


@dataclass(frozen=True)
class DataSymbol:
    """A module variable from the symbol table of the machine code."""

    name: str
    """Symbol."""
    kind: str
    """`zeroed`, `initialised` or `constant`."""
    offset: int
    """Offset in bytes within its section."""
    size: int
    """Size in bytes."""


def data_symbols(cubin: bytes) -> list[DataSymbol]:
    """Return all variables of a module in global and constant memory, including unused ones."""
    found = list(sections(cubin))
    kinds = {number: _GLOBALS[one.name] for number, one in enumerate(found, 1) if one.name in _GLOBALS}
    return [
        DataSymbol(name, kinds[section], offset, size)
        for name, kind, section, offset, size in _symbols(found)
        if kind == _OBJECT and section in kinds and size
    ]


def _symbols(found: list[Section]) -> list[tuple[str, int, int, int, int]]:
    """Return (name, type, section, value, size) of every symbol, in order (System V ABI, chapter 4, symbol table)."""
    contents = {one.name: one.data for one in found}
    table, names = contents.get(".symtab", b""), contents.get(".strtab", b"\0")
    listed = []
    for name, info, _, section, value, size in _SYMBOL.iter_unpack(table):
        text = names[name : names.index(b"\0", name)].decode(errors="replace")
        listed.append((text, info & 0xF, section, value, size))
    return listed


def runtime_calls(cubin: bytes, symbol: str) -> set[str]:
    """Return the names of the runtime functions that a kernel calls, for example `malloc` and `vprintf`.

    `.nv.callgraph` holds pairs of symbol numbers, caller and callee. A negative number means a call through a pointer,
    which may reach any function.
    """
    found = list(sections(cubin))
    symbols = _symbols(found)
    edges = [pair for one in found if one.name == ".nv.callgraph" for pair in _EDGE.iter_unpack(one.data)]
    provided = {name for name, kind, section, _, _ in symbols if name and not section and kind != _OBJECT}
    number = {name: position for position, (name, *_) in enumerate(symbols)}
    reached: set[int] = set()
    waiting = [number.get(symbol, 0)]
    while waiting:
        caller = waiting.pop()
        if caller not in reached:
            reached.add(caller)
            waiting += [callee for a, callee in edges if a == caller and caller]
    if any(one < 0 for one in reached):
        reached |= {number[name] for name in provided}
    return {symbols[one][0] for one in reached if one >= 0} & provided


def parameter_sizes(cubin: bytes, symbol: str) -> tuple[int, ...]:
    """Return the size in bytes of each parameter of an entry, in order.

    `.nv.info.SYMBOL` has one attribute `EIATTR_KPARAM_INFO` (0x17) per parameter. Its three words are zero, position
    and offset, and a word with the size in the upper 14 bits (see `cuobjdump -elf`).
    """
    sizes: dict[int, int] = {}
    for section in sections(cubin):
        if section.name != f".nv.info.{symbol}":
            continue
        at = 0
        while at + 4 <= len(section.data):
            form, attribute, length = struct.unpack_from("<BBH", section.data, at)
            at += 4
            if form != _SIZED:
                continue
            if attribute == _PARAMETER and length == 12:
                _, place, size = struct.unpack_from("<III", section.data, at)
                sizes[place & 0xFFFF] = size >> 18
            at += length
    return tuple(sizes[position] for position in sorted(sizes))


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
