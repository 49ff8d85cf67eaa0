"""Warpgroup matrix instructions: addresses, products, groups in flight, and what is found wrong with them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from simt_tools import module_of
from wgmma_tools import Layout, Product, kernel

from evokern import simt
from evokern.errors import SourceError, UsageError
from evokern.simt.matrix import pieces_of
from evokern.simt.operations import warpgroup

WIDTHS = (8, 4, 2, 1)


@pytest.mark.parametrize("transposed", [False, True], ids=["k_major", "mn_major"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("extent", [64, 128])
def test_descriptors_lead_to_the_elements_of_the_canonical_layouts(width: int, transposed: bool, extent: int) -> None:
    """Every piece of every step of K stands where the figures of the ISA put it, gaps between atoms left out."""
    layout = Layout(transposed, width, extent, base=4096)
    for step in range(layout.depth // 16):
        if transposed:
            expected = [[layout.address(8 * q, 16 * step + k) for q in range(extent // 8)] for k in range(16)]
        else:
            expected = [[layout.address(row, 16 * step + 8 * j) for j in range(2)] for row in range(extent)]
        assert pieces_of(layout.descriptor(step), extent, transposed).tolist() == expected


def check(product: Product) -> None:
    """Run a product; D is what it must be, bit for bit, and nothing is found."""
    got, result = product.simulate()
    assert (result.findings, result.completed) == ((), True)
    np.testing.assert_array_equal(got, product.expected())


@pytest.mark.thorough
@pytest.mark.parametrize("columns", [8, 16, 64, 72, 128, 256])
@pytest.mark.parametrize("d_type", ["f32", "f16"])
@pytest.mark.parametrize("shared", [False, True], ids=["a_in_registers", "a_in_shared"])
def test_products_are_those_of_the_matrices(columns: int, d_type: str, shared: bool) -> None:
    """Every step of K adds the exact product, rounded once, whatever N, accumulator and place of A."""
    check(Product(columns, d_type, a=Layout(False, 8, 64) if shared else None))


@pytest.mark.thorough
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("transposed", [(False, True), (True, False), (True, True)], ids=["b_mn", "a_mn", "both_mn"])
def test_products_of_every_layout(width: int, transposed: tuple[bool, bool]) -> None:
    """Operands K-major and MN-major, in all swizzles, give the same product."""
    check(Product(64, a=Layout(transposed[0], width, 64), b=Layout(transposed[1], width, 64)))


@pytest.mark.parametrize("a", [None, Layout(False, 8, 64), Layout(True, 4, 64)], ids=["registers", "k", "mn"])
def test_warps_that_come_alone_compute_their_own_rows(a: Layout | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A warp that does not arrive with the others of its warpgroup has its quarter of the rows."""
    together = warpgroup.warps_of
    monkeypatch.setattr(warpgroup, "warps_of", lambda *of: replace(together(*of), each=1))
    check(Product(72, a=a, b=Layout(True, 1, 72)))


@pytest.mark.parametrize("signs", [(-1, 1), (1, -1), (-1, -1)])
def test_signs_and_the_first_product(signs: tuple[int, int]) -> None:
    """With imm-scale factors are negated, and with scale-d false nothing is added to."""
    check(Product(64, signs=signs, add_first=False, a=Layout(False, 4, 64)))


def test_bf16_factors() -> None:
    """Factors of bf16 accumulate in fp32."""
    check(Product(64, kind="bf16"))


def test_groups_in_flight() -> None:
    """With one group left in flight at every wait the products are the same, and nothing is found."""
    check(Product(128, pending=1, a=Layout(False, 8, 64)))


def test_other_targets_are_refused() -> None:
    """The instructions need a compile for sm_90a, and what was compiled for it runs on no other chip."""
    with pytest.raises(SourceError, match=r"wgmma\.fence\S* requires target sm_90a\b.* sm_90:"):
        module_of(kernel(64), (), "compute_90").check("product")
    module = module_of(kernel(64), (), "compute_90a")
    for chip, why in (("sm_89", "PTX for sm_90a does not run on sm_89"), ("sm_100", "only sm_90a has")):
        with pytest.raises(UsageError, match=why):
            simt.launch(
                module,
                simt.LaunchSpec("product", (1, 1, 1), (128, 1, 1)),
                [],
                simt.Memory(),
                simt.LaunchOptions(architecture=chip),
            )


def test_patterns_at_odd_places_are_refused() -> None:
    """A descriptor with a base offset ends the launch with the line of the product."""
    product = Product(64)
    product.arguments[3][2] |= np.uint64(1 << 49)  # type: ignore[index]
    with pytest.raises(SourceError, match=r"line \d+ of kernel.cu: .*base offset.*: `wgmma"):
        product.simulate()


def test_matrix_work_is_counted_once_a_warpgroup() -> None:
    """Four warps issue one product: its operations are those of 64 rows, its fences are no matrix instructions."""
    _, result = Product(64, a=Layout(False, 8, 64)).simulate()
    assert result.counters is not None
    assert {"m64n64k16.f32.f16.f16": (2 * 4 * 4, 2 * 4 * 2.0 * 64 * 64 * 16)} == result.counters.mma
    assert 2 * 4 * 4 == result.counters.by_pipe()["tensor"]
    assert result.counters.conflicts() == {}


# ------------------------------------------------------------------------------------------------- what is found wrong

HAZARDS = r"""
#include <cuda_fp16.h>
typedef unsigned long long Descriptor;
__device__ __forceinline__ Descriptor describe(const half* tile) {  // no swizzle: 8 rows of 16 bytes after one another
  const unsigned address = (unsigned)__cvta_generic_to_shared(tile);
  return (address >> 4 & 0x3fff) | Descriptor(128 >> 4) << 16 | Descriptor(256 >> 4) << 32;
}
__device__ __forceinline__ void multiply(float (&d)[4], const half* a, const half* b) {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(describe(a)), "l"(describe(b)) : "memory");
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int LEFT> __device__ __forceinline__ void wait(float (&d)[4]) {
  asm volatile("wgmma.wait_group.sync.aligned %4;"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "n"(LEFT) : "memory");
}
#define FENCE asm volatile("fence.proxy.async.shared::cta;" ::: "memory")

extern "C" __global__ void hazards(float* out, const half* in) {
  __shared__ __align__(128) half a[64 * 16], b[8 * 16];
  const int t = threadIdx.x;
  float d[4] = {};
  STORES
  BEFORE
  multiply(d, a, b);
  AFTER
  for (int j = 0; j < 4; j++) out[j * 128 + t] = d[j];
}
"""
STORES = "for (int j = t; j < 64 * 16; j += 128) a[j] = in[j]; if (t < 128) b[t] = in[1024 + t];"
COPIES = """for (int j = 8 * t; j < 64 * 16; j += 1024)
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16;"
               :: "r"((unsigned)__cvta_generic_to_shared(a + j)), "l"(in + j));
  asm volatile("cp.async.commit_group;" ::: "memory"); b[t] = in[1024 + t];"""
LANDED = 'asm volatile("cp.async.wait_group 0;" ::: "memory");'
READY = "FENCE; __syncthreads();"


def hazards(stores: str, before: str, after: str) -> set[str]:
    """Return the kinds of what is found."""
    return run(stores, before, after)[0]


def run(stores: str, before: str, after: str, threads: int = 128) -> tuple[set[str], np.ndarray]:
    """Return the kinds of what is found, and the output: every product of ones adds 16."""
    source = (
        HAZARDS.replace("STORES\n", stores + "\n").replace("BEFORE\n", before + "\n").replace("AFTER\n", after + "\n")
    )
    memory = simt.Memory()
    out = memory.allocate("out", np.zeros(512, np.float32))
    given = memory.allocate("in", np.ones(1152, np.float16), writable=False)
    module = module_of(source, (), "compute_90a")
    result = simt.launch(
        module,
        simt.LaunchSpec("hazards", (3, 1, 1), (threads, 1, 1)),
        [out, given],
        memory,
        simt.LaunchOptions(source=source),
    )
    return {finding.kind for finding in result.findings}, out.read().reshape(4, 128)


@pytest.mark.parametrize(
    ("stores", "before", "after"),
    [
        (STORES, READY, "wait<0>(d);"),
        (STORES, "__syncthreads(); FENCE;", "wait<0>(d);"),
        (STORES, "__syncthreads(); if (t < 32) FENCE; __syncthreads();", "wait<0>(d);"),
        (COPIES, LANDED + READY, "wait<0>(d);"),
        (STORES, READY, "wait<0>(d); __syncthreads(); b[127 - t] = 0;"),
        (STORES, READY, "multiply(d, a, b); wait<1>(d); wait<0>(d);"),
        (STORES, "FENCE; __syncthreads(); if (t == 0) asm volatile(\"fence.proxy.async.global;\");", "wait<0>(d);"),
    ],
)  # fmt: skip
def test_what_is_ordered_is_not_found(stores: str, before: str, after: str) -> None:
    """Fences of the writer, of a reader behind the barrier or of somebody between count alike; so do landed copies."""
    assert hazards(stores, before, after) == set()


@pytest.mark.parametrize(
    ("stores", "before", "after", "found"),
    [
        (STORES, "FENCE;", "wait<0>(d);", {"shared_race"}),
        (STORES, "__syncthreads();", "wait<0>(d);", {"proxy_fence"}),
        (STORES, "FENCE; b[t] = in[t]; __syncthreads();", "wait<0>(d);", {"proxy_fence"}),
        (STORES, 'asm volatile("fence.proxy.async.global;"); __syncthreads();', "wait<0>(d);", {"proxy_fence"}),
        (STORES.split("if")[0], READY, "wait<0>(d);", {"uninitialised"}),
        (COPIES, READY, "wait<0>(d);", {"async_not_waited"}),
        (COPIES, "FENCE;" + LANDED + "__syncthreads();", "wait<0>(d);", {"proxy_fence"}),
        (STORES, READY, "__syncthreads(); b[t] = 0; wait<0>(d);", {"async_not_waited"}),
        (STORES, READY, "multiply(d, a, b); wait<1>(d); __syncthreads(); b[t] = 0; wait<0>(d);", {"async_not_waited"}),
        (STORES, READY, "wait<0>(d); b[127 - t] = 0;", {"shared_race"}),
        (STORES, READY, "__syncthreads(); wait<0>(d); b[127 - t] = 0;", {"shared_race"}),
    ],
)  # fmt: skip
def test_what_is_not_ordered_is_found(stores: str, before: str, after: str, found: set[str]) -> None:
    """Races, reads of nothing, copies not waited for, stores that the proxy may miss."""
    assert hazards(stores, before, after) == found


@pytest.mark.parametrize(
    ("threads", "who", "rest"),
    [(160, "t < 128", "if (t >= 128) return;"), (256, "t >= 128", "if (t < 128) return; out -= 128;")],
    ids=["first", "second"],
)
def test_one_warpgroup_of_a_block_multiplies(threads: int, who: str, rest: str) -> None:
    """Warps beside it that multiply nothing do no harm, whichever warpgroup it is."""
    stores = "if (t < 128) { " + STORES + " }"
    found, out = run(stores, READY + f"if ({who})", "wait<0>(d);" + rest, threads)
    assert found == set()
    np.testing.assert_array_equal(out, 16)


def test_warps_of_an_incomplete_warpgroup_have_their_rows() -> None:
    """Those that do issue a product have its sums; that the fourth stays away is told."""
    found, out = run(STORES, READY + "if (t < 96)", "wait<0>(d);")
    assert found == {"barrier_divergence"}
    np.testing.assert_array_equal(out, np.where(np.arange(128) < 96, 16, 0) * np.ones((4, 1)))


LATE = 'asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");'


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ("", "d[0] += 1.f;" + LATE, {"async_not_waited"}),
        ("", "float x = d[1]; wait<0>(d); d[0] += x;", set()),  # a copy, which vanishes from machine code
        ("", "multiply(d, a, b); wait<1>(d); d[0] += 1.f; wait<0>(d);", {"async_not_waited"}),
        ("float e[4] = {};", "multiply(e, a, b); wait<1>(d); d[0] *= 2.f; wait<0>(e); d[0] += e[0];", set()),
        ("float e[4] = {};", "multiply(e, a, b); wait<1>(d); d[0] += e[0]; wait<0>(e);", {"async_not_waited"}),
        ("", "if (in[0] == in[1]) wait<0>(d); if (in[0] == in[1]) d[0] += 1.f; wait<0>(d);", set()),
        ("", "if (in[0] == in[1]) wait<0>(d); if (in[t] == in[2]) d[0] += 1.f; wait<0>(d);", set()),
        ("", "if (in[0] != in[1]) wait<0>(d); if (in[t] == in[2]) d[0] += 1.f; wait<0>(d);", {"async_not_waited"}),
        (
            "for (int i = 0; i < 3; i++) { if (i) wait<0>(d); d[1] += 1.f; multiply(d, a, b); }",
            "wait<1>(d); wait<0>(d);",
            set(),
        ),
        (
            '_Pragma("unroll 1") for (int i = 0; i < 3; i++) { d[1] += 1.f; multiply(d, a, b); }',
            "wait<0>(d);",
            {"async_not_waited"},
        ),
    ],
)
def test_sums_are_left_alone_until_the_wait(before: str, after: str, found: set[str]) -> None:
    """Whoever reads or changes sums on a path that has not waited for their group is named, and nobody else."""
    assert hazards(STORES, READY + before, after) == found


FACTORS = """unsigned f[4] = {t, 0, 0, 0};
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  asm volatile("{ .reg .b32 r; mov.b32 r, %4; wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, "
               "{r, %5, %6, %7}, %8, 1, 1, 1, 0; wgmma.commit_group.sync.aligned; EARLY add.u32 r, r, 1; LATE }"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(f[0]), "r"(f[1]), "r"(f[2]), "r"(f[3]), "l"(describe(b)) : "memory");"""


@pytest.mark.parametrize("waits", [True, False])
def test_factors_in_registers_are_left_alone_until_the_wait(waits: bool) -> None:
    """A register that holds part of A may be read, but not changed, before the product that takes it has ended."""
    wait = "wgmma.wait_group.sync.aligned 0;"
    before = FACTORS.replace("EARLY", wait if waits else "").replace("LATE", "" if waits else wait)
    assert hazards(STORES, READY + before, "wait<0>(d);") == (set() if waits else {"async_not_waited"})


def test_registers_are_handed_over() -> None:
    """With setmaxnreg results stay the same; what it asks for is a multiple of 8 from 24 to 256."""
    lowered = 'asm volatile("setmaxnreg.dec.sync.aligned.u32 %s;");'
    assert hazards(STORES, READY + lowered % 40, "wait<0>(d);") == set()
    with pytest.raises(SourceError, match=r"setmaxnreg\S* requires one of the literals 24, 32.* not 41"):
        hazards(STORES, READY + lowered % 41, "wait<0>(d);")
