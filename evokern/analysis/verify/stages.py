"""Stages of a verification that run on the simulated device: sanitizer, the study's own problems, fuzzing."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, Literal

from evokern.analysis.verify.fuzz import Checker, FuzzCase, FuzzResult, fuzz, shapes
from evokern.analysis.verify.under_test import CandidateUnderTest
from evokern.declaration.kernel import Problem
from evokern.declaration.small_problems import MOST, elements, keeps_limits, of_whole_tiles, runnable, small_problem
from evokern.device.sim.own_problem import OwnProblemCheck
from evokern.device.sim.own_problem_runs import OwnProblem, OwnProblemRuns
from evokern.gate import RunFailed
from evokern.gate.comparison import tolerances
from evokern.store import OWN_PROBLEM
from evokern.wording import several

State = Literal["passed", "failed", "skipped"]
NEAR = (1, -1)
"""What is added to a number of the study's own problem, so that its last tile is another one."""
NEAR_SHARE = 0.5
"""Share of the time for fuzzing after which no further shape near the study's own is begun; one always runs, and the
small shapes have the rest at least."""
NEAR_ELEMENTS = 1 << 22
"""Elements of the buffers of a shape near the study's own: float64 inputs and a reference of more take many seconds.
Where the study's own problem has more, shapes near a smaller one are taken."""
NEAR_INSTRUCTIONS = 1_500_000
"""Warp instructions of a shape near the study's own: about a second; a larger one is sampled."""


@dataclass(frozen=True)
class Stage:
    """One part of the proof."""

    name: str
    """gate, sanitizer, playoff or fuzz."""
    state: State
    """How it ended."""
    detail: str
    """What was found, in a sentence."""
    facts: dict[str, Any] = field(default_factory=dict)
    """The numbers, as JSON values."""


def sanitizer_stage(candidate: CandidateUnderTest) -> Stage:
    """Run the candidate on every small problem that it can, each access checked."""
    kernel, config = candidate.kernel, candidate.config
    declared = kernel.workload.small_problems
    wanted = [small_problem(kernel, text, p) for p in candidate.problems for text in declared]
    problems = [p for p in dict.fromkeys(wanted) if keeps_limits(kernel, config, p, candidate.chip)]
    if not problems and (found := of_whole_tiles(kernel, config, candidate.problems[0], candidate.chip)):
        problems = [found]
    if not problems:
        return Stage("sanitizer", "skipped", "the candidate can run none of the kernel's small problems")
    checker = Checker(kernel, config, candidate.study, candidate.chip)
    for number, problem in enumerate(problems):
        # What the sanitizer looks for seldom depends on values: the larger problems, declared last, take one kind.
        inputs = checker.inputs if number < MOST else checker.inputs[:1]
        failure = checker.check(FuzzCase(problem, random.SystemRandom().getrandbits(48), inputs, 0))
        if failure:
            return Stage("sanitizer", "failed", f"{failure.check} at {failure.case}: {failure.message}")
    listed = ", ".join(map(str, problems))
    return Stage("sanitizer", "passed", f"no finding at {listed}", {"problems": [p.key for p in problems]})


def own_problem_stage(candidate: CandidateUnderTest, most: float) -> Stage:
    """Run the candidate at the study's own problems: whole where that takes at most so many warp instructions."""
    checker = _own_problem_check(candidate)
    found: list[OwnProblem] = []
    for problem in candidate.problems:
        try:
            found.append(checker.at(candidate.config, problem, most=most))
        except RunFailed as failed:
            return Stage(OWN_PROBLEM, "failed", f"at {problem}: {failed.message or failed}")
        if found[-1].against is not None:
            return Stage(OWN_PROBLEM, "failed", str(found[-1].against["message"]))
    ran, total = sum(one.blocks for one in found), sum(one.of for one in found)
    covered = all(one.covered for one in found)
    judged = all(one.judged for one in found)
    detail = f"{ran} of {total} blocks ran"
    detail += ", and what they wrote is right" if judged else ", not compared: the reference takes too long here"
    detail += ", every output is written" if covered else ", and whether every output is written is not known"
    scaled = [str(one.scaled) for one in found if one.scaled]
    detail += f"; whole at {', '.join(scaled)}" if scaled else ""
    blocks = {problem.key: [one.blocks, one.of] for problem, one in zip(candidate.problems, found, strict=True)}
    facts = {"share": ran / total, "covered": covered, "judged": judged, "problems": blocks}
    return Stage(OWN_PROBLEM, "passed", detail, facts)


def fuzz_stage(candidate: CandidateUnderTest, seconds: float, seed: int, most_cases: int | None = None) -> Stage:
    """Fuzz the candidate: shapes near the study's own by some of their blocks, then small ones, in full.

    Args:
        candidate: what is fuzzed.
        seconds: how long; the shape and the case that run then are ended.
        seed: of the choice of cases.
        most_cases: cases after which it ends before.
    """
    kernel, config = candidate.kernel, candidate.config
    began = time.monotonic()
    near: list[Problem] = []
    near_check = _own_problem_check(candidate)
    for problem in _near(candidate, near_check):
        if near and time.monotonic() - began >= NEAR_SHARE * seconds:
            break
        near.append(problem)
        try:
            against = near_check.at(config, problem, most=NEAR_INSTRUCTIONS).against
        except RunFailed as failed:
            return Stage("fuzz", "failed", f"at {problem}: {failed.message or failed}", {"seed": seed})
        if against is not None:
            return Stage("fuzz", "failed", f"{against['check']}: {against['message']}", {"seed": seed})
    checker = Checker(kernel, config, candidate.study, candidate.chip)
    problems = shapes(kernel, config, candidate.problems, candidate.chip, seed)
    left_s = max((1 - NEAR_SHARE) * seconds, seconds - (time.monotonic() - began))
    found: FuzzResult = fuzz(checker, problems, left_s, seed=seed, most_cases=most_cases)
    facts = {**found.as_dict(), "near": [problem.key for problem in near], "seed": seed}
    if found.passed:
        about = f"{several(found.cases, 'case')} at {several(found.problems, 'small shape')}, seed {seed}"
        own = "the study's own" if _affordable(candidate, candidate.problems[0]) else "a smaller one of the study's"
        about += f", and {len(near)} near {own}" if near else ""
        return Stage("fuzz", "passed", about, facts)
    first = found.failures[0]
    return Stage("fuzz", "failed", f"{first.check} at {first.case}: {first.message}", facts)


def _own_problem_check(candidate: CandidateUnderTest) -> OwnProblemCheck:
    gate = candidate.study.gate
    tolerance = tolerances(candidate.kernel, gate.atol, gate.rtol)
    simulation, secret = candidate.study.simulation, candidate.secret
    return OwnProblemCheck(OwnProblemRuns(candidate.kernel, candidate.chip, simulation, tolerance, secret))


def _near(candidate: CandidateUnderTest, near_check: OwnProblemCheck) -> Iterator[Problem]:
    """Yield shapes next to the study's own, or to one scaled down from it: each number a little more or less."""
    kernel, config, own = candidate.kernel, candidate.config, candidate.problems[0]
    problems = (one for one in chain([own], near_check.smaller(config, own)) if _affordable(candidate, one))
    for problem in islice(problems, 1):
        for name in (entry.name for entry in kernel.fields if not entry.choices):
            for delta in NEAR:
                near = runnable(kernel, config, problem, {name: int(problem[name]) + delta}, candidate.chip)
                if near is not None:
                    yield near


def _affordable(candidate: CandidateUnderTest, problem: Problem) -> bool:
    return elements(candidate.kernel, candidate.config, problem) <= NEAR_ELEMENTS
