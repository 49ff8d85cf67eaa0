"""Hopper's asynchronous copies: what is wrong with barrier objects, tiles, fences and clusters is found and named.

Each case is a kernel and its mended twin, which gives the right result without a finding.
"""

from __future__ import annotations

import numpy as np
import pytest
from simt_tools import module_of

from evokern import simt
from evokern.hardware.tensor_map import TensorMap

HEAD = r"""
#ifdef FIXED
#define FIX(good, bad) good
#else
#define FIX(good, bad) bad
#endif
#define PTX(text, ...) asm volatile(text :: __VA_ARGS__ : "memory")
#define NOW(text) asm volatile(text ::: "memory")
#define BAR_FENCE NOW("fence.mbarrier_init.release.cluster;")
#define PROXY_FENCE NOW("fence.proxy.async.shared::cta;")
#define MEET NOW("barrier.cluster.arrive;"); NOW("barrier.cluster.wait;")
#define COMMIT NOW("cp.async.bulk.commit_group;")
#define DRAIN NOW("cp.async.bulk.wait_group.read 0;")
typedef unsigned long long u64;
struct alignas(64) Map { u64 opaque[16]; };
__device__ __forceinline__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ __forceinline__ unsigned there(const void* p, unsigned rank) {
  unsigned r; asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(at(p)), "r"(rank)); return r;
}
__device__ __forceinline__ unsigned rank_() { unsigned r; asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return r; }
__device__ __forceinline__ void init(u64* b, unsigned n) { PTX("mbarrier.init.shared::cta.b64 [%0], %1;", "r"(at(b)), "r"(n)); }
__device__ __forceinline__ void expect(u64* b, unsigned n) {
  PTX("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;", "r"(at(b)), "r"(n));
}
__device__ __forceinline__ void arrive(u64* b) { PTX("mbarrier.arrive.shared::cta.b64 _, [%0];", "r"(at(b))); }
__device__ __forceinline__ void arrive_at(unsigned b) { PTX("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];", "r"(b)); }
__device__ __forceinline__ void wait(u64* b, unsigned parity) {
  PTX("{ .reg .pred P; W: mbarrier.try_wait.parity.shared::cta.b64 P, [%0], %1; @P bra D; bra W; D: }", "r"(at(b)), "r"(parity));
}
__device__ __forceinline__ void load(void* to, const void* from, unsigned n, u64* b) {
  PTX("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];",
      "r"(at(to)), "l"(from), "r"(n), "r"(at(b)));
}
__device__ __forceinline__ void save(void* to, const void* from, unsigned n) {
  PTX("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;", "l"(to), "r"(at(from)), "r"(n));
}
__device__ __forceinline__ void load2(void* to, const Map& map, int x, int y, u64* b) {
  PTX("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];",
      "r"(at(to)), "l"(&map), "r"(x), "r"(y), "r"(at(b)));
}
__device__ __forceinline__ void load2_to(void* to, const Map& map, int x, int y, u64* b, unsigned short mask) {
  PTX("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;",
      "r"(at(to)), "l"(&map), "r"(x), "r"(y), "r"(at(b)), "h"(mask));
}
__device__ __forceinline__ void save2(const Map& map, int x, int y, const void* from) {
  PTX("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];", "l"(&map), "r"(x), "r"(y), "r"(at(from)));
}
__device__ __forceinline__ bool elected() {
  unsigned p; asm volatile("{ .reg .pred P; elect.sync _|P, 0xffffffff; selp.u32 %0, 1, 0, P; }" : "=r"(p)); return p;
}
extern "C" __global__ void __launch_bounds__(THREADS, 1) kernel(float* out, const float* in, const __grid_constant__ Map map, int n) {
  __shared__ __align__(1024) float tile[2][256];
  __shared__ u64 full[2], empty[2];
  const int t = threadIdx.x, w = t / 32, rank = rank_(), block = blockIdx.x;
  in += block * 1024; out += block * 1024;
"""
START = "if (t == 0) { init(full, 1); init(full + 1, 1); init(empty, THREADS - 32); init(empty + 1, THREADS - 32); BAR_FENCE; } __syncthreads(); "
"""Initialises the barrier objects of a ring of two tiles, with one producer warp."""
RING = """
if (w == 0) { if (elected()) for (int k = 0; k < 4; k++) {
    const int s = k % 2;
    PRODUCER_WAIT
    EXPECT
    LOAD
} } else { for (int k = 0; k < 4; k++) {
    const int s = k % 2;
    CONSUMER_WAIT
    const float v = tile[s][t - 32];
    RELEASE
    out[k * 256 + t - 32] = v;
} }"""


def ring(**parts: str) -> str:
    """Return a ring of two tiles with a producer warp and consumers, with some of its statements replaced."""
    text = START + RING
    usual = {
        "PRODUCER_WAIT": "wait(empty + s, (k / 2 & 1) ^ 1);", "EXPECT": "expect(full + s, 1024);",
        "LOAD": "load(tile[s], in + k * 256, 1024, full + s);", "CONSUMER_WAIT": "wait(full + s, k / 2 & 1);",
        "RELEASE": "arrive(empty + s);",
    }  # fmt: skip
    for name, statement in {**usual, **parts}.items():
        text = text.replace(name, statement)
    return text


def one(body: str) -> str:
    """Return a kernel whose first thread loads a single tile."""
    return START + body + " if (t < 256) { out[t] = tile[0][t]; }"


CASES = {
    "read_before_barrier": (one("if (t == 0) { expect(full, 1024); load(tile[0], in, 1024, full); } FIX(wait(full, 0),);"),
                            "async_not_waited", "out[t] = tile", ""),
    "too_few_bytes": (one("if (t == 0) { expect(full, FIX(1024, 2048)); load(tile[0], in, 1024, full); } wait(full, 0);"),
                      "transaction_bytes", "expect(full", "2048 bytes are announced for phase 0, but copies bring 1024"),
    "deadlock_names_bytes": (one("if (t == 0) { expect(full, FIX(1024, 2048)); load(tile[0], in, 1024, full); } wait(full, 0);"),
                             "deadlock", "wait(full", "1024 bytes are missing"),
}  # fmt: skip
"""Name → body, kind of the finding, text of its line, part of what it says."""


def run(body: str, *, fixed: bool, threads: int = 288, grid: int = 2, cluster: int = 1) -> tuple[simt.LaunchResult, bool]:
    """Run a case; return the result, and whether the output is a copy of the input."""
    source = HEAD + f"  {body}\n}}\n"
    options = (f"-DTHREADS={threads}", *(("-DFIXED",) if fixed else ()))
    memory = simt.Memory()
    data = np.random.default_rng(3).random(1024 * grid).astype(np.float32)
    given, found = memory.allocate("in", data, writable=False), memory.allocate("out", np.zeros_like(data))
    shape = TensorMap(dtype="f32", shape=(32, 32 * grid), strides=(128,), box=(32, 8))
    args = [found, given, np.void(shape.packed(given.address)), np.int32(2)]
    spec = simt.LaunchSpec("kernel", (grid, 1, 1), (threads, 1, 1), cluster=(cluster, 1, 1) if cluster > 1 else None)
    limits = simt.LaunchOptions(source=source, instruction_limit=2_000_000)
    result = simt.launch(module_of(source, options, "compute_90a"), spec, args, memory, limits)  # type: ignore[arg-type]
    copied = found.read().view(np.float32).reshape(grid, -1) == data.reshape(grid, -1)
    return result, bool(copied[:, :256].all())


@pytest.mark.parametrize("name", CASES)
def test_findings(name: str) -> None:
    """The fault is found at its line, and the mended twin is clean and copies its input."""
    body, kind, text, told = CASES[name][:4]
    more = CASES[name][4] if len(CASES[name]) > 4 else {}  # type: ignore[misc]
    result, _ = run(body, fixed=False, **more)
    found = [(one.kind, one.source, one.hint) for one in result.findings]
    assert any(one[0] == kind and text in one[1] and told in one[2] for one in found), found
    result, copied = run(body, fixed=True, **more)
    assert (result.findings, result.completed, copied) == ((), True, True)
