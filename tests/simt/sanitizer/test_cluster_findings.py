"""What goes wrong between the blocks of a cluster is found, named with both parties, and its mended twin is clean."""

from __future__ import annotations

import random

import numpy as np
import pytest
from race_oracle import judge
from race_programs import PRELUDE, REGION, REGIONS, draw
from simt_tools import DEFECTS, Defect, defects, module_of

from evokern import simt

HEAD = r"""
#define ARRIVE(how) asm volatile("barrier.cluster.arrive" how ";" ::: "memory")
#define WAIT(how) asm volatile("barrier.cluster.wait" how ";" ::: "memory")
#define MEET() ARRIVE(); WAIT()
#ifdef FIXED
#define FIX(good, bad) good
#else
#define FIX(good, bad) bad
#endif
__device__ __forceinline__ unsigned map(const void* p, unsigned rank) {
  unsigned there;
  const unsigned own = (unsigned)__cvta_generic_to_shared(p);
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(own), "r"(rank));
  return there;
}
__device__ __forceinline__ unsigned rank_() { unsigned r; asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return r; }
__device__ __forceinline__ float load(unsigned at) {
  float v; asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(at) : "memory"); return v;
}
__device__ __forceinline__ void store(unsigned at, float v) {
  asm volatile("st.shared::cluster.f32 [%0], %1;" :: "r"(at), "f"(v) : "memory");
}
__device__ __forceinline__ void add(unsigned at, float v) {
  asm volatile("red.shared::cluster.add.f32 [%0], %1;" :: "r"(at), "f"(v) : "memory");
}
extern "C" __global__ void kernel(float* out, const float* in, int n) {
  __shared__ float part[64];
  const int t = threadIdx.x, rank = rank_(), at = (blockIdx.y * gridDim.x + blockIdx.x) * 64 + t;
  float sum = 0.0f;
  part[t] = in[at];
"""
TAIL = "\n  out[at] = sum;\n}\n"
CASES = {
    # A block reads what its neighbour has stored, with a barrier of the block where one of the cluster belongs.
    "block_barrier": ("MEET(); part[t] = t; FIX(MEET(), __syncthreads()); sum = load(map(part + t, rank ^ 1)); MEET();",
                      "shared_race", "thread 0 of block (0, 1, 0) of the same cluster"),
    # The neighbour's sums are overwritten while it may still read them.
    "write_after_read": ("MEET(); sum = part[t]; FIX(MEET(),); store(map(part + t, rank ^ 1), 1.0f); MEET();",
                         "shared_race", "is read by thread 0 of block (0, 1, 0) of the same cluster"),
    # Two blocks store to the third one's memory, or to the same place of the first.
    "two_writers": ("MEET(); if (FIX(rank == 1, rank)) store(map(part + t, 0), rank); MEET(); sum = part[t];",
                    "shared_race", ""),
    # An atomic update beside a plain store of the owner.
    "atomic_and_plain": ("MEET(); part[t] = 0; FIX(MEET(),); add(map(part + t, 0), 1.0f); MEET(); sum = part[t];",
                         "shared_race", ""),
    # The barrier does not publish what was done before a relaxed arrival, unless a fence came between.
    "relaxed": ('MEET(); part[t] = t; FIX(asm volatile("fence.acq_rel.cluster;" ::: "memory"),); ARRIVE(".relaxed"); '
                "WAIT(); sum = load(map(part + t, rank ^ 1)); MEET();", "shared_race", ""),
    # A fence for the block alone publishes nothing to another one.
    "near_fence": ('MEET(); part[t] = t; asm volatile("fence.acq_rel." FIX("cluster", "cta") ";" ::: "memory"); '
                   'ARRIVE(".relaxed"); WAIT(); sum = load(map(part + t, rank ^ 1)); MEET();', "shared_race", ""),
    # What is stored between arrival and wait is not published by it.
    "behind_arrival": ("MEET(); FIX(part[t] = t,); ARRIVE(); FIX(,part[t] = t); WAIT(); "
                       "sum = load(map(part + t, rank ^ 1)); MEET();", "shared_race", ""),
    # A rank that the cluster does not have.
    "rank": ("MEET(); sum = load(map(part + t, FIX(n % 2, n))); MEET();", "out_of_bounds",
             "rank 2, but the cluster has 2 blocks"),
    "before": ("MEET(); sum = load(map(part, rank ^ 1) + 4 * (t - FIX(0, 1))); MEET();", "out_of_bounds", "rank"),
    # An ordinary shared load does not reach other blocks.
    "own_space": ('MEET(); asm volatile("ld.shared" FIX("::cluster", "") ".f32 %0, [%1];" : "=f"(sum) : '
                  '"r"(map(part + t, rank ^ 1)) : "memory"); MEET();', "out_of_bounds", "use an instruction with"),
    # A block's own addresses hold its rank: without it they are those of the first block.
    "no_rank": ('MEET(); asm volatile("ld.shared.f32 %0, [%1];" : "=f"(sum) : '
                '"r"(map(part + t, rank) & FIX(~0u, 0xffffffu)) : "memory"); MEET();', "out_of_bounds",
                "rank 0, which this instruction cannot access: the block's own rank (bits from 24"),
    "largest_rank": ("MEET(); sum = load(map(part + t, FIX(rank, 200))); MEET();", "out_of_bounds",
                     "rank 200, but the cluster has 2 blocks"),
    # Far past the end of an own array is not a matter of ranks.
    "far": ('MEET(); asm volatile("ld.shared.f32 %0, [%1];" : "=f"(sum) : '
            '"r"(map(part + t, rank) + FIX(0, 0x900000)) : "memory"); MEET();', "out_of_bounds",
            "The block has"),
    # The last access of the neighbour's memory is not behind its own end, or before its start.
    "left": ("MEET(); sum = load(map(part + t, rank ^ 1)); FIX(MEET(),);", "cluster_lifetime",
             "may have exited"),
    "left_relaxed": ('MEET(); sum = load(map(part + t, rank ^ 1)); ARRIVE(FIX(".release", ".relaxed")); WAIT();',
                     "cluster_lifetime", "may have exited"),
    "left_atomic": ("MEET(); if (rank) add(map(part + t, 0), 1.0f); FIX(MEET(),);", "cluster_lifetime",
                    "may have exited"),
    # Arrivals and waits that do not alternate.
    "wait_alone": ("FIX(ARRIVE(),); WAIT(); MEET(); sum = t;", "barrier_divergence", "have not arrived"),
    "twice": ("ARRIVE(); FIX(WAIT(),); ARRIVE(); WAIT(); sum = t;", "barrier_divergence", "barrier twice"),
    # An aligned barrier that a part of a warp passes by.
    "part_of_warp": ('if (FIX(true, t % 32 < 7)) { ARRIVE(".aligned"); WAIT(".aligned"); } sum = 2 * part[t];',
                     "barrier_divergence", "without arriving"),
    # Some wait for the cluster, the others for their block.
    "hangs": ('if (FIX(true, t < 32)) { MEET(); }\n else asm volatile("bar.sync 1, 64;"); sum = t;', "deadlock",
              "64 threads of the cluster never"),
    "one_hangs": ('if (rank || FIX(true, t < 32)) { MEET(); }\n else asm volatile("bar.sync 1, 64;"); sum = t;',
                  "deadlock", "never arrive"),
    # A store whose copy nobody waited for, read by the neighbour.
    "copy": ('MEET(); asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: '
             '"r"((unsigned)__cvta_generic_to_shared(part + t)), "l"(in + at) : "memory"); '
             'FIX(asm volatile("cp.async.wait_all;" ::: "memory"),); MEET(); '
             "sum = load(map(part + t, rank ^ 1)); MEET();",
             "async_not_waited", "before the asynchronous copy"),
}  # fmt: skip
"""Name → body, the finding's kind, and a part of what it says."""


def run(body: str, *, fixed: bool, cluster: tuple[int, int, int] = (1, 2, 1)) -> simt.LaunchResult:
    """Run a case in two rows of clusters."""
    source = f"{HEAD}  {body}{TAIL}"
    memory = simt.Memory()
    blocks = 4 * int(np.prod(cluster))
    args = [
        memory.allocate("out", np.zeros(64 * blocks, np.float32)),
        memory.allocate("in", np.arange(64 * blocks, dtype=np.float32), writable=False),
        np.int32(2),
    ]
    module = module_of(source, ("-DFIXED",) if fixed else (), "compute_90")
    grid = 2 * cluster[0], 2 * cluster[1], cluster[2]
    return simt.launch(
        module,
        simt.LaunchSpec("kernel", grid, (64, 1, 1), cluster=cluster),
        args,
        memory,
        simt.LaunchOptions(source=source),
    )


@pytest.mark.parametrize("name", CASES)
def test_what_is_planted_is_found_and_its_mended_twin_is_clean(name: str) -> None:
    """Kind, line and words are those of the defect; nothing is said of the twin."""
    body, kind, words = CASES[name]
    cluster = (3, 1, 1) if name == "two_writers" else (1, 2, 1)
    result = run(body, fixed=False, cluster=cluster)
    assert {kind} == {finding.kind for finding in result.findings}
    assert any(words in finding.hint for finding in result.findings)
    assert (kind == "deadlock") == result.hung
    fixed = run(body, fixed=True, cluster=cluster)
    assert (fixed.findings, fixed.completed) == ((), True)


@pytest.mark.parametrize("name", ["no_rank", "own_space", "rank", "before"])
def test_addresses_of_findings_lie_within_a_block(name: str) -> None:
    """The address that a finding tells is within the memory of the block that is meant, whichever accesses it."""
    (finding,) = run(CASES[name][0], fixed=False, cluster=(1, 2, 1)).findings
    assert -64 <= finding.address < 256


def test_a_read_of_another_block_counts_where_it_is_used() -> None:
    """A racing read whose value comes to nothing is a warning, as within a block; a used one is an error."""
    body = "MEET(); part[t] = t; {} v = load(map(part + t, rank ^ 1)); MEET(); if (n == {}) sum = v;"
    unused = run(body.format("float", 2).replace("if (n == 2) sum = v", 'asm volatile("" :: "f"(0.0f))'), fixed=True)
    used = run(body.format("float", 2), fixed=True)
    assert {("shared_race", "warning")} == {(finding.kind, finding.level) for finding in unused.findings}
    assert {("shared_race", "error")} == {(finding.kind, finding.level) for finding in used.findings}


def test_global_memory_is_ordered_by_the_clusters_barrier() -> None:
    """Blocks of a cluster hand over global memory behind their barrier; blocks of another one are not ordered by it."""
    read = "sum = out[((blockIdx.y ^ n) * gridDim.x + blockIdx.x) * 64 + t]"
    source = f"{HEAD}  out[at] = t; FIX(MEET(), __syncthreads()); {read}; MEET();{TAIL}"
    kinds = {}
    for fixed in (True, False):
        for other in (1, 2):
            memory = simt.Memory()
            args = [memory.allocate("out", np.zeros(64 * 8, np.float32)),
                    memory.allocate("in", np.zeros(64 * 8, np.float32), writable=False), np.int32(other)]  # fmt: skip
            module = module_of(source, ("-DFIXED",) if fixed else (), "compute_90")
            result = simt.launch(
                module, simt.LaunchSpec("kernel", (2, 4, 1), (64, 1, 1), cluster=(1, 2, 1)), args, memory
            )
            kinds[fixed, other] = {finding.kind for finding in result.findings}
    assert kinds == {
        (True, 1): set(), (True, 2): {"global_race"}, (False, 1): {"global_race"}, (False, 2): {"global_race"},
    }  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("defect", defects(), ids=lambda defect: defect.name)
def test_a_cluster_of_one_block_changes_nothing(defect: Defect) -> None:
    """Every planted defect is told in the same words, and counted the same, in clusters of one block."""
    if "__cluster_dims__" in (DEFECTS / f"{defect.name}.cu").read_text() or defect.architecture != "compute_89":
        pytest.skip("names its cluster, or runs on one chip only")
    module = module_of(defect.source, (), "compute_90")
    found = []
    for cluster in (None, (1, 1, 1)):
        memory = simt.Memory()
        found.append(
            simt.launch(
                module,
                simt.LaunchSpec("kernel", defect.grid, defect.block, cluster=cluster, dynamic_shared=defect.shared),
                defect.arguments(memory),
                memory,
                simt.LaunchOptions(source=defect.source, instruction_limit=2_000_000),
            )
        )
    assert found[0].findings == found[1].findings
    assert found[0].printed == found[1].printed


@pytest.mark.thorough
@pytest.mark.parametrize("ranks", [2, 4])
def test_blocks_that_keep_to_themselves_are_judged_as_without_clusters(ranks: int) -> None:
    """Random programs of one block, run by every block of a cluster, race exactly where they did alone."""
    first, wrong = random.SystemRandom().randrange(1 << 30), []
    programs = [draw(seed, "shared") for seed in range(first, first + 40)]
    module = module_of(PRELUDE + "".join(program.text() for program in programs), (), "compute_90")
    for program in programs:
        verdict = judge(program.steps, program.threads, program.expected)
        memory = simt.Memory()
        args = [memory.allocate("out", np.zeros(program.threads, np.uint32)),
                memory.allocate("scratch", np.zeros(REGION * REGIONS, np.uint8))]  # fmt: skip
        result = simt.launch(
            module,
            simt.LaunchSpec(program.entry, (ranks, 1, 1), (program.threads, 1, 1), cluster=(ranks, 1, 1)),
            args,
            memory,
            simt.LaunchOptions(count=False),
        )
        levels = {finding.level for finding in result.findings if finding.kind != "global_race"}  # all write to `out`
        told = "error" if "error" in levels else "warning" if levels else "clean"
        if told != verdict.level:
            wrong.append(f"seed {program.seed}: {told}, is {verdict.level}")
    assert not wrong, "\n".join(wrong)


PASSED_ON = (
    HEAD.split('extern "C"')[0]
    + r"""
// One block of the first cluster stores, the other one publishes it; a block of the second cluster waits and reads.
extern "C" __global__ void kernel(float* out, int* flag, int way) {
  const int t = threadIdx.x, rank = rank_();
  if (blockIdx.y < 2 && rank == 0) out[t] = t;
  if (way == 0) { MEET(); }
  if (way == 1) { ARRIVE(".relaxed"); WAIT(); }
  if (way == 2) { ARRIVE(); if (blockIdx.y < 2 && rank == 0) out[t] = t + 1; WAIT(); }
  if (blockIdx.y < 2 && rank == 1 && t == 0) { __threadfence(); atomicExch(flag, 1); }
  if (blockIdx.y >= 2 && rank == 0) {
    if (t == 0) while (!atomicAdd(flag, 0)) {}
    __threadfence();
  }
  MEET();
  if (blockIdx.y >= 2 && rank == 1) out[64 + t] = out[t];
}
"""
)


@pytest.mark.parametrize(
    ("way", "kinds"), [(0, set()), (1, {"global_race"}), (2, {"global_race"}), (3, {"global_race"})]
)
@pytest.mark.parametrize("batch_blocks", [2, 4])
def test_what_a_cluster_has_seen_is_passed_on_between_clusters(way: int, kinds: set[str], batch_blocks: int) -> None:
    """A fence publishes what another block did before the cluster met, and not what came behind its arrival."""
    memory = simt.Memory()
    args = [memory.allocate("out", np.zeros(128, np.float32)), memory.allocate("flag", np.zeros(1, np.int32)),
            np.int32(way)]  # fmt: skip
    module = module_of(PASSED_ON, (), "compute_90")
    result = simt.launch(
        module,
        simt.LaunchSpec("kernel", (1, 4, 1), (64, 1, 1), cluster=(1, 2, 1)),
        args,
        memory,
        simt.LaunchOptions(batch_blocks=batch_blocks),
    )
    assert (kinds, True) == ({finding.kind for finding in result.findings}, result.completed)
