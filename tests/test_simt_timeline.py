"""The timeline: loops that settle need no full walk, what comes first says nothing of the rest, pipes are held."""

from __future__ import annotations

import numpy as np
import pytest
import simt_tools

from evokern import simt
from evokern.profiles import chip
from evokern.simt import timeline
from evokern.simt.latencies import latencies_of
from evokern.simt.pipes import Hold, holds
from evokern.simt.timeline import Timeline, Walk

SOURCE = r"""
extern "C" __global__ void load_then_compute(const float* x, float* y, int loads, int steps) {
  __shared__ float row[64];
  int at = threadIdx.x;
  float sum = 0.f;
#pragma unroll 1
  for (int i = 0; i < loads; i++) {  // each address waits for the load before
    sum += x[at];
    at = (int)x[at] & 31;
  }
#pragma unroll 1
  for (int i = 0; i < steps; i++) {
    row[threadIdx.x] = sum;
    __syncthreads();
#pragma unroll 1
    for (int k = 0; k < 16; k++) sum = fmaf(sum, 0.5f, row[threadIdx.x ^ k]);
    __syncthreads();
  }
  y[threadIdx.x] = sum;
}
extern "C" __global__ void powers(const float* x, float* y) {
  float a = x[threadIdx.x];
  float of[4] = {exp2f(a), exp2f(a + 1.f), exp2f(a + 2.f), exp2f(a + 3.f)};
  for (int i = 0; i < 4; i++) y[32 * i + threadIdx.x] = of[i];
}
"""
H200 = chip("h200")


def _walk(entry: str, *numbers: int, threads: int = 64, held: dict[int, Hold] | None = None) -> Walk:
    module, memory = simt_tools.module_of(SOURCE, ("--use_fast_math",)), simt.Memory()
    x, y = (memory.allocate(name, np.zeros(4 * threads, np.float32)) for name in "xy")
    args = [x, y, *(np.int32(number) for number in numbers)]
    result = simt.launch(module, entry, (1, 1, 1), (threads, 1, 1), args, memory=memory, sanitize=False)
    counters = result.counters
    assert counters is not None
    program, latencies = module.program(entry), latencies_of(H200)
    pipes = holds(program, counters, H200) if held is None else held
    line = Timeline(program, latencies, counters.conflicts(), latencies.l2, pipes)
    (record,) = counters.record
    return line.walk(record, counters.warps_per_block)


def test_loops_that_settle_take_as_long_as_walked_throughout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Means of the first turns stand for the others: the same time within a thousandth, waits too."""
    quick = _walk("load_then_compute", 20, 40)
    monkeypatch.setattr(timeline, "SETTLED", 1 << 30)
    whole = _walk("load_then_compute", 20, 40)
    assert quick.blocks == pytest.approx(whole.blocks, rel=1e-3)
    assert quick.waits == pytest.approx(whole.waits, rel=1e-2)


def test_what_a_kernel_does_first_says_nothing_of_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record longer than the walk: loads at the start, which wait long, are not taken for the loop after them."""
    whole = _walk("load_then_compute", 60, 100)
    monkeypatch.setattr(timeline, "MOST_STEPS", 1500)
    cut = _walk("load_then_compute", 60, 100)
    assert cut.blocks == pytest.approx(whole.blocks, rel=0.05)


def test_special_functions_of_a_warp_follow_one_another() -> None:
    """Of four exponentials the last begins three times eight clocks after the first, instead of after one addition."""
    free, held = _walk("powers", threads=32, held={}), _walk("powers", threads=32)
    assert held.blocks[0] - free.blocks[0] == 3 * 8 - latencies_of(H200).alu
