"""Predicted times of clusters: what comes from another SM takes longer, blocks meet, and start together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from simt_tools import module_of

from evokern import simt
from evokern.hardware.profiles import chip
from evokern.simt.counters import Counters
from evokern.simt.time_model import placement
from evokern.simt.time_model.latencies import latencies_of
from evokern.simt.time_model.pipes import PipeUse
from evokern.simt.time_model.prediction import contention_factor
from evokern.simt.time_model.timeline import Timeline

SOURCE = r"""
__device__ __forceinline__ unsigned map(const void* p, unsigned rank) {
  const unsigned own = (unsigned)__cvta_generic_to_shared(p);
  unsigned there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(own), "r"(rank));
  return there;
}
#define MEET() asm volatile("barrier.cluster.arrive; barrier.cluster.wait;" ::: "memory")
// A chain of loads, each of which gives the next one's address, from the other block or the own one.
extern "C" __global__ void chain(unsigned* out, int turns, int work) {
  __shared__ unsigned next[32];
  const int t = threadIdx.x;
  unsigned rank; asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  float busy = t;
  if (rank) for (int i = 0; i < work; i++) busy = sqrtf(busy);
  next[t] = (t * 4 + 4) % 128;
  MEET();
  unsigned at = t * 4;
  const unsigned there = map(next, rank ^ 1), here = (unsigned)__cvta_generic_to_shared(next);
  for (int i = 0; i < turns; i++)
    asm volatile("ld.SPACE.u32 %0, [%1];" : "=r"(at) : "r"(at + WHERE) : "memory");
  MEET();
  out[blockIdx.x * 32 + t] = at + (busy == 0.5f);
}
"""
H200 = chip("h200")


def walked(turns: int, work: int = 0, *, remote: bool) -> tuple[tuple[float, ...], Counters]:
    """Return the clocks of both blocks, and what was counted."""
    source = SOURCE.replace("SPACE", "shared::cluster" if remote else "shared")
    source = source.replace("WHERE", "there" if remote else "here + 0 * there")
    module, memory = module_of(source, (), "compute_90"), simt.Memory()
    out = memory.allocate("out", np.zeros(64, np.uint32))
    args = [out, np.int32(turns), np.int32(work)]
    result = simt.launch(module, simt.LaunchSpec("chain", (2, 1, 1), (32, 1, 1), cluster=(2, 1, 1)), args, memory)
    assert result.findings == ()
    counters = result.counters
    assert counters is not None
    np.testing.assert_array_equal((np.arange(64) % 32 * 4 + 4 * turns) % 128, out.read())
    latencies = latencies_of(H200)
    timeline = Timeline(module.program("chain"), latencies, {}, latencies.l2, PipeUse())
    (record,) = counters.record
    return timeline.walk(record, counters.warps_per_block, ranks=counters.ranks).blocks, counters


def test_a_load_from_another_block_takes_the_way_between_sms() -> None:
    """Each turn of a dependent chain takes as much longer as the latencies say, and its accesses are counted."""
    turns = 64
    (near, _), own = walked(turns, remote=False)
    (far, _), counters = walked(turns, remote=True)
    difference = latencies_of(H200).cluster - latencies_of(H200).shared
    assert abs((far - near) / turns - difference) < 4
    assert (own.cluster_accesses.sum(), counters.cluster_accesses.sum()) == (0, 64 * turns)
    assert (own.ranks, own.barriers) == (2, 0)


def test_blocks_of_a_cluster_wait_for_one_another() -> None:
    """Who has nothing to do before the barrier is not done before the other block that has."""
    idle, _ = walked(1, remote=True)
    busy, _ = walked(1, 200, remote=True)
    assert min(busy) > max(idle) + 200
    assert abs(busy[0] - busy[1]) < 50


def test_blocks_of_a_cluster_start_together() -> None:
    """A cluster waits until there is room for all of its blocks; without clusters a block starts where one ends."""
    clocks = np.array([100.0, 100.0, 1000.0, 100.0, 100.0, 100.0])
    alone = placement.place(clocks, clocks, 3, 1)
    assert max(alone.longest) == 1000.0
    pairs = placement.place(clocks, clocks, 3, 1, [(0, 1), (2, 3), (4, 5)])
    assert max(pairs.longest) == 1100.0
    few = replace(H200, sms=12)
    assert contention_factor(12, 1, few) == contention_factor(12, 1, few, 4) == 1.0


def test_clusters_need_space_in_one_part_of_the_chip() -> None:
    """Of 33 clusters of four blocks, an H200 runs 30 at once, although it has 132 SMs; blocks alone take one round."""
    assert [H200.clusters_at_once(ranks, 1) for ranks in (1, 2, 4, 8)] == [132, 66, 30, 15]
    clocks = np.full(132, 100.0)
    fours = [tuple(range(first, first + 4)) for first in range(0, 132, 4)]
    assert max(placement.place(clocks, clocks, 132, 1).longest) == 100.0
    assert max(placement.place(clocks, clocks, 132, 1, fours, H200.clusters_at_once(4, 1)).longest) == 200.0
    assert contention_factor(132, 2, H200, 4) == contention_factor(132, 2, H200)
