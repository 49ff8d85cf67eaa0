"""Parsed PTX modules and their entries."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np

from evokern.errors import SourceError, suggestion
from evokern.ptx.lowering import lower
from evokern.ptx.parser import Parser
from evokern.ptx.program import PtxProgram
from evokern.ptx.syntax import Entry, Function, Param
from evokern.simt.machine import Inputs, Machine, Observers
from evokern.simt.memory.buffers import Memory
from evokern.simt.operations import lookup
from evokern.simt.settings import Geometry, Options


class Module:
    """Parsed PTX module; `parse` returns it.

    Attributes:
        entries: the kernels by their names in the PTX.
        target: the architecture that the PTX was compiled for, for example ``sm_89``.
        source_name: file name under which the CUDA source was compiled.
        digest: SHA-256 of the text.
        resident: names of the entries whose blocks wait for each other across the grid, known from their runs.
        restored: symbol → bytes of each variable that is restored before each call; set by callers that know the
            kernel's declaration.
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
        self.resident: set[str] = set()
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
        except SourceError:  # Reported when this entry is launched, because other entries may be valid.
            static = sum(item.size for item in function.locals.values() if item.space == "shared")
        return Entry(
            function.name, tuple(params), static, _three(directives.get("maxntid")),
            directives["minnctapersm"][0] if "minnctapersm" in directives else None, _three(directives.get("reqntid")),
        )  # fmt: skip

    def program(self, entry: str, function: Function | None = None) -> PtxProgram:
        """Return the executable program of an entry.

        Raises:
            SourceError: the entry does not exist, or uses unsupported PTX.
        """
        if function is None and entry not in self.entries:
            raise SourceError(f"no kernel {entry!r} in {self.source_name}: {suggestion(entry, self.entries)}")
        if entry not in self._programs:
            self._programs[entry] = lower(self.functions, self.variables, self.lines, entry, self.target, lookup)
        return self._programs[entry]

    def needs_whole_grid(self, entry: str) -> bool:
        """Return whether the blocks of an entry must all run at once, because they wait for each other."""
        return entry in self.resident or self.program(entry).grid_wide

    def check(self, entry: str, cluster: tuple[int, int, int] = (1, 1, 1)) -> None:
        """Check that the machine supports every instruction that the entry can reach.

        Args:
            entry: the kernel.
            cluster: blocks of a cluster along x, y, z; with more than one block, instructions that cannot be checked
                across blocks are rejected.

        Raises:
            SourceError: the entry does not exist, or is not supported; the message contains the line and the
                instruction.
        """
        if (entry, cluster) not in self._checked:
            _require_supported(self.program(entry), cluster)
            self._checked.add((entry, cluster))


def _three(numbers: tuple[int, ...] | None) -> tuple[int, int, int] | None:
    if numbers is None:
        return None
    padded = (*numbers, 1, 1)
    return padded[0], padded[1], padded[2]


def parse(ptx: str, *, source_name: str = "kernel.cu", headers: Mapping[str, str] | None = None) -> Module:
    """Parse PTX text.

    Args:
        ptx: output of the compiler.
        source_name: name of the CUDA source, to distinguish its lines from those of headers.
        headers: texts of the user's own headers, by their name in ``#include``. Findings and counters refer to lines of
            these headers; for all other headers, to the source line with the inlined call.

    Raises:
        SourceError: the text is not PTX, or contains PTX that no entry can execute; the message contains the line and
            the instruction.
    """
    return Module(ptx, source_name, headers)


def _require_supported(program: PtxProgram, cluster: tuple[int, int, int] = (1, 1, 1)) -> None:
    """Check a program by binding each instruction once, for a machine with one cluster and one warp per block.

    Args:
        program: the program.
        cluster: blocks per cluster along x, y, z.

    Raises:
        SourceError: an instruction is not supported; the message contains its line.
    """
    here = np.full(1, 1 << 45, np.uint64)
    symbols = {variable.name: here for variable in program.data_symbols} | {"%params": here, "%workspace": here}
    params = np.zeros((1, sum(item.size + item.align for item in program.entry.params) + 16), np.uint8)
    options = Options(sanitize=False, count=False)
    geometry = Geometry(cluster, (32, 1, 1), 1, cluster[0] * cluster[1] * cluster[2], cluster)
    machine = Machine(program, Memory(), geometry, Inputs(params, symbols), options, Observers([]))
    for bound in machine.bound:
        try:
            machine.bind(bound, False)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            segment = bound.segment
            raise SourceError(
                f"function {segment.routine.function.name}: malformed instruction near PTX line "
                f"{segment.routine.function.instructions[segment.start].ptx_line}: {error}"
            ) from error
