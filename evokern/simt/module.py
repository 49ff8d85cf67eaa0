"""A parsed module and its entries."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from evokern.errors import SourceError, nearest
from evokern.ptx.lowering import lower
from evokern.ptx.parser import Parser
from evokern.ptx.program import PtxProgram
from evokern.ptx.syntax import Entry, Function, Param
from evokern.simt.check import check
from evokern.simt.operations import lookup


class Module:
    """What `parse` returns.

    Attributes:
        entries: the kernels by their names in the PTX.
        target: the architecture the PTX was made for, for example ``sm_89``.
        source_name: the name the CUDA source was compiled under.
        digest: SHA-256 of the text.
        restored: symbol → bytes of the variables that are restored before each call; set by who knows a declaration.
    """

    def __init__(self, ptx: str, source_name: str, headers: Mapping[str, str] | None = None) -> None:
        parser = Parser(ptx, source_name, headers)
        self.source_name = source_name
        self.digest = hashlib.sha256(ptx.encode()).digest()
        self.target = parser.target
        self.functions = parser.functions
        self.variables = parser.variables
        self.lines = parser.lines
        self.restored: dict[str, bytes] = {}
        self._programs: dict[str, PtxProgram] = {}
        self._checked: set[tuple[str, tuple[int, int, int]]] = set()
        self.entries: dict[str, Entry] = {}
        for function in self.functions.values():
            if function.is_entry and function.has_body:
                self.entries[function.name] = self._entry(function)

    def _entry(self, function: Function) -> Entry:
        params = []
        offset = 0
        for variable in function.params:
            offset = -(-offset // variable.align) * variable.align
            params.append(Param(variable.name, variable.type, variable.size, variable.align, offset))
            offset += variable.size
        directives = function.directives
        try:
            static = self.program(function.name, function).static_shared
        except SourceError:  # told when this entry is launched; the others may be fine
            static = sum(item.size for item in function.locals.values() if item.space == "shared")
        return Entry(
            function.name, tuple(params), static, _three(directives.get("maxntid")),
            directives["minnctapersm"][0] if "minnctapersm" in directives else None, _three(directives.get("reqntid")),
        )  # fmt: skip

    def program(self, entry: str, function: Function | None = None) -> PtxProgram:
        """Return the executable form of an entry.

        Raises:
            SourceError: the entry does not exist, or uses what the machine does not execute.
        """
        if function is None and entry not in self.entries:
            raise SourceError(f"no kernel {entry!r} in {self.source_name}: {nearest(entry, self.entries)}")
        if entry not in self._programs:
            self._programs[entry] = lower(self.functions, self.variables, self.lines, entry, self.target, lookup)
        return self._programs[entry]

    def check(self, entry: str, cluster: tuple[int, int, int] = (1, 1, 1)) -> None:
        """Make sure that every instruction which the entry can reach is one that the machine executes.

        Args:
            entry: the kernel.
            cluster: blocks of a cluster along x, y, z: more than one refuse what cannot be checked between them.

        Raises:
            SourceError: the entry does not exist, or what is not supported, with line and instruction.
        """
        if (entry, cluster) not in self._checked:
            check(self.program(entry), cluster)
            self._checked.add((entry, cluster))


def _three(numbers: tuple[int, ...] | None) -> tuple[int, int, int] | None:
    if numbers is None:
        return None
    padded = (*numbers, 1, 1)
    return padded[0], padded[1], padded[2]


def parse(ptx: str, *, source_name: str = "kernel.cu", headers: Mapping[str, str] | None = None) -> Module:
    """Read PTX text.

    Args:
        ptx: what the compiler emitted.
        source_name: name of the CUDA source, to tell its lines from those of headers.
        headers: texts of the user's own headers by the name in ``#include``; findings and counters then name their
            lines, and otherwise the line of the source that they were inlined at.

    Raises:
        SourceError: not PTX, or PTX that no entry could be executed of, with line and instruction.
    """
    return Module(ptx, source_name, headers)
