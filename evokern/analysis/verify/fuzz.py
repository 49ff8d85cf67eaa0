"""Fuzzing of a candidate with shapes, values, alignments and seeds that the search did not use.

Every case runs on the simulated device with the sanitizer and the same correctness gate as in a search. Shapes start
from the kernel's small problems. Each number then changes slightly, for example to one more than a multiple of a gene
value, so that the last tile is partly filled. Buffers start at multiples of 16 bytes with an offset, like views into
larger tensors. The first cases change one number each; later cases are random.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from evokern.compile.build import tensors_of
from evokern.compile.records import CompileFailure
from evokern.declaration.as_data.golden import KernelReference
from evokern.declaration.feasibility import launches_of
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Kernel, Problem, ProblemField
from evokern.declaration.render import render
from evokern.declaration.small_problems import (
    elements,
    is_fixed,
    keeps_limits,
    problem_with,
    small_problem,
    whole_tile_problem,
)
from evokern.device.sim.failure import is_too_large, too_large
from evokern.device.sim.program import SimulatedProgram, compile_simulated
from evokern.device.sim.runner import SimRunner, checked
from evokern.errors import KernelError
from evokern.gate import Gate, RunFailed, Verdict
from evokern.hardware.profiles import Profile
from evokern.simt import NO_PATHS, Paths
from evokern.study.settings import InputSet, Study
from evokern.study.trial import Outcome

ALIGNMENT = 16
"""Alignment of buffers in bytes, equal to the widest access."""
MOST_ELEMENTS = 1 << 16
"""Maximum number of elements in all buffers of a case, so that a case takes less than a second."""
MOST_TOO_LARGE = 2
"""Number of cases that may be too large to simulate; one more ends the run."""
MOST_FLOPS = 5e7
"""Maximum number of operations of a case, so that a case takes less than a second."""


@dataclass(frozen=True)
class FuzzCase:
    """One reproducible fuzzing case."""

    problem: Problem
    """Problem of the case."""
    seed: int
    """Seed of the inputs."""
    inputs: tuple[InputSet, ...]
    """Input sets; the candidate is called once with each of them."""
    lead: int
    """Offset of each buffer from its usual alignment, in bytes."""

    def __str__(self) -> str:
        return f"{self.problem}, {'+'.join(self.inputs)} inputs, seed {self.seed}, buffer offset {self.lead} bytes"


@dataclass(frozen=True)
class FuzzFailure:
    """A failed fuzzing case."""

    case: FuzzCase
    """The case that failed."""
    check: str
    """ID of the failed check."""
    message: str
    """Error message of the check."""


@dataclass(frozen=True)
class FuzzResult:
    """Result of a fuzzing run."""

    cases: int
    """Number of cases."""
    problems: int
    """Number of different shapes."""
    seconds: float
    """Duration in seconds."""
    failures: tuple[FuzzFailure, ...]
    """The first failed cases."""
    too_large: int = 0
    """Number of further cases that were too large to simulate."""

    @property
    def passed(self) -> bool:
        """Whether no case failed."""
        return not self.failures

    def as_dict(self) -> dict[str, Any]:
        """Return the result as a JSON-serialisable dictionary."""
        return {
            "cases": self.cases,
            "problems": self.problems,
            "seconds": round(self.seconds, 3),
            **({"too_large": self.too_large} if self.too_large else {}),
            "failures": [
                {"problem": f.case.problem.key, "seed": f.case.seed, "inputs": list(f.case.inputs),
                 "lead": f.case.lead, "check": f.check, "message": f.message}
                for f in self.failures
            ],
        }  # fmt: skip


class Checker:
    """Runner of a candidate's cases on the simulated device; it compiles once per set of macros."""

    def __init__(self, kernel: Kernel, config: Config, study: Study, chip: Profile) -> None:
        self._kernel, self._config, self._study, self._chip = kernel, config, study, chip
        self.inputs = study.gate.input_sets
        """Input sets of the study's gate."""
        self._programs: dict[tuple[object, ...], SimulatedProgram] = {}
        self.paths_at: dict[Problem, Paths] = {}
        """Paths of the cases that passed, by problem."""
        self.warnings: dict[str, None] = {}
        """Warnings of all cases that passed: kind and place."""

    @property
    def paths(self) -> Paths:
        """Paths of all cases that passed."""
        return NO_PATHS.merged(*self.paths_at.values())

    def check(self, case: FuzzCase) -> FuzzFailure | None:
        """Run a case; return None if it passes.

        Raises:
            RunFailed: the case is too large to simulate.
        """
        kernel, config, problem = self._kernel, self._config, case.problem
        reference = kernel.workload.reference
        if isinstance(reference, KernelReference) and reference.affordable(problem) is False:
            raise too_large(1, 0, "references", f"the reference takes too long at {problem}")
        try:
            limit = self._study.simulation.instruction_limit
            runner = SimRunner(self._compiled(problem), problem, limit, case.lead, record_paths=True)
            settings = replace(self._study.gate, input_sets=case.inputs, runs=1)
            gate = Gate(kernel, problem, settings, torch.device("cpu"), case.seed)
            verdict = checked(gate, runner, launches_of(kernel, config, problem), tensors_of(kernel, config, problem))
        except RunFailed as failed:
            if is_too_large(failed):
                raise
            what = "hung" if failed.outcome is Outcome.HUNG else failed.evidence.get("check", str(failed.outcome))
            return FuzzFailure(case, str(what), failed.message or str(failed))
        self.paths_at[problem] = self.paths_at.get(problem, NO_PATHS).merged(runner.paths)
        self.warnings.update(runner.warnings)
        return None if verdict.passed else self._failure(case, verdict)

    def _failure(self, case: FuzzCase, verdict: Verdict) -> FuzzFailure:
        return FuzzFailure(case, str(verdict.evidence["check"]), str(verdict.evidence["message"]))

    def _compiled(self, problem: Problem) -> SimulatedProgram:
        rendered = render(self._kernel, self._config, problem)
        key = (rendered.options, rendered.entries)
        if key not in self._programs:
            program = compile_simulated(rendered, self._chip)
            if isinstance(program, CompileFailure):
                evidence = {"check": "compile_error", "message": program.message, "log": program.log}
                raise RunFailed(Outcome.COMPILE_ERROR, evidence)
            self._programs[key] = program
        return self._programs[key]


def fuzz(
    checker: Checker,
    problems: Iterator[Problem],
    seconds: float,
    *,
    seed: int,
    stop_after: int = 3,
    most_cases: int | None = None,
    on_case: Callable[[FuzzCase, FuzzFailure | None], None] = lambda case, failure: None,
) -> FuzzResult:
    """Run cases until a time, failure or case limit is reached.

    Args:
        checker: runner of the cases.
        problems: an infinite sequence of shapes, most promising first.
        seconds: time limit.
        seed: seed for the choice of cases.
        stop_after: number of failures after which to stop.
        most_cases: largest number of cases; None for no limit.
        on_case: called after each case.
    """
    rng, began = random.Random(seed), time.monotonic()
    failures: list[FuzzFailure] = []
    seen: set[Problem] = set()
    count = too_large = 0
    for problem in problems:
        if time.monotonic() - began >= seconds or len(failures) >= stop_after or count == most_cases:
            break
        kinds = checker.inputs
        if count % 4:
            kinds = tuple(rng.sample(kinds, rng.randint(1, min(2, len(kinds)))))
        lead = 0 if count == 0 else ALIGNMENT * rng.randrange(1, 16)
        case = FuzzCase(problem, rng.getrandbits(48), kinds, lead)
        try:
            failure = checker.check(case)
        except RunFailed:
            too_large += 1
            if too_large > MOST_TOO_LARGE:
                break
            continue
        failures += [failure] if failure else []
        seen.add(problem)
        count += 1
        on_case(case, failure)
    return FuzzResult(count, len(seen), time.monotonic() - began, tuple(failures), too_large)


def shapes(kernel: Kernel, config: Config, like: Sequence[Problem], chip: Profile, seed: int) -> Iterator[Problem]:
    """Yield an infinite sequence of problems: the small problems, variants with tails, then random problems.

    Args:
        kernel: the kernel.
        config: the candidate.
        like: the study's problems; they fill fields that small problems leave open.
        chip: chip with the resource limits.
        seed: seed of the random problems.

    Raises:
        KernelError: the candidate cannot run any small problem.
    """
    rng = random.Random(seed)
    base = list(
        dict.fromkeys(small_problem(kernel, text, one) for one in like for text in kernel.workload.small_problems)
    )
    base += [problem for problem in like if problem not in base and _is_small(kernel, config, problem)]
    base = [problem for problem in base if keeps_limits(kernel, config, problem, chip)]
    if not base:
        base = [problem for one in like if (problem := whole_tile_problem(kernel, config, one, chip))]
    if not base and is_fixed(kernel):
        base = list(like)
    if not base:
        raise KernelError(
            f"kernel {kernel.name}: this candidate cannot run any small problem; add a suitable problem to "
            "small_problems in kernel.py"
        )
    # If all declared small problems exceed the limits of fuzzing, use them regardless.
    base = [problem for problem in base if _is_small(kernel, config, problem)] or base
    yield from base
    steps = _steps(config)
    for delta in (1, -1, 3):
        for problem in base:
            for name in [entry.name for entry in kernel.free_fields]:
                near = problem_with(kernel, problem, {name: int(problem[name]) + delta})
                if near and _runs(kernel, config, near, chip):
                    yield near
    while True:
        found = _random(kernel, config, rng.choice(base), chip, rng, steps)
        yield found or rng.choice(base)


def _random(
    kernel: Kernel, config: Config, base: Problem, chip: Profile, rng: random.Random, steps: Sequence[int]
) -> Problem | None:
    for _ in range(200):
        changes: dict[str, Any] = {}
        for entry in kernel.fields:
            if _is_worded(entry) or rng.random() < 0.4:
                continue
            if entry.choices:
                changes[entry.name] = rng.choice(entry.choices)
            else:
                step, value = rng.choice(steps), int(base[entry.name])
                around = step * rng.randint(1, 4) + rng.choice((-1, 0, 1, rng.randint(0, step)))
                changes[entry.name] = rng.choice((around, value + rng.randint(-8, 8), rng.randint(1, 2 * value)))
        found = problem_with(kernel, base, changes)
        if found and _runs(kernel, config, found, chip):
            return found
    return None


def _is_worded(entry: ProblemField) -> bool:
    """Return whether a field has words as choices, such as a dtype or layout.

    Fuzzing keeps the study's choice, because the candidate and the tolerance are for that choice.
    """
    return any(isinstance(choice, str) for choice in entry.choices)


def _steps(config: Config) -> list[int]:
    """Return likely tile sizes of a candidate."""
    return sorted({value for value in config.values() if isinstance(value, int) and 2 <= value <= 256} | {16})


def _runs(kernel: Kernel, config: Config, problem: Problem, chip: Profile) -> bool:
    return _is_small(kernel, config, problem) and keeps_limits(kernel, config, problem, chip)


def _is_small(kernel: Kernel, config: Config, problem: Problem) -> bool:
    return elements(kernel, config, problem) <= MOST_ELEMENTS and kernel.workload.flops(problem) <= MOST_FLOPS
