"""Is a kernel folder sound? Everything that can be known without a GPU, each check with what it found.

The order is the order in which a new kernel fails: its declaration, its source, its feasibility, the compiler, its
reference. A check that raises is a check that failed; the next ones run all the same.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from evokern.errors import EvokernError, KernelError
from evokern.explain.folder import SAMPLE, Folder, Results, known_problems
from evokern.explain.reference_check import AGREEMENT, compare_with_cpp, python_reference, workload_tensors
from evokern.explain.source_checks import entries, gene_macros, static_asserts
from evokern.feasibility import check as check_feasible
from evokern.kernel import Kernel, Problem
from evokern.profiles import CHIPS, Profile
from evokern.render import macros, render

ARCHITECTURES = ("sm_80", "sm_89", "sm_90")
"""What the default candidate is compiled for: the three generations that evokern knows chips of."""


@dataclass(frozen=True)
class Finding:
    """What one check found."""

    check: str
    """Name of the check."""
    ok: bool | None
    """Whether it holds; None when it could not be tried here."""
    detail: str
    """What was found, or what is wrong and what to do."""


def check_kernel(kernel: Kernel) -> Iterator[Finding]:
    """Yield the findings of every check, as they are made.

    Args:
        kernel: a loaded kernel.
    """
    from evokern.cuda_source import read

    try:
        problems = known_problems(kernel)
        folder = Folder(kernel, problems, read(kernel.source_path))
    except EvokernError as error:
        yield Finding("problems", False, str(error))
        return
    if not problems:
        yield Finding(
            "problems", False, "no problem is known: list some in the workload's small_problems, or in a study"
        )
        return
    yield Finding("problems", True, f"{len(problems)} problems are valid, the first is {_text(problems[0])}")
    for name, check in _CHECKS.items():
        try:
            yield from _named(name, check(folder))
        except EvokernError as error:
            yield Finding(name, False, str(error))


def _named(name: str, results: Results) -> Iterator[Finding]:
    for ok, detail in results:
        yield Finding(name, ok, detail)


def _text(problem: Problem) -> str:
    return ",".join(f"{name}={value}" for name, value in problem.items())


def _functions(folder: Folder) -> Results:
    """Constraints, launches, tensors and macros raise for no configuration of a sample, on no chip and no problem."""
    kernel, rng = folder.kernel, random.Random(0)
    drawn = kernel.space.grid() if kernel.space.size <= SAMPLE else (kernel.space.draw(rng) for _ in range(SAMPLE))
    sample = list(dict.fromkeys((kernel.space.default(), *drawn)))
    feasible: dict[str, int] = dict.fromkeys(CHIPS, 0)
    for name, chip in CHIPS.items():
        for config in sample:
            feasible[name] += check_feasible(kernel, config, folder.problems[:1], chip) is None
    for problem in folder.problems:
        for config in sample[:50]:
            if check_feasible(kernel, config, [problem], CHIPS["h200"]) is None:
                kernel.workload.tensors(problem, config)
                macros(kernel, config, problem)
    shares = ", ".join(f"{name} {100 * count / len(sample):.0f} %" for name, count in feasible.items())
    yield any(feasible.values()), f"of {len(sample)} candidates these are feasible: {shares}"


def _default_feasible(folder: Folder) -> Results:
    """The default candidate is feasible somewhere, and says which problems and chips it cannot do."""
    default = folder.kernel.space.default()
    anywhere = False
    notes: list[tuple[bool | None, str]] = []
    for problem in folder.problems:
        # A small problem may be a waste for the default candidate: it is only asked whether it can run there.
        tried = partial(check_feasible, folder.kernel, default, [problem], essential=problem in folder.small)
        verdicts = {name: tried(chip) for name, chip in CHIPS.items()}
        fits = [name for name, violation in verdicts.items() if violation is None]
        anywhere = anywhere or bool(fits)
        if len(fits) == len(verdicts):
            continue
        chip, why = next((name, violation) for name, violation in verdicts.items() if violation is not None)
        where = f"only on {', '.join(fits)}" if fits else "on no chip"
        notes.append((None, f"{_text(problem)}: feasible {where}; {chip}: {why}"))
    if anywhere:
        yield True, f"feasible at {len(folder.problems) - len(notes)} of {len(folder.problems)} problems on every chip"
        yield from notes
    else:
        yield from ((False, text) for _, text in notes)


def _chip_for(architecture: str) -> Profile:
    return next(chip for chip in CHIPS.values() if chip.architecture == architecture)


def _compiles(folder: Folder) -> Results:
    """The default candidate compiles for every architecture on which it is feasible."""
    from evokern.compile.nvrtc import compile_program
    from evokern.compile.records import CompileFailure

    kernel, default = folder.kernel, folder.kernel.space.default()
    for architecture in ARCHITECTURES:
        chip = _chip_for(architecture)
        possible = [p for p in folder.problems if check_feasible(kernel, default, [p], chip) is None]
        if not possible:
            yield None, f"{architecture}: not tried, the default candidate is not feasible there"
            continue
        problem = possible[0]
        program = render(kernel, default, problem)
        target = architecture + program.architecture_suffix
        built = compile_program(program.source, program.name, program.headers, program.options, program.entries, target)
        if isinstance(built, CompileFailure):
            yield False, f"{target}: {built.message}"
        else:
            uses = ", ".join(
                f"{entry} {use.registers} registers{_spills(use.spill_bytes)}" for entry, use in built.uses.items()
            )
            yield True, f"{target}: {uses}"


def _spills(spilled: int) -> str:
    return f" and {spilled} bytes spilled" if spilled else ""


def _workload(folder: Folder) -> Results:
    """Every output has a tolerance, and FLOPs and bytes are positive numbers."""
    kernel, problem = folder.kernel, folder.problems[0]
    tensors = workload_tensors(kernel, problem)
    outputs = {name for name, tensor in tensors.items() if tensor.role in ("output", "inout")}
    tolerated = set(kernel.workload.tolerance)
    if not outputs:
        yield False, "no tensor has the role output: nothing could be checked"
    elif outputs != tolerated:
        yield False, f"tolerance names {sorted(tolerated)}, the outputs are {sorted(outputs)}"
    else:
        flops, moved = kernel.workload.flops(problem), kernel.workload.bytes(problem)
        good = flops >= 0 and moved > 0
        yield good, f"{flops:.3g} FLOP and {moved:.3g} bytes at {_text(problem)}"


def _python_reference(folder: Folder) -> Results:
    """The Python reference returns every output in the declared shape, in float64, without NaN."""
    if not folder.small:
        yield False, "the workload lists no small_problems, so its reference cannot be tried"
        return
    for problem in folder.small:
        python_reference(folder.kernel, problem, workload_tensors(folder.kernel, problem))
    yield True, f"right shapes and float64 at {len(folder.small)} small problems"


def _cpp_reference(folder: Folder) -> Results:
    """`reference.h` computes what the Python reference computes."""
    from evokern.diagnosis import host_compiler

    compiler = host_compiler()
    if not (folder.kernel.folder / "reference.h").is_file():
        yield False, f"{folder.kernel.folder} has no reference.h, which the exported program checks itself against"
        return
    if compiler is None or not folder.small:
        yield None, "not tried: it takes a C++ compiler (g++ or clang++ on PATH) and a small problem"
        return
    worst = 0.0
    for problem in folder.small:
        tensors = workload_tensors(folder.kernel, problem)
        try:
            expected = python_reference(folder.kernel, problem, tensors)
        except KernelError:
            yield None, "not tried: the Python reference fails"
            return
        worst = max(worst, compare_with_cpp(folder.kernel, problem, tensors, expected, compiler))
    agree = "agrees with" if worst <= AGREEMENT else "differs from"
    yield worst <= AGREEMENT, f"reference.h {agree} the Python reference: largest relative difference {worst:.1e}"


_CHECKS: dict[str, Callable[[Folder], Results]] = {
    "workload": _workload,
    "entry points": entries,
    "macros": gene_macros,
    "static asserts": static_asserts,
    "constraints": _functions,
    "default candidate": _default_feasible,
    "compiler": _compiles,
    "reference": _python_reference,
    "reference.h": _cpp_reference,
}
