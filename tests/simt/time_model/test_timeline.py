"""The timeline: loops that settle need no full walk, what comes first says nothing of the rest, pipes are shared."""

from __future__ import annotations

import numpy as np
import pytest
import simt_tools

from evokern import simt
from evokern.hardware.profiles import chip
from evokern.simt.time_model import timeline
from evokern.simt.time_model.latencies import latencies_of
from evokern.simt.time_model.pipes import Hold, PipeUse, demands, holds
from evokern.simt.time_model.timeline import BlockTimes, Timeline

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
extern "C" __global__ void independent(const float* x, float* y) {
  float a[8];
#pragma unroll
  for (int i = 0; i < 8; i++) a[i] = 0.f;
#pragma unroll
  for (int k = 0; k < 64; k++)
#pragma unroll
    for (int i = 0; i < 8; i++) a[i] = fmaf(a[i], 0.5f, 1.f + i);
  y[threadIdx.x] = a[0] + a[1] + a[2] + a[3] + a[4] + a[5] + a[6] + a[7];
}
__device__ void copy(const float4* x) {
  extern __shared__ float4 tile[];
  const unsigned at = (unsigned)__cvta_generic_to_shared(tile + threadIdx.x);
#pragma unroll
  for (int i = 0; i < 16; i++)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(at), "l"(x + threadIdx.x) : "memory");
}
__device__ void copy_group(const float4* x) {
  copy(x);
  asm volatile("cp.async.commit_group;" ::: "memory");
  asm volatile("cp.async.wait_group 0;" ::: "memory");
}
extern "C" __global__ void copies(const float4* x, float* y) { copy_group(x); }
extern "C" __global__ void copies_twice(const float4* x, float* y) {
  copy_group(x);
  copy_group(x);
}
extern "C" __global__ void copies_without_a_group(const float4* x, float* y) {
  copy(x);
  asm volatile("cp.async.wait_all;" ::: "memory");
}
extern "C" __global__ void one_late(const float* x, float* y) {
  float a[8];
#pragma unroll
  for (int i = 0; i < 8; i++) a[i] = 0.f;
  float sum = x[0];
  if (threadIdx.x >= 32) {
#pragma unroll
    for (int k = 0; k < 64; k++)
#pragma unroll
      for (int i = 0; i < 8; i++) a[i] = fmaf(a[i], 0.5f, 1.f + i);
    asm volatile("bar.sync 0;" : "+f"(a[0]), "+f"(a[1]), "+f"(a[2]), "+f"(a[3]), "+f"(a[4]), "+f"(a[5]), "+f"(a[6]),
                 "+f"(a[7]) :: "memory");
  } else {
    asm volatile("bar.sync 0;" : "+f"(sum) :: "memory");
#pragma unroll
    for (int k = 0; k < 500; k++) sum = fmaf(sum, 0.5f, 1.f);
  }
  y[threadIdx.x] = sum + a[0] + a[1] + a[2] + a[3] + a[4] + a[5] + a[6] + a[7];
}
"""
H200 = chip("h200")


def _walk(
    entry: str,
    *numbers: int,
    threads: int = 64,
    held: dict[int, Hold] | None = None,
    contention_factor: float | None = None,
) -> BlockTimes:
    """Walk one block, whose warps share the pipes with as many blocks as ``contention_factor`` says, or with nobody."""
    module, memory = simt_tools.module_of(SOURCE, ("--use_fast_math",)), simt.Memory()
    x, y = (memory.allocate(name, np.zeros(4 * threads, np.float32)) for name in "xy")
    args = [x, y, *(np.int32(number) for number in numbers)]
    result = simt.launch(
        module,
        simt.LaunchSpec(entry, (1, 1, 1), (threads, 1, 1), dynamic_shared=16 * threads),
        args,
        memory,
        simt.LaunchOptions(sanitize=False),
    )
    counters = result.counters
    assert counters is not None
    program, latencies = module.program(entry), latencies_of(H200)
    pipes = holds(program, counters, H200) if held is None else held
    shared = None if contention_factor is None else demands(program, counters, H200, contention_factor)
    line = Timeline(program, latencies, counters.conflicts(), latencies.l2, PipeUse(pipes, shared))
    (record,) = counters.record
    return line.walk(record, counters.warps_per_block)


CONTENTION = pytest.mark.parametrize(("threads", "contention_factor"), [(64, None), (64, 1.0), (512, 1.0), (512, 2.0)])


@pytest.mark.thorough
@CONTENTION
def test_loops_that_settle_take_as_long_as_walked_throughout(
    threads: int, contention_factor: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Means of the first turns stand for the others: the same time within a thousandth, waits too."""
    quick = _walk("load_then_compute", 20, 40, threads=threads, contention_factor=contention_factor)
    monkeypatch.setattr(timeline, "SETTLED", 1 << 30)
    whole = _walk("load_then_compute", 20, 40, threads=threads, contention_factor=contention_factor)
    assert quick.blocks == pytest.approx(whole.blocks, rel=1e-3)
    assert quick.waits == pytest.approx(whole.waits, rel=1e-2)


@pytest.mark.thorough
@CONTENTION
def test_what_a_kernel_does_first_says_nothing_of_the_rest(
    threads: int, contention_factor: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record longer than the walk: loads at the start, which wait long, are not taken for the loop after them."""
    whole = _walk("load_then_compute", 60, 100, threads=threads, contention_factor=contention_factor)
    monkeypatch.setattr(timeline, "MAX_STEPS", 300)
    cut = _walk("load_then_compute", 60, 100, threads=threads, contention_factor=contention_factor)
    assert cut.blocks == pytest.approx(whole.blocks, rel=0.05)
    assert cut.waits == pytest.approx(whole.waits, abs=0.02 * whole.blocks[0])


def test_special_functions_of_a_warp_follow_one_another() -> None:
    """Of four exponentials the last begins three times eight clocks after the first, instead of after one addition."""
    free, held = _walk("powers", threads=32, held={}), _walk("powers", threads=32)
    assert held.blocks[0] - free.blocks[0] == 3 * 8 - latencies_of(H200).alu


def test_warps_that_issue_together_share_the_issue_slots() -> None:
    """Four schedulers serve four warps of independent arithmetic as one, sixteen take four times as long."""
    times = {warps: _walk("independent", threads=32 * warps, contention_factor=1.0).blocks[0] for warps in (1, 4, 16)}
    assert times[4] == pytest.approx(times[1], rel=0.05)
    assert times[16] == pytest.approx(4 * times[4], rel=0.05)
    apart, together = _walk("independent", threads=512), _walk("independent", threads=512, contention_factor=1.0)
    assert apart.blocks[0] == pytest.approx(times[1], rel=0.05)
    assert together.blocks[0] - apart.blocks[0] == pytest.approx(together.waits["pipes"])


def test_blocks_beside_a_block_want_the_same_pipes() -> None:
    """A block that meets as much again of its own work takes twice as long where a pipe is full."""
    alone, co_resident = (
        _walk("independent", threads=512, contention_factor=contention_factor).blocks[0]
        for contention_factor in (1.0, 2.0)
    )
    assert co_resident == pytest.approx(2 * alone, rel=0.05)


def test_copies_of_all_warps_come_through_one_port() -> None:
    """Copies land after all bytes that were asked for before have come from L2, whichever warps they are for."""
    port = 16 * 512 / H200.l2_bytes_per_clock_per_sm
    times = {warps: _walk("copies", threads=32 * warps, contention_factor=1.0) for warps in (1, 4, 16)}
    for fewer, more in ((1, 4), (4, 16)):
        grown = times[more].blocks[0] - times[fewer].blocks[0]
        assert grown == pytest.approx((more - fewer) * port, rel=0.05)
    assert times[16].waits["async_copy"] == pytest.approx(16 * port + latencies_of(H200).l2, rel=0.1)
    assert times[16].waits["memory"] < 30
    apart = {warps: _walk("copies", threads=32 * warps).blocks[0] for warps in (1, 16)}
    assert apart[16] == apart[1]


def test_a_group_waits_for_its_own_copies() -> None:
    """What came with an earlier group does not come through the port again."""
    once, twice = (_walk(entry, threads=512, contention_factor=1.0).blocks[0] for entry in ("copies", "copies_twice"))
    assert twice == pytest.approx(2 * once, rel=0.03)


def test_waiting_for_all_copies_needs_no_group() -> None:
    """`cp.async.wait_all` waits for copies that nobody committed as long as for a group of them."""
    grouped, bare = (
        _walk(entry, threads=128, contention_factor=1.0).blocks[0] for entry in ("copies", "copies_without_a_group")
    )
    assert bare == pytest.approx(grouped, abs=3)


def test_a_barrier_opens_when_the_last_warp_has_had_its_pipes() -> None:
    """What a warp waits for pipes before a barrier, those wait too that stand there already."""
    threads, chain = 17 * 32, 500 * latencies_of(H200).alu
    alone, shared = (
        _walk("one_late", threads=threads, contention_factor=contention_factor).blocks[0]
        for contention_factor in (None, 1.0)
    )
    work = _walk("independent", threads=16 * 32, contention_factor=1.0).blocks[0]
    assert shared == pytest.approx(work + chain, rel=0.2)
    assert shared > alone + 0.7 * work
