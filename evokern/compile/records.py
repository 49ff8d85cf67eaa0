"""Results of a compile: machine code with its resources, or the reason for the failure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from evokern.declaration.kernel import AtMost, Launch, Problem
from evokern.study.trial import Resources


@dataclass(frozen=True)
class EntryUse:
    """Resources of one entry point, as reported by the assembler."""

    registers: int
    """Registers per thread."""
    spill_bytes: int = 0
    """Bytes spilled per thread, stores plus loads."""
    stack_bytes: int = 0
    """Stack frame per thread in bytes."""
    static_shared_bytes: int = 0
    """Static shared memory per block in bytes."""
    products_wait: bool = False
    """Whether the assembler inserts a wait after each warpgroup product, so that products do not overlap."""


@dataclass(frozen=True)
class Program:
    """A compiled translation unit."""

    cubin: bytes
    """Machine code (ELF); empty if only PTX was requested."""
    lowered: Mapping[str, str]
    """Entry point as the kernel names it → symbol in the machine code."""
    uses: Mapping[str, EntryUse]
    """Entry point as the kernel names it → resources."""
    log: str
    """Messages of the compiler."""
    ptx: str = ""
    """PTX assembly."""
    constants: tuple[str, ...] = ()
    """Symbols of the `__constant__` arrays."""
    seconds: float = 0.0
    """Compile time in seconds; 0 if the program came from the cache."""


def prints(built: Built) -> bool:
    """Return whether a program may print: `printf` becomes a call to `vprintf` (CUDA C++ Programming Guide, 10.33)."""
    return any("vprintf" in program.ptx or b"vprintf" in program.cubin for program in built.programs)


@dataclass(frozen=True)
class ModuleVariable:
    """A module variable that keeps its value between calls."""

    symbol: str
    """Symbol in the machine code."""
    name: str
    """Name in the source, with namespaces."""
    offset: int
    """Offset in bytes within its section."""
    size: int
    """Size in bytes."""
    zeroed: bool
    """Whether the initial value is zero. Other initial bytes are in the machine code; loading fills in addresses."""
    used: bool
    """Whether code refers to the variable; unused variables may be next to it in memory."""
    restored: int | bytes | None = None
    """Declared value at the start of a call: the byte that fills it, or all its bytes; None if undeclared."""


@dataclass(frozen=True)
class CompileFailure:
    """Reason for a failed compile."""

    log: str
    """All messages of the compiler."""
    message: str
    """The first error in one line, with file and line if known."""
    file: str | None = None
    """File of the first error."""
    line: int | None = None
    """Line of the first error."""
    constraint: str | None = None
    """Resource limit that the program exceeds, if that is the reason."""
    need: AtMost | None = None
    """Needed and available amounts of that resource."""
    seconds: float = 0.0
    """Duration of the failed compile in seconds."""


@dataclass(frozen=True)
class ProblemBuild:
    """Program and launches of a candidate for one problem."""

    problem: Problem
    """The problem."""
    launches: tuple[Launch, ...]
    """The launches of one call, in order."""
    program: int
    """Index into `Built.programs`."""


@dataclass(frozen=True)
class Built:
    """A compiled candidate, ready to run."""

    programs: tuple[Program, ...]
    """Programs, one per distinct set of macros."""
    builds: tuple[ProblemBuild, ...]
    """Builds, one per problem, in order."""
    resources: tuple[Resources, ...]
    """Resources, one entry per distinct launch, in order."""
    fingerprint: str
    """Identity of machine code and launches."""
    compile_s: float
    """Compile time in seconds; 0 if all programs were cached."""
    variables: tuple[tuple[ModuleVariable, ...], ...] = ()
    """Variables of each program that keep their values between calls; empty if code uses none."""
    cooperative: frozenset[tuple[int, str]] = frozenset()
    """(index of a program, entry point) of each kernel that needs a cooperative launch, because its blocks meet."""

    def without_ptx(self) -> Built:
        """Return a smaller copy for launches, without PTX and messages (two thirds of the size)."""
        return replace(self, programs=tuple(replace(program, ptx="", log="") for program in self.programs))

    def build(self, problem: Problem) -> ProblemBuild:
        """Return the build for one problem."""
        return next(build for build in self.builds if build.problem == problem)

    def program(self, problem: Problem) -> Program:
        """Return the program for one problem."""
        return self.programs[self.build(problem).program]

    def with_ptx(self, problem: Problem, ptx: Program) -> Built:
        """Return a copy in which another compile of the same source provides the PTX of one problem's program."""
        programs = list(self.programs)
        number = self.build(problem).program
        programs[number] = replace(programs[number], ptx=ptx.ptx, lowered=ptx.lowered)
        return replace(self, programs=tuple(programs))
