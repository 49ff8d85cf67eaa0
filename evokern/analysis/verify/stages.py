"""Verification stages on the simulated device, and a separate process that verifies a search's champion with them."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any, Literal

import torch

from evokern.analysis.prove import OWN_SHARE, ProofSubject, at_own_problem, further_problems, within
from evokern.analysis.sanitize.repeats import RepeatSearch, open_text, races_text
from evokern.analysis.verify.fuzz import Checker, FuzzCase, FuzzResult, fuzz, shapes
from evokern.analysis.verify.under_test import CandidateUnderTest
from evokern.declaration.bounds.strict import judged_in
from evokern.declaration.kernel import Problem
from evokern.declaration.small_problems import (
    MAX_PROBLEMS,
    elements,
    gate_problems,
    is_fixed,
    runnable,
    runnable_small_problems,
    whole_tile_problem,
)
from evokern.device.sim.algebra import EQUAL, SAME, Prover, algebra_facts, algebra_fault
from evokern.device.sim.failure import is_too_large
from evokern.device.sim.full_size_check import OwnProblemCheck
from evokern.device.sim.full_size_runs import WHOLE_INSTRUCTIONS, FullSizeResult, OwnProblemRuns
from evokern.device.sim.stage import MOST_ELEMENTS_CHECKED
from evokern.gate import RunFailed
from evokern.gate.comparison import tolerances
from evokern.search.champion import VerifierSettings, VerifyJob
from evokern.simt import NO_PATHS, few_rounds
from evokern.store import OWN_PROBLEM, algebra_text
from evokern.study.settings import InputSet
from evokern.wording import count_noun

State = Literal["passed", "failed", "skipped"]
ALGEBRA_S = 30.0
"""Maximum number of seconds of the stage `algebra`; comparisons beyond it are not finished, but do not fail."""
NEAR = (1, -1)
"""Changes to each number of the full-size problem, which vary its last tile."""
NEAR_SHARE = 0.5
"""Share of the fuzzing time for shapes near the full-size problem; at least one such shape runs."""
NEAR_ELEMENTS = 1 << 22
"""Maximum number of buffer elements of a shape near the full-size problem; larger references take many seconds.
If the full-size problem has more elements, fuzzing uses shapes near a smaller one."""
NEAR_INSTRUCTIONS = 1_500_000
"""Maximum number of warp instructions of a shape near the full-size problem, about a second.
Of larger shapes, only some blocks run."""
FIXED_INSTRUCTIONS = 1_500_000
"""Maximum number of warp instructions of a complete run for a kernel that has only its study's shape: some seconds for
each input set under the sanitizer. Of larger problems, only some blocks run."""
FIXED_RUNS = 2
"""Number of runs of some blocks, each with its own inputs, that replace the fuzzing of such a problem."""


@dataclass(frozen=True)
class Stage:
    """Result of one verification stage."""

    name: str
    """Name of the stage, such as gate, sanitizer, playoff or fuzz."""
    state: State
    """State of the stage, such as `passed`."""
    detail: str
    """Description of the result."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Details of the result as JSON values."""


def sanitizer_stage(candidate: CandidateUnderTest) -> Stage:
    """Run the candidate with the sanitizer on every feasible small problem, and on blocks of the study's problems.

    Further problems are made so that every loop repeats.
    """
    kernel, config = candidate.kernel, candidate.config
    able = (runnable_small_problems(kernel, config, one, candidate.chip) for one in candidate.problems)
    problems = list(dict.fromkeys(chain.from_iterable(able)))
    large: list[Problem] = []
    if is_fixed(kernel):
        large = [one for one in candidate.problems if _is_long(candidate, one)]
        problems = [one for one in candidate.problems if one not in large]
    elif not problems and (found := whole_tile_problem(kernel, config, candidate.problems[0], candidate.chip)):
        problems = [found]
    if not problems and not large:
        return Stage("sanitizer", "skipped", "the candidate cannot run any of the kernel's small problems")
    checker = Checker(kernel, config, candidate.study, candidate.chip)
    for problem, inputs in _sanitized_cases(problems, checker):
        try:
            failure = checker.check(FuzzCase(problem, random.SystemRandom().getrandbits(48), inputs, 0))
        except RunFailed as failed:
            return Stage("sanitizer", "skipped", failed.message)
        if failure:
            return Stage("sanitizer", "failed", f"{failure.check} at {failure.case}: {failure.message}")
    search = RepeatSearch(kernel, config, _runs(candidate))
    try:
        repeats = search.run([*problems, *large], candidate.problems, checker.paths)
    except RunFailed as failed:
        return Stage("sanitizer", "failed", f"{failed.message or failed} (at {_problem_of(candidate, failed)})")
    some = [f"some blocks of {problem}, which takes too long to run completely" for problem in large]
    listed = ", ".join(dict.fromkeys([*map(str, [*problems, *repeats.grown]), *repeats.fewer.values(), *some]))
    warned = f"no errors, but {count_noun(len(checker.warnings), 'warning')} ({', '.join(checker.warnings)})"
    detail = f"{warned if checker.warnings else 'no findings'} at {listed}; {races_text(repeats.races.values())}"
    if repeats.open:
        detail += f"; {open_text(repeats.open, kernel.source)}"
    facts = {"problems": [p.key for p in problems], **repeats.as_dict()}
    if checker.warnings:
        facts["warnings"] = list(checker.warnings)
    return Stage("sanitizer", "passed", detail, facts)


def _sanitized_cases(problems: Sequence[Problem], checker: Checker) -> Iterator[tuple[Problem, tuple[InputSet, ...]]]:
    """Yield problems with the input sets that the sanitizer uses there; the checker runs each before the next.

    Findings rarely depend on values, so the larger problems, which are declared last, use one input set. If only other
    values enter a loop, for example one that repeats a part that overflowed, they run there until that loop repeats.
    """
    small, larger = problems[:MAX_PROBLEMS], problems[MAX_PROBLEMS:]
    yield from ((problem, checker.inputs) for problem in small)
    yield from ((problem, checker.inputs[:1]) for problem in larger)
    entered = NO_PATHS.merged(*(checker.paths_at[problem] for problem in larger)).loops
    for problem in larger if len(checker.inputs) > 1 else ():
        if all(loop.place in entered and entered[loop.place].rounds for loop in few_rounds(checker.paths)):
            return
        yield problem, checker.inputs[1:]


def _is_long(candidate: CandidateUnderTest, problem: Problem) -> bool:
    """Return whether a complete run under the sanitizer, or its reference, takes too long."""
    if elements(candidate.kernel, candidate.config, problem) > NEAR_ELEMENTS:
        return True
    return (_runs(candidate).instructions(candidate.config, problem) or 0) > FIXED_INSTRUCTIONS


def _problem_of(candidate: CandidateUnderTest, failed: RunFailed) -> str:
    """Return the problem of a failed run in words."""
    key = failed.evidence.get("problem")
    return str(candidate.kernel.problem(key)) if key else "an unknown problem"


def own_problem_stage(candidate: CandidateUnderTest, most: float) -> Stage:
    """Run all or some blocks of the candidate on the study's full-size problems.

    Args:
        candidate: the candidate under test.
        most: maximum number of warp instructions of a complete run; of larger problems, only some blocks run.
    """
    checker = OwnProblemCheck(_runs(candidate, thorough=True))
    found: list[FullSizeResult] = []
    compared: list[tuple[int, int]] = []
    for problem in candidate.problems:
        try:
            found.append(checker.at(candidate.config, problem, most=most))
            fault = found[-1].fault_evidence
            if fault is None and not found[-1].judged:
                fault, *counts = checker.compare_some(candidate.config, problem)
                compared.append((counts[0], counts[1]))
        except RunFailed as failed:
            state: State = "skipped" if is_too_large(failed) else "failed"
            return Stage(OWN_PROBLEM, state, f"at {problem}: {failed.message or failed}")
        if fault is not None:
            return Stage(OWN_PROBLEM, "failed", str(fault["message"]))
    ran, total = sum(one.blocks for one in found), sum(one.of for one in found)
    covered = all(one.covered for one in found)
    judged = all(one.judged for one in found)
    detail = f"{ran} of {total} blocks ran"
    against = candidate.against
    right = " with equal results" if against else " with correct results"
    detail += right if judged else f"; {_compared_text(compared)}"
    detail += "; every output is written" if covered else "; could not confirm that every output is written"
    scaled = [str(one.scaled) for one in found if one.scaled]
    detail += f"; compared with {against}" if against else ""
    detail += f"; all blocks ran on the problem scaled down to {', '.join(scaled)}" if scaled else ""
    blocks = {problem.key: [one.blocks, one.of] for problem, one in zip(candidate.problems, found, strict=True)}
    facts = {"share": ran / total, "covered": covered, "judged": judged, "problems": blocks}
    if not judged:
        facts["compared"] = [min(few for few, _ in compared), sum(of for _, of in compared)]
    return Stage(OWN_PROBLEM, "passed", detail, facts)


def _compared_text(compared: Sequence[tuple[int, int]]) -> str:
    """Return how many results of full-size problems were compared, and why not all were."""
    many = any(of > MOST_ELEMENTS_CHECKED for _, of in compared)
    why = f"there are more than {MOST_ELEMENTS_CHECKED:,}" if many else "the reference takes too long"
    few, of = sum(one for one, _ in compared), sum(one for _, one in compared)
    if not all(one for one, _ in compared):
        return f"results not compared because {why}"
    return f"{few:,} of {of:,} results compared, because {why}"


def algebra_stage(candidate: CandidateUnderTest, sanitizer: Stage, seconds: float = ALGEBRA_S) -> Stage:
    """Compare the candidate with the default candidate in exact arithmetic.

    Args:
        candidate: the candidate under test.
        sanitizer: result of the stage `sanitizer`; its problems are used, among them those at which loops repeat.
        seconds: time limit.
    """
    kernel, config = candidate.kernel, candidate.config
    keys = [*sanitizer.facts.get("problems", ()), *sanitizer.facts.get("grown", ())]
    problems = [kernel.problem(key) for key in dict.fromkeys(keys)]
    problems = problems or [*gate_problems(kernel, config, candidate.problems, candidate.chip)]
    if not problems:
        why = "cannot run any of the kernel's small problems"
        why = "takes too long at its only shape" if is_fixed(kernel) else why
        return Stage("algebra", "skipped", f"the candidate {why}")
    end, prover = time.monotonic() + seconds, Prover(kernel, candidate.chip)
    proofs = prover.prove(config, problems, OWN_SHARE * seconds)
    subject = ProofSubject("", kernel, config, tuple(problems), candidate.chip, candidate.problems[0])
    proofs += within(prover, subject, further_problems(subject), proofs, OWN_SHARE * (end - time.monotonic()))
    proofs += at_own_problem(prover, subject, _runs(candidate), problems, end - time.monotonic())
    if (fault := algebra_fault(proofs)) is not None:
        return Stage("algebra", "failed", str(fault["message"]), algebra_facts(proofs))
    facts = algebra_facts(proofs)
    whole = all(one["verdict"] in (SAME, EQUAL) for one in facts["outputs"].values())
    text = algebra_text(facts, lambda key: str(kernel.problem(key)))
    return Stage("algebra", "passed" if whole else "skipped", text, facts)


def fuzz_stage(candidate: CandidateUnderTest, seconds: float, seed: int, most_cases: int | None = None) -> Stage:
    """Fuzz the candidate: run some blocks on shapes near the full-size problem, then test small shapes.

    Args:
        candidate: the candidate under test.
        seconds: time limit; a running shape or case still finishes.
        seed: seed for the choice of cases.
        most_cases: largest number of cases; None for no limit.
    """
    kernel, config = candidate.kernel, candidate.config
    began = time.monotonic()
    if is_fixed(kernel) and any(_is_long(candidate, one) for one in candidate.problems):
        return _fuzzed_blocks(candidate, seconds, seed)
    near: list[Problem] = []
    near_check = _own_problem_check(candidate)
    for problem in _near(candidate, near_check):
        if near and time.monotonic() - began >= NEAR_SHARE * seconds:
            break
        near.append(problem)
        try:
            against = near_check.at(config, problem, most=NEAR_INSTRUCTIONS).fault_evidence
        except RunFailed as failed:
            if is_too_large(failed):
                near.pop()
                break
            return Stage("fuzz", "failed", f"at {problem}: {failed.message or failed}", {"seed": seed})
        if against is not None:
            return Stage("fuzz", "failed", f"{against['check']}: {against['message']}", {"seed": seed})
    checker = Checker(kernel, config, candidate.study, candidate.chip)
    problems = shapes(kernel, config, candidate.problems, candidate.chip, seed)
    left_s = max((1 - NEAR_SHARE) * seconds, seconds - (time.monotonic() - began))
    found: FuzzResult = fuzz(checker, problems, left_s, seed=seed, most_cases=most_cases)
    facts = {**found.as_dict(), "near": [problem.key for problem in near], "seed": seed}
    if found.passed:
        about = f"{count_noun(found.cases, 'case')} on {count_noun(found.problems, 'small shape')}, seed {seed}"
        own = "the full-size problem" if _affordable(candidate, candidate.problems[0]) else "a scaled-down problem"
        about += f", and {len(near)} near {own}" if near else ""
        about += f"; {count_noun(found.too_large, 'case')} too large to simulate" if found.too_large else ""
        return Stage("fuzz", "passed" if found.cases or near else "skipped", about, facts)
    first = found.failures[0]
    return Stage("fuzz", "failed", f"{first.check} at {first.case}: {first.message}", facts)


def _fuzzed_blocks(candidate: CandidateUnderTest, seconds: float, seed: int) -> Stage:
    """Run some blocks of the study's problems, each time with other inputs."""
    began, runs = time.monotonic(), 0
    for number in range(FIXED_RUNS):
        check = _own_problem_check(replace(candidate, secret=random.Random(f"{seed} {number}").getrandbits(62)))
        for problem in candidate.problems:
            if runs and time.monotonic() - began >= seconds:
                break
            try:
                against = check.at(candidate.config, problem, most=NEAR_INSTRUCTIONS).fault_evidence
            except RunFailed as failed:
                if is_too_large(failed):
                    return Stage("fuzz", "skipped", f"{problem} is too large to simulate", {"seed": seed})
                return Stage("fuzz", "failed", f"at {problem}: {failed.message or failed}", {"seed": seed})
            if against is not None:
                return Stage("fuzz", "failed", f"{against['check']}: {against['message']}", {"seed": seed})
            runs += 1
    detail = f"{count_noun(runs, 'run')} of some blocks of the full-size problem with other inputs, seed {seed}"
    return Stage("fuzz", "passed", detail, {"runs": runs, "seed": seed})


def _own_problem_check(candidate: CandidateUnderTest) -> OwnProblemCheck:
    return OwnProblemCheck(_runs(candidate))


def _runs(candidate: CandidateUnderTest, *, thorough: bool = False) -> OwnProblemRuns:
    gate = candidate.study.gate
    tolerance = tolerances(candidate.kernel, gate.atol, gate.rtol)
    simulation, secret = candidate.study.simulation, candidate.secret
    return OwnProblemRuns(candidate.kernel, candidate.chip, simulation, tolerance, secret, thorough=thorough)


def _near(candidate: CandidateUnderTest, near_check: OwnProblemCheck) -> Iterator[Problem]:
    """Yield shapes near the full-size problem (scaled down if necessary), with one number changed by 1."""
    kernel, config, own = candidate.kernel, candidate.config, candidate.problems[0]
    problems = (one for one in chain([own], near_check.smaller(config, own)) if _affordable(candidate, one))
    for problem in islice(problems, 1):
        for entry in kernel.free_fields:
            for delta in NEAR:
                changes = {entry.name: int(problem[entry.name]) + delta}
                near = runnable(kernel, config, problem, changes, candidate.chip)
                if near is not None:
                    yield near


def _affordable(candidate: CandidateUnderTest, problem: Problem) -> bool:
    return elements(candidate.kernel, candidate.config, problem) <= NEAR_ELEMENTS


CASES = 24
"""Number of fuzzing cases (some seconds); a count instead of a time makes runs reproducible."""
FUZZ_SHARE = 0.6
"""Share of the remaining time for fuzzing; the rest allows the last case to finish."""
ALGEBRA_SHARE = 0.4
"""Share of the remaining time for exact arithmetic."""
LEAST_FUZZ_S = 1.0
"""Shortest fuzzing time in seconds."""
INSTRUCTIONS = 4 * WHOLE_INSTRUCTIONS
"""Maximum number of warp instructions on each full-size problem; they take up to a minute."""


class ChampionWorker:
    """Worker that runs the verification stages of a `VerifyJob`."""

    def __init__(self, settings: VerifierSettings) -> None:
        torch.set_num_threads(1)
        kernel = judged_in(settings.context.kernel(), settings.study.gate.precision)
        self._settings, self._kernel = settings, kernel
        self.ready_report: dict[str, Any] = {}

    def handle(self, job: VerifyJob) -> dict[str, Any]:
        """Verify one trial and return the stages as a JSON-serialisable dictionary."""
        settings, began = self._settings, time.monotonic()
        candidate = CandidateUnderTest(self._kernel, job.config, settings.study, settings.context.problems,
                              settings.context.profile, settings.secret)  # fmt: skip
        stages = [sanitizer_stage(candidate)]
        if stages[-1].state != "failed" and settings.predicted:
            stages.append(own_problem_stage(candidate, INSTRUCTIONS))
        if stages[-1].state != "failed":
            left_s = job.seconds - (time.monotonic() - began)
            stages.append(algebra_stage(candidate, stages[0], max(1.0, min(ALGEBRA_S, ALGEBRA_SHARE * left_s))))
        if stages[-1].state != "failed":
            seed = random.Random(f"{settings.secret} {job.number}").getrandbits(32)
            left_s = job.seconds - (time.monotonic() - began)
            stages.append(fuzz_stage(candidate, max(LEAST_FUZZ_S, FUZZ_SHARE * left_s), seed, most_cases=CASES))
        return {
            "passed": all(stage.state != "failed" for stage in stages),
            "stages": {stage.name: {"state": stage.state, "detail": stage.detail, **stage.facts} for stage in stages},
        }
