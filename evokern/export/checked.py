"""Compilation of an exported program before it is handed over, and one run on a GPU for which it is built.

NVRTC compiles the kernel's section as the program contains it. nvcc builds the whole program; without nvcc, a host
compiler reads the rest of it. The program then runs once if the machine has a suitable GPU.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from evokern.compile.elf import sections
from evokern.compile.headers import SHIMS, include_directories
from evokern.compile.isolated import compile_program
from evokern.compile.nvrtc import compiler_version
from evokern.compile.records import CompileFailure, Program
from evokern.device.gpu.lock import GpuLock
from evokern.device.gpu.profile import live_gpu
from evokern.doctor import host_compiler
from evokern.errors import DeviceError, InternalError, KernelError, StudyError
from evokern.export.banner import build_target
from evokern.export.standalone import StandaloneProgram, whole_code
from evokern.files import write_bytes, write_text
from evokern.hardware.driver import Gpu, probe

BUILD_S = 600.0
"""Time limit of a build in seconds."""
RUN_S = 300.0
"""Time limit of the run in seconds; a check takes a few seconds."""


@dataclass(frozen=True)
class ExportChecks:
    """The checks that an exported program passed, and those that could not be made."""

    passed: tuple[str, ...] = ()
    """Checks that the program passed, for example `compiled with nvrtc 13.0 for sm_89`."""
    omitted: tuple[str, ...] = ()
    """Checks that were not made, with reasons."""

    def __add__(self, other: ExportChecks) -> ExportChecks:
        return ExportChecks(self.passed + other.passed, self.omitted + other.omitted)

    def in_words(self) -> str:
        """Return one line for the user."""
        return "; ".join((*self.passed, *self.omitted)) or "not compiled"


Report = Callable[[str], None]
"""Function that prints a line of progress."""
Make = Callable[[str | None], StandaloneProgram]
"""Function that returns the program with the given source of the kernel, or with the specialised source for None."""


def checked_program(make: Make, name: str, report: Report, *, force: bool = False) -> tuple[str, ExportChecks]:
    """Return the text of a program that compiles, and the checks that it passed.

    The program contains the original source with the code of other variants if the specialised source does not compile
    to the same machine code. The checks name the reason.

    Args:
        make: makes the program.
        name: name of the program for messages, for example `trial 7 of matmul`.
        report: prints a line before a step that may take several seconds.
        force: whether to return a program whose check fails on a GPU.

    Raises:
        InternalError: the program does not compile, which is a bug in evokern.
        KernelError: the kernel itself no longer compiles.
        StudyError: the program ran on a GPU, and its check failed.
    """
    program = make(None)
    report(f"compiling {name} with NVRTC for {program.target}")
    try:
        original = _compiled(program, program.original.source)
        version = compiler_version()
    except DeviceError as error:
        device = ExportChecks(omitted=(f"the kernel was not compiled: {error}",))
    else:
        if isinstance(original, CompileFailure):
            raise KernelError(f"the kernel of {name} does not compile any more: {original.message}")
        compiled = f"compiled with {version} for {program.target}"
        device = ExportChecks((compiled,))
        if fault := _device_fault(program, original):
            kept = _keep(program.text)
            told = f"the specialised source {fault}"
            program = make(whole_code(program.original, f"{told}. This is a bug in evokern"))
            _require(program, _device_fault(program, original, same=False), name)
            device += ExportChecks(
                omitted=(f"{told}, so the program contains the code of other variants; please report this with {kept}",)
            )
    report(f"building {name}")
    return program.text, device + _whole_checks(program, name, report, force)


def _compiled(
    program: StandaloneProgram, source: str | None = None, more: tuple[str, ...] = ()
) -> Program | CompileFailure:
    """Compile the kernel's section, or the original source with its headers and macros.

    Args:
        program: the program.
        source: the original source; None for the section.
        more: further options.
    """
    own = program.original
    if source is None:
        return compile_program(
            program.section.device_text,
            own.name,
            {},
            (*program.options, *more),
            program.section.entries,
            program.target,
        )
    return compile_program(
        source, own.name, own.headers, (*own.options, *more), program.section.entries, program.target
    )


def _device_fault(program: StandaloneProgram, original: Program, *, same: bool = True) -> str | None:
    """Return why the kernel's section is not the original kernel, or None if it is."""
    built = _compiled(program)
    if isinstance(built, CompileFailure):
        return f"does not compile with NVRTC for {program.target}: {built.message}"
    if not same or _codes(built) == _codes(original):
        return None
    # `assert` compiles the number of its line into the code.
    pair = (_compiled(program, program.original.source, _NO_ASSERT), _compiled(program, None, _NO_ASSERT))
    codes = [_codes(one) for one in pair if isinstance(one, Program)]
    return None if len(codes) == 2 and codes[0] == codes[1] else "has other machine code than the original"


_NO_ASSERT = ("-DNDEBUG",)


def _codes(program: Program) -> list[tuple[object, ...]]:
    return [_code(program, entry) for entry in program.uses]


def _code(program: Program, entry: str) -> tuple[object, ...]:
    """Return a kernel's resources, instructions and shared memory; other kernels of the source do not matter."""
    own = {f"{prefix}{program.lowered[entry]}": prefix for prefix in (".text.", ".nv.shared.")}
    found = {own[one.name]: (one.kind, one.data) for one in sections(program.cubin) if one.name in own}
    return program.uses[entry], found


def _require(program: StandaloneProgram, fault: str | None, name: str) -> None:
    """Raise an error that asks for a report if there is a fault.

    Raises:
        InternalError: there is a fault.
    """
    if fault:
        raise InternalError(
            f"the program exported for {name} {fault}. Nothing was written. This is a bug in evokern; "
            f"please report it with {_keep(program.text)}"
        )


def _keep(text: str) -> Path:
    """Save a rejected program and return its path."""
    state = os.environ.get("XDG_STATE_HOME")
    for place in (lambda: Path(state) if state else Path.home() / ".local" / "state", tempfile.gettempdir):
        try:
            folder = Path(place()) / "evokern"
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / time.strftime(f"rejected-%Y%m%d-%H%M%S-{os.getpid()}.cu")
            write_text(path, text)
        except (OSError, RuntimeError):  # no disk space, or no home folder
            continue
        return path
    return Path(os.devnull)


def _whole_checks(program: StandaloneProgram, name: str, report: Report, force: bool) -> ExportChecks:
    """Build the whole program with nvcc or read its host part with a host compiler; run it if a GPU fits.

    Raises:
        InternalError: the program does not compile.
        StudyError: the program ran, and its check failed.
    """
    nvcc, compiler = shutil.which("nvcc"), host_compiler()
    with tempfile.TemporaryDirectory(prefix="evokern-export-") as folder:
        work = Path(folder)
        if nvcc:
            command = [nvcc, build_target(program.target), *program.options, "-o", str(work / "best")]
            if program.golden:
                write_bytes(work / program.golden.file_name, program.golden.data)
            return _built(program, name, command, work) + _run(program, name, report, work / "best", force)
        if compiler is None:
            return ExportChecks(omitted=("nvcc and a C++ compiler were not found, so the host part was not compiled",))
        paths = [path for path in include_directories() if path != SHIMS]
        command = [compiler, "-x", "c++", "-std=c++17", "-w", "-fsyntax-only", *(f"-I{path}" for path in paths)]
        fault = _fault(command, program.host_text, work, "#include <cuda_runtime.h>\n")
        if fault.startswith("!"):
            return ExportChecks(omitted=(f"nvcc was not found, and the host part was not compiled: {fault[1:]}",))
        _require(program, fault and f"does not compile with {compiler}: {fault}", name)
        return ExportChecks((f"host part compiled with {compiler}",), ("nvcc was not found",))


def _built(program: StandaloneProgram, name: str, command: Sequence[str], work: Path) -> ExportChecks:
    fault = _fault(command, program.text, work, "int main() {}\n")
    if fault.startswith("!"):
        return ExportChecks(omitted=(f"the host part was not compiled: {fault[1:]}",))
    _require(program, fault and f"does not compile with nvcc: {fault}", name)
    return ExportChecks(("built with nvcc",))


def _fault(command: Sequence[str], text: str, work: Path, trivial: str) -> str:
    """Return the first error of a compile; empty if there is none.

    If the compiler also fails on a trivial file, the error begins with `!`: the compiler itself does not work here.
    """
    done = _output([*command, _file(work, "best.cu", text)])
    if done is None:
        return f"!the compiler did not finish within {BUILD_S:g} s"
    if done.returncode == 0:
        return ""
    empty = _output([*command, _file(work, "empty.cu", trivial)])
    if empty is None or empty.returncode:
        return f"!{_first_error(empty.stderr if empty else '') or 'the compiler does not work'}"
    return _first_error(done.stderr + done.stdout) or f"the compiler exited with status {done.returncode}"


def _file(work: Path, name: str, text: str) -> str:
    write_text(work / name, text)
    return str(work / name)


def _output(command: Sequence[str]) -> subprocess.CompletedProcess[str] | None:
    """Run a compiler; None if it exceeds the time limit."""
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=BUILD_S, stdin=subprocess.DEVNULL,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None


def _first_error(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line or "fatal" in line), lines[0] if lines else "")


def _run(program: StandaloneProgram, name: str, report: Report, binary: Path, force: bool) -> ExportChecks:
    """Run a program once on a GPU with its architecture.

    Raises:
        StudyError: the check of the program failed.
    """
    if not binary.exists():
        return ExportChecks()
    gpu = next((one for one in probe().gpus if _architecture(one) == program.target.rstrip("a")), None)
    if gpu is None:
        return ExportChecks(omitted=(f"not run, because this machine has no GPU of {program.target}",))
    try:
        live = live_gpu(gpu.index)
        lock = GpuLock(live.uuid, f"cuda:{gpu.index} ({gpu.model})")
    except DeviceError as error:  # a search is timing candidates
        return ExportChecks(omitted=(f"not run: {error}",))
    report(f"running {name} on {gpu.model}")
    try:
        done = subprocess.run(
            [str(binary), "--check"], env={**os.environ, "CUDA_VISIBLE_DEVICES": live.uuid}, capture_output=True,
            text=True, errors="replace", timeout=RUN_S, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return ExportChecks(omitted=(f"it did not finish within {RUN_S:g} s on {gpu.model}",))
    finally:
        lock.release()
    if done.returncode == 0 and "NOT CHECKED" in done.stdout:
        return ExportChecks((f"ran on {gpu.model}",), ("the program has no check",))
    if done.returncode == 0:
        return ExportChecks((f"ran on {gpu.model}: PASS",))
    said = (done.stderr.strip() or done.stdout.strip()).splitlines()
    last = said[0] if said else f"exit status {done.returncode}"
    if force or done.returncode == 2 or last.startswith("cudaMalloc"):  # too little memory on the host or on the GPU
        return ExportChecks(omitted=(f"the check on {gpu.model} failed: {last}",))
    raise StudyError(
        f"the program exported for {name} was built and run on {gpu.model}, and failed: {last}. Nothing was written. "
        "Verify the trial (`evokern verify`) and the reference (`evokern check`), or pass --force"
    )


def _architecture(gpu: Gpu) -> str:
    major, minor = gpu.compute_capability
    return f"sm_{major}{minor}"
