"""Counters: wavefronts, sectors, pipes and lines of small kernels whose figures can be worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from paths import DATA
from simt_tools import launch, module_of

from evokern import simt

PLAIN = (DATA / "simt" / "plain.cu").read_text()
ACCESS = """
extern "C" __global__ void wide(float* out, const float4* in, int stride) {
  extern __shared__ float4 s[];
  s[threadIdx.x * stride] = in[threadIdx.x];
  __syncthreads();
  float4 v = s[(31 - threadIdx.x) * stride];
  out[threadIdx.x] = v.x + v.w;
}
extern "C" __global__ void strided(float* out, const float* in, int stride) {
  out[threadIdx.x] = in[threadIdx.x * stride];
}
extern "C" __global__ void odd_lanes(float* x) {
  if (threadIdx.x & 1) x[threadIdx.x] = x[threadIdx.x] * 2.0f + 1.0f;
}
extern "C" __global__ void product(float* d, const unsigned* a) {
  float c[4] = {0, 0, 0, 0};
  for (int k = 0; k < 3; k++)
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0,%1,%2,%3}, {%4,%4,%4,%4}, {%4,%4}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[threadIdx.x]));
  d[threadIdx.x] = c[0] + c[1] + c[2] + c[3];
}
"""


def counted(source: str, entry: str, *args: Any, grid: int = 1, block: int = 32, **options: Any) -> simt.Counters:
    """Launch on arrays and return the counters."""
    memory = simt.Memory()
    bound = [memory.allocate(f"argument {n}", a) if isinstance(a, np.ndarray) else a for n, a in enumerate(args)]
    spec = simt.LaunchSpec(entry, (grid, 1, 1), (block, 1, 1))
    result = launch(module_of(source), spec, bound, memory, source=source, **options)
    assert result.findings == ()
    assert result.counters is not None
    return result.counters


def total(counters: simt.Counters, word: str, values: Any) -> int:
    """Return the sum of a counter over the instructions that begin with a word."""
    return int(
        sum(v for text, v in zip(counters.instructions, values, strict=True) if text.split()[0].startswith(word))
    )


@pytest.mark.parametrize(
    ("stride", "wavefronts"), [(0, 1), (1, 1), (2, 2), (4, 4), (8, 8), (16, 16), (32, 32), (33, 1), (3, 1)]
)
def test_bank_conflicts_of_words(stride: int, wavefronts: int) -> None:
    """A stride of 2^k words costs 2^k wavefronts, an odd one or a broadcast costs one."""
    counters = counted(PLAIN, "conflicts", np.zeros(32, np.float32), np.int32(stride))
    assert wavefronts == total(counters, "ld.shared", counters.shared_wavefronts)
    assert total(counters, "ld.shared", counters.ideal_wavefronts) == 1


@pytest.mark.parametrize(("stride", "wavefronts"), [(1, 4), (2, 8), (8, 32), (9, 4)])
def test_bank_conflicts_of_vectors(stride: int, wavefronts: int) -> None:
    """16-byte accesses are served for a quarter of a warp at a time: four wavefronts at best."""
    counters = counted(
        ACCESS, "wide", np.zeros(32, np.float32), np.ones(128, np.float32), np.int32(stride), dynamic_shared=8192
    )
    assert wavefronts == total(counters, "st.shared", counters.shared_wavefronts)
    assert total(counters, "st.shared", counters.ideal_wavefronts) == 4


@pytest.mark.parametrize(("stride", "sectors"), [(0, 1), (1, 4), (2, 8), (4, 16), (8, 32), (16, 32)])
def test_sectors_of_global_loads(stride: int, sectors: int) -> None:
    """A warp's load touches as many 32-byte sectors as its addresses span."""
    counters = counted(ACCESS, "strided", np.zeros(32, np.float32), np.ones(512, np.float32), np.int32(stride))
    assert sectors == total(counters, "ld.global", counters.load_sectors)
    assert min(sectors, 4) == total(counters, "ld.global", counters.ideal_load_sectors)
    assert total(counters, "st.global", counters.store_sectors) == 4
    assert [sectors] == [len(found) for found in counters.unique_load_sectors.values()]


def test_instructions_per_warp_and_thread() -> None:
    """Instructions are counted per warp and per active lane, and apart where live lanes were elsewhere."""
    counters = counted(ACCESS, "odd_lanes", np.zeros(64, np.float32), block=64)
    assert total(counters, "st.global", counters.warp_instructions) == 2
    assert total(counters, "st.global", counters.thread_instructions) == 32
    assert total(counters, "st.global", counters.divergent) == 2
    assert total(counters, "mov.u32", counters.divergent) == 0
    assert counters.total_warp_instructions == sum(counters.by_pipe().values())


def test_matrix_instructions() -> None:
    """Matrix instructions are counted by shape and types, with their operations."""
    counters = counted(ACCESS, "product", np.zeros(32, np.float32), np.zeros(32, np.uint32))
    assert counters.mma == {"m16n8k16.f32.f16.f16.f32": (3, 3 * 2.0 * 16 * 8 * 16)}
    assert counters.by_pipe()["tensor"] == 3
    assert counters.flops == 3 * 4096.0


def test_lines() -> None:
    """Every instruction that ran has a line, and the conflict stands at its own line."""
    counters = counted(PLAIN, "conflicts", np.zeros(32, np.float32), np.int32(32))
    assert counters.warp_instructions.any() and counters.lines[counters.warp_instructions > 0].all()
    at = next(n for n, text in enumerate(PLAIN.splitlines(), 1) if "s[threadIdx.x * stride]" in text)
    sums = (rows[counters.lines == at].sum() for rows in (counters.shared_wavefronts, counters.ideal_wavefronts))
    assert tuple(sums) == (32, 1)


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_batches_add_up(batch: int) -> None:
    """How many blocks run side by side does not change what is counted."""
    x = np.ones(5000, np.float32)
    counters = counted(
        PLAIN, "reduction", np.zeros(8, np.float32), x, np.int32(5000), grid=8, block=256, batch_blocks=batch
    )
    assert tuple(range(8)) == counters.blocks
    assert counters.barriers == 8 * 8 * 9
    assert len(np.unique(np.concatenate(list(counters.unique_load_sectors.values())))) == -(-5000 * 4 // 32)


def test_sampled_blocks() -> None:
    """Only the blocks asked for run and count."""
    x = np.ones(5000, np.float32)
    counters = counted(PLAIN, "reduction", np.zeros(8, np.float32), x, np.int32(5000), grid=8, block=256, blocks=[0, 7])
    assert counters.blocks == (0, 7)
    assert counters.barriers == 2 * 8 * 9


LONG = """
extern "C" __global__ void turns(float* x, int count) {
  float sum = x[threadIdx.x];
  for (int i = 0; i < count; i++) sum = sum * 1.5f + x[(threadIdx.x + i) & 31];
  x[threadIdx.x] = sum;
}
"""


def _turns(enough: Any) -> simt.LaunchResult:
    memory = simt.Memory()
    args = [memory.allocate("x", np.zeros(32, np.float32)), np.int32(4000)]
    return simt.launch(
        module_of(LONG),
        simt.LaunchSpec("turns", (1, 1, 1), (32, 1, 1)),
        args,
        memory,
        simt.LaunchOptions(enough=enough),
    )


def test_a_caller_that_has_seen_enough_ends_a_launch() -> None:
    """It is asked with counters that grow, and the launch then ends without a finding, neither complete nor hung."""
    seen: list[int] = []

    def enough(counters: simt.Counters) -> bool:
        seen.append(counters.total_warp_instructions)
        return len(seen) == 3

    result = _turns(enough)
    assert (True, False, False, ()) == (result.ended, result.completed, result.hung, result.findings)
    assert result.counters is not None
    assert sorted(seen) == seen
    assert 0 < seen[0] < seen[-1] <= result.counters.total_warp_instructions


def test_asking_changes_no_counter() -> None:
    """A launch whose caller never has enough counts what one that is not asked about counts."""
    asked, alone = _turns(lambda counters: False), _turns(None)
    assert (False, True) == (asked.ended, asked.completed)
    assert asked.counters is not None
    assert alone.counters is not None
    assert asked.counters.warp_instructions.tolist() == alone.counters.warp_instructions.tolist()
    assert asked.counters.load_sectors.tolist() == alone.counters.load_sectors.tolist()


TICKETS = """
__device__ unsigned tickets[64];
extern "C" __global__ void merge(float* out, int parts) {
  __shared__ unsigned place;
  if (threadIdx.x == 0) place = atomicInc(&tickets[blockIdx.x / parts], parts - 1);
  __syncthreads();
  if (place == parts - 1) out[blockIdx.x * 32 + threadIdx.x] = 1.0f;
}
"""


@pytest.mark.parametrize(("parts", "merged"), [(2, 3), (3, 2), (4, 2), (8, 1)])
def test_blocks_of_a_sample_share_a_counter(parts: int, merged: int) -> None:
    """The last block of each tile merges; in a sample of six blocks, about the same share merges as in the grid."""
    out = np.zeros(64 * 32, np.float32)
    every = counted(TICKETS, "merge", out, np.int32(parts), grid=64)
    assert total(every, "st.global", every.store_sectors) == 64 // parts * 4
    memory = simt.Memory()
    arguments = [memory.allocate("out", out), np.int32(parts)]
    spec = simt.LaunchSpec("merge", (64, 1, 1), (32, 1, 1), blocks=(0, 12, 25, 38, 50, 63))
    result = launch(module_of(TICKETS), spec, arguments, memory, source=TICKETS, sample=True)
    assert result.counters is not None
    assert total(result.counters, "st.global", result.counters.store_sectors) == merged * 4
