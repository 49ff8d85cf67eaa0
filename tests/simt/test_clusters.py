"""Thread-block clusters: blocks side by side that reach one another's shared memory."""

from __future__ import annotations

import numpy as np
import pytest
from simt_tools import launch, module_of, ptx_of

from evokern import simt
from evokern.errors import SourceError, UsageError
from evokern.simt.clusters.layout import Cluster, cluster_numbers, members_of

OPTIONS = ("-default-device", "--std=c++17")
SOURCE = r"""
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
#define SREG(name) [] { unsigned v; asm volatile("mov.u32 %0, %%" name ";" : "=r"(v)); return v; }()
__device__ __forceinline__ void meet() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ unsigned map(const void* p, unsigned rank) {
  unsigned there;
  const unsigned own = (unsigned)__cvta_generic_to_shared(p);
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(own), "r"(rank));
  return there;
}
__device__ __forceinline__ int block() { return blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z); }

// Each block gathers one value of every block of its cluster, by 32-bit addresses.
extern "C" __global__ void gather(float* out, float* unused) {
  __shared__ float part[64];
  const int t = threadIdx.x, ranks = SREG("cluster_nctarank");
  part[t] = 1000 * block() + t;
  meet();
  for (int r = 0; r < ranks; r++) {
    float value;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(map(part + t, r)) : "memory");
    out[(block() * ranks + r) * 64 + t] = value;
  }
  meet();
}
// The same through generic addresses, which a function that knows nothing of clusters reads and writes.
__device__ __noinline__ float swapped(float* at, float with) { float old = *at; *at = with; return old; }
extern "C" __global__ void generic(float* out, float* unused) {
  __shared__ float part[64];
  const auto cluster = cg::this_cluster();
  const int t = threadIdx.x, ranks = cluster.num_blocks();
  part[t] = 1000 * block() + t;
  for (int r = 0; r < ranks; r++) {
    cluster.sync();  // each turn a permutation of the blocks
    float* there = cluster.map_shared_rank(part, (cluster.block_rank() + r) % ranks);
    out[(block() * ranks + r) * 64 + t] = swapped(there + t, 1000 * block() + t);
    cluster.sync();
  }
}
// All threads of a cluster add into the counters of its first block.
extern "C" __global__ void count(float* out, float* unused) {
  __shared__ int sums[3];
  const auto cluster = cg::this_cluster();
  if (threadIdx.x < 3) sums[threadIdx.x] = 0;
  cluster.sync();
  int* there = cluster.map_shared_rank(sums, 0);
  const int before = atomicAdd(there, 1);
  atomicMax(there + 1, (int)(cluster.thread_rank()));
  asm volatile("red.relaxed.cluster.shared::cluster.add.u32 [%0], %1;" :: "r"(map(sums + 2, 0)), "r"(2) : "memory");
  cluster.sync();
  if (threadIdx.x < 3) out[block() * 4 + threadIdx.x] = cluster.block_rank() ? -1 : sums[threadIdx.x];
  if (threadIdx.x == 3) out[block() * 4 + 3] = before >= 0;
}
extern "C" __global__ void registers(unsigned* out, float* unused) {
  __shared__ float part[64];
  const unsigned ranks = SREG("cluster_nctarank"), rank = SREG("cluster_ctarank");
  unsigned found[] = {
    SREG("cluster_ctaid.x"), SREG("cluster_ctaid.y"), SREG("cluster_ctaid.z"), rank, SREG("cluster_nctaid.x"),
    SREG("cluster_nctaid.y"), SREG("cluster_nctaid.z"), ranks, SREG("clusterid.x"), SREG("clusterid.y"),
    SREG("clusterid.z"), SREG("nclusterid.x"), SREG("nclusterid.y"), SREG("nclusterid.z"), 0, 0, 0, 0,
  };
  asm("{ .reg .pred p; mov.pred p, %%is_explicit_cluster; selp.u32 %0, 1, 0, p; }" : "=r"(found[14]));
  const unsigned there = map(part + 5, ranks - 1);
  asm("getctarank.shared::cluster.u32 %0, %1;" : "=r"(found[15]) : "r"(there));
  asm("getctarank.shared::cluster.u32 %0, %1;" : "=r"(found[16]) : "r"((unsigned)__cvta_generic_to_shared(part)));
  unsigned long long wide;
  asm("cvta.shared::cluster.u64 %0, %1;" : "=l"(wide) : "l"((unsigned long long)there));
  unsigned own, any;
  asm("{ .reg .pred p; isspacep.shared::cta p, %1; selp.u32 %0, 1, 0, p; }" : "=r"(own) : "l"(wide));
  asm("{ .reg .pred p; isspacep.shared::cluster p, %1; selp.u32 %0, 1, 0, p; }" : "=r"(any) : "l"(wide));
  found[17] = own + 2 * any;
  if (threadIdx.x == 0) for (int i = 0; i < 18; i++) out[block() * 18 + i] = found[i];
}
// What addresses of four ranks are, and what they read.
extern "C" __global__ void addresses(unsigned* out, float* unused) {
  __shared__ unsigned value;
  const unsigned rank = SREG("cluster_ctarank"), own = (unsigned)__cvta_generic_to_shared(&value);
  const unsigned plain = own & 0xffffff;
  const unsigned next = (rank + 1) % 4;
  value = 1000 * rank;
  meet();
  unsigned found[14] = {own - plain};
  for (unsigned r = 0; r < 4; r++) found[1 + r] = map(&value, r) - plain;
  asm("getctarank.shared::cluster.u32 %0, %1;" : "=r"(found[5]) : "r"(own));
  asm("getctarank.shared::cluster.u32 %0, %1;" : "=r"(found[6]) : "r"(plain));
  const unsigned long long wide = (unsigned long long)&value, first = wide & ~0xff000000ull;
  found[7] = (unsigned)(wide - first);
  asm("{ .reg .pred p; isspacep.shared::cta p, %1; selp.u32 %0, 1, 0, p; }" : "=r"(found[8]) : "l"(wide));
  const unsigned long long other = first | next << 24;
  asm("{ .reg .pred p; isspacep.shared::cta p, %1; selp.u32 %0, 1, 0, p; }" : "=r"(found[9]) : "l"(other));
  asm("{ .reg .pred p; isspacep.shared::cluster p, %1; selp.u32 %0, 1, 0, p; }" : "=r"(found[10]) : "l"(other));
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(found[11]) : "r"(plain) : "memory");
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(found[12]) : "r"(own) : "memory");
  found[13] = *(volatile unsigned*)first;
  if (threadIdx.x == 0) for (int i = 0; i < 14; i++) out[rank * 14 + i] = found[i];
  meet();
}
"""
SHAPES = [((2, 1, 1), (4, 3, 1)), ((1, 2, 1), (3, 4, 1)), ((1, 4, 1), (2, 8, 1)), ((1, 8, 1), (1, 16, 1)),
          ((2, 2, 2), (4, 2, 2)), ((3, 1, 1), (6, 1, 2)), ((1, 1, 1), (2, 2, 1))]  # fmt: skip
"""Clusters, and grids of whole ones."""


def run(
    entry: str, out: np.ndarray, grid: tuple[int, int, int], **options: object
) -> tuple[np.ndarray, simt.LaunchResult]:
    """Run a kernel of 64 threads a block and return what it wrote."""
    memory = simt.Memory()
    args = [memory.allocate("out", out, initialised=False), memory.allocate("unused", np.zeros(1, np.float32))]
    module = module_of(SOURCE, OPTIONS, "compute_90")
    result = launch(module, simt.LaunchSpec(entry, grid, (64, 1, 1)), args, memory, source=SOURCE, **options)
    return args[0].read(), result


@pytest.mark.parametrize(("cluster", "grid"), SHAPES)
@pytest.mark.parametrize("entry", ["gather", "generic"])
@pytest.mark.parametrize("options", [{}, {"sanitize": False}, {"batch_blocks": 1}], ids=["checked", "bare", "one each"])
def test_each_block_reaches_all_of_its_cluster(
    entry: str, cluster: tuple[int, int, int], grid: tuple[int, int, int], options: dict[str, object]
) -> None:
    """What blocks read of one another is right along every axis, however many run side by side, without a finding."""
    blocks, ranks = int(np.prod(grid)), int(np.prod(cluster))
    found, result = run(entry, np.zeros(blocks * ranks * 64, np.float32), grid, cluster=cluster, **options)
    assert (result.findings, result.completed) == ((), True)
    first = cluster_numbers(grid, cluster)
    members = np.array(members_of(grid, cluster))[first]
    if entry == "generic":  # in turn r the block of the rank r before wrote what is read r turns later
        rank = np.array([list(row).index(block) for block, row in enumerate(members)])
        turn = np.arange(ranks)
        owner = members[np.arange(blocks)[:, None], (rank[:, None] + np.minimum(turn, 1)) % ranks]
        members = np.where(turn == 0, np.arange(blocks)[:, None], owner)
    expected = 1000 * members[:, :, None] + np.arange(64)
    np.testing.assert_array_equal(expected, found.reshape(blocks, ranks, 64))


@pytest.mark.parametrize(("cluster", "grid"), SHAPES)
def test_atomics_of_a_cluster_add_up(cluster: tuple[int, int, int], grid: tuple[int, int, int]) -> None:
    """Atomic updates of all threads of a cluster, by generic and shared::cluster addresses, meet in one block."""
    blocks, ranks = int(np.prod(grid)), int(np.prod(cluster))
    found, result = run("count", np.zeros(blocks * 4, np.float32), grid, cluster=cluster)
    assert (result.findings, result.completed) == ((), True)
    first = np.array([row[0] for row in members_of(grid, cluster)])
    expected = np.full((blocks, 3), -1.0)
    expected[first] = [64 * ranks, 64 * ranks - 1, 128 * ranks]
    np.testing.assert_array_equal(expected, found.reshape(blocks, 4)[:, :3])


@pytest.mark.parametrize(("cluster", "grid"), SHAPES)
def test_special_registers_name_the_place_in_the_cluster(
    cluster: tuple[int, int, int], grid: tuple[int, int, int]
) -> None:
    """Ids, ranks and extents are those of PTX ISA chapter 10; addresses know whose block they mean."""
    blocks, ranks = int(np.prod(grid)), int(np.prod(cluster))
    found, result = run("registers", np.zeros(blocks * 18, np.uint32), grid, cluster=cluster)
    assert result.findings == ()
    number = np.arange(blocks)
    at = np.stack([number % grid[0], number // grid[0] % grid[1], number // (grid[0] * grid[1])], 1)
    inside, outside = at % cluster, at // cluster
    rank = (inside[:, 2] * cluster[1] + inside[:, 1]) * cluster[0] + inside[:, 0]
    rows = found.reshape(blocks, 18)
    np.testing.assert_array_equal(inside, rows[:, :3])
    np.testing.assert_array_equal(rank, rows[:, 3])
    np.testing.assert_array_equal([[*cluster, ranks]] * blocks, rows[:, 4:8])
    np.testing.assert_array_equal(outside, rows[:, 8:11])
    np.testing.assert_array_equal([np.array(grid) // cluster] * blocks, rows[:, 11:14])
    np.testing.assert_array_equal([[1, ranks - 1]] * blocks, rows[:, 14:16])
    np.testing.assert_array_equal(rank, rows[:, 16])
    np.testing.assert_array_equal(np.where(rank == ranks - 1, 3, 2 if ranks > 1 else 3), rows[:, 17])


@pytest.mark.parametrize("options", [{}, {"sanitize": False}], ids=["checked", "bare"])
def test_addresses_hold_the_rank_of_their_block(options: dict[str, object]) -> None:
    """A block's own addresses, generic ones too, hold its rank from bit 24 on: what four ranks gave on an H100."""
    found, result = run("addresses", np.zeros((4, 14), np.uint32), (4, 1, 1), cluster=(4, 1, 1), **options)
    assert (result.findings, result.completed) == ((), True)
    of = np.arange(4) << 24
    for rank, row in enumerate(found):
        own = [of[rank], *of, rank, 0, of[rank], 1, 0, 1, 0, 1000 * rank, 0]
        np.testing.assert_array_equal(own, row)


def test_without_a_cluster_each_block_is_one() -> None:
    """A launch that names no cluster runs as before: clusters of one block, which is not explicit."""
    found, result = run("registers", np.zeros(6 * 18, np.uint32), (3, 2, 1))
    assert result.findings == ()
    rows = found.reshape(6, 18)
    assert rows[:, 3:8].tolist() == [[0, 1, 1, 1, 1]] * 6
    assert rows[:, 14].tolist() == [0] * 6
    assert rows[:, 8].tolist() == [0, 1, 2] * 2


DEMANDS = """
extern "C" __global__ void __cluster_dims__(1, 2, 1) pair(int* x) { x[blockIdx.y] = 1; }
extern "C" __global__ void any(int* x) { x[blockIdx.y] = 1; }
"""


@pytest.mark.parametrize(
    ("entry", "grid", "cluster", "told"),
    [
        ("pair", (1, 4, 1), (1, 4, 1), r"pair requires clusters of \(1, 2, 1\) .* the launch uses \(1, 4, 1\)"),
        (
            "pair",
            (1, 3, 1),
            None,
            r"3 blocks along y, .*\(1, 2, 1\): launch a multiple of 2",
        ),
        ("any", (4, 6, 1), (4, 4, 1), r"cluster of \(4, 4, 1\) has 16 blocks, .* 8:"),
        ("any", (4, 6, 1), (0, 1, 1), r"cluster of \(0, 1, 1\) has no blocks"),
        ("any", (5, 1, 1), (2, 1, 1), r"5 blocks along x"),
    ],
)
def test_clusters_that_cannot_be_are_refused(
    entry: str, grid: tuple[int, int, int], cluster: tuple[int, int, int] | None, told: str
) -> None:
    """Values and remedy are named before anything runs."""
    memory = simt.Memory()
    x = memory.allocate("x", np.zeros(8, np.int32))
    module = module_of(DEMANDS, (), "compute_90")
    with pytest.raises(UsageError, match=told):
        simt.launch(module, simt.LaunchSpec(entry, grid, (32, 1, 1), cluster=cluster), [x], memory)


def test_a_chip_without_clusters_is_named() -> None:
    """PTX for an older chip may run in clusters on a newer one, and not on its own."""
    memory = simt.Memory()
    x = memory.allocate("x", np.zeros(8, np.int32))
    module = module_of(DEMANDS.splitlines()[2], (), "compute_89")
    spec = simt.LaunchSpec("any", (1, 2, 1), (1, 1, 1), cluster=(1, 2, 1))
    with pytest.raises(UsageError, match=r"clusters of \(1, 2, 1\) need sm_90 or later, not sm_89"):
        simt.launch(module, spec, [x], memory, simt.LaunchOptions(architecture="sm_89"))
    assert simt.launch(module, spec, [x], memory, simt.LaunchOptions(architecture="sm_90")).completed


def test_some_blocks_bring_their_clusters_along() -> None:
    """Blocks that are asked for run with the others of their clusters, each cluster's side by side by ranks."""
    grid, cluster = (3, 4, 1), (1, 2, 1)
    out = np.full(12 * 2 * 64, -1, np.float32)
    found, result = run("gather", out, grid, cluster=cluster, blocks=[8, 1, 11])
    assert result.counters is not None
    assert result.counters.blocks == (8, 11, 1, 4)
    assert np.flatnonzero((found.reshape(12, -1) >= 0).all(1)).tolist() == [1, 4, 8, 11]
    assert Cluster((1, 1, 1), explicit=False).whole(grid, [5, 3]) == (5, 3)


@pytest.mark.parametrize(
    ("text", "cluster", "told"),
    [
        ("st.bulk.weak.shared::cta [%r1], %rd1, 0;", (2, 1, 1), "st.bulk"),
        ("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r1], [%r2], 16, [%r3];", (2, 1, 1),
         "cp.async.bulk"),
        ("ld.acquire.cluster.global.u32 %r1, [%rd1];", (2, 1, 1), "synchronisation through global memory"),
        ("atom.acq_rel.cta.global.add.u32 %r1, [%rd1], 1;", (2, 1, 1), "synchronisation through global memory"),
        ("red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r1], %r2, [%r3];",
         (2, 1, 1), "red.async"),
    ],
)  # fmt: skip
def test_what_cannot_be_checked_in_clusters_is_refused(text: str, cluster: tuple[int, int, int], told: str) -> None:
    """Asynchronous stores, other blocks' mbarriers and narrow scopes in global memory are named before any run."""
    head = (
        ".version 8.6\n.target sm_90\n.address_size 64\n.visible .entry k()\n{\n.reg .b32 %r<9>;\n.reg .b64 %rd<9>;\n"
        ".reg .pred %p<9>;\n"
    )
    module = simt.parse(f"{head}{text}\nret;\n}}\n")
    with pytest.raises(SourceError, match=told):
        simt.launch(module, simt.LaunchSpec("k", (2, 1, 1), (32, 1, 1), cluster=cluster), [], simt.Memory())


def test_a_kernel_of_ptx_demands_its_cluster() -> None:
    """`.explicitcluster` without a size needs one of the launch; `.maxclusterrank` bounds it."""
    text = ptx_of(DEMANDS, (), "compute_90").replace(".reqnctapercluster 1, 2, 1\n", ".maxclusterrank 2\n")
    memory = simt.Memory()
    x = memory.allocate("x", np.zeros(8, np.int32))
    module = simt.parse(text)
    for cluster, told in ((None, "launch it with a cluster"), ((1, 4, 1), "__launch_bounds__ allow 2")):
        with pytest.raises(UsageError, match=told):
            simt.launch(module, simt.LaunchSpec("pair", (1, 4, 1), (32, 1, 1), cluster=cluster), [x], memory)
    assert simt.launch(module, simt.LaunchSpec("pair", (1, 4, 1), (32, 1, 1), cluster=(1, 2, 1)), [x], memory).completed
