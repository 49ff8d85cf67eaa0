"""Is a kernel folder sound? Everything that can be known without a GPU, each check with what it found.

The order is the order in which a new kernel fails: its declaration, its source, its feasibility, the compiler, its
reference. A check that raises is a check that failed; the next ones run all the same.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from evokern import discovery
from evokern.device._sim_problems import small_problem
from evokern.errors import EvokernError, KernelError, StudyError
from evokern.explain.reference_check import AGREEMENT, compare_with_cpp, python_reference, workload_tensors
from evokern.feasibility import check as check_feasible
from evokern.feasibility import launches_of
from evokern.kernel import Kernel, Problem
from evokern.profiles import CHIPS, Profile
from evokern.render import choice_macro, macros, read_source, render
from evokern.space import Config
from evokern.study import read_study

if TYPE_CHECKING:
    from evokern.cuda_source import CudaSource

ARCHITECTURES = ("sm_80", "sm_89", "sm_90")
"""What the default candidate is compiled for: the three generations that evokern knows chips of."""
SAMPLE = 500
"""Configurations on which the kernel's functions are tried."""


@dataclass(frozen=True)
class Finding:
    """What one check found."""

    check: str
    """Name of the check."""
    ok: bool | None
    """Whether it holds; None when it could not be tried here."""
    detail: str
    """What was found, or what is wrong and what to do."""


@dataclass(frozen=True)
class _Folder:
    """A kernel with what the checks share."""

    kernel: Kernel
    problems: tuple[Problem, ...]
    source: CudaSource

    @property
    def small(self) -> tuple[Problem, ...]:
        """Problems small enough to run a reference on."""
        return small_problems(self.kernel, self.problems[:1])


def check_kernel(kernel: Kernel) -> Iterator[Finding]:
    """Yield the findings of every check, as they are made.

    Args:
        kernel: a loaded kernel.
    """
    from evokern.cuda_source import read

    try:
        problems = known_problems(kernel)
        folder = _Folder(kernel, problems, read(kernel.source_path))
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


def known_problems(kernel: Kernel) -> tuple[Problem, ...]:
    """Return the problems of the studies that name this kernel, then its small problems.

    Raises:
        KernelError: a small problem or a study's problem is not one that the kernel takes.
    """
    problems = []
    for path in discovery.study_files().values():
        try:
            study = read_study(path)
        except StudyError:
            continue
        if kernel.name == study.kernel:
            fields = {} if study.dtype is None or "dtype" not in kernel.field_names else {"dtype": study.dtype}
            problems += [kernel.problem({**kernel.problem(given), **fields}) for given in study.problems]
    return tuple(dict.fromkeys([*problems, *small_problems(kernel, problems[:1])]))


def small_problems(kernel: Kernel, like: Sequence[Problem]) -> tuple[Problem, ...]:
    """Return the problems that a simulated gate runs, open fields filled in from a study's problem where there is one.

    Raises:
        KernelError: a small problem is not one that the kernel takes.
    """
    texts = kernel.workload.small_problems
    if like:
        return tuple(dict.fromkeys(small_problem(kernel, text, like[0]) for text in texts))
    return tuple(dict.fromkeys(kernel.problem(text) for text in texts))


def _named(name: str, results: Iterator[tuple[bool | None, str]]) -> Iterator[Finding]:
    for ok, detail in results:
        yield Finding(name, ok, detail)


def _text(problem: Problem) -> str:
    return ",".join(f"{name}={value}" for name, value in problem.items())


def _entries(folder: _Folder) -> Iterator[tuple[bool | None, str]]:
    """Every launch names an entry of the source and gives it as many arguments as it takes."""
    kernel = folder.kernel
    seen = []
    rng = random.Random(0)
    configs = [kernel.space.default(), *(kernel.space.draw(rng) for _ in range(SAMPLE))]
    chip = CHIPS["h200"]
    for config, problem in ((c, p) for c in configs for p in folder.problems[:1]):
        if config != configs[0] and check_feasible(kernel, config, [problem], chip) is not None:
            continue
        tensors = kernel.workload.tensors(problem, config)
        for launch in launches_of(kernel, config, problem):
            entry = folder.source.entry(launch.entry).entry
            if len(entry.parameters) != len(launch.args):
                yield (
                    False,
                    f"{entry.signature} takes {len(entry.parameters)} arguments, the launch gives {launch.args}",
                )
                return
            for parameter, argument in zip(entry.parameters, launch.args, strict=True):
                if isinstance(argument, str) and argument not in tensors:
                    yield False, f"{launch.entry}: argument {argument!r} is no tensor; there are {', '.join(tensors)}"
                    return
                if parameter.pointer != isinstance(argument, str):
                    want, got = ("a tensor", argument) if parameter.pointer else ("a Scalar", argument)
                    yield (
                        False,
                        f"{launch.entry}: {parameter.type} {parameter.name} needs {want}, the launch gives {got}",
                    )
                    return
            if entry.qualified not in seen:
                seen.append(entry.qualified)
    yield True, ", ".join(seen)


def _gene_macros(folder: _Folder) -> Iterator[tuple[bool | None, str]]:
    """Every gene and problem macro is used in the source, and its absence is an `#error`."""
    kernel = folder.kernel
    source, headers = read_source(kernel)
    text = re.sub(r"//[^\n]*|/\*.*?\*/", " ", "\n".join([source, *headers.values()]), flags=re.DOTALL)
    conditions = re.compile(r"^[ \t]*#[ \t]*(?:if|ifdef|ifndef|elif)\b.*$", re.MULTILINE)
    words = set(re.findall(r"[A-Za-z_]\w*", conditions.sub(" ", text))) | _tested(conditions.findall(text))
    required = {macro.name for macro in folder.source.macros if macro.kind == "required"}
    constants = {choice_macro(gene, value) for gene in kernel.genes for value in gene.values if isinstance(value, str)}
    names = [name for name in macros(kernel, kernel.space.default(), folder.problems[0]) if name not in constants]
    unused = [name for name in names if name not in words]
    elsewhere = {name for name in unused if _changes_the_launch(folder, name)}
    unused = [name for name in unused if name not in elsewhere]
    lenient = [name for name in names if name not in required | elsewhere]
    wrong = []
    if unused:
        wrong.append(f"{kernel.source} never uses {', '.join(unused)}: changing it would change nothing")
    if lenient:
        wrong.append(f"no #error in {kernel.source} when {', '.join(lenient)} is not defined: a silent default may win")
    if wrong:
        yield False, "; ".join(wrong)
    else:
        through = f"; {', '.join(sorted(elsewhere))} act through the launch alone" if elsewhere else ""
        yield True, f"{len(names) - len(elsewhere)} macros are used, and each one's absence is an #error{through}"


def _changes_the_launch(folder: _Folder, name: str) -> bool:
    """Whether a gene that the source does not name acts otherwise: on a launch, or on another macro."""
    kernel, problem, rng = folder.kernel, folder.problems[0], random.Random(0)
    if name not in {gene.name for gene in kernel.genes}:
        return False
    gene = kernel.space.gene(name)

    def seen(config: Config) -> tuple[object, ...]:
        return launches_of(kernel, config, problem), dict(kernel.macros(config, problem))

    for config in [kernel.space.default(), *(kernel.space.draw(rng) for _ in range(SAMPLE))]:
        if kernel.space.active(gene, config):
            variants = {value: kernel.space.canonical({**config, name: value}) for value in gene.values}
            if any(seen(variant) != seen(config) for variant in variants.values()):
                return True
    return False


def _tested(conditions: Sequence[str]) -> set[str]:
    """Words whose *value* a condition uses; `defined(NAME)` alone is no use."""
    return {word for line in conditions if "defined" not in line for word in re.findall(r"[A-Za-z_]\w*", line)[1:]}


def _static_asserts(folder: _Folder) -> Iterator[tuple[bool | None, str]]:
    """Static asserts whose message starts with a name have a constraint of that name."""
    source, headers = read_source(folder.kernel)
    text = "\n".join([source, *headers.values()])
    asserted = set(re.findall(r'static_assert\s*\([^;]*?"(\w+):', text))
    declared = {constraint.name for constraint in folder.kernel.constraints}
    missing = sorted(asserted - declared)
    if missing:
        yield (
            False,
            f"static_assert {', '.join(missing)} has no constraint of that name: candidates would fail to compile",
        )
        return
    conditions = " ".join(re.findall(r"static_assert\s*\(([^;]*?)\)\s*;", text))
    both = len(declared & (asserted | set(re.findall(r"\w+", conditions))))
    yield (
        True,
        f"{both} of {len(declared)} constraints are static_asserts too" if declared else "no constraints declared",
    )


def _functions(folder: _Folder) -> Iterator[tuple[bool | None, str]]:
    """Constraints, launches, tensors and macros raise for no configuration of a sample, on no chip and no problem."""
    kernel, rng = folder.kernel, random.Random(0)
    sample = [kernel.space.default(), *(kernel.space.draw(rng) for _ in range(SAMPLE))]
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


def _default_feasible(folder: _Folder) -> Iterator[tuple[bool | None, str]]:
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


def _compiles(folder: _Folder) -> Iterator[tuple[bool | None, str]]:
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


def _workload(folder: _Folder) -> Iterator[tuple[bool | None, str]]:
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


def _python_reference(folder: _Folder) -> Iterator[tuple[bool | None, str]]:
    """The Python reference returns every output in the declared shape, in float64, without NaN."""
    if not folder.small:
        yield False, "the workload lists no small_problems, so its reference cannot be tried"
        return
    for problem in folder.small:
        python_reference(folder.kernel, problem, workload_tensors(folder.kernel, problem))
    yield True, f"right shapes and float64 at {len(folder.small)} small problems"


def _cpp_reference(folder: _Folder) -> Iterator[tuple[bool | None, str]]:
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


_CHECKS: dict[str, Callable[[_Folder], Iterator[tuple[bool | None, str]]]] = {
    "workload": _workload,
    "entry points": _entries,
    "macros": _gene_macros,
    "static asserts": _static_asserts,
    "constraints": _functions,
    "default candidate": _default_feasible,
    "compiler": _compiles,
    "reference": _python_reference,
    "reference.h": _cpp_reference,
}
