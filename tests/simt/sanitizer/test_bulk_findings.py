"""Hopper's asynchronous copies: what is wrong with barrier objects, tiles, fences and clusters is found and named.

Each case is a kernel and its correct twin, which gives the right result without a finding.
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
#define BAR_FENCE NOW("fence.mbarrier_init.release.cluster;");
#define PROXY_FENCE NOW("fence.proxy.async.shared::cta;");
#define MEET NOW("barrier.cluster.arrive;"); NOW("barrier.cluster.wait;");
#define COMMIT NOW("cp.async.bulk.commit_group;");
#define DRAIN NOW("cp.async.bulk.wait_group.read 0;");
#define TEXT(x) #x
#define NAME(x) TEXT(x)
typedef unsigned long long u64;
struct alignas(64) Map { u64 opaque[16]; };
__device__ __forceinline__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ __forceinline__ unsigned there(const void* p, unsigned rank) {
  unsigned r; asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(at(p)), "r"(rank)); return r;
}
__device__ __forceinline__ unsigned rank_() { unsigned r; asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return r; }
#define init(b, n) PTX("mbarrier.init.shared::cta.b64 [%0], %1;", "r"(at(b)), "r"(n))
#define expect(b, n) PTX("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;", "r"(at(b)), "r"(n))
#define arrive(b) PTX("mbarrier.arrive.shared::cta.b64 _, [%0];", "r"(at(b)))
#define arrive_at(scope, b) PTX("mbarrier.arrive.release." scope ".shared::cluster.b64 _, [%0];", "r"(b))
#define wait_as(scope, b, parity) \
  PTX("{ .reg .pred P; W: mbarrier.try_wait.parity" scope ".shared::cta.b64 P, [%0], %1; @P bra D; bra W; D: }", \
      "r"(at(b)), "r"(parity))
#define wait(b, parity) wait_as("", b, parity)
#define LOAD "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
#define load(to, from, n, b) PTX(LOAD, "r"(at(to)), "l"(from), "r"(n), "r"(at(b)))
#define save(to, from, n) \
  PTX("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;", "l"(to), "r"(at(from)), "r"(n))
#define TILE "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
#define load2(to, map, x, y, b) \
  PTX(TILE " [%0], [%1, {%2, %3}], [%4];", "r"(at(to)), "l"(&map), "r"(x), "r"(y), "r"(at(b)))
#define load2_to(to, map, x, y, b, mask) \
  PTX(TILE ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;", "r"(at(to)), "l"(&map), "r"(x), "r"(y), \
      "r"(at(b)), "h"((unsigned short)(mask)))
#define save2(map, x, y, from) \
  PTX("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];", "l"(&map), "r"(x), "r"(y), \
      "r"(at(from)))
#define send(to, value, b) \
  PTX("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];", "r"(to), "f"(value), "r"(b))
#define GROUP NOW("bar.sync 1, 256;");
#define registers(how, n) NOW("setmaxnreg." how ".sync.aligned.u32 " #n ";")
__device__ __forceinline__ bool elected() {
  unsigned p; asm volatile("{ .reg .pred P; elect.sync _|P, 0xffffffff; selp.u32 %0, 1, 0, P; }" : "=r"(p)); return p;
}
extern "C" __global__ void __launch_bounds__(THREADS, 1)
kernel(float* out, const float* in, const __grid_constant__ Map map, const __grid_constant__ Map to, int n) {
  __shared__ __align__(1024) float tile[2][256];
  __shared__ u64 full[2], empty[2];
  const int t = threadIdx.x, w = t / 32, rank = rank_(), block = blockIdx.x, lane = t % 32;
  in += block * 1024; out += block * 1024;
"""
START = """if (t == 0) { init(full, 1); init(full + 1, 1); init(empty, CONSUMERS); init(empty + 1, CONSUMERS);
BAR_FENCE; }
SYNC
"""
"""Initialises the barrier objects of a ring of two tiles, with one producer warp."""
RING = """
if (w == 0) { if (elected()) for (int k = 0; k < 4; k++) {
    const int s = k % 2;
    PRODUCER_WAIT
    EXPECT
    FILL
} } else { for (int k = 0; k < 4; k++) {
    const int s = k % 2;
    CONSUMER_WAIT
    const float v = tile[s][t - 32];
    EARLY
    out[k * 256 + t - 32] = v;
    RELEASE
} }
END
"""
USUAL = {
    "PRODUCER_WAIT": "wait(empty + s, (k / 2 & 1) ^ 1);", "EXPECT": "expect(full + s, 1024);",
    "FILL": "load(tile[s], in + k * 256, 1024, full + s);", "CONSUMER_WAIT": "wait(full + s, k / 2 & 1);",
    "RELEASE": "arrive(empty + s);", "CONSUMERS": "256", "SYNC": "__syncthreads();", "END": "",
    "EARLY": "",
}  # fmt: skip
"""The parts of a right ring."""
PAIR = {
    "CONSUMERS": "512", "SYNC": "MEET;", "END": "MEET;",
    "FILL": "load2_to(tile[s] + 128 * rank, map, 0, 32 * (block - rank) + 8 * k + 4 * rank, full + s, 3);",
    "RELEASE": 'arrive_at("cluster", there(empty + s, 0)); arrive_at("cluster", there(empty + s, 1));',
}  # fmt: skip
"""The parts of a ring in which both blocks of a cluster load half a tile for both."""


def filled(text: str, **parts: str) -> str:
    """Return a kernel with some of the usual statements replaced; ``|`` separates lines."""
    for name, statement in {**USUAL, **parts}.items():
        text = text.replace(name, statement)
    return text


def ring(**parts: str) -> str:
    """Return a ring of two tiles with a producer warp and consumers."""
    return filled(START + RING, **parts)


def released(arrival: str, **parts: str) -> str:
    """Return a ring that releases a tile before any instruction uses the loaded value or, if right, after it."""
    return ring(**{"EARLY": f"FIX(,{arrival})", "RELEASE": f"FIX({arrival},)"} | parts)


def one(body: str, **parts: str) -> str:
    """Return a kernel that loads the first tile and copies it."""
    return filled(START + body + "\nif (t < 256) out[t] = tile[0][t];\nEND\n", **parts)


LANE = "__syncwarp(); if (lane == 0) arrive(empty + s);"
FRAGMENTS = released(LANE, CONSUMERS="8").replace("const float v = tile[s][t - 32];", """unsigned v[4];
asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]),
             "=r"(v[3]) : "r"(at(tile[s] + (w - 1) % 2 * 128 + lane * 4)) : "memory");""").replace(
    "out[k * 256 + t - 32] = v;",
    "if (w < 3) for (int i = 0; i < 4; i++) out[k * 256 + w * 128 - 128 + i * 32 + lane] = __uint_as_float(v[i]);",
)  # fmt: skip
"""A ring whose consumers read rows of 16 bytes, which follow each other."""
MEETING = 'PTX("bar.{} %0, 288;", "r"(2 + s));'
NAMED = released(MEETING.format("arrive"), PRODUCER_WAIT=f"if (k > 1) {MEETING.format('sync')}", END="if (w == 0) for "
                 f"(int s = 0; s < 2; s++) {MEETING.format('sync')}").replace("if (elected()) for", "for").replace(
                     "expect(", "if (elected()) expect(").replace("load(", "if (elected()) load(")  # fmt: skip
"""A ring with named barriers in place of the objects that say that a tile is empty."""
ALONE = (
    START
    + """for (int k = 0; k < 4; k++) {
if (t == 0) { expect(full, 1024); load(tile[0], in + k * 256, 1024, full); }
wait(full, k & 1);
const float v = tile[0][t % 256];
FIX(if (t < 256) out[k * 256 + t] = v,);
__syncthreads();
FIX(,if (t < 256) out[k * 256 + t] = v);
}"""
)
"""A tile that is loaded again after a barrier of the block."""
ISSUE = "if (t == 0) { expect(full, 1024); load(tile[0], in, 1024, full); }"
SAVE = "tile[1][t % 256] = in[t % 256]; | {} | __syncthreads(); | if (t == 0) {{ {} }}"
FENCED = SAVE.format("FIX(PROXY_FENCE,)", "save(out, tile[1], 1024); COMMIT; DRAIN; ")
REMOTE = """if (t == 0) {{ init(full, 256); BAR_FENCE; }}
MEET
if (t < 256) {{
asm volatile("st.shared::cluster.f32 [%0], %1;" :: "r"(there(&tile[0][t], rank ^ 1)), "f"(in[t]) : "memory");
arrive_at(NAME({}), there(full, rank ^ 1));
}}
wait_as({}, full, 0);
float sum = 0.0f;
if (t < 256) sum = tile[0][t];
MEET
if (t < 256) out[t + (rank ? -1024 : 1024)] = sum;
"""
SENT = """if (t == 0) {{ init(full, 1); BAR_FENCE; expect(full, {}); }}
MEET
if (t < 256) send(there(&tile[0][t], rank ^ 1), in[t], there(full, rank ^ 1));
{}
if (t < 256) out[t + (rank ? -1024 : 1024)] = tile[0][t];
MEET
"""
TOKENS = """if (t == 0) init(full, 288);
__syncthreads();
u64 before = 0, token;
for (int k = 0; k < 4; k++) {
  if (t < 256) tile[k & 1][t] = in[t];
  asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" : "=l"(token) : "r"(at(full)) : "memory");
  PTX("{ .reg .pred P; W: mbarrier.try_wait.shared::cta.b64 P, [%0], %1; @P bra D; bra W; D: }",
      "r"(at(full)), "l"(FIX(token, k ? before : token)));
  before = token;
  if (t < 256) out[t ^ 128] = tile[k & 1][t ^ 128];
}
"""
"""Values that threads exchange after a wait for the phase of their own arrival."""
MULTIPLIED = """__shared__ __align__(128) float zeros[576];
for (int i = t; i < 576; i += 288) zeros[i] = 0.0f;
PROXY_FENCE;
""" + ring(PRODUCER_WAIT="wait(empty + s, (k / 2 & 1) ^ 1);", CONSUMERS="4", EARLY="", RELEASE="").replace(
    "if (w == 0) {", "if (w == 4) {").replace("} else {", "} else if (w < 4) {").replace(
    "const float v = tile[s][t - 32];", """const float v = tile[s][t], u = tile[s][t + 128];
const u64 left = (8ull << 16) + (16ull << 32) + (at(zeros) >> 4); const u64 right = left + 128; float d[4] = {};
NOW("wgmma.fence.sync.aligned;");
asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
             : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(left), "l"(right));
NOW("wgmma.commit_group.sync.aligned;");
FIX(NOW("wgmma.wait_group.sync.aligned 0;"),);
__syncwarp(); if (lane == 0) arrive(empty + s);
FIX(,NOW("wgmma.wait_group.sync.aligned 0;"));""").replace(
    "out[k * 256 + t - 32] = v;", "out[k * 256 + t] = v; out[k * 256 + t + 128] = u;")  # fmt: skip
"""A ring whose consumers use what they have read only after a product."""
STORED = """if (t == 0) { init(full, 1); init(empty, 256); BAR_FENCE; }
MEET
for (int k = 0; k < 2; k++) {
  if (t == 0) expect(full, 1024);
  if (t < 256) {
    if (k) wait(empty, 0);
    send(there(&tile[0][255 - t], rank), in[256 * k + 255 - t], there(full, rank));
    wait(full, k);
    const float v = tile[0][t];
    FIX(out[256 * k + t] = v,);
    arrive(empty);
    FIX(,out[256 * k + t] = v);
  }
}
MEET
"""
"""Values that threads store for others in their block, through the asynchronous proxy."""
Case = tuple[str, str, str, str, dict[str, object]]
PLAIN: dict[str, object] = {}
CLUSTER: dict[str, object] = {"cluster": 2}
CASES: dict[str, Case] = {
    # Bytes.
    "too_few": (one("if (t == 0) { expect(full, FIX(1024, 2048)); | load(tile[0], in, 1024, full); } | wait(full, 0);"),
                "transaction_bytes", "expect(full", "2048 bytes are announced for phase 0, but copies bring 1024",
                PLAIN),
    "too_many": (one("if (t == 0) { expect(full, FIX(1024, 512)); | load(tile[0], in, 1024, full); } | wait(full, 0);"),
                 "transaction_bytes", "load(tile", "512 bytes are announced for phase 0, but copies bring 1024", PLAIN),
    "wait_for_bytes": (one("if (t == 0) { expect(full, FIX(1024, 2048)); load(tile[0], in, 1024, full); } | "
                           "wait(full, 0);"), "deadlock", "wait(full", "1024 bytes are missing", PLAIN),
    "copied_twice": (one("if (t < FIX(1, 2)) { if (t == 0) { expect(full, 1024); } | load(tile[0], in, 1024, full); }"
                         " | wait(full, 0);"), "transaction_bytes", "load(tile",
                     "0 bytes are announced for phase 1, but copies bring 1024", PLAIN),
    "initialised_by_all": (ring().replace("if (t == 0) { init(full, 1)", "if (t FIX(==, >=) 0) { init(full, 1)"),
                           "shared_race", "init(full, 1)", "is not ordered with this one", {}),
    "never_copied": (one("if (t == 0) { expect(full, 1024); | FIX(load(tile[0], in, 1024, full),); } | wait(full, 0);"),
                     "transaction_bytes", "expect(full", "copies bring 0", PLAIN),
    "box": (one("if (t == 0) { expect(full, FIX(1024, 2048)); | load2(tile[0], map, 0, 32 * block, full); } | "
                "wait(full, 0);"), "transaction_bytes", "expect(full", "the tile is 8×32 f32", PLAIN),
    # Phases.
    "wrong_parity": (ring(CONSUMER_WAIT="wait(full + s, FIX(k / 2 & 1, (k / 2 & 1) ^ 1));"), "async_not_waited",
                     "tile[s]", "before the asynchronous copy", PLAIN),
    "parity_never_comes": (ring(PRODUCER_WAIT="wait(empty + s, (k / 2 & 1) ^ FIX(1, 0));"), "deadlock",
                           "wait(empty", "no thread arrives in phase 0, of parity 0", PLAIN),
    "phase_not_flipped": (ring(CONSUMER_WAIT="wait(full + s, FIX(k / 2 & 1, 0));"), "deadlock", "wait(full",
                          "has already seen: the parity must change", PLAIN),
    # Arrivals.
    "one_lane_for_32": (ring(RELEASE="if (FIX(true, lane == 0)) arrive(empty + s);"), "deadlock", "wait(empty",
                        "248 of 256 arrivals are missing in phase 0", PLAIN),
    "all_lanes_for_one": (ring(CONSUMERS="8", RELEASE="__syncwarp(); | "
                               "if (FIX(lane == 0, true)) arrive(empty + s);"), "barrier_arrivals",
                          "arrive(empty", "8 arrivals per phase", PLAIN),
    "count_too_large": (one("if (t == 0) { init(empty, FIX(1, 2)); | BAR_FENCE; expect(empty, 1024); "
                            "load(tile[0], in, 1024, empty); } __syncthreads(); | wait(empty, 0);"), "deadlock",
                        "wait(empty", "1 of 2 arrivals are missing", PLAIN),
    "count_too_small": (ring(CONSUMERS="FIX(256, 128)"), "deadlock", "wait(empty", "2 phases have ended", PLAIN),
    # Tiles.
    "read_before_barrier": (one(f"{ISSUE} | FIX(wait(full, 0),);"), "async_not_waited", "out[t] = tile",
                            "before the asynchronous copy", PLAIN),
    "other_warps_read": (one(f"{ISSUE} | if (FIX(true, w == 0)) wait(full, 0);"), "shared_race", "out[t] = tile",
                         "", PLAIN),
    "refilled_before_release": (ring(PRODUCER_WAIT="FIX(wait(empty + s, (k / 2 & 1) ^ 1),);"), "async_not_waited",
                                "tile[s]", "before the asynchronous copy", PLAIN),
    "released_before_read": (ring(CONSUMER_WAIT="wait(full + s, k / 2 & 1); FIX(,arrive(empty + s));",
                                  RELEASE="FIX(arrive(empty + s),);"), "shared_race", "tile[s]", "", PLAIN),
    "tile_too_small": (one("if (t == 0) { expect(full, 1024); | "
                           "load(FIX(tile[0], tile[1] + 4096 - 256), in, 1024, full); } | wait(full, 0);"),
                       "out_of_bounds", "load(FIX", "shared memory", PLAIN),
    "outside_input": (one("if (t == 0) { expect(full, 1024); | load(tile[0], in + FIX(0, 4096), 1024, full); } | "
                          "wait(full, 0);"), "out_of_bounds", "load(tile", "in has", PLAIN),
    "odd_bytes": (one("if (t == 0) { expect(full, 1024); | load(tile[0], in, FIX(1024, 1020), full); } | "
                      "wait(full, 0);"), "misaligned", "load(tile", "not a positive multiple of 16", PLAIN),
    # Tiles that are released before their reads are complete.
    "released_early": (released("arrive(empty + s);"), "early_release", "arrive(empty", "that line 69 reads", PLAIN),
    "released_by_one_lane": (released(LANE, CONSUMERS="8"), "early_release", "arrive(empty", "copy at line 65", PLAIN),
    "released_fragments": (FRAGMENTS, "early_release", "arrive(empty", "No instruction has used the data", PLAIN),
    "released_by_another_warp": (released("GROUP if (t == 128) arrive(empty + s);", CONSUMERS="1"), "early_release",
                                 "GROUP", "", PLAIN),
    "released_by_named_barrier": (NAMED, "early_release", "bar.arrive", "", PLAIN),
    "released_by_barrier_of_block": (filled(ALONE), "early_release", "__syncthreads", "", PLAIN),
    "released_to_both": (released(PAIR["RELEASE"], **{name: text for name, text in PAIR.items() if name != "RELEASE"}),
                         "early_release", "arrive_at(", "", CLUSTER),
    "released_before_fence": (ring(CONSUMERS="8", RELEASE="", EARLY=f"FIX(PROXY_FENCE,); {LANE} FIX(,PROXY_FENCE);"),
                              "early_release", "arrive(empty", "", PLAIN),
    "released_without_fence": (ring(CONSUMERS="1", RELEASE="", EARLY="GROUP if (t == 128) { FIX(PROXY_FENCE,); "
                                    "arrive(empty + s); }"), "early_release", "GROUP", "", PLAIN),
    "refilled_without_fence": (ring(FILL="FIX(PROXY_FENCE,); load(tile[s], in + k * 256, 1024, full + s);", RELEASE="",
                                    EARLY="arrive(empty + s);"), "early_release", "arrive(empty", "", PLAIN),
    "released_before_product": (MULTIPLIED, "early_release", "arrive(empty", "", PLAIN),
    "released_by_sender": (STORED, "early_release", "arrive(empty", "", CLUSTER),
    # Copies to global memory.
    "no_proxy_fence": (FENCED, "proxy_fence", "save(out", "was written by", PLAIN),
    "no_wait_for_group": (SAVE.format("PROXY_FENCE", "save(out, tile[1], 1024); COMMIT; | FIX(DRAIN,)"),
                          "async_not_waited", "save(out", "ends before a wait for its group", PLAIN),
    "overwritten_while_read": (SAVE.format("PROXY_FENCE", "save(out, tile[1], 1024); COMMIT; | FIX(DRAIN, ) | "
                                           "tile[1][7] = 0.0f; | FIX(,DRAIN)"), "async_not_waited", "save(out",
                               "overwritten before the wait", PLAIN),
    "not_committed": (SAVE.format("PROXY_FENCE", "save(out, tile[1], 1024); | FIX(COMMIT,); DRAIN"),
                      "async_not_waited", "save(out", "ends before a wait", PLAIN),
    "fence_before_store": (SAVE.format("", "save(out, tile[1], 1024); COMMIT; DRAIN;").replace(
        "tile[1][t", "FIX(,PROXY_FENCE;) tile[1][t").replace("__sync", "FIX(PROXY_FENCE;,) __sync"), "proxy_fence",
        "save(out", "", PLAIN),
    # Barrier objects.
    "no_init_fence": (one(f"{ISSUE} | wait(full, 0);").replace("BAR_FENCE;", "FIX(BAR_FENCE,);"), "proxy_fence",
                      "load(tile", "follows the initialisation", PLAIN),
    "init_not_ordered": (one(f"{ISSUE} | wait(full, 0);", SYNC="FIX(__syncthreads(),);").replace(
        "BAR_FENCE;", "PROXY_FENCE;"), "shared_race", "wait(full", "initialisation", PLAIN),
    "never_initialised": (one("if (t == 0) { FIX(init(full + 1, 1),); BAR_FENCE; PTX(\"mbarrier.inval.shared::cta.b64 "
                              "[%0];\", \"r\"(at(full))); | expect(FIX(full + 1, full), 1024); load(tile[0], in, 1024, "
                              "FIX(full + 1, full)); } | __syncthreads(); wait(FIX(full + 1, full), 0);"),
                          "uninitialised", "expect(FIX", "no longer valid", PLAIN),
    "init_fenced_but_not_ordered": (one(f"{ISSUE} | wait(full, 0);", SYNC="FIX(__syncthreads(),);"), "shared_race",
                                    "wait(full", "initialisation", PLAIN),
    "ended_while_in_use": (one(f"{ISSUE} | wait(full, 0); | FIX(__syncthreads(),); | if (t == 0) "
                               "PTX(\"mbarrier.inval.shared::cta.b64 [%0];\", \"r\"(at(full)));"), "shared_race",
                           "inval", "may still be in use by thread 32", PLAIN),
    "token_of_an_earlier_phase": (TOKENS, "shared_race", "= tile[k & 1]", "is written by thread", PLAIN),
    "token_of_half_of_the_threads": (TOKENS.replace("288", "FIX(288, 144)").replace("FIX(token, k ? before : token)",
                                                                                   "token"), "shared_race",
                                     "= tile[k & 1]", "is written by thread", PLAIN),
    # Named barriers.
    "other_thread_count": (one(f"{ISSUE} | wait(full, 0); | if (w) NOW(\"bar.sync 1, 288;\"); else "
                               "NOW(\"bar.arrive 1, \" FIX(\"288\", \"96\") \";\");"), "barrier_divergence", "bar.",
                           " threads here, but for ", PLAIN),
    "arrives_twice": (one(f"{ISSUE} | wait(full, 0); | if (w == 0) {{ FIX(,NOW(\"bar.arrive 1, 288;\");) | "
                          "NOW(\"bar.arrive 1, 288;\"); } __syncthreads(); | if (w) NOW(\"bar.sync 1, 288;\");"),
                      "barrier_divergence", "bar.arrive 1", "arrive twice at named barrier 1", PLAIN),
    "waits_for_more_threads": (ring(RELEASE="NOW(\"bar.sync 1, \" FIX(\"256\", \"288\") \";\"); | arrive(empty + s);"),
                               "deadlock", "bar.sync 1", "but 288 threads are required", PLAIN),
    # Tensor maps.
    "rank": (one("if (t == 0) { expect(full, 1024); | FIX(load2(tile[0], map, 0, 32 * block, full), PTX(\"cp.async.bulk"
                 ".tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2}], [%3];\", "
                 "\"r\"(at(tile)), \"l\"(&map), \"r\"(0), \"r\"(at(full)))); } | wait(full, 0);"), "tensor_map",
             "FIX(load2", "has 2 dimensions, but the copy has 1", PLAIN),
    "no_map": (one("if (t == 0) { expect(full, 1024); | load2(tile[0], FIX(map, *(const Map*)in), 0, 32 * block, full);"
                   " } | wait(full, 0);"), "tensor_map", "load2(tile", "does not contain one", PLAIN),
    "tile_overlaps_object": (one("u64* const b = FIX(full, (u64*)(tile[0] + 128)); if (t == 0) { FIX(,init(b, 1)); "
                                 "BAR_FENCE; expect(b, 1024); | load(tile[0], in, 1024, b); } __syncthreads(); "
                                 "wait(b, 0);"),
                             "out_of_bounds", "load(tile", "overwrites a barrier object", PLAIN),
    # Clusters.
    "not_multicast": (ring(**PAIR | {"FILL": PAIR["FILL"].replace(", 3)", ", FIX(3, 1 << rank))")}),
                      "deadlock", "wait(full", "512 bytes are missing", CLUSTER),
    "half_expected": (ring(**PAIR | {"EXPECT": "expect(full + s, FIX(1024, 512));"}), "async_not_waited", "tile[s]",
                      "before the asynchronous copy", CLUSTER),
    "left_early": (ring(**PAIR | {"END": "FIX(MEET,);"}), "cluster_lifetime", "arrive_at(", "may have exited", CLUSTER),
    "not_started": (ring(**PAIR | {"SYNC": "FIX(MEET, __syncthreads();)"}), "cluster_lifetime", "load2_to",
                    "may not have started", CLUSTER),
    "released_to_one": (ring(**PAIR | {"RELEASE": 'arrive_at("cluster", there(empty + s, 0)); '
                                       'FIX(arrive_at("cluster", there(empty + s, 1)),);'}), "deadlock", "wait(empty",
                        "no thread arrives in phase 0", CLUSTER),
    "own_barrier_only": (ring(**PAIR | {"CONSUMERS": "FIX(512, 256)", "RELEASE": f"FIX({PAIR['RELEASE']}, "
                                        "arrive(empty + s);)"}), "shared_race", "load2_to", "is read by", CLUSTER),
    "block_scope": (REMOTE.format("FIX(cluster, cta)", '""'), "shared_race", "sum =", "is written by", CLUSTER),
    "block_scope_wait": (REMOTE.format("cluster", 'FIX(".acquire.cluster", ".acquire.cta")'), "shared_race", "sum =",
                         "written by", CLUSTER),
    "stored_bytes": (SENT.format("FIX(1024, 2048)", "wait(full, 0);"), "transaction_bytes", "expect(full",
                     "but copies bring 1024", CLUSTER),
    "stored_not_awaited": (SENT.format("1024", "FIX(wait(full, 0),);"), "async_not_waited", "tile[0][t]", "", CLUSTER),
    "object_of_another_block": (SENT.format("1024", "wait(full, 0);").replace("there(full, rank ^ 1)",
                                "there(full, FIX(rank ^ 1, rank))"), "transaction_bytes", "send(there", "but their "
                                "barrier object is in that of rank", CLUSTER),
    # Registers.
    "too_many_registers": (one(f"{ISSUE} | wait(full, 0); | if (t < 128) {{ registers(\"dec\", 40); }} else {{ "
                               "FIX(registers(\"inc\", 232), registers(\"inc\", 240)); }"), "registers", "inc",
                           "but the launch allocates 168", {"threads": 384}),
    "part_of_warpgroup": (one(f"{ISSUE} | wait(full, 0); | if (FIX(t < 128, t < 32)) registers(\"dec\", 40);"),
                          "registers", "dec", "four warps of a warpgroup", {"threads": 384}),
    "released_upwards": (one(f"{ISSUE} | wait(full, 0); | if (t < 128) FIX(registers(\"dec\", 40), "
                             "registers(\"dec\", 200));"), "registers", "dec",
                         "lowers the registers per thread to 200, but the warp has 168", {"threads": 384}),
}  # fmt: skip
"""Name → body, kind of the finding, text of its line, part of what it says, launch."""


LIBRARY = r"""
#include <cuda/barrier>
#include <cuda/ptx>
namespace ptx = cuda::ptx;
using barrier = cuda::barrier<cuda::thread_scope_block>;
extern "C" __global__ void kernel(float* out, const float* in) {
  __shared__ alignas(128) float tile[1024];
  #pragma nv_diag_suppress static_var_with_dynamic_init
  __shared__ barrier bar;
  if (threadIdx.x == 0) { init(&bar, blockDim.x); ptx::fence_proxy_async(ptx::space_shared); }
  __syncthreads();
  barrier::arrival_token token;
  if (threadIdx.x == 0) {
    cuda::memcpy_async(tile, in + blockIdx.x * 1024, cuda::aligned_size_t<16>(sizeof(tile)), bar);
    token = cuda::device::barrier_arrive_tx(bar, 1, 0);
  } else token = bar.arrive();
  bar.wait(std::move(token));
  for (int i = threadIdx.x; i < 1024; i += blockDim.x) tile[i] += 1;
  ptx::fence_proxy_async(ptx::space_shared);
  __syncthreads();
  if (threadIdx.x == 0) {
    ptx::cp_async_bulk(ptx::space_global, ptx::space_shared, out + blockIdx.x * 1024, tile, sizeof(tile));
    ptx::cp_async_bulk_commit_group();
    ptx::cp_async_bulk_wait_group_read(ptx::n32_t<0>());
  }
}
"""
RIGHT: dict[str, tuple[str, dict[str, object]]] = {
    "bytes_before_arrival": (one('if (t == 0) { PTX("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;", '
                                 '"r"(at(full)), "r"(1024)); load(tile[0], in, 1024, full); arrive(full); } '
                                 "wait(full, 0);"), PLAIN),
    "generic_address": (one(f'{ISSUE} PTX("{{ .reg .pred P; W: mbarrier.try_wait.parity.b64 P, [%0], %1, 1000000; @P '
                            'bra D; bra W; D: }", "l"(full), "r"(0));'), PLAIN),
    "rows_by_lanes": (one("if (t == 0) expect(full, 1024); __syncwarp(); if (t < 32) load(tile[0] + 8 * t, in + 8 * t,"
                          " 32, full); wait(full, 0);"), PLAIN),
    "sizes_by_block": (one("const int k = 4 * (block % 5); if (t == 0) { expect(full, 1024); load(tile[0], in, 512 + 4 "
                           "* k, full); load(tile[0] + 128 + k, in + 128 + k, 512 - 4 * k, full); } wait(full, 0);"),
                       {"grid": 7}),
    "threads_leave": (one(f"if (block == 1 && t >= 256) return; {ISSUE} wait(full, 0);"), {"grid": 3}),
    "through_both_proxies": (one(f"{ISSUE} wait(full, 0); if (t < 256) tile[1][t] = tile[0][t]; PROXY_FENCE; "
                                 "__syncthreads(); if (t == 0) { save2(to, 0, 32 * block, tile[1]); COMMIT; DRAIN; }"),
                             PLAIN),
    "vectors_to_another_block": ("""if (t == 0) { init(full, 1); BAR_FENCE; expect(full, 1024); }
MEET
if (t < 64) { const float4 v = *(const float4*)(in + 4 * t);
  PTX("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];",
      "r"(there(&tile[0][4 * t], rank ^ 1)), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(there(full, rank ^ 1))); }
wait(full, 0);
if (t < 256) out[t + (rank ? -1024 : 1024)] = tile[0][t];
MEET""", {"grid": 4, "cluster": 2}),
}  # fmt: skip
"""Name → body of a right kernel, launch."""


def run(
    body: str, *, fixed: bool, threads: int = 288, grid: int = 2, cluster: int = 1
) -> tuple[simt.LaunchResult, bool]:
    """Run a case; return the result, and whether the output is a copy of the input."""
    body = body.replace(" | ", "\n")
    source = HEAD + f"  {body}\n}}\n"
    options = (f"-DTHREADS={threads}", *(("-DFIXED",) if fixed else ()))
    memory = simt.Memory()
    data = np.random.default_rng(3).random(1024 * grid).astype(np.float32)
    given, found = memory.allocate("in", data, writable=False), memory.allocate("out", np.zeros_like(data))
    shape = TensorMap(dtype="f32", shape=(32, 32 * grid), strides=(128,), box=(32, 8 // cluster))
    maps = [np.void(shape.packed(buffer.address)) for buffer in (given, found)]
    args = [found, given, *maps, np.int32(2)]
    spec = simt.LaunchSpec("kernel", (grid, 1, 1), (threads, 1, 1), cluster=(cluster, 1, 1) if cluster > 1 else None)
    limits = simt.LaunchOptions(source=source, instruction_limit=2_000_000)
    result = simt.launch(module_of(source, options, "compute_90a"), spec, args, memory, limits)  # type: ignore[arg-type]
    got, given_ = (rows.reshape(grid, -1)[:, :256] for rows in (found.read().view(np.float32), data))
    return result, bool(((got == given_) | (got == given_[:1])).all())


@pytest.mark.parametrize("name", CASES)
def test_findings(name: str) -> None:
    """The fault is found at its line, and the correct twin is clean and copies its input."""
    body, kind, text, told, launch = CASES[name]
    result, _ = run(body, fixed=False, **launch)  # type: ignore[arg-type]
    found = [(one.kind, one.source, one.hint) for one in result.findings]
    assert any(one[0] == kind and text in one[1] and told in one[2] for one in found), found
    result, copied = run(body, fixed=True, **launch)  # type: ignore[arg-type]
    assert (result.findings, result.completed, copied) == ((), True, True)


@pytest.mark.parametrize("name", RIGHT)
def test_right_kernels(name: str) -> None:
    """Other right uses of the same instructions leave nothing to report."""
    body, launch = RIGHT[name]
    result, copied = run(body, fixed=True, **launch)  # type: ignore[arg-type]
    assert (result.findings, result.completed, copied) == ((), True, True)


def test_barriers_of_the_standard_library() -> None:
    """A tile through ``cuda::barrier`` and ``cuda::ptx`` is right and clean."""
    memory, data = simt.Memory(), np.random.default_rng(4).random(4096).astype(np.float32)
    given, out = memory.allocate("in", data, writable=False), memory.allocate("out", np.zeros_like(data))
    spec = simt.LaunchSpec("kernel", (4, 1, 1), (128, 1, 1))
    result = simt.launch(module_of(LIBRARY, ("-std=c++17",), "compute_90a"), spec, [out, given], memory)
    assert (result.findings, result.completed) == ((), True)
    np.testing.assert_array_equal(out.read(), data + 1)
