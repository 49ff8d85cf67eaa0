"""What a simulated device asks of a candidate at the study's own problem: coverage, and right answers there too."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from paths import DATA

from evokern.analysis.check.simulated_run import own_problem, simulated_run
from evokern.compile.build import Target, build
from evokern.compile.records import Built
from evokern.declaration.genes import Config
from evokern.device import default_outputs
from evokern.device.sim import full_size_check
from evokern.device.sim.coverage import class_sizes, extrapolated, place_of, sample
from evokern.device.sim.full_size_check import OwnProblemCheck
from evokern.device.sim.full_size_runs import OwnProblemRuns
from evokern.device.sim.jobs import SimSettings, Simulate
from evokern.device.sim.worker import SimWorker
from evokern.errors import KernelError
from evokern.hardware.profiles import chip
from evokern.simt.memory.access_record import WriteRecord
from evokern.simt.memory.buffers import Memory
from evokern.store import OWN_PROBLEM, undecided
from evokern.study.discovery import WorkerContext, load_kernel
from evokern.study.settings import Study, TimingSettings
from evokern.study.trial import Evaluation, Outcome

FOLDER = DATA / "kernels" / "own_problem"
KERNEL = load_kernel(FOLDER)
PROBLEMS = (KERNEL.problem("200,136,96"),)
L4 = chip("l4")
WRONG = {way for way in KERNEL.genes[0].values if int(way) < 100}
RIGHT = set(KERNEL.genes[0].values) - WRONG
FEW = (0, 12, 22, 30, 101, 104)
"""Ways of each kind, for every run of the tests."""


def evaluated(way: int, *, best_us: float | None = None, seed: int = 5) -> Evaluation:
    """Return what a simulated device says of one way; with ``best_us=0.0`` it would not be the best."""
    study = Study("own", "own_problem", ("200,136,96",), timing=replace(TimingSettings(), race=0.0))
    context = WorkerContext(Path(FOLDER), PROBLEMS, L4)
    default = KERNEL.space.default()
    worker = SimWorker(SimSettings(context, study.gate, study.timing, study.simulation, default, seed))
    config = Config({"CASE_NUMBER": way})
    built = build(KERNEL, config, PROBLEMS, Target(L4, None))
    assert isinstance(built, Built), built.reason
    found = worker.handle(Simulate(config, built, None, best_us))
    assert found is not None
    return found


def told(way: int) -> str:
    found = evaluated(way)
    return f"{found.outcome.value} {found.evidence.get('check', '')}".strip()


@pytest.mark.thorough
@pytest.mark.parametrize("way", FEW)
def test_what_is_wrong_at_large_problems_alone_is_not_crowned(way: int) -> None:
    """A new best runs whole at the study's own problem: wrong ways fall there, odd ones that are right pass."""
    if way in WRONG:
        assert told(way) in ("wrong coverage", "wrong own_problem", "wrong sampled_blocks")
    else:
        found = evaluated(way)
        assert Outcome.MEASURED is found.outcome, found.reason
        own = found.evidence["own_problem"][PROBLEMS[0].key]
        assert (own["blocks"], own["covered"], own["judged"]) == (own["of"], True, True)


@pytest.mark.slow
def test_forty_wrong_ways_and_twenty_right_ones() -> None:
    """None of forty ways that are wrong at large problems alone is a new best; twenty odd ones that are right are."""
    assert (40, 20) == (len(WRONG), len(RIGHT))
    crowned = {int(way) for way in KERNEL.genes[0].values if evaluated(int(way)).outcome is Outcome.MEASURED}
    assert {int(way) for way in RIGHT} == crowned


def test_a_candidate_that_is_not_the_best_is_sampled_at_places_of_the_study(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a grid falls by its samples alone; the same secret gives the same answer."""
    found = evaluated(0, best_us=0.0)
    assert ("coverage", 27200) == (found.evidence["check"], found.evidence["elements"])
    assert found.evidence == evaluated(0, best_us=0.0).evidence


@pytest.mark.parametrize("grid", [(1, 1, 1), (2, 1, 1), (7, 1, 1), (2, 3, 1), (9, 5, 4), (1, 1, 6)])
def test_a_sample_holds_every_class_and_the_classes_hold_every_block(grid: tuple[int, int, int]) -> None:
    """Class sizes add up to the grid; a sample has a block of each, the corners among them, and repeats by its seed."""
    total = grid[0] * grid[1] * grid[2]
    sizes = class_sizes(grid)
    counted = dict.fromkeys(sizes, 0)
    for block in range(total):
        counted[place_of(grid, block)] += 1
    assert sizes == counted
    blocks = sample(grid, random.Random(3))
    assert set(sizes) == {place_of(grid, block) for block in blocks}
    assert {0, total - 1} <= set(blocks)
    assert blocks == sample(grid, random.Random(3))


def test_some_blocks_tell_what_all_write_only_where_they_agree() -> None:
    """Tiles that do not overlap and are alike within a class add up; anything else is left undecided."""
    grid, ran = (4, 1, 1), (0, 1, 2, 3)
    blocks, elements = np.repeat(np.arange(4), 8), np.arange(32)
    whole = extrapolated(grid, ran, blocks, elements, 32)
    assert (32, True) == (whole.written, whole.complete)
    half = extrapolated(grid, ran, blocks, elements, 64)
    assert (32, True, False) == (half.written, half.certain, half.complete)
    overlapping = extrapolated(grid, ran, blocks, elements // 2, 32)
    assert not overlapping.certain
    unlike = extrapolated(grid, ran, blocks[:-12], elements[:-12], 32)
    assert not unlike.certain


IN_PLACE = """
from torch import arange

from evokern import Kernel, Launch, Parameter, ProblemField, Tensor, Tolerance, Workload, i32

kernel = Kernel(
    name="in_place",
    genes=(Parameter("SKIP", (0, 1), default=0),),
    fields=(ProblemField("N"),),
    launches=lambda c, p: [Launch("even_ones", -(-p.N // 64), 64, ("x", i32(p.N)))],
    workload=Workload(
        tensors=lambda p, c: {"x": Tensor("f32", (p.N,), role="inout")},
        # Half of the elements keep what they held.
        reference=lambda p, t: {"x": t["x"].index_fill(0, arange(0, p.N, 2), 1.0)},
        tolerance={"x": Tolerance(0, 0)},
        flops=lambda p: p.N,
        bytes=lambda p: 8 * p.N,
        small_problems=("100",),
    ),
)
"""
IN_PLACE_CU = """
extern "C" __global__ void even_ones(float* x, int n) {
  const int i = blockIdx.x * 64 + threadIdx.x;
  if (i < n && i % 2 == 0 && !(SKIP && i == 500)) x[i] = x[i] * 0 + 1;
}
"""


def test_a_buffer_in_place_is_covered_once_it_was_judged_whole(tmp_path: Path) -> None:
    """What a launch leaves as it was is an answer too: right where the reference leaves it, wrong where it does not."""
    folder = tmp_path / "in_place"
    folder.mkdir()
    (folder / "kernel.py").write_text(IN_PLACE)
    (folder / "kernel.cu").write_text(IN_PLACE_CU)
    kernel = load_kernel(folder)
    study = Study("own", "in_place", ("1000",))
    checker = OwnProblemCheck(OwnProblemRuns(kernel, L4, study.simulation, kernel.workload.tolerance, 5))
    right, wrong = (checker.at(Config({"SKIP": skip}), kernel.problem("1000"), most=1e6) for skip in (0, 1))
    assert (right.fault_evidence, right.covered, right.judged, right.blocks) == (None, True, True, 16)
    assert wrong.fault_evidence is not None and "own_problem" == wrong.fault_evidence["check"]


def test_what_was_written_is_what_blocks_wrote() -> None:
    """An element counts once it is touched, by whichever block, at whatever width; stores elsewhere do not."""
    buffer: Any = SimpleNamespace(offset=64, size=32)
    record = WriteRecord(cast(Memory, None), by_block=True)
    record.write(np.array([16, 17]), 4, np.array([3, 3]))  # bytes 64 to 71: elements 0 to 3
    record.write(np.array([5]), 16, np.array([1]))  # bytes 80 to 95: elements 8 to 15
    record.write(np.array([33, 400]), 2, np.array([3, 3]))  # element 1 once more, and another buffer
    blocks, elements = record.elements(buffer, 2)
    assert list(zip(blocks.tolist(), elements.tolist(), strict=True)) == [
        *((1, element) for element in range(8, 16)),
        *((3, element) for element in range(4)),
    ]
    assert np.flatnonzero(record.written(buffer, 2)).tolist() == [*range(4), *range(8, 16)]


SAME = """
from evokern import Kernel, Launch, Parameter, ProblemField, SameAsDefault, Tensor, Tolerance, Workload, i32

kernel = Kernel(
    name="copied",
    genes=(Parameter("TILE", (32, 64), default=32), Parameter("WRONG", (0, 1), default=0)),
    fields=(ProblemField("N"),),
    launches=lambda c, p: [Launch("copied", -(-p.N // c.TILE), c.TILE, ("x", "y", i32(p.N)))],
    workload=Workload(
        tensors=lambda p, c: {"x": Tensor("f32", (p.N,)), "y": Tensor("f32", (p.N,), role="output")},
        reference=SameAsDefault(), tolerance={"y": Tolerance(1e-6, 1e-6)}, cpp_reference=False,
        flops=lambda p: p.N, bytes=lambda p: 8 * p.N, small_problems=("100",),
    ),
)
"""
COPIED = """#include "evokern_genes.h"
extern "C" __global__ void copied(const float* x, float* y, int n) {
  int i = blockIdx.x * TILE + threadIdx.x;
  if (i < n) y[i] = i < 5000 || !WRONG ? x[i] : 2 * x[i];
}
"""


def test_some_results_are_compared_if_the_reference_is_too_expensive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of the default candidate at the same places of its grid show an error that small problems do not."""
    (tmp_path / "kernel.py").write_text(SAME)
    (tmp_path / "kernel.cu").write_text(COPIED)
    kernel = load_kernel(tmp_path)
    problem = kernel.problem("N=20000")
    tolerance = dict(kernel.workload.tolerance)
    check = OwnProblemCheck(OwnProblemRuns(kernel, L4, Study("s", "copied", ("20000",)).simulation, tolerance, 3))
    monkeypatch.setattr(default_outputs.SameAsDefault, "affordable", lambda *_: False)
    right, wrong = (Config({"TILE": 64, "WRONG": number}) for number in (0, 1))
    assert not check.at(right, problem, most=1e7).judged and check.at(wrong, problem, most=1e7).fault_evidence is None
    fault, compared, total = check.compare_some(right, problem)
    assert (fault, total) == (None, 20000) and 64 <= compared < 5000
    fault, _, _ = check.compare_some(wrong, problem)
    assert fault is not None and "of 'y' in sampled blocks are wrong" in fault["message"]
    monkeypatch.setattr(full_size_check, "SOME_INSTRUCTIONS", 1)
    assert check.compare_some(wrong, problem) == (None, 0, 20000)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("x[i + 4096]", "fails at N=100: out of bounds at line 4; correct the kernel, write `reference` in kernel.py"),
        ("x[i]; while (n > 0) atomicAdd(y, 1.f)", "does not end within 1,000 warp instructions, perhaps never"),
    ],
)
def test_a_default_candidate_that_fails_is_no_reference(
    wrong: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message has the problem, the fault and the remedy."""
    monkeypatch.setattr(default_outputs, "MOST_INSTRUCTIONS", 1000)
    (tmp_path / "kernel.py").write_text(SAME)
    (tmp_path / "kernel.cu").write_text(COPIED.replace("i < 5000 || !WRONG ? x[i] : 2 * x[i]", wrong))
    kernel = load_kernel(tmp_path)
    with pytest.raises(KernelError, match=re.escape(told)):
        kernel.workload.reference(kernel.problem("N=100"), {"x": torch.ones(100, dtype=torch.float64)})


def test_check_names_what_a_default_candidate_is_compared_with(tmp_path: Path) -> None:
    """The default candidate equals itself, which does not make it correct."""
    (tmp_path / "kernel.py").write_text(SAME)
    (tmp_path / "kernel.cu").write_text(COPIED)
    kernel = load_kernel(tmp_path)
    folder = cast("Any", SimpleNamespace(
        kernel=kernel, small=[kernel.problem("100")], choice_variants=(), study_problems=[kernel.problem("300")],
    ))  # fmt: skip
    for results, words in (
        (simulated_run(folder), "without findings; compared with itself (no known result)"),
        (own_problem(folder), "blocks ran with equal results; compared with itself (no known result)"),
    ):
        ((state, text),) = results
        assert (state, words in text, "correct" in text) == (True, True, False), text


def test_without_a_compared_result_nothing_is_verified() -> None:
    """Complete coverage alone verifies no trial; stored stages without the number are older."""
    stage = {"state": "passed", "detail": "results not compared", "covered": True, "judged": False}
    assert "choose a smaller problem" in undecided({OWN_PROBLEM: stage})
    assert "choose a smaller problem" in undecided({OWN_PROBLEM: {**stage, "compared": [0, 100]}})
    assert undecided({OWN_PROBLEM: {**stage, "compared": [7, 100]}}) == ""
    assert undecided({OWN_PROBLEM: {**stage, "judged": True}}) == ""
