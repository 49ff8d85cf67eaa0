"""What the worker of a GPU says of the exploit suite: everywhere on a stand-in for the GPU, with `-m gpu` on one."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from emulated_gpu import evaluated, worker
from exploit_checks import ANYWHERE, EMULATED, LIVE, Way, candidate_of, nothing_around, run_cases, runs_alternately

from evokern.compile.build import Target, build
from evokern.compile.cache import CompileCache, default_directory
from evokern.compile.records import Built
from evokern.declaration.genes import Config
from evokern.declaration.kernel import Problem
from evokern.device.gpu.jobs import TimeFirstLaunches
from evokern.exploits import CASES, Case, SuiteResult
from evokern.exploits.cases import BY_NAME
from evokern.exploits.suite import PROBLEM, suite_kernel, suite_study
from evokern.gate import Call, Gate
from evokern.gate.buffer_set import BufferSet
from evokern.gate.verdict import MARGINAL, judge
from evokern.hardware.profiles import Profile, chip
from evokern.study.discovery import WorkerContext
from evokern.study.settings import GateSettings
from evokern.study.trial import Evaluation, Outcome
from evokern.workers.process import Retire

KERNEL = suite_kernel()
STUDY = suite_study("gpu")
L4 = chip("l4")
SMALL = tuple(KERNEL.problem(text) for text in ("136,128,16", "9,20,18"))
SMALLEST = SMALL[1:]
TWO = (KERNEL.problem("24,20,18"), *SMALLEST)
"""Two for tests that ask nothing of their sizes: those of `SMALL` have cheats that begin at 16,384 elements."""
HARDWARE = frozenset(
    {
        *("cheat_race", "cheat_uninitialised_shared", "cheat_unordered_blocks", "cheat_noise"),  # chance
        *(
            "cheat_reads_outside",
            "cheat_writes_outside",
            "cheat_writes_past_input",
            "cheat_notes_in_slack",
        ),  # what lies beside a buffer
        *(
            "cheat_never_ends",
            "cheat_skips_after_warmup",
            "cheat_skips_two_of_three",
            "cheat_odd_launches",
            "cheat_by_burst",
        ),  # long runs
        *("cheat_other_set", "cheat_scans_for_reference", "cheat_stale_shared", "cheat_heap"),  # memory as a GPU has it
        "cheat_fixed_point",  # sums of many terms
        "cheat_tuned_to_pass",  # a million elements
    }
)
"""Cases that take a GPU."""
STATEFUL = (
    *("honest_constant_table", "honest_module_scratch", "honest_last_block_adds", "honest_resetting_tickets"),
    *("honest_reads_own_output", "honest_few_errors", "honest_declared_table", "honest_declared_cache"),
)
"""Honest cases that a worker could get wrong: with state, or with errors to be seen."""
CRASHES = frozenset({"cheat_misaligned", "cheat_never_ends"})
"""Cases after which a context cannot be used."""


def built(config: Config, problems: tuple[Problem, ...], profile: Profile) -> Built:
    made = build(KERNEL, config, problems, Target(profile, CompileCache(default_directory())))
    assert isinstance(made, Built), made.reason
    return made


def emulated(patch: pytest.MonkeyPatch, turn: Path, *names: str, **gate: Any) -> SuiteResult:
    """Run cases on the worker of a GPU, with the PTX machine in the GPU's place."""
    study = replace(STUDY, gate=replace(STUDY.gate, **gate))
    here = worker(patch, KERNEL, SMALL, study, L4, turn)

    def evaluate(case: Case) -> Evaluation:
        candidate = candidate_of(case)
        made = build(KERNEL, candidate, SMALL, Target(L4, CompileCache(default_directory())))
        if isinstance(made, Evaluation):
            return made  # found out once it was compiled
        return evaluated(here, candidate, made)

    return run_cases(names, evaluate, "gpu", "emulated")


class _Classes(pickle.Unpickler):
    """Notes the modules whose classes a message names."""

    def __init__(self, message: bytes) -> None:
        super().__init__(io.BytesIO(message))
        self.modules: set[str] = set()

    def find_class(self, module: str, name: str) -> Any:
        self.modules.add(module)
        return super().find_class(module, name)


def test_answers_need_no_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What a worker sends is read without torch, which costs the search seconds and half a gigabyte."""
    here = worker(monkeypatch, KERNEL, SMALLEST, STUDY, L4, tmp_path / "turn")
    candidate = candidate_of(BY_NAME[STATEFUL[0]])
    answer = evaluated(here, candidate, built(candidate, SMALLEST, L4))
    assert answer.outcome is Outcome.MEASURED, answer
    for message in (here.ready_report, answer):
        reader = _Classes(pickle.dumps(message))
        reader.load()
        assert {module.partition(".")[0] for module in reader.modules} <= {"evokern", "builtins"}
        assert [module for module in reader.modules if module.startswith(("evokern.gate", "evokern.device.gpu"))] == []
    assert here.ready_report["torch"] == torch.__version__


@pytest.mark.parametrize(
    "share", [pytest.param("part", marks=pytest.mark.thorough), pytest.param("all", marks=pytest.mark.slow)]
)
def test_the_worker_of_a_gpu_gets_every_case_right(share: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The live device's own code catches every cheat by the check meant for it on a GPU, and passes honest kernels."""
    cheats = [
        case.name
        for case in CASES
        if case.checks("gpu") and case.name not in HARDWARE and (share == "all" or runs_alternately(case))
    ]
    assert len(cheats) >= (32 if share == "all" else 3)
    found = emulated(monkeypatch, tmp_path / "turn", *cheats, *STATEFUL[: None if share == "all" else 3])
    assert json.dumps(found.as_dict())
    assert [one.as_dict() for one in (*found.missed, *found.rejected)] == []


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "take_out", "cheats"),
    # What the simulated device has too is taken out of that in every run of the tests.
    [pytest.param(*row, id=row[0], marks=[pytest.mark.slow] if row in ANYWHERE else []) for row in EMULATED],
)
def test_every_check_of_the_worker_has_a_cheat_that_only_it_catches(
    name: str, take_out: Way, cheats: Iterable[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With a check taken out of the live device's code its cheats pass."""
    if callable(take_out):
        take_out(monkeypatch)
    else:
        nothing_around(monkeypatch)  # what changes around timed calls may be large
    weakened = emulated(monkeypatch, tmp_path / "turn", *cheats, **({} if callable(take_out) else take_out))
    assert [one.caught_by for one in weakened.results] == ["" for _ in cheats]


def test_a_declaration_is_asked_once_for_a_candidate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Gate, timing and the least time need its buffers and launches: `kernel.py` is called once at each problem."""
    here = worker(monkeypatch, KERNEL, TWO, STUDY, L4, tmp_path / "turn")
    config, before = Config({"CASE": "honest_four_each"}), here._runs.workload.cache_info()
    assert Outcome.MEASURED is evaluated(here, config, built(config, TWO, L4)).outcome
    after = here._runs.workload.cache_info()
    assert len(TWO) == after.misses - before.misses
    assert after.hits - before.hits >= 2 * len(TWO)


@pytest.mark.parametrize(
    ("launch_us", "elite_us", "default_us", "unproved"),
    [
        (7000.0, None, 3000.0, True),
        (6500.0, None, 3000.0, False),
        (2300.0, 1000.0, 3000.0, True),
        (2300.0, 1000.0, None, True),
        (490.0, 20.0, 30.0, False),
        (7000.0, None, None, False),
    ],
)
def test_a_hopeless_candidate_is_given_up_by_its_first_launches(
    launch_us: float,
    elite_us: float | None,
    default_us: float | None,
    unproved: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """It is slow, unproved and without a gate's answer: no best, a bound for samplers. Others go through the gate."""
    here = worker(monkeypatch, KERNEL, SMALLEST, STUDY, L4, tmp_path / "turn", race=1.1)
    monkeypatch.setattr("emulated_gpu.Candidate.launch_us", launch_us)
    config, known = Config({"CASE": "honest_plain"}), (default_us,) if default_us else ()
    found = evaluated(here, config, built(config, SMALLEST, L4), elite_us, known)
    assert (found.outcome is Outcome.SLOW and found.evidence.get("unproved", False)) == unproved
    assert found.passed_gate != unproved
    if unproved:
        raced = min(time for time in (elite_us, default_us) if time is not None)
        assert (found.evidence["elite_us"], found.evidence["launches_us"]) == (raced, [launch_us] * 2)
        assert (found.time_us, found.timings, dict(found.gate)) == (launch_us / 2, (), {})
        assert found.reason == (
            f"slower than {2.2 * raced:.3f} µs, 2.2 × the {raced:.3f} µs to beat, by its first launches: its output "
            "was not checked"
        )
    wrong = Config({"CASE": "cheat_zeros"})
    monkeypatch.setattr("emulated_gpu.Candidate.launch_us", 10.0)
    assert evaluated(here, wrong, built(wrong, SMALLEST, L4)).outcome is Outcome.WRONG, "the buffers serve on"


@pytest.mark.parametrize(
    ("launches_us", "elite_us", "unproved"),
    [
        ([1200.0] * 5, 1000.0, True),
        ([1200.0, 1200.0, 1150.0, 1200.0, 1200.0], 1000.0, False),
        ([1200.0] * 5, None, False),
        ([120.0] * 5, 100.0, False),
    ],
)
def test_long_launches_that_lost_the_race_are_not_judged(
    launches_us: list[float],
    elite_us: float | None,
    unproved: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Five of the gate's own launches, all slower than the elite by more than the race allows; one faster is enough."""
    here = worker(monkeypatch, KERNEL, SMALLEST, STUDY, L4, tmp_path / "turn", race=1.1)
    times = iter((*launches_us, *[1000.0] * 20))

    def timed(enqueue: Callable[[], None], limit_s: float) -> float:
        enqueue()
        return next(times)

    monkeypatch.setattr("evokern.device.gpu.cuda.timed_us", timed)
    config = Config({"CASE": "honest_plain"})
    found = evaluated(here, config, built(config, SMALLEST, L4), elite_us)
    assert (found.outcome is Outcome.SLOW and found.evidence.get("unproved", False)) == unproved
    assert found.passed_gate != unproved
    if unproved:
        assert (found.evidence["launches_us"], found.evidence["elite_us"]) == (launches_us, elite_us)
        assert found.time_us == pytest.approx(1200.0 / 1.05)
        assert found.reason.startswith(
            "slower than 1155.000 µs, 1.155 × the 1000.000 µs to beat, by its first launches"
        )


def test_of_several_problems_one_may_be_slower(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With two problems a launch may take the square of the margin; the bound takes the other one as the default's."""
    here = worker(monkeypatch, KERNEL, TWO, STUDY, L4, tmp_path / "turn", race=1.1)
    config = Config({"CASE": "honest_plain"})
    made = built(config, TWO, L4)
    monkeypatch.setattr("emulated_gpu.Candidate.launch_us", 4800.0)
    assert evaluated(here, config, made, 700.0, (1000.0, 4000.0)).passed_gate
    monkeypatch.setattr("emulated_gpu.Candidate.launch_us", 5000.0)
    found = evaluated(here, config, made, 700.0, (1000.0, 4000.0))
    assert (found.outcome, found.evidence["problem"]) == (Outcome.SLOW, TWO[0].key)
    assert found.time_us == pytest.approx((2500.0 * 4000.0) ** 0.5)


def test_the_default_candidates_launches_are_timed_at_every_problem(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One time for each problem; where a launch fails there is none, and a broken context is left."""
    here = worker(monkeypatch, KERNEL, TWO, STUDY, L4, tmp_path / "turn")
    config = Config({"CASE": "honest_plain"})
    assert here.handle(TimeFirstLaunches(config, built(config, TWO, L4))) == (10.0, 10.0)
    crashes = Config({"CASE": "cheat_misaligned"})
    with pytest.raises(Retire) as left:
        here.handle(TimeFirstLaunches(crashes, built(crashes, TWO, L4)))
    assert left.value.value == ()


def test_a_slow_candidate_says_what_it_lost_against(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The time to beat stands beside the least time that its work takes at each problem, and each is read as itself."""
    here = worker(monkeypatch, KERNEL, TWO, STUDY, L4, tmp_path / "turn", race=1.3)
    config = Config({"CASE": "honest_plain"})
    slow = evaluated(here, config, built(config, TWO, L4), elite_us=2.0)
    assert slow.outcome is Outcome.SLOW
    assert (slow.evidence["elite_us"], len(slow.evidence["least_us"])) == (2.0, len(TWO))
    assert slow.reason == "slower than the elite's 2.000 µs"


@pytest.mark.parametrize(
    ("elite_us", "large", "expected"), [(None, True, 1), (20.0, True, 1), (5.0, True, 0), (20.0, False, 0)]
)
def test_a_new_best_of_a_large_problem_is_judged_on_inputs_of_its_own(
    elite_us: float | None, large: bool, expected: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Faster than the elite, or the first: all inputs and references are new before it counts, at every problem."""
    if large:
        monkeypatch.setattr("evokern.gate.renewal.LARGE_ELEMENTS", 0)
    wholes: list[Problem] = []
    check = Gate.check

    def watched(self: Gate, *asked: Any, whole: bool = False) -> Any:
        if whole:
            wholes.append(self.problem)
        return check(self, *asked, whole=whole)

    monkeypatch.setattr(Gate, "check", watched)
    here = worker(monkeypatch, KERNEL, SMALLEST, STUDY, L4, tmp_path / "turn")
    config = Config({"CASE": "honest_plain"})
    made = built(config, SMALLEST, L4)
    found = evaluated(here, config, made, elite_us=elite_us)
    assert found.outcome is Outcome.MEASURED
    assert wholes == list(SMALLEST)[:expected]
    evaluated(here, config, made, elite_us=20.0)
    assert wholes == list(SMALLEST)[:expected], "one as fast was measured since the trials that it saw"
    evaluated(here, config, made)
    assert len(wholes) == expected + large, "one that races against nothing is judged by itself"


def test_inputs_follow_from_the_studys_secret_and_the_candidate(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A candidate sees the same inputs in every search of one secret, whichever candidates ran before."""
    seen: list[tuple[Any, ...]] = []
    verify = BufferSet.verify

    def watched(self: BufferSet) -> Any:
        given = [self.given(index)["x"].view(torch.int16) for index in range(self.sets)]
        seen.append(tuple(int(one.long().sum()) for one in given))
        return verify(self)

    config, other = Config({"CASE": "honest_plain"}), Config({"CASE": "honest_warp_each"})
    made = {one: built(one, SMALLEST, L4) for one in (config, other)}
    found = []
    for secret, earlier in ((5, ()), (5, (other, config)), (6, ())):
        here = worker(monkeypatch, KERNEL, SMALLEST, STUDY, L4, tmp_path / "turn", secret=secret)
        for one in earlier:
            evaluated(here, one, made[one])
        monkeypatch.setattr(BufferSet, "verify", watched)
        assert evaluated(here, config, made[config]).outcome is Outcome.MEASURED
        monkeypatch.setattr(BufferSet, "verify", verify)
        # The second check is of the timed calls: their inputs are those of the last repetition.
        found.append([sets for number, sets in enumerate(seen) if number != 1])
        seen.clear()
    assert found[0] == found[1] != found[2]


def test_who_is_wrong_on_the_new_inputs_of_a_best_is_wrong(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is found there is the candidate's outcome, whatever was measured before."""
    monkeypatch.setattr("evokern.gate.renewal.LARGE_ELEMENTS", 0)
    check = Gate.check

    def spoilt(self: Gate, *asked: Any, whole: bool = False) -> Any:
        verdict = check(self, *asked, whole=whole)
        return replace(verdict, passed=False, evidence={"check": "tolerance", "message": "off"}) if whole else verdict

    monkeypatch.setattr(Gate, "check", spoilt)
    here = worker(monkeypatch, KERNEL, SMALLEST, STUDY, L4, tmp_path / "turn")
    config = Config({"CASE": "honest_plain"})
    found = evaluated(here, config, built(config, SMALLEST, L4))
    assert (found.outcome, found.evidence["message"]) == (Outcome.WRONG, "off")
    assert found.timings


# ------------------------------------------------------------------------------------- the problem that a GPU checks


@dataclass
class Sums:
    """Right sums of fp32, a term after the other, as the suite's kernels make them: a product of two fp16 is exact."""

    def run(self, calls: Sequence[Call]) -> None:
        for call in calls:
            x, w, y = (call.arguments[name] for name in ("x", "w", "y"))
            left, right = x.float(), w.float()
            y.zero_()
            for k in range(left.shape[1]):
                y.addcmul_(left[:, k : k + 1], right[k : k + 1, :])


Off = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass
class Redrawn:
    """Puts errors on the reference of new inputs."""

    bench: BufferSet
    off: Off
    draws: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(8))

    def run(self, calls: Sequence[Call]) -> None:
        self.bench.write_reference()
        for call in calls:
            y = call.arguments["y"]
            y.copy_(self.off(y, torch.rand(y.shape, generator=self.draws).clamp_min(1e-12)))


@pytest.fixture(scope="module")
def large() -> Iterator[tuple[Gate, Mapping[str, Any], torch.Tensor]]:
    """The gate at the suite's large problem on large inputs, the tensors there, and right sums."""
    problem, config = KERNEL.problem("1024,1024,1024"), KERNEL.space.default()
    # Inputs of a seed: with others an error of nearly the tolerance is at times more, by an honest rounding beside it.
    gate = Gate(KERNEL, problem, GateSettings(input_sets=("large",), runs=1), torch.device("cpu"), 1)
    tensors = KERNEL.workload.tensors(problem, config)
    verdict = gate.check(Sums(), KERNEL.launches(config, problem), tensors)
    assert verdict.passed, verdict.evidence
    yield gate, tensors, gate.bench(tensors, ("large",), 1).outputs()["y"].clone()


def spent(right: torch.Tensor, chance: torch.Tensor) -> torch.Tensor:
    return right + 0.75 * (0.5 + 2e-3 * right.abs())


def tuned(right: torch.Tensor, chance: torch.Tensor) -> torch.Tensor:
    return right + (-0.07 * chance.log()).clamp_max(0.985) * (0.5 + 2e-3 * right.abs())


@pytest.mark.parametrize(("off", "check"), [(spent, "tolerance_spent"), (tuned, "margin")])
def test_cheats_are_told_apart_at_the_large_problem(
    off: Off, check: str, large: tuple[Gate, Mapping[str, Any], torch.Tensor]
) -> None:
    """Among a million honest roundings errors on purpose are still caught by the check that is meant for them."""
    gate, tensors, right = large
    bench = gate.bench(tensors, ("large",), 1)
    chance = torch.rand(right.shape, generator=torch.Generator().manual_seed(7)).clamp_min(1e-12)
    bench.outputs()["y"].copy_(off(right, chance))
    verdict = judge(bench, bench.verify(), deterministic=True, problem=gate.problem)
    again = Redrawn(bench, off)
    assert gate.retest(verdict, again, (), tensors).evidence["check"] == check


def test_right_sums_keep_clear_of_the_tolerance(large: tuple[Gate, Mapping[str, Any], torch.Tensor]) -> None:
    """A million right sums of 1,024 large products stay within half of the tolerance: none fails by chance."""
    gate, tensors, right = large
    bench = gate.bench(tensors, ("large",), 1)
    bench.outputs()["y"].copy_(right)
    assert float(bench.errors("y", 0).max()) < MARGINAL


# -------------------------------------------------------------------------------------------------------- on a GPU


@pytest.fixture(scope="module")
def gpu() -> Callable[..., SuiteResult]:
    """Run cases on the worker of the first GPU, in this process."""
    from evokern.device.gpu.jobs import Evaluate, GpuSettings
    from evokern.device.gpu.profile import live_gpu
    from evokern.device.gpu.worker import GpuWorker

    profile = live_gpu(0).profile

    def run(turn: Path, *names: str, **gate: Any) -> SuiteResult:
        turn.touch()
        strict = replace(STUDY.gate, **gate)
        problems = (KERNEL.problem(PROBLEM),)
        context = WorkerContext(KERNEL.folder, problems, profile)
        settings = GpuSettings(context, strict, STUDY.timing, 0, turn, KERNEL.space.default())
        here = GpuWorker(settings)

        def evaluate(case: Case) -> Evaluation:
            candidate = candidate_of(case)
            answer = here.handle(Evaluate(candidate, built(candidate, problems, profile), None))
            assert isinstance(answer, Evaluation)
            return answer

        return run_cases(names, evaluate, "gpu", profile.model)

    return run


@pytest.mark.gpu
@pytest.mark.timeout(120)
@pytest.mark.parametrize(("name", "take_out", "cheats"), LIVE, ids=[row[0] for row in LIVE])
def test_every_check_on_a_gpu_has_a_cheat_that_only_it_catches(
    name: str,
    take_out: Way,
    cheats: Iterable[str],
    gpu: Callable[..., SuiteResult],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """With a check taken out its cheats pass on the GPU too; with it in they are caught."""
    strong = gpu(tmp_path / "turn", *cheats)
    assert [one.as_dict() for one in strong.missed] == []
    if callable(take_out):
        take_out(monkeypatch)
    else:
        nothing_around(monkeypatch)  # what changes around timed calls may be large
    weakened = gpu(tmp_path / "turn", *cheats, **({} if callable(take_out) else take_out))
    assert [one.as_dict() for one in weakened.results if one.caught_by] == []


def test_the_suite_has_a_problem_that_needs_a_gpu() -> None:
    """It has a million elements, which only a GPU checks in full; cases named as hardware's or as crashing exist."""
    assert KERNEL.problem(PROBLEM).M * KERNEL.problem(PROBLEM).N > 1e6
    assert set(BY_NAME) >= HARDWARE | CRASHES
    assert not any(name in CRASHES for row in LIVE for name in row[2])
