"""Problems at which loops repeat: found and run under the sanitizer, or named where there are none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from paths import DATA
from planted_faults import Planted

from evokern.analysis.check.folder import Folder
from evokern.analysis.check.paths_check import loops_and_branches
from evokern.analysis.sanitize import repeats
from evokern.analysis.sanitize.race_check import RaceCheck
from evokern.analysis.verify.stages import Stage, sanitizer_stage
from evokern.analysis.verify.under_test import CandidateUnderTest
from evokern.hardware.profiles import chip
from evokern.simt.control_flow.paths import NO_PATHS
from evokern.store import OWN_PROBLEM, ProofRecord, undecided
from evokern.store._verification import verification
from evokern.study.discovery import load_kernel
from evokern.study.settings import Study
from evokern.wording import verification_text

ROWS = """
extern "C" __global__ void run(const float* x, float* y, int rows, int cols) {
  __shared__ float first;
  for (int r = blockIdx.x; r < rows; r += gridDim.x) {
    if (threadIdx.x == 0) first = x[(long long)r * cols];
    __syncthreads();
    for (int c = threadIdx.x; c < cols; c += THREADS) y[(long long)r * cols + c] = x[(long long)r * cols + c] + first;
    @<||__syncthreads();>@
  }
}"""
WALK = Planted("rows", ROWS, 64, "64,300", ("5,40", "4,64"), "48", "t['x'] + t['x'][:, :1]", "(p.ROWS, p.COLS)")
LINE = 17
"""Line of the loop over rows."""


def sanitized(tmp_path: Path, case: Planted, *, faulty: bool) -> Stage:
    kernel = load_kernel(case.write(tmp_path, faulty=faulty))
    study, problems = Study("rows", kernel.name, (case.problem,)), (kernel.problem(case.problem),)
    return sanitizer_stage(CandidateUnderTest(kernel, kernel.space.default(), study, problems, chip("l4"), 5))


@pytest.mark.parametrize("grid", ["48", "40", "min(p.ROWS, 500)", "64"])
def test_a_race_of_the_second_row_is_found(tmp_path: Path, grid: str) -> None:
    """Blocks take a second row at the study's problem, at a larger one, or only beyond a limit of the grid."""
    found = sanitized(tmp_path, replace(WALK, grid=grid), faulty=True)
    assert found.state == "failed"
    assert "shared race" in found.detail


def test_a_loop_repeats_at_a_problem_that_is_made(tmp_path: Path) -> None:
    """No block takes a third row at the study's problem; the verdict names the problem and the watched blocks."""
    found = sanitized(tmp_path, WALK, faulty=False)
    assert (found.state, undecided({"sanitizer": found.facts})) == ("passed", "")
    assert "160,40" in found.facts["grown"]
    assert found.facts["races"] == {"64,300": [12, 48]}
    assert "ROWS=160 COLS=40; races looked for in 12 of 48 blocks at the study's problem" in found.detail


@pytest.mark.parametrize("grid", ["p.ROWS", "2 * p.ROWS"])
def test_a_loop_that_no_launch_repeats_is_no_doubt(tmp_path: Path, grid: str) -> None:
    """The grid grows with the rows, so that no block ever takes a second one."""
    found = sanitized(tmp_path, replace(WALK, grid=grid), faulty=True)
    assert found.state == "passed"
    assert not found.facts["open_loops"]


def test_two_loops_share_the_blocks_at_problems_on_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No block takes a second row in either loop, so that rows are doubled for both."""
    watched: list[str] = []
    original = RaceCheck.at

    def at(self: RaceCheck, config: Any, problem: Any, **options: Any) -> Any:
        watched.append(f"{problem} {options}")
        return original(self, config, problem, **options)

    monkeypatch.setattr(RaceCheck, "at", at)
    again = ROWS.replace(
        "\n}", "\n  for (int r = blockIdx.x; r < rows; r += gridDim.x) y[(long long)r * cols] *= 1.f;\n}"
    )
    found = sanitized(tmp_path, replace(WALK, source=again, grid="p.ROWS"), faulty=False)
    assert (found.state, found.facts["open_loops"]) == ("passed", []), found.detail
    assert len(watched) == len(set(watched)) > 4


def test_a_large_problem_does_not_hide_that_the_grid_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The study's problem cannot be doubled, but a small one grows beyond its rows."""
    monkeypatch.setattr(repeats, "MOST_GROWN", 1 << 16)
    source = ROWS.replace("int rows, int cols) {", "int rows, int cols) {\n  if (gridDim.x != rows) __trap();")
    found = sanitized(tmp_path, replace(WALK, source=source, grid="p.ROWS"), faulty=False)
    assert (found.state, undecided({"sanitizer": found.facts})) == ("passed", "")


AGAIN = """
extern "C" __global__ void run(const float* x, float* y, int rows, int cols) {
  __shared__ float first;
  x += (long long)blockIdx.x * cols;
  y += (long long)blockIdx.x * cols;
  float most = 0.f;
  for (int c = threadIdx.x; c < cols; c += THREADS) most = fmaxf(most, fabsf(x[c]));
  if (__syncthreads_or(most > 20.f)) {
    for (int c = 0; c < cols; c += THREADS) {
      if (threadIdx.x == 0) first = x[0];
      __syncthreads();
      if (c + threadIdx.x < cols) y[c + threadIdx.x] = x[c + threadIdx.x] + first;
      @<||__syncthreads();>@
    }
  } else {
    for (int c = threadIdx.x; c < cols; c += THREADS) y[c] = x[c] + x[0];
  }
}"""


@pytest.mark.parametrize("faulty", [True, False])
def test_a_loop_that_only_large_values_enter_repeats(tmp_path: Path, faulty: bool) -> None:
    """The small problems take one round; the larger one, which normally uses one input set, takes many."""
    case = replace(WALK, source=AGAIN, grid="p.ROWS", small=("5,40", "4,64", "3,1500"))
    found = sanitized(tmp_path, case, faulty=faulty)
    if faulty:
        assert (found.state, "shared race" in found.detail) == ("failed", True), found.detail
    else:
        assert (found.state, found.facts["open_loops"]) == ("passed", [])


def test_a_loop_that_may_repeat_elsewhere_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A problem at which a block takes three rows is too large, so that the candidate is not verified."""
    monkeypatch.setattr(repeats, "MOST_GROWN", 1 << 16)
    found = sanitized(tmp_path, replace(WALK, grid="1024"), faulty=True)
    assert found.facts["open_loops"] == [{"file": "", "line": LINE, "rounds": 1}]
    reason = undecided({"sanitizer": {"state": found.state, "detail": found.detail, **found.facts}})
    assert f"the loop on line {LINE} of kernel.cu takes at most 1 round as compiled" in reason


STEP = "r += gridDim.x"


def test_a_loop_of_a_capped_grid_repeats_with_fewer_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The problem at which the capped grid takes three rounds is too large, but two blocks take them at a small one."""
    monkeypatch.setattr(repeats, "MOST_GROWN", 1 << 16)
    capped = replace(WALK, grid="min(p.ROWS, 1024)")
    found = sanitized(tmp_path, capped, faulty=False)
    assert (found.state, undecided({"sanitizer": found.facts})) == ("passed", "")
    assert found.facts["fewer_blocks"] == ["ROWS=5 COLS=40 with 2 blocks"]
    assert "ROWS=5 COLS=40 with 2 blocks; races" in found.detail
    assert all("line" not in text for state, text in checked(tmp_path / "check", capped) if state == "warning")


@pytest.mark.parametrize(
    ("grid", "small"),
    [
        ("min(p.ROWS, 1024)", ("1,40", "2,64")),  # too few blocks at the small problems
        ("(1, min(p.ROWS, 1024))", ("5,40", "4,64")),
        ("(2, 1, min(p.ROWS, 1024))", ("5,40", "4,64")),
    ],
)
def test_the_capped_axis_of_a_grid_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grid: str, small: tuple[str, str]
) -> None:
    """The other axes keep their blocks, and larger problems have enough blocks."""
    monkeypatch.setattr(repeats, "MOST_GROWN", 1 << 16)
    axis = "x" if grid.startswith("min") else "y" if grid.startswith("(1") else "z"
    source = ROWS.replace("blockIdx.x", f"blockIdx.{axis}").replace("gridDim.x", f"gridDim.{axis}")
    source = source.replace("c = threadIdx.x;", "c = threadIdx.x + blockIdx.x * THREADS;") if axis == "z" else source
    source = source.replace("c += THREADS", "c += THREADS * gridDim.x") if axis == "z" else source
    found = sanitized(tmp_path, replace(WALK, source=source, grid=grid, small=small), faulty=False)
    assert (found.state, found.facts["open_loops"]) == ("passed", []), found.detail
    assert len(found.facts["fewer_blocks"]) == 1


@pytest.mark.parametrize(
    ("source", "faulty"),
    [
        (ROWS, True),  # a race between two rounds
        (ROWS.replace(STEP, "r += 1024"), False),  # fewer blocks leave rows out
        (ROWS.replace("int rows, int cols) {", "int rows, int cols) {\n  if (gridDim.x != 1024) __trap();"), False),
    ],
)
def test_a_loop_that_fewer_blocks_do_not_check_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, faulty: bool
) -> None:
    """A failure with another grid than the declared one refutes nothing; the remedy is one that can be followed."""
    monkeypatch.setattr(repeats, "MOST_GROWN", 1 << 16)
    found = sanitized(tmp_path, replace(WALK, source=source, grid="1024"), faulty=faulty)
    assert (found.state, found.facts["fewer_blocks"]) == ("passed", [])
    assert [one["rounds"] for one in found.facts["open_loops"]] == [1]
    assert "in the runs that look for races, the loop on line" in found.detail
    assert "take the loop's step from gridDim" in found.detail


def test_all_blocks_of_a_cooperative_kernel_are_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """They wait for each other, so that all run at the study's problem, where both loops repeat."""
    kernel = load_kernel(DATA / "kernels" / "grid_mean")
    problems = (kernel.problem("60000"),)
    study, config = (
        Study("grid", kernel.name, ("60000",)),
        kernel.space.canonical({**kernel.space.default(), "THREADS": 256}),
    )
    candidate = CandidateUnderTest(kernel, config, study, problems, chip("l4"), 5)
    found = sanitizer_stage(candidate)
    assert (found.state, found.facts["open_loops"]) == ("passed", [])
    assert "races looked for in 40 of 40 blocks at the study's problem" in found.detail
    monkeypatch.setattr(RaceCheck, "_run", lambda *args: (NO_PATHS, None))
    short = sanitizer_stage(candidate)
    assert len(short.facts["open_loops"]) == 2
    assert "races looked for in 0 of 40 blocks at the study's problem, because its blocks depend" in short.detail


def test_a_trial_with_such_a_loop_is_not_verified() -> None:
    """`show`, the report and the export print the verification's state and reason."""
    sanitizer = {"state": "passed", "detail": "the loop on line 8 of kernel.cu takes at most 1 round as compiled"}
    own = {"state": "passed", "detail": "all blocks ran", "covered": True, "share": 1.0}
    trial = SimpleNamespace(number=3, evaluation=SimpleNamespace(own_problem_share=1.0, scaled_problems=()))
    study: Any = SimpleNamespace(name="rows", predicted=True, problems_in_words=lambda: "ROWS=64", in_words=str)

    def state(**facts: object) -> str:
        stages = {"sanitizer": {**sanitizer, **facts}, OWN_PROBLEM: own}
        proof = ProofRecord("verify", 3, "", {"stages": stages})
        found = verification(study, cast(Any, trial), [proof], [], interrupted=False, options=lambda: ("--db", "a.db"))
        return verification_text(found.as_dict())

    assert state(open_loops=[]).startswith("verified: at ROWS=64")
    assert state().startswith("verified: at ROWS=64"), "results of an earlier version keep their state"
    unclear = state(open_loops=[{"file": "", "line": 8, "rounds": 1}])
    assert unclear.startswith("not verified: sanitizer: the loop on line 8 of kernel.cu")


def checked(tmp_path: Path, case: Planted, *, faulty: bool = False) -> list[tuple[Any, str]]:
    kernel = load_kernel(case.write(tmp_path, faulty=faulty))
    small = tuple(kernel.problem(text) for text in case.small)
    return list(
        loops_and_branches(Folder(kernel, (kernel.problem(case.problem), *small), cast(Any, SimpleNamespace())))
    )


def test_check_warns_of_loops_with_few_rounds(tmp_path: Path) -> None:
    """The warning names each loop's line and problems at which it repeats."""
    (warned, races) = checked(tmp_path, WALK)
    assert warned[0] == "warning"
    assert f"the loop on line {LINE} of kernel.cu takes at most 1 round as compiled" in warned[1]
    assert "for example ROWS=160 COLS=40" in warned[1]
    assert races == (True, "no findings; races looked for in 12 of 48 blocks at the study's problem")


def test_check_says_why_it_looked_for_no_races(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No block of the study's problem ran, which is no success."""
    monkeypatch.setattr(repeats, "MOST_SAMPLED", 1)
    texts = dict(reversed(one) for one in checked(tmp_path, WALK))
    why = "races looked for in 0 of 48 blocks at the study's problem, because its buffers take too much memory"
    assert texts[why] == "warning"
    assert not [text for text, state in texts.items() if state is True and "races" in text]


def test_check_finds_the_race(tmp_path: Path) -> None:
    (found,) = checked(tmp_path, WALK, faulty=True)
    assert found[0] is False
    assert "shared race" in found[1]


FLAT = """
extern "C" __global__ void run(const float* x, float* y, int n) {
  const int i = blockIdx.x * THREADS + threadIdx.x;
  if (i < n) y[i] = 2.f * x[i] + 1.f;
}"""


@pytest.mark.parametrize(("small", "warned"), [(("640", "1280"), True), (("640", "1281"), False)])
def test_check_warns_of_a_tail_that_no_small_problem_has(tmp_path: Path, small: tuple[str, str], warned: bool) -> None:
    """A bounds check that always holds is named, with a problem at which it does not."""
    flat = Planted("flat", FLAT, 64, "4096", small, "-(-p.N // c.THREADS)", "2 * t['x'] + 1", "(p.N,)", "N", "(p.N,)")
    told = [text for state, text in checked(tmp_path, flat) if state == "warning"]
    assert bool(told) == warned
    assert not told or "the branch on line 17 of kernel.cu goes one way" in told[0]
    assert not told or told[0].endswith("for example N=641")
