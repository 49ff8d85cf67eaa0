"""Measure the errors of sums on tensor cores: the largest |error| divided by the sum of the absolute products.

Usage: python tests/scripts/tensor_core_errors.py (needs a GPU with compute capability 8.9 or later)

Prints one line for each instruction and number of products, with the worst inputs and the ratio of the factor of
`evokern.declaration.bounds.sum_factor` to the error. A ratio below 1 would break the bound.
"""

from __future__ import annotations

from collections.abc import Iterator

import cupy
import numpy as np
import numpy.typing as npt
import torch

from evokern.declaration.bounds import sum_factor

Matrix = npt.NDArray[np.float64]
ROWS, COLUMNS = 16, 8
COUNTS = (32, 256, 1024, 4096, 16384, 65536)

SOURCE = r"""
#include <cuda_fp16.h>

__device__ unsigned word(const void* from) { return *static_cast<const unsigned*>(from); }

// One warp multiplies A [16, K] by B [8, K]^T in one accumulator. `bytes` is the size of an element.
extern "C" __global__ void product(const char* a, const char* b, float* c, int K, int bytes, int narrow) {
  const int group = threadIdx.x >> 2, lane = threadIdx.x & 3;
  float d[4] = {0, 0, 0, 0};
  unsigned h[2] = {0, 0};
  const long long row = static_cast<long long>(K) * bytes;
  for (long long at = 0; at < row; at += 32) {
    const long long left = group * row + at + lane * 4, low = left + 8 * row;
    const unsigned A[4] = {word(a + left), word(a + low), word(a + left + 16), word(a + low + 16)};
    const unsigned B[2] = {word(b + left), word(b + left + 16)};
    if (bytes == 1) {
      asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},"
                   "{%0,%1,%2,%3};" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                   : "r"(A[0]), "r"(A[1]), "r"(A[2]), "r"(A[3]), "r"(B[0]), "r"(B[1]));
    } else if (narrow) {
      asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0,%1},{%2,%3,%4,%5},{%6,%7},{%0,%1};"
                   : "+r"(h[0]), "+r"(h[1]) : "r"(A[0]), "r"(A[1]), "r"(A[2]), "r"(A[3]), "r"(B[0]), "r"(B[1]));
    } else {
      asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},"
                   "{%0,%1,%2,%3};" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                   : "r"(A[0]), "r"(A[1]), "r"(A[2]), "r"(A[3]), "r"(B[0]), "r"(B[1]));
    }
  }
  const __half* halves = reinterpret_cast<const __half*>(h);
  for (int i = 0; i < 4; i++)
    c[(group + 8 * (i >> 1)) * 8 + lane * 2 + (i & 1)] = narrow ? __half2float(halves[i]) : d[i];
}
"""


def inputs(count: int, exponents: range) -> Iterator[tuple[str, Matrix, Matrix]]:
    """Yield inputs of shapes (16, count) and (8, count): random, sorted, alternating and adversarial."""
    rng = np.random.default_rng(1)

    def normal(rows: int) -> Matrix:
        return rng.standard_normal((rows, count))

    yield "both signs", normal(ROWS), normal(COLUMNS)
    yield "one sign", abs(normal(ROWS)), abs(normal(COLUMNS))
    yield "descending", -np.sort(-abs(normal(ROWS)), 1), -np.sort(-abs(normal(COLUMNS)), 1)
    yield "alternating", abs(normal(ROWS)) * np.where(np.arange(count) % 2, -1, 1), abs(normal(COLUMNS))
    for exponent in exponents:
        for factor in (1.0, 1.5, 1.9375):
            for step in (count, 16):  # one large product, or one in every step
                a = np.full((ROWS, count), factor * 2.0 ** -(exponent // 2))
                b = np.full((COLUMNS, count), 2.0 ** -(exponent - exponent // 2))
                a[:, ::step] = b[:, ::step] = 1
                yield f"1 every {step}, else {factor}*2^-{exponent}", a, b


def errors(result: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> float:
    """Return the largest error divided by the sum of the absolute products; 0 if a result overflowed."""
    a, b = a.double(), b.double()
    share = (result.double() - a @ b.T).abs() / (a.abs() @ b.abs().T)
    return float(share.max()) if bool(result.isfinite().all()) else 0.0


def main() -> None:
    """Measure and print."""
    product = cupy.RawModule(code=SOURCE, options=("--std=c++17",)).get_function("product")
    print(torch.cuda.get_device_name())
    for count in COUNTS:
        worst: dict[tuple[str, str, int], tuple[float, str]] = {}
        for dtype, bits in ((torch.float16, 16), (torch.bfloat16, 16), (torch.float8_e4m3fn, 8)):
            for name, left, right in inputs(count, range(4, 18) if bits == 8 else range(10, 30)):
                a, b = (torch.from_numpy(one).cuda().to(dtype) for one in (left, right))
                wide = a.repeat(8, 1), b.repeat(16, 1)
                found = {}
                for narrow in (False, True) if dtype == torch.float16 else (False,) if bits == 8 else ():
                    c = torch.zeros((ROWS, COLUMNS), device="cuda")
                    pointers = (cupy.from_dlpack(one.view(torch.uint8)) for one in (a, b))
                    shape = np.int32(count), np.int32(bits // 8), np.int32(narrow)
                    product((1,), (32,), (*pointers, cupy.from_dlpack(c), *shape))
                    found["mma", "f16" if narrow else "f32"] = errors(c, a, b)
                if bits == 8:
                    one = torch.ones((), device="cuda")
                    c = torch._scaled_mm(wide[0], wide[1].T, one, one, out_dtype=torch.float32)
                else:
                    c = torch.mm(wide[0], wide[1].T, out_dtype=torch.float32)
                found["cuBLAS", "f32"] = errors(c, *wide)
                for (how, accumulator), error in found.items():
                    key = f"{how} {str(dtype)[6:]}", accumulator, bits
                    worst[key] = max(worst.get(key, (0.0, "")), (error, name))
        for (how, accumulator, bits), (error, name) in worst.items():
            factor = sum_factor(count, "f16" if accumulator == "f16" else "f32", bits)
            ratio = factor / error if error else float("inf")
            print(f"{how:22} {accumulator}  K {count:6}  error {error:.3e}  factor / error {ratio:8.2f}  {name}")


if __name__ == "__main__":
    main()
