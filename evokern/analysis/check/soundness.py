"""Checks of a kernel folder that need no GPU.

Their order is the order in which a new kernel usually fails: declaration, source, feasibility, compiler, reference,
tolerance, and a run of the default candidate on the PTX simulator. A check that raises has failed. The later checks
still run. If the same line of the kernel stops them too, they refer to the first report.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from evokern.analysis.check.declaration import slow_function, varying_function
from evokern.analysis.check.folder import MOST_SMALL_BYTES, SAMPLE, Folder, Results, known_problems, problem_bytes
from evokern.analysis.check.paths_check import loops_and_branches
from evokern.analysis.check.reference_check import (
    MAX_RELATIVE_DIFFERENCE,
    compare_with_cpp,
    python_reference,
    workload_tensors,
)
from evokern.analysis.check.rounding import rounding
from evokern.analysis.check.simulated_run import check_small_problems, grid, own_problem, simulated_run
from evokern.analysis.check.source_checks import declared_state, entries, gene_macros, static_asserts
from evokern.declaration.feasibility import check as check_feasible
from evokern.declaration.feasibility import launches_of
from evokern.declaration.kernel import Kernel, Problem, Tensor
from evokern.declaration.render import macros, read_source, render
from evokern.errors import KERNEL_CODE_EXCEPTIONS, EvokernError
from evokern.events import step
from evokern.files import is_file
from evokern.hardware.profiles import CHIPS
from evokern.measurement.plausible import contradictions, declared_work
from evokern.measurement.roofline import arithmetic_of
from evokern.wording import changed_genes_text, count_noun, count_verb, in_gib, stage_label

ARCHITECTURES = ("sm_80", "sm_89", "sm_90")
"""Compile targets of the default candidate: the three chip generations that evokern supports."""


@dataclass(frozen=True)
class CheckResult:
    """Result of one check."""

    check: str
    """Name of the check."""
    ok: bool | None
    """Whether the check passed; None if it was skipped."""
    detail: str
    """Text about the finding, with the remedy if the check failed."""
    warning: bool = False
    """Whether the check passed with a warning."""


def check_kernel(
    kernel: Kernel,
    *,
    begin: Callable[[str], None] = lambda name: None,
    after: str = "",
    failed: Collection[str] = (),
) -> Iterator[CheckResult]:
    """Run the checks, and yield each result as soon as it is known.

    Args:
        kernel: the kernel.
        begin: called with the name of each check before it runs.
        after: name of the last check that is not run; empty for all checks.
        failed: names of the earlier checks that failed.
    """
    from evokern.cuda_source import read

    try:
        problems = known_problems(kernel)
        folder = Folder(kernel, problems, read(kernel.source_path, known=read_source(kernel)[1]))
    except EvokernError as error:
        yield CheckResult("problems", False, str(error))
        return
    if not problems:
        yield CheckResult(
            "problems", False, "no problem is known; add a problem to the workload's small_problems or to a study"
        )
        return
    if not after:
        yield from _problems(folder)
        if slow := slow_function(folder):
            yield CheckResult("constraints", False, slow)
            return
    reported: dict[str, str] = {}
    failed = set(failed)
    names = list(_CHECKS)
    for name in names[names.index(after) + 1 if after else 0 :]:
        check = _CHECKS[name]
        begin(name)
        required = (*_REQUIRES.get(name, ()), *(_CALLS.get(name, ()) if after else ()))
        cause = next((one for one in required if one in failed), None)
        if cause is not None:
            yield CheckResult(name, None, f"skipped because of the error reported under {stage_label(cause)!r}")
            continue
        try:
            with step(f"checking: {stage_label(name)}"):
                for result in _named(name, check(folder)):
                    if result.ok is False:
                        failed.add(name)
                    yield result
        except KERNEL_CODE_EXCEPTIONS as error:
            place = _error_location(error, kernel.folder)
            if not (place or isinstance(error, EvokernError)):
                raise  # a bug in evokern, not in the kernel
            defect = f"{type(error.__cause__ or error).__name__} at {place}" if place else str(error)
            if defect in reported:
                first = stage_label(reported[defect])
                yield CheckResult(name, None, f"skipped because of the error reported under {first!r}")
            else:
                reported[defect] = name
                failed.add(name)
                yield CheckResult(name, False, _error_text(error, place))


def _problems(folder: Folder) -> Iterator[CheckResult]:
    """Report the number of problems, and small problems that are not small."""
    kernel, problems = folder.kernel, folder.problems
    yield CheckResult(
        "problems", True, f"{count_verb(len(problems), 'problem')} valid; the first is {_text(problems[0])}"
    )
    for problem in folder.too_large:
        needs = f"needs {in_gib(problem_bytes(kernel, problem))}, but at most {MOST_SMALL_BYTES >> 20} MiB are useful"
        yield CheckResult("problems", False, f"the small problem {_text(problem)} {needs}; use a smaller one")


def _named(name: str, results: Results) -> Iterator[CheckResult]:
    for ok, detail in results:
        yield CheckResult(name, True if ok == "warning" else ok, detail, ok == "warning")


def _error_location(error: BaseException, folder: Path) -> str:
    """Return the file and line of the kernel's code that raised the error, or an empty string."""
    frames = traceback.extract_tb((error.__cause__ or error).__traceback__)
    own = [frame for frame in frames if Path(frame.filename).resolve().is_relative_to(folder.resolve())]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else ""


def _error_text(error: BaseException, place: str) -> str:
    text = str(error) if isinstance(error, EvokernError) else f"{type(error).__name__}: {error}"
    return text if place in text else f"{text} ({place})"


def _text(problem: Problem) -> str:
    return ",".join(f"{name}={value}" for name, value in problem.items())


def _functions(folder: Folder) -> Results:
    """Check that constraints, launches, tensors and macros neither raise nor vary for any sampled configuration."""
    kernel, rng = folder.kernel, random.Random(0)
    drawn = kernel.space.grid() if kernel.space.size <= SAMPLE else (kernel.space.draw(rng) for _ in range(SAMPLE))
    sample = list(dict.fromkeys((kernel.space.default(), *drawn)))
    feasible: dict[str, int] = dict.fromkeys(CHIPS, 0)
    negative = ""
    if varying := varying_function(folder, sample):
        yield False, varying
        return
    for name, chip in CHIPS.items():
        for config in sample:
            violation = check_feasible(kernel, config, folder.problems[:1], chip)
            feasible[name] += violation is None
            if violation is not None and not negative and "is empty: -" in violation.reason:
                negative = f"{violation.reason}, for {changed_genes_text(config, kernel.genes)}"
    for problem in folder.problems:
        for config in sample[:50]:
            if check_feasible(kernel, config, [problem], CHIPS["h200"]) is None:
                kernel.workload.buffers(problem, config)
                macros(kernel, config, problem)
    shares = ", ".join(f"{name} {100 * count / len(sample):.0f} %" for name, count in feasible.items())
    if negative:
        yield False, f"launches returns an invalid launch; add a constraint that rejects the candidate: {negative}"
    yield any(feasible.values()), f"feasible share of {len(sample)} sampled candidates: {shares}"


def _default_feasible(folder: Folder) -> Results:
    """Check that the default candidate is feasible on some chip; report problems and chips where it is not."""
    default = folder.kernel.space.default()
    anywhere = False
    notes: dict[str, list[Problem]] = {}
    problems = tuple(dict.fromkeys((*folder.problems, *folder.choice_variants)))
    for problem in problems:
        # Constraints about speed do not matter on a small problem: the default candidate only has to run there.
        tried = partial(
            check_feasible, folder.kernel, default, [problem], essential=problem not in folder.study_problems
        )
        violations = {name: tried(chip) for name, chip in CHIPS.items()}
        fits = [name for name, violation in violations.items() if violation is None]
        anywhere = anywhere or bool(fits)
        if len(fits) == len(violations):
            continue
        refused = [name for name, violation in violations.items() if violation is not None]
        # If no chip can run the candidate, the newest chip shows the reason; an old one may only lack a feature.
        chip = refused[0] if fits else max(refused, key=lambda name: CHIPS[name].compute_capability)
        why = violations[chip]
        where = f"only on {', '.join(fits)}" if fits else "on no chip"
        notes.setdefault(f"feasible {where}; {chip}: {why}", []).append(problem)
    if anywhere:
        everywhere = len(problems) - sum(map(len, notes.values()))
        yield True, f"feasible on every chip for {everywhere} of {count_noun(len(problems), 'problem')}"
    for note, noted in notes.items():
        yield None if anywhere else False, f"{' and '.join(map(_text, noted))}: {note}"


def _starting_points(folder: Folder) -> Results:
    """Check that each starting point is feasible on some chip for some problem, and report these chips."""
    genes, good = folder.kernel.genes, []
    for number, point in enumerate(folder.kernel.space.starting_configs(), 1):
        found = {
            (name, problem): check_feasible(folder.kernel, point, [problem], chip)
            for name, chip in CHIPS.items()
            for problem in folder.problems
        }
        fits = dict.fromkeys(name for (name, _), violation in found.items() if violation is None)
        if fits:
            good.append(f"{changed_genes_text(point, genes)} on {', '.join(fits)}")
        else:
            (name, problem), violation = next(iter(found.items()))
            where = f"for example on {name} at {_text(problem)}"
            yield (
                False,
                f"number {number} ({changed_genes_text(point, genes)}) is not feasible on any chip, {where}: "
                f"{violation}",
            )
    if good:
        yield True, f"{count_noun(len(good), 'starting point')}: {'; '.join(good)}"


def _compiles(folder: Folder) -> Results:
    """Check that the default candidate compiles for every architecture on which it is feasible."""
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
    """Return the compile target, whether the default candidate compiles for it, and a detail text."""
    from evokern.compile.device_code import compile_device_code
    from evokern.compile.occupancy import launch_excess
    from evokern.compile.records import CompileFailure, needs_later_architecture

    kernel, default = folder.kernel, folder.kernel.space.default()
    chip = next(chip for chip in CHIPS.values() if chip.architecture == architecture)
    possible = [p for p in folder.problems if check_feasible(kernel, default, [p], chip) is None]
    if not possible:
        return architecture, None, "skipped: the default candidate is infeasible on this architecture"
    program = render(kernel, default, possible[0])
    target = architecture + program.architecture_suffix
    built = compile_device_code(program, target, line_info=False)
    if isinstance(built, CompileFailure):
        later = "; declare the newer feature with Launch(cluster=…) or a gene's min_compute_capability"
        return target, False, built.message + (later if needs_later_architecture(built.message) else "")
    for launch in launches_of(kernel, default, possible[0]):
        over = launch_excess(built, launch, chip)
        if over is not None:
            return target, False, f"the default candidate cannot be launched at {_text(possible[0])}: {over.reason}"
    uses = (f"{entry} {use.registers} registers{_spills(use.spill_bytes)}" for entry, use in built.uses.items())
    return target, True, ", ".join(uses)


def _spills(spilled: int) -> str:
    return f" and {spilled} bytes spilled" if spilled else ""


def _workload(folder: Folder) -> Results:
    """Check that every output has a tolerance, and that FLOPs and bytes are plausible."""
    kernel, problem = folder.kernel, folder.problems[0]
    tensors = workload_tensors(kernel, problem)
    outputs = _outputs(tensors)
    empty = not outputs
    for worded in folder.choice_variants:  # another dtype or layout may have further outputs
        outputs |= _outputs(workload_tensors(kernel, worded))
    tolerated = set(kernel.workload.tolerance)
    if empty:
        yield False, "no tensor has the role output; declare at least one output"
    elif outputs != tolerated:
        yield False, f"tolerance names {sorted(tolerated)}, but the outputs are {sorted(outputs)}"
    else:
        flops, moved = declared_work(kernel, problem)
        arithmetic = arithmetic_of(kernel, tensors)
        yield True, f"{flops:.3g} FLOP ({arithmetic}) and {moved:.3g} bytes at {_text(problem)}"
        for doubt in contradictions(kernel, problem, tensors):
            yield "warning", doubt


def _outputs(tensors: Mapping[str, Tensor]) -> set[str]:
    return {name for name, tensor in tensors.items() if tensor.role in ("output", "inout")}


def _python_reference(folder: Folder) -> Results:
    """Check that the Python reference returns every output in the declared shape, in float64, without NaN."""
    if not folder.small:
        yield False, "the reference cannot be tested without small problems; list some in the workload's small_problems"
        return
    problems = (*folder.small, *folder.choice_variants)
    for problem in problems:
        python_reference(folder.kernel, problem, workload_tensors(folder.kernel, problem))
    yield True, f"shapes are correct, and values are float64 and finite, on {len(problems)} small problems"


def _cpp_reference(folder: Folder) -> Results:
    """Check that `reference.h` computes the same results as the Python reference."""
    from evokern.doctor import host_compiler

    compiler = host_compiler()
    if not folder.kernel.workload.cpp_reference:
        yield (
            None,
            "skipped: kernel.py sets cpp_reference=False; an exported program checks its study's shape with a file",
        )
        return
    if not is_file(folder.kernel.folder / "reference.h"):
        yield (
            False,
            f"{folder.kernel.folder} has no reference.h; write it, or set cpp_reference=False in the Workload: then an "
            "exported program checks itself against a file",
        )
        return
    if compiler is None or not folder.small:
        yield None, "skipped: the comparison needs a C++ compiler (g++ or clang++ on PATH) and a small problem"
        return
    expected = {}
    for problem in (*folder.small, *folder.choice_variants):
        tensors = workload_tensors(folder.kernel, problem)
        expected[problem] = python_reference(folder.kernel, problem, tensors)
    worst = compare_with_cpp(folder.kernel, expected, compiler)
    verdict = "agrees with" if worst <= MAX_RELATIVE_DIFFERENCE else "differs from"
    yield (
        worst <= MAX_RELATIVE_DIFFERENCE,
        f"reference.h {verdict} the Python reference: largest relative difference {worst:.1e}",
    )


def _slices(folder: Folder) -> Results:
    """Check that the declared slices cover the outputs that they name, and that their references are correct."""
    declared = folder.kernel.workload.slices_at(folder.problems[0])
    if not declared:
        return
    import torch

    from evokern.gate import Gate
    from evokern.study.settings import GateSettings

    problems = (*folder.small, *folder.choice_variants)
    for problem in problems:
        gate = Gate(folder.kernel, problem, GateSettings(), torch.device("cpu"), seed=0)
        gate.prove_slices(workload_tensors(folder.kernel, problem))
    yield True, f"{len(declared)} agree with the full reference on {len(problems)} problems"


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
    "small problems": check_small_problems,
    "simulated run": simulated_run,
    "own problem": own_problem,
    "grid": grid,
    "loops": loops_and_branches,
}

_REQUIRES: Mapping[str, tuple[str, ...]] = {
    "reference.h": ("reference",),
    "slices": ("workload", "reference"),
    "tolerance": ("workload", "reference"),
    "simulated run": ("workload", "entry points", "reference"),
    "own problem": ("workload", "entry points", "reference", "simulated run"),
    "grid": ("entry points", "compiler"),
    "loops": ("entry points", "reference", "simulated run", "own problem"),
}
"""Checks that would repeat the failure of another one, with the names of those others."""

_CALLS: Mapping[str, tuple[str, ...]] = dict.fromkeys(("reference.h", "slices", "tolerance"), ("reference",))
"""Checks that call the reference. They are not run if it ended or stopped the process of the checks."""
