"""Work that a candidate leaves to blocks that a prediction does not count makes it no faster."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from evokern.compile.build import Target, build
from evokern.compile.records import Built
from evokern.declaration.genes import Config
from evokern.device.sim import worker as sim_worker
from evokern.device.sim.full_size_check import OwnProblemCheck
from evokern.device.sim.full_size_runs import FullSizeResult
from evokern.device.sim.jobs import SimSettings, Simulate
from evokern.device.sim.predict import Predicted, PredictedLaunch, Predictor
from evokern.device.sim.recount import Ran, is_short, slower
from evokern.device.sim.worker import SimWorker
from evokern.hardware.profiles import chip
from evokern.simt.time_model.prediction import Prediction
from evokern.study.discovery import WorkerContext, load_kernel
from evokern.study.settings import Study, TimingSettings
from evokern.study.trial import Evaluation, Outcome

L4 = chip("l4")
PROBLEM = "1920"
KERNEL = """
from evokern import Kernel, Launch, Parameter, ProblemField, Tensor, Tolerance, Workload, i32

kernel = Kernel(
    name="rows",
    genes=(Parameter("MOVES", (0, 1, 2, 3, 4), default=0, doc="which work moves away, or is wrong"),),
    fields=(ProblemField("M", doc="rows"),),
    launches=lambda c, p: [Launch("run", grid=-(-p.M // 8), block=128, args=("x", "y", i32(p.M)))],
    workload=Workload(
        tensors=lambda p, c: {"x": Tensor("f32", (p.M, 512)), "y": Tensor("f32", (p.M,), "output")},
        reference=lambda p, t: {"y": (t["x"] * t["x"]).sum(1)},
        tolerance={"y": Tolerance(atol=1e-3, rtol=1e-5)},
        flops=lambda p: 1024.0 * p.M,
        bytes=lambda p: 4.0 * p.M * 513,
        small_problems=("5", "24"),
    ),
)
"""
SOURCE = """
// y[m] = sum over k of x[m][k]^2, eight rows a block. Blocks at places that a prediction counts do one of theirs and
// leave the others to the block after; MOVES 2 does so at all places that may be counted where blocks differ, too.
// MOVES 3 is wrong in every odd block of a large grid but those places. With MOVES 4 even blocks do all the work.
__device__ bool counted(int block, int blocks) {
  bool found = false;
#pragma unroll
  for (int i = 0; i < 6; i++) found |= block == (int)rintf(i * (blocks - 1) / 5.0f);
#pragma unroll
  for (int i = 0; i < 16; i++) found |= MOVES == 2 && block == (int)rintf(i * (blocks - 1) / 15.0f);
  return MOVES && blocks > 99 && found;
}

__device__ void row(const float* x, float* y, int m) {
  __shared__ float sums[4];
  float sum = 0;
  for (int k = threadIdx.x; k < 512; k += 128) sum += x[m * 512 + k] * x[m * 512 + k];
  for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  __syncthreads();
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  const float wrong = MOVES == 3 && blockIdx.x % 2 && gridDim.x > 99 && !counted(blockIdx.x, gridDim.x);
  if (threadIdx.x == 0) y[m] = sums[0] + sums[1] + sums[2] + sums[3] + wrong;
}

extern "C" __global__ void run(const float* x, float* y, int M) {
  const int block = blockIdx.x, blocks = gridDim.x, before = (block + blocks - 1) % blocks;
  if (MOVES == 3 || MOVES == 4) {
    const int rows = MOVES == 3 ? 8 : block % 2 ? 0 : 16;
    for (int m = 8 * block; m < 8 * block + rows && m < M; m++) row(x, y, m);
    return;
  }
  const int own = counted(block, blocks) ? 1 : 8;
  const int last = blocks - 2;  // takes over for the last one, as 1 does for the first
  for (int m = 8 * block; m < 8 * block + own && m < M; m++) row(x, y, m);
  if (own == 1) return;
  if (counted(before, blocks)) for (int m = 8 * before + 1; m < 8 * before + 8; m++) row(x, y, m);
  if (block == last && counted(blocks - 1, blocks)) for (int m = 8 * blocks - 7; m < M; m++) row(x, y, m);
}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A kernel whose candidates move work from block to block."""
    found = tmp_path_factory.mktemp("rows")
    (found / "kernel.py").write_text(KERNEL)
    (found / "kernel.cu").write_text(SOURCE)
    return found


def _study(folder: Path) -> Study:
    return Study("rows", str(folder), (PROBLEM,), timing=replace(TimingSettings(), race=0.0))


def _built(folder: Path, config: Config) -> Built:
    kernel = load_kernel(folder)
    built = build(kernel, config, (kernel.problem(PROBLEM),), Target(L4, None))
    assert isinstance(built, Built), built.reason
    return built


def _evaluated(folder: Path, moves: int, best_us: float | None = None) -> Evaluation:
    kernel, study, config = load_kernel(folder), _study(folder), Config({"MOVES": moves})
    context, built = WorkerContext(folder, (kernel.problem(PROBLEM),), L4), _built(folder, config)
    settings = SimSettings(context, study.gate, study.timing, study.simulation, kernel.space.default(), 5)
    found = SimWorker(settings).handle(Simulate(config, built, None, best_us))
    assert found is not None
    return found


@pytest.mark.thorough
def test_work_in_blocks_that_are_not_counted_is_predicted_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Moving work makes a candidate no faster than the plain one, whether it would be the best or not."""
    plain = _evaluated(folder, 0)
    assert Outcome.MEASURED is plain.outcome, plain.reason
    assert plain.time_us is not None
    found = [_evaluated(folder, moves, best_us) for moves, best_us in ((1, None), (1, 0.0), (2, 0.0))]
    assert {Outcome.MEASURED} == {one.outcome for one in found}
    assert all(one.time_us is not None and one.time_us >= plain.time_us for one in found)
    monkeypatch.setattr(sim_worker, "is_short", lambda predicted, ran: False)
    assert _evaluated(folder, 0).time_us == plain.time_us
    unchecked = [_evaluated(folder, moves, 0.0).time_us for moves in (1, 2)]
    assert all(time is not None and time < 0.8 * plain.time_us for time in unchecked)


def test_a_wrong_answer_of_the_blocks_at_drawn_places_counts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is counted once more is judged once more: a source that knows the other places is wrong."""
    monkeypatch.setattr(OwnProblemCheck, "check", lambda self, *asked, **options: FullSizeResult(None))
    monkeypatch.setattr(sim_worker, "is_short", lambda predicted, ran: False)
    assert Outcome.MEASURED is _evaluated(folder, 3).outcome
    monkeypatch.setattr(sim_worker, "is_short", lambda predicted, ran: True)
    found = _evaluated(folder, 3)
    assert (Outcome.WRONG, "sampled_blocks") == (found.outcome, found.evidence.get("check"))
    assert Outcome.MEASURED is _evaluated(folder, 0).outcome


def test_a_drawn_block_may_have_nothing_to_do(folder: Path) -> None:
    """Whether some blocks write anything is asked where corners are among them, not of blocks at drawn places."""
    kernel, study, config = load_kernel(folder), _study(folder), Config({"MOVES": 4})
    predictor = Predictor(kernel, L4, study.timing, study.simulation, kernel.workload.tolerance)
    built, problem = _built(folder, config), kernel.problem(PROBLEM)
    assert predictor.predict(config, built, problem).sampled is None
    assert predictor.predict(config, built, problem, blocks=((1, 3, 5),)).sampled is None
    wrong = Config({"MOVES": 3})
    found = predictor.predict(wrong, _built(folder, wrong), problem, blocks=((1, 3, 5),)).sampled
    assert found is not None
    assert "written by sampled blocks are wrong; the first, " in found
    assert re.search(r"the first, y\[(\d+)\] of block (\d+), is ", found)


def _predicted(time_us: float, instructions: float) -> Predicted:
    one = Prediction(time_us, {"issue": time_us, "launch": 1.0})
    return Predicted(one, (PredictedLaunch(one, cast(Any, None), {}, np.full(100, instructions), {}),))


def test_the_slower_prediction_holds_where_blocks_do_more() -> None:
    """Up to 5 % more is no reason; work that drawn blocks show counts, and what only all of them show in proportion."""
    counted, some = _predicted(10.0, 50.0), (3, 40)
    assert is_short(counted, [Ran(0, some, 106)])
    assert not is_short(counted, [Ran(0, some, 105)])
    assert not is_short(counted, [Ran(0, None, 5100)])
    # Two odd blocks of a hundred.
    assert slower(counted, _predicted(12.0, 51.0), [Ran(0, some, 200)]).launches is counted.launches
    for instructions in (51.0, 80.0):
        again = replace(_predicted(16.0, instructions), sampled="wrong")
        assert "wrong" == slower(counted, again, [Ran(0, some, 160)]).sampled
    assert 16.0 == slower(counted, _predicted(16.0, 80.0), [Ran(0, some, 160)]).total.time_us
    assert 10.0 == slower(counted, _predicted(9.0, 80.0), [Ran(0, some, 160)]).total.time_us
    # All blocks do twice what even the drawn ones show: one of them does most of it.
    heavy = slower(counted, _predicted(12.0, 60.0), [Ran(0, None, 12000)]).total
    assert (24.0, 24.0, 1.0) == (heavy.time_us, heavy.terms_us["issue"], heavy.terms_us["launch"])
