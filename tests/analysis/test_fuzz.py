"""Fuzzing finds what the gate's own problems do not show, and nothing where nothing is wrong."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from paths import DATA, ROOT

from evokern.analysis.verify.fuzz import MOST_ELEMENTS, Checker, FuzzCase, fuzz, shapes
from evokern.declaration.kernel import Constraint
from evokern.errors import KernelError
from evokern.hardware.profiles import chip
from evokern.study.discovery import find_kernel, load_kernel
from evokern.study.settings import Study

KERNEL = load_kernel(DATA / "kernels" / "tail_bug")
L4 = chip("l4")
STUDY = Study("tail_bug", "tail_bug", ("64,4096",))
PROBLEM = KERNEL.problem("64,4096")


def checker(**genes: object) -> Checker:
    return Checker(KERNEL, KERNEL.space.default().replace(**genes), STUDY, L4)  # type: ignore[arg-type]


def test_a_bug_at_tails_is_found_in_seconds() -> None:
    """A variant that passes the kernel's own small problems, which are whole tiles, fails at a tail within 10 s."""
    found = checker(TAIL="forgotten")
    result = fuzz(found, shapes(KERNEL, KERNEL.space.default(), [PROBLEM], L4, 1), 10.0, seed=1)
    assert not result.passed
    assert result.seconds <= 10
    first = result.failures[0]
    assert int(first.case.problem["S"]) % 64 != 0
    assert first.check == "tolerance"
    again = found.check(first.case)
    assert again is not None
    assert again.message == first.message, "a failure must come back from its case alone"


@pytest.mark.thorough
def test_a_right_candidate_passes_every_case() -> None:
    """A right candidate has no failure, on many shapes and at odd alignments."""
    result = fuzz(checker(ROWS=2), shapes(KERNEL, KERNEL.space.default(), [PROBLEM], L4, 2), 4.0, seed=2)
    assert result.passed
    assert result.cases >= 5
    assert result.problems >= 5


def test_shapes_begin_with_tails_and_stay_small() -> None:
    """The kernel's own problems come first, then one number off by one, then any; all small enough to run."""
    made = list(itertools.islice(shapes(KERNEL, KERNEL.space.default(), [PROBLEM], L4, 3), 60))
    assert [problem.key for problem in made[:4]] == ["8,128", "3,192", "9,128", "8,129"]
    assert all(int(p["R"]) * int(p["S"]) <= MOST_ELEMENTS for p in made)
    assert len(set(made)) >= 25


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_words_of_the_study_stay(dtype: str) -> None:
    """Shapes have the study's own type of elements: its tolerance is one for that. Numbers that are choices change."""
    kernel = find_kernel("attention")
    like = kernel.problem(f"B=1 H=2 S=64 D=64 dtype={dtype}")
    made = list(itertools.islice(shapes(kernel, kernel.space.default(), [like], L4, 5), 80))
    assert {problem["dtype"] for problem in made} == {dtype}
    assert {problem["D"] for problem in made} == {64, 128}


def test_tiles_larger_than_every_small_problem_have_one_of_their_own() -> None:
    """A candidate that takes whole tiles alone is tried at the smallest problem of whole tiles."""
    rule = Constraint("whole", lambda c, p: p.S % (c.ROWS * c.TILE) == 0, "whole tiles")
    whole = replace(KERNEL, constraints=(rule,), workload=replace(KERNEL.workload, small_problems=("8,100",)))
    config = whole.space.default().replace(ROWS=2, TILE=32)
    assert next(shapes(whole, config, [whole.problem("64,4096")], L4, 3)).key == "2,64"


def test_declared_problems_run_whatever_they_take() -> None:
    """Where all small problems are larger than what is drawn, they are the shapes."""
    large = replace(KERNEL, workload=replace(KERNEL.workload, small_problems=("5,40960",)))
    rule = replace(large, fields=(large.fields[0], replace(large.fields[1], most=1 << 20)))
    assert next(shapes(rule, rule.space.default(), [rule.problem("64,4096")], L4, 3)).key == "5,40960"


def test_shapes_of_a_seed_are_the_same_again() -> None:
    """The same seed gives the same shapes, so that a run can be repeated."""
    first, second = (
        list(itertools.islice(shapes(KERNEL, KERNEL.space.default(), [PROBLEM], L4, 4), 40)) for _ in range(2)
    )
    assert first == second


def test_alignment_reaches_the_kernel() -> None:
    """A buffer that begins at an odd multiple of four bytes is one that eight-byte loads cannot have."""
    exploits = load_kernel(ROOT / "evokern" / "exploits" / "kernel")
    config = exploits.space.default().replace(CASE="cheat_misaligned")
    found = Checker(exploits, config, Study("exploits", "exploits", ("24,40,512",)), L4)
    problem = exploits.problem("24,40,32")
    assert found.check(FuzzCase(problem, 1, ("normal",), 0)) is None
    failure = found.check(FuzzCase(problem, 1, ("normal",), 4))
    assert failure is not None
    assert "misaligned" in failure.message


def test_a_candidate_without_a_problem_is_said() -> None:
    """Where no small problem fits, the message says what to add."""
    rule = Constraint("long", lambda c, p: p.S > 5000, "long rows alone")
    large = replace(KERNEL, constraints=(rule,))
    with pytest.raises(KernelError, match="add a suitable problem to small_problems"):
        next(shapes(large, large.space.default(), [KERNEL.problem("4096,8192")], L4, 1))
