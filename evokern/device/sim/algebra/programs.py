"""Programs of the candidates of one kernel for exact proofs: their proof builds, stores and constants."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np

from evokern.compile.records import CompileFailure
from evokern.declaration.feasibility import launches_of
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Kernel, Problem
from evokern.declaration.render import Rendered, render
from evokern.device.sim.algebra.named_functions import HEADER, with_named_functions
from evokern.device.sim.program import SimulatedProgram, compile_simulated
from evokern.errors import SourceError
from evokern.hardware.profiles import Profile
from evokern.ptx.program import PtxProgram
from evokern.ptx.syntax import Immediate

EXACT_BITS, ROUNDED = 12, 2.0**-22
"""A constant with at most this many significant bits is exact; relative error of a product of rounded constants."""
MOST_PROGRAMS = 6
"""Number of programs to keep: those of the default candidate and of the last candidate at some problems."""
UNNAMED = "the functions have no exact values, because the proof build does not compile"


class ProofPrograms:
    """Compiler for the candidates of one kernel, which keeps the last programs."""

    def __init__(self, kernel: Kernel, chip: Profile) -> None:
        self._kernel, self._chip = kernel, chip
        self._programs: list[tuple[Rendered, SimulatedProgram]] = []
        self._unnamed: list[tuple[Rendered, str]] = []

    def program(self, config: Config, problem: Problem) -> SimulatedProgram:
        """Return the program of a candidate.

        Raises:
            SourceError: it does not compile.
        """
        rendered = render(self._kernel, config, problem)
        for known, program in self._programs:
            if known == rendered:
                return program
        named = with_named_functions(rendered)
        made = compile_simulated(named or rendered, self._chip)
        if named is not None and isinstance(made, CompileFailure):  # a source may declare such a function itself
            self._unnamed.append((rendered, f"{UNNAMED}: {made.message}"))
            made = compile_simulated(rendered, self._chip)
        if isinstance(made, CompileFailure):
            raise SourceError(f"a candidate does not compile at {problem}: {made.message}")
        self._keep(rendered, made)
        return made

    def remember(self, rendered: Rendered, program: SimulatedProgram) -> None:
        """Keep a program, so that it is not compiled again; a source that names functions needs its proof build."""
        if with_named_functions(rendered) is None:
            self._keep(rendered, program)

    def _keep(self, rendered: Rendered, program: SimulatedProgram) -> None:
        self._programs = [*self._programs[-MOST_PROGRAMS + 1 :], (rendered, program)]

    def unnamed(self, config: Config, problem: Problem) -> str:
        """Return why a candidate that names functions has no proof build; empty if it has one."""
        rendered = render(self._kernel, config, problem)
        return next((why for known, why in self._unnamed if known == rendered), "")

    def store_line(self, config: Config, problem: Problem) -> str:
        """Return the line of all stores to global memory; empty if there are several."""
        lines = {
            entry.lines.source_location(one.location)
            for entry in self._entries(config, problem)
            for one in entry.instructions
            if one.opcode in ("st", "red", "atom") and not one.has("shared", "local", "param")
        }
        where = lines.pop() if len(lines) == 1 else None
        return f"{where.file or self._kernel.source}:{where.line}" if where else ""

    def rounded_constants(self, config: Config, other: Config, problem: Problem) -> list[float]:
        """Return the inexact constants of only one of two programs that follow from constants of the other.

        For example, one program multiplies by 1/768 in float32 where the other divides by 768.
        """
        (own, all_own), (basis, all_basis) = (self._constants(one, problem) for one in (config, other))
        sizes = {float(value) for value in problem.values() if isinstance(value, int) and value} | {1.0}
        return sorted({*_derived(own - basis, all_basis | sizes), *_derived(basis - own, all_own | sizes)})

    def _constants(self, config: Config, problem: Problem) -> tuple[frozenset[float], frozenset[float]]:
        """Return the absolute values of the constants in float32 and float64 of a candidate's program.

        The first set lacks constants of the functions that the proof build replaces.
        """
        found = [
            (abs(value), entry.lines.source_location(item.location).file == HEADER)
            for entry in self._entries(config, problem)
            for item in entry.instructions
            for one in item.operands
            if isinstance(one, Immediate) and one.kind in ("f32", "f64")
            if math.isfinite(value := one.number) and value
        ]
        return frozenset(value for value, hidden in found if not hidden), frozenset(value for value, _ in found)

    def _entries(self, config: Config, problem: Problem) -> list[PtxProgram]:
        program = self.program(config, problem)
        return [program.entry(launch) for launch in launches_of(self._kernel, config, problem)]


def _derived(constants: Iterable[float], known: Iterable[float]) -> Iterator[float]:
    """Yield the inexact constants that follow from known ones, within rounding to float32.

    They are a product or a quotient of two, or a logarithm or an exponential of one.
    """
    factors = np.array(sorted(known))
    of_two = np.outer(factors, factors), np.divide.outer(factors, factors)
    bases = factors[factors != 2]  # log(2) has exact residues
    with np.errstate(over="ignore"):
        of_one = [np.log(bases), np.log2(bases), np.exp(factors)]
    derived = np.abs(np.concatenate([one.ravel() for one in (*of_two, *of_one)]))
    for one in constants:
        inexact = math.frexp(one)[0] * 2**EXACT_BITS % 1 != 0
        if inexact and (np.abs(derived / one - 1) <= ROUNDED).any():
            yield one
