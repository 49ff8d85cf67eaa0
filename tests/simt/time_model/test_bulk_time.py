"""Predicted times of bulk copies: the latency, the bytes over the port to L2, and what a ring hides of them."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from simt_tools import module_of

from evokern import simt
from evokern.hardware.profiles import chip
from evokern.simt.time_model.latencies import latencies_of
from evokern.simt.time_model.pipes import PipeUse, demands
from evokern.simt.time_model.timeline import Timeline

SOURCE = r"""
__device__ __forceinline__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void wait(const void* p, int parity) {
  asm volatile("{ .reg .pred P; W: mbarrier.try_wait.parity.shared::cta.b64 P, [%0], %1; @P bra D; bra W; D: }"
               :: "r"(at(p)), "r"(parity) : "memory");
}
extern "C" __global__ void kernel(float* out, const float* in, int turns) {
  __shared__ __align__(128) float tile[STAGES][BYTES / 4];
  __shared__ unsigned long long full[STAGES], empty[STAGES];
  const int t = threadIdx.x;
  if (t == 0) for (int i = 0; i < STAGES; i++)
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1; mbarrier.init.shared::cta.b64 [%1], 32; "
                 "fence.mbarrier_init.release.cluster;" :: "r"(at(full + i)), "r"(at(empty + i)) : "memory");
  __syncthreads();
  float sum = 0;
  for (int k = 0; k < turns; k++) {
    const int s = k % STAGES, phase = k / STAGES & 1;
    if (t == 32) {
      wait(empty + s, phase ^ 1);
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                   :: "r"(at(full + s)), "n"(BYTES) : "memory");
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                   :: "r"(at(tile[s])), "l"(in), "n"(BYTES), "r"(at(full + s)) : "memory");
    }
    if (t < 32) {
      wait(full + s, phase);
      sum += tile[s][t];
      asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(at(empty + s)) : "memory");
    }
  }
  if (t < 32) out[t] = sum;
}
"""
H200 = chip("h200")
TURNS = 32


@cache
def clocks(size: int, stages: int) -> float:
    """Return the clocks of a block that loads a tile of so many bytes in each turn."""
    module, memory = module_of(SOURCE, (f"-DBYTES={size}", f"-DSTAGES={stages}"), "compute_90a"), simt.Memory()
    data = np.ones(size // 4, np.float32)
    out, given = memory.allocate("out", np.zeros(32, np.float32)), memory.allocate("in", data, writable=False)
    result = simt.launch(
        module, simt.LaunchSpec("kernel", (1, 1, 1), (64, 1, 1)), [out, given, np.int32(TURNS)], memory
    )
    assert result.findings == ()
    assert result.counters is not None
    np.testing.assert_array_equal(out.read(), np.full(32, TURNS, np.float32))
    latencies, program = latencies_of(H200), module.program("kernel")
    use = PipeUse(demands=demands(program, result.counters, H200))
    (record,) = result.counters.record
    timeline = Timeline(program, latencies, {}, latencies.l2, use)
    return timeline.walk(record, result.counters.warps_per_block).blocks[0]


def test_a_single_tile_exposes_the_latency_of_each_copy() -> None:
    """Without a ring, each turn takes the latency and the time of the bytes."""
    expected = latencies_of(H200).l2 + 4096 / H200.l2_bytes_per_clock_per_sm
    assert clocks(4096, 1) / TURNS == pytest.approx(expected, rel=0.5)
    assert clocks(4096, 1) / TURNS > expected


def test_a_ring_hides_the_latency_but_not_the_bytes() -> None:
    """With enough stages, a turn takes the time of its bytes on the port."""
    of_bytes = 8192 / H200.l2_bytes_per_clock_per_sm
    assert clocks(8192, 4) / TURNS == pytest.approx(of_bytes, rel=0.25)
    assert clocks(8192, 4) < 0.6 * clocks(8192, 1)
