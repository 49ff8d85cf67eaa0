"""Which pipe an instruction holds and for how long, and how wmma fragments travel through shared memory."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import simt_tools

from evokern import simt
from evokern.hardware.profiles import chip
from evokern.simt import matrix
from evokern.simt.operations.wmma_moves import moves
from evokern.simt.time_model import prediction as timemodel
from evokern.simt.time_model.latencies import cost_of, latencies_of
from evokern.simt.time_model.pipes import (
    L2,
    NAMES,
    PARTIAL_WRITE,
    SCHEDULERS,
    demands,
    holds,
    l2_sectors,
    pipe_clocks,
    tensor_rate,
)

FRAGMENTS = r"""
#include <mma.h>
using namespace nvcuda;
extern "C" __global__ void product(float* y) {
  __shared__ __align__(32) __half a[16 * STRIDE];
  __shared__ __align__(32) float c[256];
  for (int i = threadIdx.x; i < 16 * STRIDE; i += 32) a[i] = __float2half(1.f);
  __syncthreads();
  wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> left;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::col_major> right;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
  wmma::fill_fragment(sum, 0.f);
  wmma::load_matrix_sync(left, a, STRIDE);
  wmma::load_matrix_sync(right, a, STRIDE);
  wmma::mma_sync(sum, left, right, sum);
  wmma::store_matrix_sync(c, sum, 16, wmma::mem_row_major);
  __syncthreads();
  y[threadIdx.x] = exp2f(c[threadIdx.x]);
}
"""


@cache
def _counted(stride: int) -> tuple[simt.Module, simt.Counters]:
    module, memory = simt_tools.module_of(FRAGMENTS, (f"-DSTRIDE={stride}", "--use_fast_math")), simt.Memory()
    y = memory.allocate("y", np.zeros(32, np.float32))
    result = simt.launch(module, simt.LaunchSpec("product", (1, 1, 1), (32, 1, 1)), [y], memory)
    assert not result.findings
    assert result.counters is not None
    return module, result.counters


@pytest.mark.parametrize(("stride", "wavefronts"), [(64, 32), (72, 4), (16, 8)])
def test_wmma_loads_halves_as_ldmatrix_does(stride: int, wavefronts: int) -> None:
    """Rows of 16 bytes, eight to a wavefront at best: 128 bytes apart all eight meet in the same banks, 144 none do."""
    _, counters = _counted(stride)
    loads = [at for at, text in enumerate(counters.instructions) if text.startswith("wmma.load")]
    assert len(loads) == 2
    assert [int(counters.shared_wavefronts[at]) for at in loads] == [wavefronts] * 2
    assert [int(counters.ideal_wavefronts[at]) for at in loads] == [4, 4]


def test_wmma_stores_accumulators_in_pairs() -> None:
    """Four stores of 8 bytes a lane, each in two wavefronts: eight in all, as the machine code has them."""
    rows, columns = matrix.wmma_elements((16, 16, 16), "d", "f32")
    way = moves(rows, columns, 4, rows_of_16_bytes=False)
    assert [move.width for move in way] == [8, 8, 8, 8]
    _, counters = _counted(72)
    (store,) = (at for at, text in enumerate(counters.instructions) if text.startswith("wmma.store"))
    assert int(counters.ideal_wavefronts[store]) == 8


def test_a_way_covers_the_whole_matrix() -> None:
    """Every byte of a fragment's matrix is moved once by ldmatrix, and all of it by loads of each lane's own."""
    for shape, operand, kind, size in (((32, 8, 16), "a", "f16", 2), ((16, 16, 16), "c", "f16", 2)):
        rows, columns = matrix.wmma_elements(shape, operand, kind)
        pitch = (int(columns.max()) + 1) * size
        for whole in (True, False):
            covered = [
                int(line) * pitch + int(start) + byte
                for move in moves(rows, columns, size, rows_of_16_bytes=whole)
                for line, start in zip(move.lines, move.starts, strict=True)
                for byte in range(move.width)
            ]
            assert set(covered) == set(range(pitch * (int(rows.max()) + 1)))
            assert not whole or len(covered) == len(set(covered))


def test_pipes_are_held_at_the_rates_of_the_profile() -> None:
    """Tensor and special-function pipes by a quarter of the SM's rate, shared memory by wavefronts."""
    module, counters = _counted(64)
    found, h200 = holds(module.program("product"), counters, chip("h200")), chip("h200")
    by_name = {text.split()[0]: found[at] for at, text in enumerate(counters.instructions) if at in found}
    multiply = next(hold for name, hold in by_name.items() if name.startswith("wmma.mma"))
    rate = h200.tensor_flops_per_clock["f16->f32"]
    assert (multiply.pipe, multiply.clocks) == ("tensor", pytest.approx(2 * 16**3 * SCHEDULERS / rate))
    load = next(hold for name, hold in by_name.items() if name.startswith("wmma.load.a"))
    assert (load.pipe, load.clocks) == ("shared", 32.0)
    assert by_name["ex2.approx.ftz.f32"].clocks == 32 / (h200.sfu_per_clock / SCHEDULERS)


def test_types_name_the_tensor_rate() -> None:
    """Accumulator first; what is not listed has the rate of its operand with fp32, and unsigned that of signed."""
    rates = chip("h200").tensor_flops_per_clock
    assert tensor_rate(("f32", "bf16", "bf16", "f32"), chip("h200")) == rates["bf16->f32"]
    assert tensor_rate(("s32", "u8", "u8", "s32"), chip("h200")) == rates["s8->s32"]
    assert tensor_rate(("f16", "f16", "f16", "f16"), chip("h200")) == rates["f16->f16"]
    assert tensor_rate(("f32", "f32"), chip("h200")) == rates["f16->f32"]


ARITHMETIC = r"""
extern "C" __global__ void mix(unsigned* y, const unsigned* x) {
  unsigned a = x[threadIdx.x], b = x[threadIdx.x + 32];
  asm volatile("BODY" : "+r"(a) : "r"(b));
  y[threadIdx.x] = a;
}
"""


def _mixed(instruction: str, times: int) -> tuple[simt.Module, simt.Counters]:
    """Run a warp that executes an instruction some times."""
    module = simt_tools.module_of(ARITHMETIC.replace("BODY", instruction * times), (), "compute_90")
    memory = simt.Memory()
    y, x = memory.allocate("y", np.zeros(32, np.uint32)), memory.allocate("x", np.zeros(64, np.uint32))
    counters = simt.launch(
        module, simt.LaunchSpec("mix", (1, 1, 1), (32, 1, 1)), [y, x], memory, simt.LaunchOptions(sanitize=False)
    ).counters
    assert counters is not None
    return module, counters


def _grown(instruction: str) -> dict[str, float]:
    """Return by how many clocks each pipe is held longer for four more of an instruction."""
    few, many = (pipe_clocks(_mixed(instruction, times)[1], chip("h200")) for times in (4, 8))
    return {name: float(many[name].sum() - few[name].sum()) for name in few if many[name].sum() > few[name].sum()}


@pytest.mark.parametrize(
    ("instruction", "clocks"),
    [
        ("xor.b32 %0, %0, %1;", {"integer": 32 / 64}), ("add.u32 %0, %0, %1;", {}),
        ("mul.lo.u32 %0, %0, %1;", {"multiply": 32 / 64}),
    ],
)  # fmt: skip
def test_integer_work_is_spread_over_both_pipes(instruction: str, clocks: dict[str, float]) -> None:
    """Logic needs the integer pipe; additions go where there is room, products to the multiply-add pipe beside it."""
    assert _grown(instruction) == pytest.approx({"issue": 1.0, **{pipe: 4 * each for pipe, each in clocks.items()}})


def test_the_busier_integer_pipe_counts() -> None:
    """Both work at the same time, so that a block keeps an SM for as long as the one with more to do."""
    counters, h200 = _mixed("mul.lo.u32 %0, %0, %1;", 8)[1], chip("h200")
    both = pipe_clocks(counters, h200)
    assert both["multiply"].sum() > both["integer"].sum() > 0
    assert timemodel.block_clocks(counters, h200)["integer"] == both["multiply"].sum()


@pytest.mark.parametrize(
    ("instruction", "pipe", "clocks"),
    [
        ("add.f32 %0, %0, %1;", "fp32", 32 / 128), ("max.f32 %0, %0, %1;", "integer", 32 / 64),
        ("min.f32 %0, %0, %1;", "integer", 32 / 64), ("ex2.approx.ftz.f32 %0, %0;", "sfu", 32 / 16),
        ("ex2.approx.f16x2 %0, %0;", "sfu", 2 * 32 / 16),
    ],
)  # fmt: skip
def test_the_pipe_of_the_machine_code_is_held(instruction: str, pipe: str, clocks: float) -> None:
    """Minimum and maximum of fp32 are integer work, and a pair of halves is two operations of the special pipe."""
    assert _grown(instruction) == pytest.approx({"issue": 1.0, pipe: 4 * clocks})


def test_a_pair_of_halves_holds_a_warps_quarter_of_the_special_pipe_twice_as_long() -> None:
    """Alone on its scheduler a warp waits 8 clocks from one exponential to the next, 16 of pairs."""
    for instruction, clocks in (("ex2.approx.ftz.f32 %0, %0;", 8.0), ("ex2.approx.f16x2 %0, %0;", 16.0)):
        module, counters = _mixed(instruction, 2)
        held = [hold for hold in holds(module.program("mix"), counters, chip("h200")).values() if hold.pipe == "sfu"]
        assert [hold.clocks for hold in held] == [clocks, clocks]


def test_conversions_between_fp32_and_halves_cost_what_arithmetic_does() -> None:
    """Either way; other conversions take longer."""
    latencies = latencies_of(chip("h200"))
    bodies = {
        "{.reg .f16 h; cvt.f32.f16 %0, h;}": latencies.alu,
        "{.reg .f32 f; mov.b32 f, %1; cvt.rn.f16x2.f32 %0, f, f;}": latencies.alu,
        "{.reg .f32 f; cvt.rn.f32.s32 f, %1; mov.b32 %0, f;}": latencies.convert,
    }
    for body, expected in bodies.items():
        program = _mixed(body, 1)[0].program("mix")
        (conversion,) = (item for item in program.instructions if item.opcode == "cvt")
        assert cost_of(conversion, latencies).latency == expected
    assert latencies.alu < latencies.convert


COPIES = r"""
extern "C" __global__ void copy(const float4* x) {
  __shared__ float4 tile[32];
  const unsigned at = (unsigned)__cvta_generic_to_shared(tile + threadIdx.x);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(at), "l"(x + threadIdx.x) : "memory");
  asm volatile("cp.async.commit_group;\n cp.async.wait_group 0;" ::: "memory");
}
"""


def test_copies_are_counted_once_on_shared_memory() -> None:
    """What a warp copies asynchronously takes a wavefront for each 128 bytes, and the port to L2 in the background."""
    module, memory = simt_tools.module_of(COPIES), simt.Memory()
    x = memory.allocate("x", np.zeros(128, np.float32))
    counters = simt.launch(module, simt.LaunchSpec("copy", (1, 1, 1), (32, 1, 1)), [x], memory).counters
    assert counters is not None
    h200 = chip("h200")
    assert timemodel.block_clocks(counters, h200)["shared"] == 512 / 128
    found = demands(module.program("copy"), counters, h200, 1.5)
    assert found.copies.sum() == pytest.approx(1.5 * 512 / h200.l2_bytes_per_clock_per_sm)
    assert found.in_line[NAMES.index("shared")].sum() == 1.5 * 4
    assert found.in_line[L2].sum() == 0


def test_parts_of_sectors_are_written_slowly() -> None:
    """A store of 16 bytes of each row takes L2 longer than its sectors; whole sectors take no more than themselves."""
    source = """extern "C" __global__ void rows(TYPE* out) {
      out[threadIdx.x / 4 * 256 + threadIdx.x % 4] = TYPE();
    }"""
    sectors = {}
    for kind in ("float", "float2"):
        module, memory = simt_tools.module_of(source, (f"-DTYPE={kind}",)), simt.Memory()
        out = memory.allocate("out", np.zeros(1 << 14, np.uint8))
        counters = simt.launch(module, simt.LaunchSpec("rows", (1, 1, 1), (32, 1, 1)), [out], memory).counters
        assert counters is not None
        sectors[kind] = float(l2_sectors(counters).sum())
    assert sectors == {"float": 8 * (1 + PARTIAL_WRITE), "float2": 8}


def test_a_fence_of_the_gpu_waits_for_l2() -> None:
    """A fence in the scope of the GPU takes far longer than one in the scope of the block."""
    source = (
        'extern "C" __global__ void f(int* p) { p[0] = 1; __threadfence(); p[1] = 2; __threadfence_block(); p[2] = 3; }'
    )
    table = latencies_of(chip("h200"))
    program = simt_tools.module_of(source, (), "compute_90").program("f")
    found = [cost_of(item, table).latency for item in program.instructions if item.opcode in ("membar", "fence")]
    assert found == [table.gpu_fence, table.barrier]
