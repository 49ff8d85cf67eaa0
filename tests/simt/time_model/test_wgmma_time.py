"""Warpgroup products in the time model: the full rate of the tensor cores, in the background until they are awaited."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from simt_tools import module_of
from wgmma_tools import kernel

from evokern import simt
from evokern.hardware.profiles import chip
from evokern.simt.time_model import prediction as timemodel
from evokern.simt.time_model.latencies import Latencies, latencies_of
from evokern.simt.time_model.pipes import PipeUse, demands, holds, matrix_rate
from evokern.simt.time_model.timeline import BlockTimes, Timeline

H200 = chip("h200")
LATENCIES = latencies_of(H200)


@pytest.mark.parametrize(
    ("columns", "in_registers", "clocks"),
    [
        (256, False, 128), (128, True, 64), (64, False, 32), (64, True, 32), (32, False, 24), (32, True, 16),
        (8, False, 18),
    ],
)  # fmt: skip
def test_a_product_holds_the_tensor_pipe_as_measured(columns: int, in_registers: bool, clocks: float) -> None:
    """N / 2 clocks, or as long as both factors take to come from shared memory."""
    program = module_of(kernel(columns, in_registers=in_registers), (), "compute_90a").program("product")
    place = next(at for at, item in enumerate(program.instructions) if item.has("mma_async"))
    memory = simt.Memory()
    image = memory.allocate("image", np.zeros(1, np.uint32))
    result = simt.launch(
        module_of(kernel(columns, in_registers=in_registers), (), "compute_90a"),
        simt.LaunchSpec("product", (1, 1, 1), (128, 1, 1)),
        [image, np.int32(0), image, image, image, np.int32(0), np.int32(0), memory.allocate("d", np.zeros(1 << 14))],
        memory,
    )
    assert result.counters is not None
    held = holds(program, result.counters, H200)[place]
    assert ("tensor", clocks) == (held.pipe, held.clocks)


def test_products_of_warpgroups_reach_the_peak() -> None:
    """Their rate is the chip's peak, that of mma.sync what it reaches of it."""
    assert matrix_rate("m64n128k16.f32.f16.f16", H200) == H200.tensor_peak_flops_per_clock
    assert matrix_rate("m16n8k16.f32.f16.f16.f32", H200) == H200.tensor_flops_per_clock["f16->f32"]


CHAIN = r"""
typedef unsigned long long Descriptor;
extern "C" __global__ void chain(float* y, float x) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const Descriptor at = (Descriptor)((unsigned)__cvta_generic_to_shared(shared) >> 4) | 64ull << 32 | 1ull << 62;
  float d[32];
  for (int i = 0; i < 32; i++) d[i] = 0.f;
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
  for (int i = 0; i < PRODUCTS; i++) MULTIPLY;
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  FIRST
#pragma unroll
  for (int i = 0; i < FMAS; i++) x = fmaf(x, x, x);
  LAST
  float sum = x;
  for (int i = 0; i < 32; i++) sum += d[i];
  y[threadIdx.x] = sum;
}
"""
OUTPUTS = ", ".join(f'"+f"(d[{i}])' for i in range(32))
MULTIPLY = (
    'asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {'
    + ", ".join(f"%{i}" for i in range(32))
    + '}, %32, %32, 1, 1, 1, 0, 0;" : '
    + OUTPUTS
    + ' : "l"(at) : "memory")'
)


def clocks(
    products: int,
    fmas: int,
    *,
    wait_first: bool = False,
    warpgroups: int = 1,
    contention_factor: float | None = None,
    latencies: Latencies = LATENCIES,
    products_wait: bool = False,
) -> BlockTimes:
    """Walk warpgroups that multiply and compute beside it, or with what they waited for."""
    wait = f'asm volatile("wgmma.wait_group.sync.aligned 0;" : {OUTPUTS} :: "memory");'
    words = {"PRODUCTS": products, "FMAS": fmas, "MULTIPLY": MULTIPLY}
    source = CHAIN.replace("FIRST", wait + " x += d[0];" if wait_first else "").replace(
        "LAST", "" if wait_first else wait
    )
    for word, meaning in words.items():
        source = source.replace(word, str(meaning))
    module, memory = module_of(source, (), "compute_90a"), simt.Memory()
    threads = 128 * warpgroups
    y = memory.allocate("y", np.zeros(threads, np.float32))
    result = simt.launch(
        module,
        simt.LaunchSpec("chain", (1, 1, 1), (threads, 1, 1), dynamic_shared=8192),
        [y, np.float32(1)],
        memory,
        simt.LaunchOptions(sanitize=False),
    )
    assert result.counters is not None
    program = module.program("chain")
    shared = None if contention_factor is None else demands(program, result.counters, H200, contention_factor)
    held = holds(program, result.counters, H200)
    line = Timeline(program, latencies, {}, latencies.l2, PipeUse(held, shared, products_wait))
    return line.walk(result.counters.record[0], 4 * warpgroups)


def test_products_run_beside_arithmetic_until_they_are_awaited() -> None:
    """Products follow one another; arithmetic before the wait hides them, what needs their sums comes after."""
    alone, many, chain = (clocks(*work).blocks[0] for work in ((4, 0), (12, 0), (0, 100)))
    assert many - alone == 8 * 32
    both, after = clocks(12, 100).blocks[0], clocks(12, 100, wait_first=True).blocks[0]
    assert both == pytest.approx(max(many, chain), rel=0.1)
    assert after == pytest.approx(many + 100 * LATENCIES.alu, rel=0.05)


def test_products_that_the_assembler_serialises_wait_for_one_another() -> None:
    """Each takes the latency of a wait besides its time on the pipe; arithmetic runs beside them as before."""
    few, many = (clocks(count, 0, products_wait=True).blocks[0] for count in (4, 12))
    assert many - few == 8 * (32 + LATENCIES.product)
    assert clocks(12, 100, products_wait=True).blocks[0] == pytest.approx(many, rel=0.05)


def test_whoever_awaits_products_goes_on_a_while_after_their_end() -> None:
    """A wait costs its latency once, however many products it is for, beside what they take of the tensor pipe."""
    at_once = replace(LATENCIES, product=0.0)
    for products in (1, 12):
        late, early = (
            clocks(products, 0, contention_factor=1.0, latencies=table).blocks[0] for table in (LATENCIES, at_once)
        )
        assert late - early == LATENCIES.product


def test_warpgroups_share_the_tensor_pipe() -> None:
    """Two that issue products at the same time take twice as long as one, as does one beside a block of its kind."""
    one, two = (clocks(24, 0, warpgroups=groups, contention_factor=1.0).blocks[0] for groups in (1, 2))
    assert two - one == pytest.approx(24 * 32, rel=0.05)
    assert clocks(24, 0, contention_factor=2.0).blocks[0] - one == pytest.approx(24 * 32, rel=0.05)
    assert clocks(24, 0, warpgroups=2).blocks[0] == clocks(24, 0).blocks[0]


def test_the_tensor_term_is_that_of_the_peak_rate() -> None:
    """One block's products hold the tensor pipe for its operations over the peak rate."""
    source = kernel(128)
    memory = simt.Memory()
    rows = memory.allocate("rows", np.zeros(1 << 15, np.uint32))
    args = [rows, np.int32(2048), rows, rows, rows, np.int32(3), np.int32(0), memory.allocate("d", np.zeros(1 << 14))]
    result = simt.launch(
        module_of(source, (), "compute_90a"),
        simt.LaunchSpec("product", (1, 1, 1), (128, 1, 1), dynamic_shared=32768),
        args,
        memory,
        simt.LaunchOptions(sanitize=False),
    )
    assert result.counters is not None
    assert timemodel.block_clocks(result.counters, H200)["tensor"] == 3 * 2.0 * 64 * 128 * 16 / 4096
