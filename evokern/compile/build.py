"""Build a candidate: render, compile each set of macros once, check resource limits, compute a fingerprint."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from evokern.compile.cache import CompileCache, default_cache, program_key
from evokern.compile.device_code import compile_device_code
from evokern.compile.elf import is_readable, parameter_sizes
from evokern.compile.fingerprint import fingerprint
from evokern.compile.launch_attributes import RESIDENT_GRID
from evokern.compile.module_state import heap_evidence, module_variables
from evokern.compile.nvrtc import all_options, compiler_version, virtual_architecture
from evokern.compile.occupancy import cooperative_entries, launch_excess, resources
from evokern.compile.records import Built, CompileFailure, ProblemBuild, Program
from evokern.cuda_source import CudaSource, Include
from evokern.declaration.feasibility import launches_of
from evokern.declaration.foreign import ForeignCandidate
from evokern.declaration.genes import Config
from evokern.declaration.kernel import SCALAR_BYTES, Baseline, Kernel, Launch, Problem, Scalar, Tensor, TileMap
from evokern.declaration.kernel_files import outside_headers
from evokern.declaration.render import Rendered, check_outside_headers, render
from evokern.errors import KERNEL_CODE_EXCEPTIONS, DeviceError, KernelError
from evokern.hardware.profiles import Profile
from evokern.hardware.tensor_map import BYTES as TENSOR_MAP_BYTES
from evokern.study.trial import Evaluation, Outcome, Resources

_POINTER_BYTES = 8


@dataclass(frozen=True)
class Target:
    """Chip and cache that the compilation of candidates uses."""

    profile: Profile
    """Chip to compile for, with the resource limits of candidates."""
    cache: CompileCache | None
    """Cache of compiled programs; None compiles every time."""


def build(kernel: Kernel, config: Config, problems: Sequence[Problem], target: Target) -> Built | Evaluation:
    """Compile a candidate for every problem.

    Returns:
        The candidate ready to run, or its outcome: `compile_error`, `over_resources`, or `wrong` if it uses the device
        heap. It is `infeasible` if its blocks wait for each other and do not fit on the chip at once.

    Raises:
        KernelError: a function in `kernel.py` raised.
        CodeChangedError: a header outside the kernel changed.
        DeviceError: the compiler cannot be loaded.
    """
    rendered = [render(kernel, config, problem) for problem in problems]
    distinct = list(dict.fromkeys(_identity(program) for program in rendered))
    programs: list[Program] = []
    spent = 0.0
    for identity in distinct:
        program = compile_rendered(next(r for r in rendered if _identity(r) == identity), target)
        spent += program.seconds
        if not isinstance(config, ForeignCandidate):
            check_outside_headers(kernel)  # it may have changed during the compile
        if isinstance(program, CompileFailure):
            return _refused(program, spent)
        programs.append(program)
    builds = tuple(
        ProblemBuild(problem, launches_of(kernel, config, problem), distinct.index(_identity(r)))
        for problem, r in zip(problems, rendered, strict=True)
    )
    tensors = [tensors_of(kernel, config, problem) for problem in problems]
    variables = tuple(
        module_variables(kernel, program, _filled(number, builds, tensors)) for number, program in enumerate(programs)
    )
    used: dict[tuple[int, Launch], Resources] = {}
    for one in builds:
        for launch in one.launches:
            mismatch = _argument_mismatch(launch, programs[one.program])
            if mismatch and isinstance(config, ForeignCandidate):
                message = f"{mismatch}; change the source to take the parameters that kernel {kernel.name} passes"
                return Evaluation(Outcome.COMPILE_ERROR, evidence={"log": message, "message": message}, compile_s=spent)
            if mismatch:
                raise KernelError(f"kernel {kernel.name}: {mismatch}; change the launch's args to match the source")
            program, chip = programs[one.program], target.profile
            used[one.program, launch] = resources(program.uses[launch.entry], launch, chip)
            over = launch_excess(program, launch, chip)
            if over:
                outcome = Outcome.INFEASIBLE if over.constraint == RESIDENT_GRID else Outcome.OVER_RESOURCES
                return Evaluation(outcome, resources=tuple(used.values()), evidence=over.evidence, compile_s=spent)
    on_heap = next((found for one in builds if (found := heap_evidence(one, programs[one.program]))), None)
    if on_heap is not None:
        return Evaluation(Outcome.WRONG, resources=tuple(used.values()), evidence=on_heap, compile_s=spent)
    identity_of = fingerprint(programs, builds, tensors, variables)
    cooperative = frozenset((at, name) for at, program in enumerate(programs) for name in cooperative_entries(program))
    return Built(tuple(programs), builds, tuple(used.values()), identity_of, spent, variables, cooperative)


def _filled(number: int, builds: Sequence[ProblemBuild], tensors: Sequence[Mapping[str, Tensor]]) -> set[str]:
    """Return the names of the program's `__constant__` arrays that are filled before each call."""
    return {
        name
        for one, buffers in zip(builds, tensors, strict=True)
        if one.program == number
        for name, tensor in buffers.items()
        if tensor.role == "constant"
    }


def compile_rendered(rendered: Rendered, target: Target) -> Program | CompileFailure:
    """Compile one rendered program, or load it from the cache."""
    architecture = target.profile.architecture + rendered.architecture_suffix
    options = all_options(rendered.options, architecture, line_info=False)
    key = _key(rendered, options, architecture)
    known = target.cache.get(key) if target.cache else None
    if known is not None and _is_whole(known, rendered.entries):
        return known
    program = compile_device_code(rendered, architecture, line_info=False)
    if target.cache and isinstance(program, Program) and _key(rendered, options, architecture) == key:
        target.cache.put(key, program)  # unless a header changed meanwhile
    return program


def _is_whole(program: Program, entries: Sequence[str]) -> bool:
    """Return whether a program from the cache has all entry points, and machine code that can be read."""
    symbols = [program.lowered.get(entry, "") for entry in entries]
    if not all(symbol and symbol in program.ptx for symbol in symbols) or not set(entries) <= set(program.uses):
        return False
    return is_readable(program.cubin, symbols)


def _key(rendered: Rendered, options: Sequence[str], architecture: str) -> str:
    """Return the program's key in the cache, which covers the headers that the compiler reads from disk."""
    texts = (rendered.source, *rendered.headers.values())
    outside = outside_headers(texts, rendered.options, rendered.headers)
    headers = {**rendered.headers, **{str(path): digest for path, digest in outside.items()}}
    return program_key(rendered.source, headers, options, rendered.entries, architecture, compiler_version())


_ASSEMBLY = re.compile(r"\b(?:asm|__asm|__asm__)\b")


def assembler_error(rendered: Rendered, chip: Profile) -> str:
    """Return why the assembler rejects a program that compiles to PTX; empty if it does not.

    Only inline assembly can contain instructions that the chip lacks, so other programs are not assembled.
    """
    if not any(map(_ASSEMBLY.search, (rendered.source, *rendered.headers.values()))):
        return ""
    built = compile_rendered(rendered, Target(chip, None))
    return built.message if isinstance(built, CompileFailure) and built.need is None and built.line is None else ""


def compile_internal(source: str, name: str, entry: str, chip: Profile) -> Program:
    """Compile an internal kernel of the evokern package, or load it from the user's cache.

    Args:
        source: CUDA source text.
        name: file name for messages.
        entry: entry point.
        chip: chip to compile for.

    Raises:
        DeviceError: the compiler cannot be loaded, or rejects the kernel.
    """
    program = compile_rendered(Rendered(source, name, {}, (), (entry,)), Target(chip, default_cache()))
    if isinstance(program, CompileFailure):
        raise DeviceError(f"evokern's internal kernel {name} does not compile for {chip.name}: {program.message}")
    return program


def compile_to_ptx(rendered: Rendered, chip: Profile) -> Program | CompileFailure:
    """Compile one rendered program to PTX with line information, for reports about source lines."""
    return compile_device_code(rendered, virtual_architecture(chip.compute_capability, rendered.architecture_suffix))


def tensors_of(kernel: Kernel, config: Config, problem: Problem, baseline: Baseline | None = None) -> dict[str, Tensor]:
    """Return the workload's buffers, with the bounds of the candidate or of a baseline.

    Raises:
        KernelError: `tensors` raised, or does not declare a buffer that a launch uses.
    """
    try:
        tensors = kernel.workload.buffers(problem, config, baseline)
    except KernelError:
        raise
    except KERNEL_CODE_EXCEPTIONS as error:
        raise KernelError(
            f"kernel {kernel.name}: tensors raised {type(error).__name__}: {error} for {dict(config)} at {problem}"
        ) from error
    for launch in launches_of(kernel, config, problem):
        for argument in launch.tensor_names:
            if argument not in tensors:
                raise KernelError(
                    f"kernel {kernel.name}: the launch of {launch.entry} uses the tensor {argument!r}, which is "
                    "undeclared; add it to `tensors`"
                )
        if launch.l2_window and launch.l2_window.tensor not in tensors:
            raise KernelError(
                f"kernel {kernel.name}: the L2 window uses the tensor {launch.l2_window.tensor!r}, which is "
                "undeclared; add it to `tensors`"
            )
    return tensors


def _argument_mismatch(launch: Launch, program: Program) -> str:
    """Return how a launch's arguments differ from the entry's parameters; empty if they agree."""
    taken = parameter_sizes(program.cubin, program.lowered[launch.entry])
    passed = tuple(_argument_bytes(argument) for argument in launch.args)
    if taken == passed:
        return ""
    return (
        f"{launch.entry} takes {len(taken)} parameters of {list(taken)} bytes, "
        f"but its launch passes {len(passed)} arguments of {list(passed)} bytes"
    )


def _argument_bytes(argument: str | Scalar | TileMap) -> int:
    if isinstance(argument, TileMap):
        return TENSOR_MAP_BYTES
    return SCALAR_BYTES[argument.dtype] if isinstance(argument, Scalar) else _POINTER_BYTES


def _identity(rendered: Rendered) -> tuple[object, ...]:
    return rendered.options, rendered.entries, rendered.architecture_suffix


def _refused(refusal: CompileFailure, spent: float) -> Evaluation:
    if refusal.constraint and refusal.need:
        evidence = {
            "constraint": refusal.constraint,
            "needed": refusal.need.needed,
            "available": refusal.need.available,
            "unit": refusal.need.unit,
            "reason": refusal.message,
        }
        return Evaluation(Outcome.OVER_RESOURCES, evidence=evidence, compile_s=spent)
    evidence = {"log": refusal.log[:8000], "message": refusal.message}
    if refusal.line is not None:
        evidence |= {"file": refusal.file, "line": refusal.line}
    return Evaluation(Outcome.COMPILE_ERROR, evidence=evidence, compile_s=spent)


_MARK = "evokern_include_"
_REACHED = re.compile(rf"{_MARK}(\d+)\b")


def active_includes(
    source: CudaSource, asked: Iterable[Include], rendered: Rendered, chip: Profile
) -> tuple[Include, ...]:
    """Return those of some removed includes that the compiler reaches before it stops.

    A warning directive is added after each include, and the compiler's log shows which warnings it reached.

    Args:
        source: a file with its headers; the includes are no longer in its device code.
        asked: the includes.
        rendered: the file's device code with its macros.
        chip: chip to compile for.
    """
    wanted = tuple(asked)
    if not wanted:
        return ()
    texts = {name: text.split("\n") for name, text in ({"": source.device_text} | dict(source.headers)).items()}
    for number, include in enumerate(wanted):
        texts[include.file][include.line - 1] += f"\n#warning {_MARK}{number}"
    joined = {name: "\n".join(lines) for name, lines in texts.items()}
    result = compile_to_ptx(replace(rendered, source=joined.pop(""), headers=joined), chip)
    reached = {int(number) for number in _REACHED.findall(result.log)}
    return tuple(include for number, include in enumerate(wanted) if number in reached)
