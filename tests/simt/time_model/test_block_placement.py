"""Grids of unequal blocks: each block's work is known from a few lines, and the SM that is done last makes the time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import simt_tools

from evokern import simt
from evokern.compile.build import Target, build
from evokern.compile.records import Built
from evokern.device.sim.predict import Predictor
from evokern.gate.comparison import tolerances
from evokern.hardware.profiles import chip
from evokern.ptx.program import PtxProgram
from evokern.simt.counters import Counters
from evokern.simt.time_model import placement
from evokern.simt.time_model import prediction as timemodel
from evokern.simt.time_model.latencies import latencies_of
from evokern.simt.time_model.pipes import PipeUse, demands, holds
from evokern.simt.time_model.timeline import Timeline
from evokern.study.discovery import find_study, kernel_of

SOURCE = r"""
extern "C" __global__ void turns(const int* steps, const float* x, float* y) {
  __shared__ float tile[256];
  const int block = blockIdx.y * gridDim.x + blockIdx.x;
  float sum = x[threadIdx.x];
  for (int s = 0; s < steps[block]; s++) {
    tile[threadIdx.x] = sum;
    __syncthreads();
    for (int i = 0; i < 64; i++) sum += tile[(threadIdx.x * 2 + i) & 255];
    __syncthreads();
  }
  y[block * 256 + threadIdx.x] = sum;
}
"""
H200 = chip("h200")


def _run(grid: tuple[int, int, int], steps: Sequence[int], blocks: Sequence[int]) -> tuple[PtxProgram, Counters]:
    module, memory = simt_tools.module_of(SOURCE), simt.Memory()
    data = (np.array(steps, np.int32), np.ones(256, np.float32), np.zeros(256 * len(steps), np.float32))
    args = [memory.allocate(name, array) for name, array in zip(("steps", "x", "y"), data, strict=True)]
    counters = simt.launch(
        module,
        simt.LaunchSpec("turns", grid, (256, 1, 1), blocks=blocks),
        args,
        memory,
        simt.LaunchOptions(sanitize=False),
    ).counters
    assert counters is not None
    return module.program("turns"), counters


def _facts(grid: tuple[int, int, int], steps: Sequence[int], resident: int, sms: int) -> timemodel.LaunchFacts:
    program, counters = _run(grid, steps, placement.line_blocks(grid))
    latencies = latencies_of(H200)
    contention_factor = timemodel.contention_factor(len(steps), resident, replace(H200, sms=sms))
    timeline = Timeline(
        program, latencies, {}, latencies.l2,
        PipeUse(holds(program, counters, H200), demands(program, counters, H200, contention_factor)),
    )  # fmt: skip
    ends = [end for record in counters.record for end in timeline.walk(record, counters.warps_per_block).blocks]
    work = timemodel.work_of(grid, counters, placement.block_runs(program, counters), ends, H200)
    return timemodel.LaunchFacts(
        blocks=grid[0] * grid[1], resident=resident, counters=counters, block_clocks=sum(ends) / len(ends),
        longest_clocks=max(ends), pipe_wait_clocks=0.0, working_set_bytes=0.0, unique_bytes=0.0, work=work,
    )  # fmt: skip


def _time(grid: tuple[int, int, int], steps: Sequence[int], resident: int = 2, sms: int = 8) -> float:
    return timemodel.predict(_facts(grid, steps, resident, sms), replace(H200, sms=sms)).time_us


LONGEST_FIRST = [8, 7, 6, 5, 4, 3, 2, 1]
FOLDED = [8, 7, 6, 5, 1, 2, 3, 4]


def _rows_slow(order: Sequence[int], heads: int) -> list[int]:
    return [steps for steps in order for _ in range(heads)]


def test_a_block_that_was_run_beside_others_has_the_work_it_has_alone() -> None:
    """What an instruction did is shared by how often a block ran it: pipes as if the block were counted by itself."""
    grid = (1, 8, 1)
    facts = _facts(grid, LONGEST_FIRST, 1, 8)
    assert facts.work is not None
    for block, steps in enumerate(LONGEST_FIRST):
        alone = timemodel.block_clocks(_run(grid, LONGEST_FIRST, [block])[1], H200)
        assert {name: clocks[block] for name, clocks in facts.work.pipes.items()} == pytest.approx(alone, rel=0.01)
        assert alone["shared"] > 500 * steps


def test_one_wave_takes_as_long_as_its_longest_block() -> None:
    """With an SM to each block, short blocks leave SMs idle and shorten nothing: all might be as long as that one."""
    uneven, longest = (_time((1, 8, 1), steps, sms=8) for steps in (LONGEST_FIRST, [8] * 8))
    mean = _time((1, 8, 1), [4, 5] * 4, sms=8)
    assert uneven == pytest.approx(longest, rel=0.02)
    assert uneven > 1.3 * mean


def test_long_blocks_that_share_their_sm_with_short_ones_are_faster() -> None:
    """Short blocks beside a long one fit into what it leaves of the pipes; where the longest meet it is slowest."""
    grid, sms = (4, 8, 1), 16
    folded, descending = (_time(grid, _rows_slow(order, 4), sms=sms) for order in (FOLDED, LONGEST_FIRST))
    meeting = _time(grid, _rows_slow([8, 6, 4, 2, 7, 5, 3, 1], 4), sms=sms)
    even = _time(grid, [4, 5] * 16, sms=sms)
    assert folded <= descending < 0.95 * meeting
    assert folded < 1.45 * even


def test_waiting_for_pipes_is_no_latency_of_uneven_blocks_either() -> None:
    """A quarter of the blocks' time spent waiting for pipes leaves three quarters of latency and the same time."""
    facts, eight = _facts((1, 8, 1), LONGEST_FIRST, 1, 8), replace(H200, sms=8)
    none, some = (timemodel.predict(replace(facts, pipe_wait_clocks=facts.block_clocks * part), eight)
                  for part in (0.0, 0.25))  # fmt: skip
    assert some.terms_us["latency"] == pytest.approx(0.75 * none.terms_us["latency"])
    assert some.time_us == none.time_us


def test_a_block_that_fills_a_pipe_makes_room_late() -> None:
    """Two that want the same pipe for 100 clocks each hold their SM for 200: the next block goes to the other SM."""
    facts = _facts((1, 8, 1), LONGEST_FIRST, 1, 8)
    wanted = np.array([100.0, 1.0, 100.0, 1.0, 100.0])
    work = placement.GridWork({"issue": wanted}, np.array([1.0, 50.0, 1.0, 50.0, 1.0]), np.zeros(5))
    found = timemodel.predict(replace(facts, blocks=5, resident=2, work=work), replace(H200, sms=2))
    assert found.terms_us["issue"] == pytest.approx(200 / H200.clock_mhz)


def test_blocks_go_where_room_comes_up_first() -> None:
    """One block to each SM, then a second; once all are full the next one follows the shortest, and chains add up."""
    two = placement.place([1.0] * 6, [4.0, 3.0, 2.0, 9.0, 9.0, 9.0], sms=3, resident=2)
    assert two.sm.tolist() == [0, 1, 2, 0, 1, 2]
    assert two.longest.tolist() == [1.0, 1.0, 1.0]
    one = placement.place([4.0, 3.0, 1.0, 2.0, 5.0], [4.0, 3.0, 1.0, 2.0, 5.0], sms=3, resident=1)
    assert one.sm.tolist() == [0, 1, 2, 2, 1]
    assert one.longest.tolist() == [4.0, 8.0, 3.0]


@pytest.mark.parametrize("rows_fast", [True, False])
def test_lines_know_every_block_of_folded_rows(rows_fast: bool) -> None:
    """Whichever axis holds the rows, and although folded ones jump half way, each block's share is found."""
    rows, heads = np.array(FOLDED * 2, float), 40
    grid = (16, heads, 1) if rows_fast else (heads, 16, 1)
    every = np.tile(rows, heads) if rows_fast else np.repeat(rows, heads)
    along = every[list(placement.line_blocks(grid))]
    assert len(along) <= 2 * placement.MAX_LINE_BLOCKS
    assert placement.extrapolated(grid, along).tolist() == every.tolist()


def test_a_long_axis_is_filled_in_evenly() -> None:
    """Between the blocks of a line, of which there are at most sixteen, work changes evenly."""
    grid = (1000, 1, 1)
    every = np.arange(1000.0)
    assert len(placement.line_blocks(grid)) == placement.MAX_LINE_BLOCKS
    assert placement.extrapolated(grid, every[list(placement.line_blocks(grid))]) == pytest.approx(every)


def test_work_that_lines_cannot_tell_is_not_guessed() -> None:
    """Blocks that differ by both coordinates together are not what the lines say, and the sampled ones show it."""
    grid = (8, 8, 1)
    x, y = np.meshgrid(np.arange(8), np.arange(8))
    sampled = timemodel.sample_blocks(64, 6)

    def explained(every: np.ndarray) -> bool:
        runs = every.reshape(-1, 1).astype(float)
        return placement.predicts_samples(grid, runs[list(placement.line_blocks(grid))], sampled, runs[list(sampled)])

    assert explained(10 + 3 * x + y)
    assert not explained(10 + 3 * x * y)


def test_blocks_count_as_equal_within_a_twentieth() -> None:
    """A grid of equal blocks is sampled as ever; those of a causal mask are not equal."""
    grid = (1, 8, 1)
    even, uneven = (placement.block_runs(*_run(grid, steps, range(8))) for steps in ([4] * 8, LONGEST_FIRST))
    assert placement.are_equal(even)
    assert not placement.are_equal(uneven)


@pytest.mark.thorough
def test_a_causal_mask_saves_nothing_while_each_sm_has_one_block() -> None:
    """The attention kernel at 2,8,512,64 in blocks of 64 rows: the last rows see all keys, mask or none."""
    study = find_study("attention-causal")
    kernel = kernel_of(study)
    config = kernel.space.default()
    predictor = Predictor(
        kernel, H200, study.timing, study.simulation, tolerances(kernel, study.gate.atol, study.gate.rtol)
    )  # fmt: skip

    def predicted(text: str) -> timemodel.Prediction:
        problem = kernel.problem(text)
        built = build(kernel, config, (problem,), Target(H200, None))
        assert isinstance(built, Built)
        found = predictor.predict(config, built, problem)
        assert found.sampled is None
        return found.total

    masked, whole = predicted("2,8,512,64,causal=1"), predicted("2,8,512,64")
    assert masked.time_us == pytest.approx(whole.time_us, rel=0.12)
    assert masked.terms_us["tensor"] > 0.9 * whole.terms_us["tensor"]
