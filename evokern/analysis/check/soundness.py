"""Is a kernel folder sound? Everything that can be known without a GPU, each check with what it found.

The order is the order in which a new kernel fails: its declaration, its source, its feasibility, the compiler, its
reference, its tolerance, and a run of the default candidate on the PTX machine. A check that raises is a check that
failed; the next ones run all the same, and where the same line of the kernel stops them too, it is not reported again.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from evokern.analysis.check.folder import SAMPLE, Folder, Results, known_problems
from evokern.analysis.check.reference_check import AGREEMENT, compare_with_cpp, python_reference, workload_tensors
from evokern.analysis.check.rounding import rounding
from evokern.analysis.check.simulated_run import own_problem, simulated_run, small_problems_that_show
from evokern.analysis.check.source_checks import declared_state, entries, gene_macros, static_asserts
from evokern.declaration.feasibility import check as check_feasible
from evokern.declaration.kernel import Kernel, Problem, Tensor
from evokern.declaration.render import macros, render
from evokern.errors import RAISED, EvokernError, KernelError
from evokern.files import is_file
from evokern.hardware.profiles import CHIPS, Profile
from evokern.measurement.plausible import contradictions, declared_work
from evokern.measurement.roofline import arithmetic_of
from evokern.wording import changed, several

ARCHITECTURES = ("sm_80", "sm_89", "sm_90")
"""What the default candidate is compiled for: the three generations that evokern knows chips of."""


@dataclass(frozen=True)
class CheckResult:
    """What one check found."""

    check: str
    """Name of the check."""
    ok: bool | None
    """Whether it holds; None when it could not be tried here."""
    detail: str
    """What was found, or what is wrong and what to do."""
    warning: bool = False
    """Whether it holds, and something is worth mending all the same."""


def check_kernel(kernel: Kernel) -> Iterator[CheckResult]:
    """Yield the findings of every check, as they are made.

    Args:
        kernel: a loaded kernel.
    """
    from evokern.cuda_source import read

    try:
        problems = known_problems(kernel)
        folder = Folder(kernel, problems, read(kernel.source_path))
    except EvokernError as error:
        yield CheckResult("problems", False, str(error))
        return
    if not problems:
        yield CheckResult(
            "problems", False, "no problem is known: list some in the workload's small_problems, or in a study"
        )
        return
    yield CheckResult("problems", True, f"{len(problems)} problems are valid, the first is {_text(problems[0])}")
    reported: dict[str, str] = {}
    for name, check in _CHECKS.items():
        try:
            yield from _named(name, check(folder))
        except RAISED as error:
            place = _place(error, kernel.folder)
            if not (place or isinstance(error, EvokernError)):
                raise  # no doing of the kernel's
            defect = f"{type(error.__cause__ or error).__name__} at {place}" if place else str(error)
            if defect in reported:
                yield CheckResult(name, None, f"stopped by the error under {reported[defect]!r}")
            else:
                reported[defect] = name
                yield CheckResult(name, False, _sentence(error, place))


def _named(name: str, results: Results) -> Iterator[CheckResult]:
    for ok, detail in results:
        yield CheckResult(name, True if ok == "warning" else ok, detail, ok == "warning")


def _place(error: BaseException, folder: Path) -> str:
    """Return file and line of the kernel's own code that raised, empty where none did."""
    frames = traceback.extract_tb((error.__cause__ or error).__traceback__)
    own = [frame for frame in frames if Path(frame.filename).resolve().is_relative_to(folder.resolve())]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else ""


def _sentence(error: BaseException, place: str) -> str:
    text = str(error) if isinstance(error, EvokernError) else f"{type(error).__name__}: {error}"
    return text if place in text else f"{text} ({place})"


def _text(problem: Problem) -> str:
    return ",".join(f"{name}={value}" for name, value in problem.items())


def _functions(folder: Folder) -> Results:
    """Constraints, launches, tensors and macros raise for no configuration of a sample, on no chip and no problem."""
    kernel, rng = folder.kernel, random.Random(0)
    drawn = kernel.space.grid() if kernel.space.size <= SAMPLE else (kernel.space.draw(rng) for _ in range(SAMPLE))
    sample = list(dict.fromkeys((kernel.space.default(), *drawn)))
    feasible: dict[str, int] = dict.fromkeys(CHIPS, 0)
    negative = ""
    for name, chip in CHIPS.items():
        for config in sample:
            violation = check_feasible(kernel, config, folder.problems[:1], chip)
            feasible[name] += violation is None
            if violation is not None and not negative and "is empty: -" in violation.reason:
                negative = f"{violation.reason}, for {changed(config, kernel.genes)}"
    for problem in folder.problems:
        for config in sample[:50]:
            if check_feasible(kernel, config, [problem], CHIPS["h200"]) is None:
                kernel.workload.tensors(problem, config)
                macros(kernel, config, problem)
    shares = ", ".join(f"{name} {100 * count / len(sample):.0f} %" for name, count in feasible.items())
    if negative:
        yield False, f"launches makes what no launch can be, instead of a constraint that turns it away: {negative}"
    yield any(feasible.values()), f"of {len(sample)} candidates these are feasible: {shares}"


def _default_feasible(folder: Folder) -> Results:
    """The default candidate is feasible somewhere, and says which problems and chips it cannot do."""
    default = folder.kernel.space.default()
    anywhere = False
    notes: dict[str, list[Problem]] = {}
    problems = tuple(dict.fromkeys((*folder.problems, *folder.worded)))
    for problem in problems:
        # A small problem may be a waste for the default candidate: it is only asked whether it can run there.
        tried = partial(check_feasible, folder.kernel, default, [problem], essential=problem not in folder.studied)
        violations = {name: tried(chip) for name, chip in CHIPS.items()}
        fits = [name for name, violation in violations.items() if violation is None]
        anywhere = anywhere or bool(fits)
        if len(fits) == len(violations):
            continue
        refused = [name for name, violation in violations.items() if violation is not None]
        # What keeps it from every chip is not what an old one lacks.
        chip = refused[0] if fits else max(refused, key=lambda name: CHIPS[name].compute_capability)
        why = violations[chip]
        where = f"only on {', '.join(fits)}" if fits else "on no chip"
        notes.setdefault(f"feasible {where}; {chip}: {why}", []).append(problem)
    if anywhere:
        everywhere = len(problems) - sum(map(len, notes.values()))
        yield True, f"feasible at {everywhere} of {len(problems)} problems on every chip"
    for note, noted in notes.items():
        yield None if anywhere else False, f"{' and '.join(map(_text, noted))}: {note}"


def _starting_points(folder: Folder) -> Results:
    """Each starting point is feasible on some chip at some problem; says on which chips."""
    genes, good = folder.kernel.genes, []
    for number, point in enumerate(folder.kernel.space.starting_configs(), 1):
        found = {
            (name, problem): check_feasible(folder.kernel, point, [problem], chip)
            for name, chip in CHIPS.items()
            for problem in folder.problems
        }
        fits = dict.fromkeys(name for (name, _), violation in found.items() if violation is None)
        if fits:
            good.append(f"{changed(point, genes)} on {', '.join(fits)}")
        else:
            (name, problem), violation = next(iter(found.items()))
            where = f"for example on {name} at {_text(problem)}"
            yield False, f"number {number} ({changed(point, genes)}) is feasible nowhere, {where}: {violation}"
    if good:
        yield True, f"{several(len(good), 'starting point')}: {'; '.join(good)}"


def _chip_for(architecture: str) -> Profile:
    return next(chip for chip in CHIPS.values() if chip.architecture == architecture)


def _compiles(folder: Folder) -> Results:
    """The default candidate compiles for every architecture on which it is feasible."""
    failures: dict[tuple[bool | None, str], list[str]] = {}
    for architecture in ARCHITECTURES:
        target, ok, detail = _compiled(folder, architecture)
        if ok:
            yield ok, f"{target}: {detail}"
        else:
            failures.setdefault((ok, detail), []).append(target)
    for (ok, detail), targets in failures.items():
        yield ok, f"{', '.join(targets)}: {detail}"


def _compiled(folder: Folder, architecture: str) -> tuple[str, bool | None, str]:
    """Return the compiler's target, whether the default candidate compiles for it, and what was found."""
    from evokern.compile.isolated import compile_program
    from evokern.compile.messages import of_later_architecture
    from evokern.compile.records import CompileFailure

    kernel, default = folder.kernel, folder.kernel.space.default()
    chip = _chip_for(architecture)
    possible = [p for p in folder.problems if check_feasible(kernel, default, [p], chip) is None]
    if not possible:
        return architecture, None, "not tried, the default candidate is not feasible there"
    program = render(kernel, default, possible[0])
    target = architecture + program.architecture_suffix
    built = compile_program(program.source, program.name, program.headers, program.options, program.entries, target)
    if isinstance(built, CompileFailure):
        later = "; declare what needs a later one: Launch(cluster=…), or min_compute_capability of a gene"
        return target, False, built.message + (later if of_later_architecture(built.message) else "")
    uses = (f"{entry} {use.registers} registers{_spills(use.spill_bytes)}" for entry, use in built.uses.items())
    return target, True, ", ".join(uses)


def _spills(spilled: int) -> str:
    return f" and {spilled} bytes spilled" if spilled else ""


def _workload(folder: Folder) -> Results:
    """Every output has a tolerance, and FLOPs and bytes are positive numbers."""
    kernel, problem = folder.kernel, folder.problems[0]
    tensors = workload_tensors(kernel, problem)
    outputs = _outputs(tensors)
    empty = not outputs
    for worded in folder.worded:  # a word may bring an output along
        outputs |= _outputs(workload_tensors(kernel, worded))
    tolerated = set(kernel.workload.tolerance)
    if empty:
        yield False, "no tensor has the role output: nothing could be checked"
    elif outputs != tolerated:
        yield False, f"tolerance names {sorted(tolerated)}, the outputs are {sorted(outputs)}"
    else:
        flops, moved = declared_work(kernel, problem)
        arithmetic = arithmetic_of(kernel, tensors)
        yield True, f"{flops:.3g} FLOP ({arithmetic}) and {moved:.3g} bytes at {_text(problem)}"
        for doubt in contradictions(kernel, problem, tensors):
            yield "warning", doubt


def _outputs(tensors: Mapping[str, Tensor]) -> set[str]:
    return {name for name, tensor in tensors.items() if tensor.role in ("output", "inout")}


def _python_reference(folder: Folder) -> Results:
    """The Python reference returns every output in the declared shape, in float64, without NaN."""
    if not folder.small:
        yield False, "the workload lists no small_problems, so its reference cannot be tried"
        return
    problems = (*folder.small, *folder.worded)
    for problem in problems:
        python_reference(folder.kernel, problem, workload_tensors(folder.kernel, problem))
    yield True, f"right shapes and float64 at {len(problems)} small problems"


def _cpp_reference(folder: Folder) -> Results:
    """`reference.h` computes what the Python reference computes."""
    from evokern.doctor import host_compiler

    compiler = host_compiler()
    if not folder.kernel.workload.cpp_reference:
        yield None, "not tried: kernel.py says cpp_reference=False; an exported program needs reference.h"
        return
    if not is_file(folder.kernel.folder / "reference.h"):
        yield False, f"{folder.kernel.folder} has no reference.h, which the exported program checks itself against"
        return
    if compiler is None or not folder.small:
        yield None, "not tried: it takes a C++ compiler (g++ or clang++ on PATH) and a small problem"
        return
    expected = {}
    for problem in (*folder.small, *folder.worded):
        tensors = workload_tensors(folder.kernel, problem)
        try:
            expected[problem] = python_reference(folder.kernel, problem, tensors)
        except KernelError:
            yield None, "not tried: the Python reference fails"
            return
    worst = compare_with_cpp(folder.kernel, expected, compiler)
    agree = "agrees with" if worst <= AGREEMENT else "differs from"
    yield worst <= AGREEMENT, f"reference.h {agree} the Python reference: largest relative difference {worst:.1e}"


def _slices(folder: Folder) -> Results:
    """Declared slices reach the outputs that they say, and their references are right."""
    declared = folder.kernel.workload.slices_at(folder.problems[0])
    if not declared:
        return
    import torch

    from evokern.gate import Gate
    from evokern.study.settings import GateSettings

    problems = (*folder.small, *folder.worded)
    for problem in problems:
        gate = Gate(folder.kernel, problem, GateSettings(), torch.device("cpu"), seed=0)
        gate.prove_slices(workload_tensors(folder.kernel, problem))
    yield True, f"{len(declared)} agree with the whole reference at {len(problems)} problems"


_CHECKS: dict[str, Callable[[Folder], Results]] = {
    "workload": _workload,
    "constraints": _functions,
    "entry points": entries,
    "macros": gene_macros,
    "static asserts": static_asserts,
    "state": declared_state,
    "default candidate": _default_feasible,
    "starting points": _starting_points,
    "compiler": _compiles,
    "reference": _python_reference,
    "reference.h": _cpp_reference,
    "slices": _slices,
    "tolerance": rounding,
    "small problems": small_problems_that_show,
    "simulated run": simulated_run,
    "own problem": own_problem,
}
