"""Timed calls through a worker: on a stand-in for a GPU everywhere, and on one with `-m gpu`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import timed_calls_cost
from emulated_gpu import evaluated, worker
from live_bench import Bench
from paths import DATA

from evokern.compile.build import Target, build
from evokern.compile.cache import CompileCache, default_directory
from evokern.compile.records import Built
from evokern.device.gpu.jobs import Contestant, Round
from evokern.device.gpu.timed_calls import SOURCE, _StepRecord
from evokern.gate.timed_plan import MOST_COPIES
from evokern.hardware.profiles import chip
from evokern.measurement.timing import LONG_PILOT_US, STEP_SHARE
from evokern.study.discovery import load_kernel
from evokern.study.settings import Study, TimingSettings
from evokern.study.trial import Outcome

PACKAGED = {
    "attention": ("2,8,128,64", "2,8,512,64"),
    "matmul": ("256,256,256", "4096,4096,4096"),
    "rmsnorm": ("64,8192", "8192,8192"),
}
"""Packaged kernels, each at a problem of a few µs and at a large one."""


# ------------------------------------------------------------------------------------------------------- without a GPU


def test_the_kernel_takes_what_is_laid_out_for_it() -> None:
    """The step's kernel compiles, its parameters fit, and the record has the layout that its source names."""
    text = SOURCE.read_text("utf-8")
    assert f"kMostCopies = {MOST_COPIES};" in text
    size = MOST_COPIES * 24 + 8 + 8 + 8
    assert size <= 4096
    # No compiler before CUDA 13.1 has offsetof; a struct of what stands before a member is as large as its offset.
    before = re.search(r"struct Step \{(.*?)\bslots\b", text, re.DOTALL)
    assert before is not None
    ahead = before[1][: before[1].rindex(";") + 1]
    checked = (
        text
        + f"""
static_assert(sizeof(Step) == {size} && sizeof(Copy) == 24);
struct Ahead {{{ahead}}};
static_assert(sizeof(Ahead) == {_StepRecord.slots.offset});
"""
    )
    from evokern.compile.isolated import compile_program
    from evokern.compile.records import Program

    program = compile_program(checked, "timed_calls.cu", {}, (), ("timed_calls_step",), "sm_90")
    assert isinstance(program, Program), program.log


@pytest.mark.parametrize(
    ("habit", "check"), [("none", ""), ("resets", ""), ("already_there", "timed_runs"), ("sampled_memo", "timed_runs")]
)
def test_a_memory_in_the_workspace_is_found_by_timed_calls(
    habit: str, check: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On the worker's own code: who returns what the output or a workspace remembers is wrong, and who works is not."""
    kernel, study = load_kernel(DATA / "kernels" / "memos"), Study("test", "memos", ("9,16,256",))
    problems = (kernel.problem("9,16,256"),)
    here = worker(monkeypatch, kernel, problems, study, chip("l4"), tmp_path / "turn")
    config = kernel.space.with_changes(kernel.space.default(), {"HABIT": habit})
    made = build(kernel, config, problems, Target(chip("l4"), CompileCache(default_directory() or tmp_path)))
    assert isinstance(made, Built), made.reason
    found = evaluated(here, config, made)
    assert found.evidence.get("check", "") == check, found.reason
    if not check:
        assert found.outcome is Outcome.MEASURED
        assert len(found.gate["9,16,256"]["timed_calls"]["drawn"]) == 1


def test_who_is_slow_by_far_is_not_timed_any_further(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It lost by its pilot or its samples: right in the gate, never a best; its inputs as they were for the next."""
    kernel, study = load_kernel(DATA / "kernels" / "memos"), Study("test", "memos", ("9,16,64",))
    problems = (kernel.problem("9,16,64"),)
    here = worker(monkeypatch, kernel, problems, study, chip("l4"), tmp_path / "turn", race=1.1)
    config = kernel.space.default()
    made = build(kernel, config, problems, Target(chip("l4"), CompileCache(default_directory() or tmp_path)))
    assert isinstance(made, Built), made.reason
    bench = here._runs.bench(here._runs.workload(config, problems[0])[0], problems[0])
    before = bench.given(0)["x"].clone()
    bench.given(0)["x"].zero_()
    slow = evaluated(here, config, made, elite_us=6.0)
    assert (slow.outcome, slow.time_us) == (Outcome.SLOW, pytest.approx(10.0))
    assert (slow.evidence["elite_us"], slow.evidence["samples"], slow.evidence["pilot"]) == (6.0, 5, True)
    assert slow.timings[0].samples_us == (10.0,) * 5
    assert "timed_calls" not in slow.gate["9,16,64"]
    assert bool((bench.given(0)["x"] == before).all())
    close = evaluated(here, config, made, elite_us=8.0)
    assert close.outcome is Outcome.SLOW
    assert "pilot" not in close.evidence
    assert len(close.timings[0].samples_us) == 5
    assert "timed_calls" not in close.gate["9,16,64"]
    assert evaluated(here, config, made).outcome is Outcome.MEASURED


def test_contestants_of_a_playoff_share_inputs_that_change_around_each(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What one's steps changed is changed back before another one draws its own: honest ones are right."""
    kernel, study = load_kernel(DATA / "kernels" / "memos"), Study("test", "memos", ("9,16,64",))
    problems = (kernel.problem("9,16,64"),)
    here = worker(monkeypatch, kernel, problems, study, chip("l4"), tmp_path / "turn")
    config = kernel.space.default()
    made = build(kernel, config, problems, Target(chip("l4"), CompileCache(default_directory() or tmp_path)))
    assert isinstance(made, Built), made.reason
    taken = here.handle(Round((Contestant(config, made),) * 3, samples=3))
    assert [len(samples) for samples in taken] == [3, 3, 3]  # type: ignore[union-attr,arg-type]


# ------------------------------------------------------------------------------------------------------------ on a GPU


@pytest.fixture(scope="class")
def memos() -> Iterator[Bench]:
    with Bench("memos", "64,128,128") as bench:
        yield bench


@pytest.mark.gpu
@pytest.mark.timeout(300)
class TestOnAGpu:
    """What the graphs of a real GPU show."""

    def test_who_works_in_every_call_is_measured(self, memos: Bench) -> None:
        """Honest habits pass, and the record tells what was drawn and how many replays were compared."""
        for found in memos.run([memos.config(HABIT="none"), memos.config(HABIT="resets")]):
            assert found.outcome is Outcome.MEASURED, found.reason
            told = found.gate["64,128,128"]["timed_calls"]
            assert (len(told["drawn"]), len(told["changed"])) == (1, 1)
            assert told["replays"] >= 8

    @pytest.mark.parametrize("habit", ["recent", "already_there", "sampled_memo", "first_replays"])
    def test_who_answers_from_memory_is_wrong(self, memos: Bench, habit: str) -> None:
        """A stamp, an output that looks finished, a memo, a count of calls: each is found, with its reason."""
        (found,) = memos.run([memos.config(HABIT=habit)])
        assert found.outcome is Outcome.WRONG, found.reason
        assert found.evidence["check"] in ("timed_runs", "repeat"), found.evidence

    def test_a_stamp_and_a_memo_are_found_by_timed_calls_alone(self, memos: Bench) -> None:
        """What is right when a call is repeated on new inputs is found where inputs change under a running graph."""
        memos.forget()
        for found in memos.run([memos.config(HABIT=habit) for habit in ("recent", "sampled_memo")]):
            assert found.evidence["check"] == "timed_runs", found.evidence
            assert "in a timed graph" in found.reason

    @pytest.mark.parametrize("cache", ["rotate", "flush"])
    @pytest.mark.parametrize("kernel", PACKAGED)
    def test_packaged_kernels_and_their_baselines_pass(self, kernel: str, cache: str) -> None:
        """Defaults and baselines are measured at a small and a large problem, with steps around drawn calls of each."""
        for problem in PACKAGED[kernel]:
            found, baselines = timed_calls_cost.evaluated(kernel, problem, TimingSettings(cache=cache))  # type: ignore[arg-type]
            assert found.outcome is Outcome.MEASURED, (problem, found.reason)
            errors = [one.error or "" for one in baselines]
            assert [error for error in errors if "timed" in error or "wrong" in error] == []
            (report,) = found.gate.values()
            assert report["timed_calls"]["changed"], problem

    @pytest.mark.parametrize("kernel", PACKAGED)
    def test_steps_take_a_two_hundredth_of_a_sample_at_most(self, kernel: str) -> None:
        """The same candidate with and without them, in turn: the medians differ by at most 0.5 %, and noise."""
        for problem in PACKAGED[kernel]:
            cost = timed_calls_cost.cost(kernel, problem)
            print(cost)
            assert cost["share"] <= STEP_SHARE + cost["noise"], cost


@pytest.mark.gpu
@pytest.mark.timeout(300)
def test_calls_that_are_graphs_of_their_own_are_looked_at_too() -> None:
    """Of long calls each is a graph: who works is measured, and who answers from memory is found by timed calls.

    Calls of 2.6 ms are further apart than the 200 µs of `recent`, which therefore works in each.
    """
    with Bench("memos", "8192,4096,128") as bench:
        honest, found = bench.run([bench.config(HABIT=habit) for habit in ("none", "sampled_memo")])
    assert honest.outcome is Outcome.MEASURED, honest.reason
    assert honest.time_us > LONG_PILOT_US
    assert honest.gate["8192,4096,128"]["timed_calls"]["changed"]
    assert found.evidence.get("check") == "timed_runs", found.reason
    assert "in a timed graph" in found.reason
