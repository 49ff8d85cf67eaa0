"""bf16 instructions on the PTX machine against torch's bfloat16, bit by bit."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from paths import KERNELS
from rounding_truth import rounded_to
from simt_tools import ptx_of

from evokern import simt
from evokern.simt import numerics

SOURCE = """
using u16 = unsigned short; using u32 = unsigned int;
#define AT int i = blockIdx.x * blockDim.x + threadIdx.x
extern "C" __global__ void widen(u32* out, const u16* in) {
  AT; u32 r; asm("{ .reg .f32 f; cvt.f32.bf16 f, %1; mov.b32 %0, f; }" : "=r"(r) : "h"(in[i])); out[i] = r;
}
extern "C" __global__ void narrow(u16* out, const float* in) {
  AT; u16 r; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(in[i])); out[i] = r;
}
extern "C" __global__ void narrow2(u32* out, const float* low, const float* high) {
  AT; u32 r; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high[i]), "f"(low[i])); out[i] = r;
}
#define ONE(name, op) extern "C" __global__ void name##1(u16* out, const u16* a, const u16* b) { \\
  AT; u16 r; asm(op " %0, %1, %2;" : "=h"(r) : "h"(a[i]), "h"(b[i])); out[i] = r; }
#define TWO(name, op) extern "C" __global__ void name##2(u32* out, const u32* a, const u32* b) { \\
  AT; u32 r; asm(op " %0, %1, %2;" : "=r"(r) : "r"(a[i]), "r"(b[i])); out[i] = r; }
ONE(add, "add.rn.bf16") ONE(sub, "sub.rn.bf16") ONE(mul, "mul.rn.bf16") ONE(max, "max.bf16") ONE(min, "min.bf16")
TWO(add, "add.rn.bf16x2") TWO(sub, "sub.rn.bf16x2") TWO(mul, "mul.rn.bf16x2") TWO(max, "max.bf16x2")
TWO(min, "min.bf16x2")
extern "C" __global__ void fma1(u16* out, const u16* a, const u16* b, const u16* c) {
  AT; u16 r; asm("fma.rn.bf16 %0, %1, %2, %3;" : "=h"(r) : "h"(a[i]), "h"(b[i]), "h"(c[i])); out[i] = r;
}
extern "C" __global__ void fma2(u32* out, const u32* a, const u32* b, const u32* c) {
  AT; u32 r; asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a[i]), "r"(b[i]), "r"(c[i])); out[i] = r;
}
"""
"""Each instruction on 16-bit floats that sm_90 has of those the packaged kernels may use."""

HEADER = """
extern "C" __global__ void pack(u32* out, const float* low, const float* high) {
  int i = blockIdx.x * blockDim.x + threadIdx.x; out[i] = pack_half2(low[i], high[i]);
}
extern "C" __global__ void unpack(float* low, float* high, const u32* in) {
  int i = blockIdx.x * blockDim.x + threadIdx.x; low[i] = low2float(in[i]); high[i] = high2float(in[i]);
}
#define TWO(name) extern "C" __global__ void name##2(u32* out, const u32* a, const u32* b) { \\
  int i = blockIdx.x * blockDim.x + threadIdx.x; out[i] = name##_half2(a[i], b[i]); }
TWO(add) TWO(mul) TWO(max)
"""
"""What kernels call of `kernels/common/half.cuh`, for a chip that has no additions and products of bf16."""

PATTERNS = np.arange(1 << 16, dtype=np.uint16)
RNG = np.random.default_rng(16)
PAIRS = [np.concatenate([RNG.permutation(PATTERNS), RNG.integers(0, 1 << 16, 1 << 16, np.uint16)]) for _ in range(2)]
"""Two columns of operands: every pattern beside others, infinities, NaN and subnormal numbers among them."""
EDGES = np.arange(0x3F7E0000, 0x3F820000, 1 << 9, dtype=np.uint32)
FLOATS = np.concatenate(
    [
        RNG.integers(0, 1 << 32, (1 << 17) - 6 * len(EDGES), np.uint32),
        # Just below, on and above the middle of two bf16, also of subnormal ones and at the end of the range.
        *(EDGES + offset for offset in (0x7FFF, 0x8000, 0x8001)),
        *((EDGES - 0x3F700000) + offset for offset in (0x7FFF, 0x8000, 0x8001)),
    ]
).view(np.float32)


def run(text: str, architecture: str, entry: str, out: list[np.ndarray], *arrays: np.ndarray) -> list[np.ndarray]:
    """Launch an entry over all elements; return what its outputs hold."""
    module, memory = simt.parse(ptx_of(text, (), architecture)), simt.Memory()
    outputs = [memory.allocate(f"out{i}", array) for i, array in enumerate(out)]
    inputs = [memory.allocate(f"in{i}", array, writable=False) for i, array in enumerate(arrays)]
    blocks = len(arrays[0]) // 256
    result = simt.launch(
        module,
        simt.LaunchSpec(entry, (blocks, 1, 1), (256, 1, 1)),
        [*outputs, *inputs],
        memory,
        simt.LaunchOptions(source=text),
    )
    assert (result.findings, result.completed) == ((), True)
    return [buffer.read() for buffer in outputs]


def brain(bits: np.ndarray) -> torch.Tensor:
    """Return 16-bit patterns as torch's bfloat16."""
    return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)


def bits_of(values: torch.Tensor) -> np.ndarray:
    """Return torch's bfloat16 as 16-bit patterns."""
    return values.view(torch.int16).numpy().view(np.uint16)


def assert_same(expected: torch.Tensor, got: np.ndarray) -> None:
    """Every bit agrees; a NaN is one, whatever its payload (PTX ISA: canonical, 0x7fff)."""
    odd = expected.isnan().numpy()
    assert np.array_equal(odd, brain(got).isnan().numpy())
    assert np.array_equal(bits_of(expected)[~odd], got[~odd])


def test_conversions() -> None:
    """All 65,536 patterns widen as torch widens them; floats narrow as torch rounds them, alone and in pairs."""
    (wide,) = run(SOURCE, "compute_90", "widen", [np.zeros(1 << 16, np.uint32)], PATTERNS)
    expected = brain(PATTERNS).float()
    assert np.array_equal(expected.numpy(), wide.view(np.float32), equal_nan=True)
    (narrow,) = run(SOURCE, "compute_90", "narrow", [np.zeros(len(FLOATS), np.uint16)], FLOATS)
    assert_same(torch.from_numpy(FLOATS).to(torch.bfloat16), narrow)
    (pairs,) = run(SOURCE, "compute_90", "narrow2", [np.zeros(len(FLOATS), np.uint32)], FLOATS, FLOATS[::-1].copy())
    assert_same(torch.from_numpy(FLOATS).to(torch.bfloat16), pairs.view(np.uint16)[::2].copy())
    assert_same(torch.from_numpy(FLOATS[::-1].copy()).to(torch.bfloat16), pairs.view(np.uint16)[1::2].copy())


def extreme(name: str, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return torch's maximum or minimum, where beside a NaN stands the number and -0 is below +0 (PTX ISA, "max")."""
    quiet = [torch.where(one.isnan(), torch.nan, one) for one in (a, b)]  # torch passes a signalling NaN on
    found = torch.fmax(*quiet) if name == "max" else torch.fmin(*quiet)
    both = (a == 0) & (b == 0)
    negative = torch.signbit(a) & torch.signbit(b) if name == "max" else torch.signbit(a) | torch.signbit(b)
    return torch.where(both, torch.where(negative, -0.0, 0.0).to(torch.bfloat16), found)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "max", "min"])
def test_arithmetic(name: str) -> None:
    """Sums, differences, products and extremes of 131,072 pairs, alone and packed, are torch's."""
    a, b = map(brain, PAIRS)
    operation = {"add": torch.add, "sub": torch.sub, "mul": torch.mul}.get(name, lambda x, y: extreme(name, x, y))
    expected = operation(a, b)
    (alone,) = run(SOURCE, "compute_90", f"{name}1", [np.zeros(len(a), np.uint16)], *PAIRS)
    assert_same(expected, alone)
    packed = [one.view(np.uint32) for one in PAIRS]
    (pairs,) = run(SOURCE, "compute_90", f"{name}2", [np.zeros(len(a) // 2, np.uint32)], *packed)
    assert_same(expected, pairs.view(np.uint16))


def test_multiply_add_rounds_once() -> None:
    """fma.rn.bf16 is the exact product and sum rounded once, which torch has no operation for; pairs are the same."""
    columns = [
        numerics.encode("bf16", np.ldexp(1 + RNG.integers(0, 128, 4096) / 128.0, RNG.integers(-9, 9, 4096)))
        for _ in range(3)
    ]
    (alone,) = run(SOURCE, "compute_90", "fma1", [np.zeros(4096, np.uint16)], *columns)
    (pairs,) = run(SOURCE, "compute_90", "fma2", [np.zeros(2048, np.uint32)], *(one.view(np.uint32) for one in columns))
    assert np.array_equal(alone, pairs.view(np.uint16))
    values = [brain(one).double().tolist() for one in columns]
    exact = [Fraction(a) * Fraction(b) + Fraction(c) for a, b, c in zip(*values, strict=True)]
    assert [float(rounded_to("bf16", one, "rn")) for one in exact] == brain(alone).double().tolist()


def header() -> str:
    """Return `half.cuh` with bf16 chosen, and what the kernels call of it."""
    text = "#define BF16 1\n" + "".join(
        (KERNELS / "common" / name).read_text(encoding="utf-8").replace("#pragma once", "")
        for name in ("types.cuh", "half.cuh")
    )
    return text.replace('#include "../common/types.cuh"', "") + HEADER


def test_the_kernels_header() -> None:
    """What half.cuh has in place of the plain instructions, on sm_80, gives torch's bits too."""
    low, high = FLOATS, FLOATS[::-1].copy()
    (packed,) = run(header(), "compute_80", "pack", [np.zeros(len(low), np.uint32)], low, high)
    for place, values in enumerate((low, high)):
        assert_same(torch.from_numpy(values).to(torch.bfloat16), packed.view(np.uint16)[place::2].copy())
    words = PAIRS[0].view(np.uint32)
    for got, bits in zip(
        run(header(), "compute_80", "unpack", [np.zeros(len(words), np.float32) for _ in range(2)], words),
        (PAIRS[0][::2], PAIRS[0][1::2]),
        strict=True,
    ):
        assert np.array_equal(brain(bits.copy()).float().numpy(), got, equal_nan=True)
    a, b = map(brain, PAIRS)
    for name, expected in (("add", a + b), ("mul", a * b), ("max", extreme("max", a, b))):
        pairs = [one.view(np.uint32) for one in PAIRS]
        (got,) = run(header(), "compute_80", f"{name}2", [np.zeros(len(words), np.uint32)], *pairs)
        assert_same(expected, got.view(np.uint16))
