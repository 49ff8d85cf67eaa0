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
                   :: "r"(at(tile[s])), "l"(in), "n"(BYTES / PARTS), "r"(at(full + s)) : "memory");
      if (PARTS == 2 && turns > 1)
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                     :: "r"(at(tile[s]) + BYTES / 2), "l"(in), "n"(BYTES / 2), "r"(at(full + s)) : "memory");
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
STORES = r"""
extern "C" __global__ void kernel(float* out, const float* in, int turns) {
  __shared__ __align__(128) float tile[BYTES / 4];
  if (threadIdx.x < 32) for (int i = threadIdx.x; i < BYTES / 4; i += 32) tile[i] = turns;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) for (int k = 0; k < turns; k++) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
                 :: "l"(out), "r"((unsigned)__cvta_generic_to_shared(tile)), "n"(BYTES) : "memory");
    asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group" READ " 0;" ::: "memory");
  }
}
"""
MULTICAST = r"""
__device__ __forceinline__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void wait(const void* p, int parity) {
  asm volatile("{ .reg .pred P; W: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 P, [%0], %1; @P bra D; "
               "bra W; D: }" :: "r"(at(p)), "r"(parity) : "memory");
}
extern "C" __global__ void kernel(float* out, const float* in, int turns) {
  __shared__ __align__(128) float tile[BYTES / 4];
  __shared__ unsigned long long full, empty;
  const int t = threadIdx.x;
  unsigned rank; asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  if (t == 0)
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1; mbarrier.init.shared::cta.b64 [%1], 2; "
                 "fence.mbarrier_init.release.cluster;" :: "r"(at(&full)), "r"(at(&empty)) : "memory");
  asm volatile("barrier.cluster.arrive; barrier.cluster.wait;" ::: "memory");
  unsigned first; asm volatile("mapa.shared::cluster.u32 %0, %1, 0;" : "=r"(first) : "r"(at(&empty)));
  float sum = 0;
  for (int k = 0; k < turns; k++) {
    if (t == 32) {
      if (rank == 0) wait(&empty, k & 1 ^ 1);
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(at(&full)), "n"(BYTES) : "memory");
    }
    asm volatile("barrier.cluster.arrive; barrier.cluster.wait;" ::: "memory");
    if (t == 32 && rank == 0)
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                   "[%0], [%1], %2, [%3], %4;"
                   :: "r"(at(tile)), "l"(in), "n"(BYTES), "r"(at(&full)), "h"((short)3) : "memory");
    if (t < 32) {
      wait(&full, k & 1);
      sum += tile[t];
      for (int i = 0; i < work(rank); i++) sum = sqrtf(sum * sum);
      __syncwarp();
      if (t == 0)
        asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" :: "r"(first) : "memory");
    }
  }
  asm volatile("barrier.cluster.arrive; barrier.cluster.wait;" ::: "memory");
  if (t < 32) out[t] = sum;
}
"""
H200 = chip("h200")
TURNS = 32


@cache
def clocks(size: int, stages: int, parts: int = 1) -> float:
    """Return the clocks of a block that loads a tile of so many bytes in each turn, as one or two copies."""
    (found,) = _clocks(SOURCE, (f"-DBYTES={size}", f"-DSTAGES={stages}", f"-DPARTS={parts}"), size, 1)
    return found


def _clocks(source: str, macros: tuple[str, ...], size: int, ranks: int) -> tuple[float, ...]:
    """Return the clocks of the blocks of a cluster, in which every thread of a warp ends with the number of turns."""
    module, memory = module_of(source, macros, "compute_90a"), simt.Memory()
    data = np.ones(size // 4, np.float32)
    out, given = memory.allocate("out", np.zeros(size // 4, np.float32)), memory.allocate("in", data, writable=False)
    spec = simt.LaunchSpec("kernel", (ranks, 1, 1), (64, 1, 1), cluster=(ranks, 1, 1))
    result = simt.launch(module, spec, [out, given, np.int32(TURNS)], memory)
    assert result.findings == ()
    assert result.counters is not None
    np.testing.assert_array_equal(out.read()[:32], np.full(32, TURNS, np.float32))
    latencies, program = latencies_of(H200), module.program("kernel")
    use = PipeUse(demands=demands(program, result.counters, H200))
    (record,) = result.counters.record
    timeline = Timeline(program, latencies, {}, latencies.l2, use)
    return timeline.walk(record, result.counters.warps_per_block, ranks=ranks).blocks


def test_a_single_tile_exposes_the_latency_of_each_copy() -> None:
    """Without a ring, each turn takes the latency and the time of the bytes."""
    expected = latencies_of(H200).copy_l2 + 4096 / H200.l2_bytes_per_clock_per_sm
    assert clocks(4096, 1) / TURNS == pytest.approx(expected, rel=0.5)
    assert clocks(4096, 1) / TURNS > expected


def test_a_ring_hides_the_latency_but_not_the_bytes() -> None:
    """With enough stages, a turn takes the time of its bytes on the port."""
    of_bytes = 8192 / H200.l2_bytes_per_clock_per_sm
    assert clocks(8192, 4) / TURNS == pytest.approx(of_bytes, rel=0.25)
    assert clocks(8192, 4) < 0.6 * clocks(8192, 1)


def test_copies_of_one_phase_are_queued_wherever_they_are_issued() -> None:
    """Two halves that different segments issue take as long as one copy."""
    assert clocks(8192, 4, 2) == pytest.approx(clocks(8192, 4), rel=0.1)


def test_a_wait_for_stores_takes_the_time_of_their_bytes() -> None:
    """Until shared memory is read, the bytes pass the port; until the stores end, they also reach L2."""
    size = 8192
    read, ended = (_clocks(STORES, (f"-DBYTES={size}", f'-DREAD="{word}"'), size, 1)[0] for word in (".read", ""))
    assert read / TURNS == pytest.approx(size / H200.l2_bytes_per_clock_per_sm, rel=0.25)
    assert (ended - read) / TURNS == pytest.approx(latencies_of(H200).l2, rel=0.05)


def test_blocks_of_a_cluster_wait_for_a_multicast_and_for_each_others_release() -> None:
    """Each turn takes the copy, which one block issues for both, and the work of the block that releases last."""
    size = 4096
    least = latencies_of(H200).copy_l2 + 2 * size / H200.l2_bytes_per_clock_per_sm  # both blocks receive all bytes
    plain = _clocks(MULTICAST, (f"-DBYTES={size}", "-Dwork(rank)=0"), size, 2)
    assert min(plain) / TURNS > least
    for busy in (0, 1):
        slowed = _clocks(MULTICAST, (f"-DBYTES={size}", f"-Dwork(rank)=(rank == {busy} ? 40 : 0)"), size, 2)
        assert min(slowed) > min(plain) + 40 * 20 * TURNS
