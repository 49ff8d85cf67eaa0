"""Results of a compile: machine code with its resources, or the reason for the failure from the compiler's messages."""

from __future__ import annotations

import re
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


_ERROR = re.compile(
    r"^(?P<file>[^\n()]+)\((?P<line>\d+)\): (?:catastrophic |fatal |internal )?error:? ?(?P<text>.*)$", re.M
)
_PTXAS = re.compile(r"^(?:ptxas|nvrtc)[^:\n]*(?:error|fatal)\s*:?\s*(?P<text>.*)$", re.M)
_SHARED = re.compile(r"uses too much shared data \((0x[0-9a-f]+) bytes, (0x[0-9a-f]+) max\)")
NO_ENTRY = "the source has no entry point"
"""Start of the message about a missing entry point; its name follows in quotes."""
_ABSENT = re.compile(r"Error in parsing name expression.*?\" ?([^\"]+)\"")
_NAME_MAP = "__nv_name_map"
"""File that NVRTC generates to look up entry points; its errors are consequences of errors in the source."""
LAUNCHES = "device-side kernel launch could not be processed"
"""Part of NVRTC's error for a launch in device code."""
_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_STATIC_SHARED = re.compile(r"(\d+) bytes smem")
_SERIALISED = re.compile(r"wgmma\.mma_async instructions are serialized due to .* in (?:the )?function '([^']+)'")
"""Advisories C7510 to C7514 of ptxas: it inserts a wait after every warpgroup product."""
_LATER = ("for this GPU architecture", 'no member "this_cluster"')
"""Parts of messages about features that only a later architecture has."""


def needs_later_architecture(message: str) -> bool:
    """Return whether a compile failed because of a later architecture's feature, for example thread-block clusters."""
    return any(part in message for part in _LATER)


def entry_uses(log: str) -> dict[str, EntryUse]:
    """Return the resources of each entry point, by symbol, from the log of `--ptxas-options=-v`."""
    uses: dict[str, EntryUse] = {}
    serialised = frozenset(_SERIALISED.findall(log))
    parts = _ENTRY.split(log)
    for symbol, text in zip(parts[1::2], parts[2::2], strict=True):
        registers = _REGISTERS.search(text)
        if registers is None:
            continue
        # The line before "Used n registers" describes the entry; properties of called functions follow.
        spills = _SPILLS.search(text)
        stack, stores, loads = (int(group) for group in spills.groups()) if spills else (0, 0, 0)
        shared = _STATIC_SHARED.search(text, registers.end(), text.find("\n", registers.end()) % (len(text) + 1))
        static_shared = int(shared[1]) if shared else 0
        uses[symbol] = EntryUse(int(registers[1]), stores + loads, stack, static_shared, symbol in serialised)
    return uses


def failure(log: str, fallback: str, seconds: float) -> CompileFailure:
    """Return the reason for a failed compile from its log.

    Args:
        log: all messages of the compiler.
        fallback: message if the log contains no error, for example the compiler's result code.
        seconds: duration of the failed compile.
    """
    over = _SHARED.search(log)
    if over:
        needed, available = int(over[1], 16), int(over[2], 16)
        text = f"static shared memory: needs {needed} bytes, limit {available}; use dynamic shared memory for more"
        need = AtMost(needed, available, "bytes")
        return CompileFailure(log, text, constraint="static_shared_memory", need=need, seconds=seconds)
    errors = list(_ERROR.finditer(log))
    error = next((found for found in errors if found["file"].strip() != _NAME_MAP), None)
    if error:
        file, line, text = error["file"].strip(), int(error["line"]), error["text"].strip()
        if LAUNCHES in text:
            text = "a kernel launches another one (dynamic parallelism), but evokern has no device runtime"
        return CompileFailure(log, f"{file}:{line}: {text}", file, line, seconds=seconds)
    absent = _ABSENT.search(log)
    if absent:
        why = next((found["text"].strip() for found in errors if not _ABSENT.match(found["text"].strip())), "")
        name = re.sub(r" ?([<>:]) ?", r"\1", absent[1])  # the compiler separates the tokens with blanks
        if "overloaded function" in why:
            return CompileFailure(log, f"kernel {name!r} has the name of another function; rename it", seconds=seconds)
        text = f"{NO_ENTRY} {name!r}"
        return CompileFailure(log, f"{text}: {why}" if why else text, seconds=seconds)
    assembler = _PTXAS.search(log)
    text = assembler["text"] if assembler else next((x.strip() for x in log.splitlines() if x.strip()), fallback)
    return CompileFailure(log or fallback, text, seconds=seconds)
