"""What a compile gives: machine code with what it uses, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from evokern.declaration.kernel import Launch, Need, Problem
from evokern.study.trial import Resources


@dataclass(frozen=True)
class EntryUse:
    """What the assembler reports of one entry point."""

    registers: int
    """Registers of a thread."""
    spill_bytes: int = 0
    """Bytes spilled by a thread, stores plus loads."""
    stack_bytes: int = 0
    """Stack frame of a thread, bytes."""
    static_shared_bytes: int = 0
    """Static shared memory of a block, bytes."""
    products_wait: bool = False
    """Whether the assembler puts a wait behind each product of a warpgroup, so that no two are under way."""


@dataclass(frozen=True)
class Program:
    """A compiled translation unit."""

    cubin: bytes
    """Machine code (ELF); empty where only PTX was asked for."""
    lowered: Mapping[str, str]
    """Entry point as the kernel names it → its symbol in the machine code."""
    uses: Mapping[str, EntryUse]
    """Entry point as the kernel names it → what it uses."""
    log: str
    """The compiler's messages."""
    ptx: str = ""
    """The virtual assembly."""
    constants: tuple[str, ...] = ()
    """Symbols of its `__constant__` arrays."""
    seconds: float = 0.0
    """Compile time; 0 when the program came from the cache."""


def prints(built: Built) -> bool:
    """Tell whether a program may print: `printf` becomes a call of `vprintf` (CUDA C++ Programming Guide, 10.33)."""
    return any("vprintf" in program.ptx or b"vprintf" in program.cubin for program in built.programs)


@dataclass(frozen=True)
class ModuleVariable:
    """A variable of a module that code can reach, and could leave changed for the next call."""

    symbol: str
    """Its symbol in the machine code."""
    name: str
    """Its name in the source, with namespaces."""
    offset: int
    """Bytes from the start of its section."""
    size: int
    """Bytes."""
    zeroed: bool
    """Whether it begins as zeros; other initial bytes are in the machine code, addresses in them once it is loaded."""
    used: bool
    """Whether code refers to it. The others lie beside it in memory."""
    restored: int | bytes | None = None
    """What it holds when a call begins, if the kernel declares that: the byte that fills it, or all its bytes."""


@dataclass(frozen=True)
class CompileFailure:
    """Why the compiler refused."""

    log: str
    """All its messages."""
    message: str
    """The first error in one line, with file and line where it names them."""
    file: str | None = None
    """File of the first error."""
    line: int | None = None
    """Its line."""
    constraint: str | None = None
    """The limit that the program is over, when that is the reason."""
    need: Need | None = None
    """What it needs of that limit."""
    seconds: float = 0.0
    """Time until it refused."""


@dataclass(frozen=True)
class ProblemBuild:
    """A candidate at one problem: which program, launched how."""

    problem: Problem
    """The problem."""
    launches: tuple[Launch, ...]
    """The launches of one call, in order."""
    program: int
    """Index into `Built.programs`."""


@dataclass(frozen=True)
class Built:
    """A candidate ready to run."""

    programs: tuple[Program, ...]
    """One per distinct set of macros over the problems."""
    builds: tuple[ProblemBuild, ...]
    """One per problem, in order."""
    resources: tuple[Resources, ...]
    """One per distinct launch, in order."""
    fingerprint: str
    """Identity of machine code and launches."""
    compile_s: float
    """Seconds of compilation, 0 when everything was cached."""
    variables: tuple[tuple[ModuleVariable, ...], ...] = ()
    """Of each program the variables that keep what a call writes; empty where code uses none."""

    def machine_code(self) -> Built:
        """Return it without PTX and messages, which are two thirds of it and which nothing that launches it reads."""
        return replace(self, programs=tuple(replace(program, ptx="", log="") for program in self.programs))

    def build(self, problem: Problem) -> ProblemBuild:
        """Return the build of one problem."""
        return next(build for build in self.builds if build.problem == problem)

    def program(self, problem: Problem) -> Program:
        """Return the program of one problem."""
        return self.programs[self.build(problem).program]

    def with_ptx(self, problem: Problem, ptx: Program) -> Built:
        """Return it with the PTX of one problem's program replaced: another compile of the same source."""
        programs = list(self.programs)
        number = self.build(problem).program
        programs[number] = replace(programs[number], ptx=ptx.ptx, lowered=ptx.lowered)
        return replace(self, programs=tuple(programs))
