"""Small kernels with a fault that shows only from a second round, in a tail or at another size, and honest twins.

Each case is made from a number: the number selects the kind of fault and seeds the sizes. In the sources, `@<a||b>@`
stands for `a` in the faulty kernel and for `b` in the honest one. No small problem of a case shows its fault.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

NAME = "planted"
"""Name of every kernel."""


@dataclass(frozen=True)
class Planted:
    """A faulty kernel and its honest twin."""

    kind: str
    source: str
    """CUDA source; `@<faulty||honest>@` marks the difference."""
    threads: int
    problem: str
    """The study's problem."""
    small: tuple[str, ...]
    grid: str
    """Python text of the grid; may contain a difference too."""
    reference: str = "t['x'].square().sum(-1)"
    output: str = "(p.ROWS,)"
    fields: str = "ROWS COLS"
    inputs: str = "(p.ROWS, p.COLS)"
    further: str = ""
    """Python text of further buffers."""
    arguments: str = ""
    """Python text of further arguments, before the fields."""

    def write(self, folder: Path, *, faulty: bool) -> Path:
        """Write the kernel's folder and return it."""
        kernel = folder / NAME
        kernel.mkdir(parents=True)
        (kernel / "kernel.cu").write_text(_chosen(_REDUCE + self.source, faulty))
        numbers = "".join(f", i32(p.{name})" for name in self.fields.split())
        fields = "".join(f'ProblemField("{name}"), ' for name in self.fields.split())
        work = " * ".join(f"p.{name}" for name in self.fields.split())
        (kernel / "kernel.py").write_text(f'''
import torch
from evokern import Kernel, Launch, Parameter, ProblemField, Tensor, Tolerance, Workload, i32

kernel = Kernel(
    name="{NAME}",
    genes=(Parameter("THREADS", ({self.threads},), doc="threads"),),
    fields=({fields}),
    launches=lambda c, p: [
        Launch("run", grid={_chosen(self.grid, faulty)}, block=c.THREADS, args=("x", "y"{self.arguments}{numbers}))
    ],
    workload=Workload(
        tensors=lambda p, c: {{
            "x": Tensor("f32", {self.inputs}), "y": Tensor("f32", {self.output}, "output"){self.further}
        }},
        reference=lambda p, t: {{"y": {self.reference}}},
        tolerance={{"y": Tolerance(1e-3, 1e-4)}},
        flops=lambda p: 2 * {work},
        bytes=lambda p: 4 * {work},
        small_problems={self.small!r},
    ),
)
''')
        return kernel


def _chosen(text: str, faulty: bool) -> str:
    return re.sub(r"@<(.*?)\|\|(.*?)>@", lambda found: found[1 if faulty else 2], text, flags=re.DOTALL)


_REDUCE = """
__device__ float block_sum(float v, float* part) {
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
  __syncthreads();
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
  __syncthreads();
  float total = 0.f;
  for (int w = 0; w < THREADS / 32; w++) total += part[w];
  return total;
}
__device__ void copy_async(float* to, const float* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"((unsigned)__cvta_generic_to_shared(to)), "l"(from));
}
"""

_ROWS = "const float* x, float* y, int rows, int cols"


def _aligned(draw: random.Random, kind: str, source: str, **options: str) -> Planted:
    """Return a case with one row for each block; rows of small problems are multiples of 16."""
    cols = 16 * draw.randint(5, 12) + draw.choice((0, 7))
    return Planted(kind, source, 64, f"{draw.randint(9, 20)},{cols}", ("5,48", "7,80"), "p.ROWS", **options)


def _walk(draw: random.Random, kind: str, source: str, **options: str) -> Planted:
    """Return a case whose blocks walk over rows; each small problem has at most one row for each block."""
    threads, grid = draw.choice((64, 128, 256)), draw.randint(5, 24)
    rows, cols = grid * draw.randint(3, 6) + draw.randint(0, 4), draw.randint(40, 400)
    small = (f"{grid - 2},{draw.randint(30, 90)}", f"{grid},{threads}")
    return Planted(kind, source, threads, f"{rows},{cols}", small, str(grid), **options)


def _tiles(
    draw: random.Random, kind: str, source: str, *, tiles: int = 1, whole: bool = False, **options: str
) -> Planted:
    """Return a case with one row for each block, in tiles; small problems have at most `tiles` of them."""
    threads, rows = draw.choice((64, 128)), draw.randint(3, 9)
    cols = threads * draw.randint(4, 7) + (0 if whole else draw.randint(1, threads - 1))
    small = (f"{rows - 1},{threads * tiles}", f"{rows},{threads if whole or tiles > 1 else draw.randint(20, 60)}")
    return Planted(kind, source, threads, f"{rows},{cols}", small, "p.ROWS", **options)


def _flat(draw: random.Random, kind: str, source: str, grid: str, *, tail: bool, scale: int = 1) -> Planted:
    """Return a case with one element for each thread; small problems have no tail."""
    threads = draw.choice((64, 128, 256))
    n = threads * draw.randint(20, 60) * scale + (draw.randint(1, threads - 1) if tail else 0)
    small = (str(threads * draw.randint(2, 5)), str(threads * 8))
    return Planted(kind, source, threads, str(n), small, grid, "2 * t['x'] + 1", "(p.N,)", fields="N", inputs="(p.N,)")


def _scratch(draw: random.Random) -> Planted:
    return _walk(
        draw,
        "scratch reused by the second row without a barrier",
        f"""
extern "C" __global__ void run({_ROWS}) {{
  __shared__ float part[32];
  for (int r = blockIdx.x; r < rows; r += gridDim.x) {{
    float v = 0.f;
    for (int c = threadIdx.x; c < cols; c += THREADS) v += x[(long long)r * cols + c] * x[(long long)r * cols + c];
    for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    float total = 0.f;
    for (int w = 0; w < THREADS / 32; w++) total += part[w];
    if (threadIdx.x == 0) y[r] = total;
    @<||__syncthreads();>@
  }}
}}""",
    )


def _broadcast(draw: random.Random) -> Planted:
    return _walk(draw, "shared value of the previous row", f"""
extern "C" __global__ void run({_ROWS}) {{
  __shared__ float first;
  int r = blockIdx.x;
  while (r < rows) {{
    if (threadIdx.x == 0) first = x[(long long)r * cols];
    __syncthreads();
    for (int c = threadIdx.x; c < cols; c += THREADS)
      y[(long long)r * cols + c] = x[(long long)r * cols + c] + first;
    @<||__syncthreads();>@
    r += gridDim.x;
  }}
}}""", reference="t['x'] + t['x'][:, :1]", output="(p.ROWS, p.COLS)")  # fmt: skip


def _accumulator(draw: random.Random) -> Planted:
    return _walk(
        draw,
        "accumulator not reset for the second row",
        f"""
extern "C" __global__ void run({_ROWS}) {{
  __shared__ float part[32];
  float v = 0.f;
  for (int r = blockIdx.x; r < rows; r += gridDim.x) {{
    @<||v = 0.f;>@
    for (int c = threadIdx.x; c < cols; c += THREADS) v += x[(long long)r * cols + c] * x[(long long)r * cols + c];
    float total = block_sum(v, part);
    if (threadIdx.x == 0) y[r] = total;
  }}
}}""",
    )


def _bins(draw: random.Random) -> Planted:
    return _walk(draw, "shared bins not cleared for the second row", f"""
extern "C" __global__ void run({_ROWS}) {{
  __shared__ float bins[8];
  if (threadIdx.x < 8) bins[threadIdx.x] = 0.f;
  __syncthreads();
  for (int r = blockIdx.x; r < rows; r += gridDim.x) {{
    for (int c = threadIdx.x; c < cols; c += THREADS)
      atomicAdd(&bins[c & 7], x[(long long)r * cols + c] * x[(long long)r * cols + c]);
    __syncthreads();
    if (threadIdx.x < 8) y[r * 8 + threadIdx.x] = bins[threadIdx.x];
    __syncthreads();
    @<||if (threadIdx.x < 8) bins[threadIdx.x] = 0.f; __syncthreads();>@
  }}
}}""", reference="torch.zeros(p.ROWS, 8, dtype=torch.float64).index_add_(1, torch.arange(p.COLS) % 8, t['x'].square())",
        output="(p.ROWS, 8)")  # fmt: skip


_STAGED = """
extern "C" __global__ void run(const float* x, float* y, int rows, int cols) {{
  __shared__ float buf[2][THREADS], part[32];
  const float* row = x + (long long)blockIdx.x * cols;
  const int tiles = (cols + THREADS - 1) / THREADS, tid = threadIdx.x;
  float acc = 0.f;
  buf[0][tid] = tid < cols ? row[tid] : 0.f;
  __syncthreads();
  for (int t = 0; t < tiles; t++) {{
    if (t + 1 < tiles) {{
      const int c = (t + 1) * THREADS + tid;
      buf[(t + 1) & 1][tid] = c < cols ? row[c] : 0.f;
    }}
    const float v = buf[{now}][(tid + 33) % THREADS];
    acc += v * v;
    {barrier}
  }}
  acc = block_sum(acc, part);
  if (tid == 0) y[blockIdx.x] = acc;
}}"""


def _parity(draw: random.Random) -> Planted:
    source = _STAGED.format(now="@<t > 0||t & 1>@", barrier="__syncthreads();")
    return _tiles(draw, "wrong buffer from the third tile", source, tiles=2)


def _unguarded_buffer(draw: random.Random) -> Planted:
    source = _STAGED.format(now="t & 1", barrier="@<||__syncthreads();>@")
    return _tiles(draw, "second buffer without a barrier", source)


def _async_wait(draw: random.Random) -> Planted:
    return _tiles(
        draw,
        "asynchronous copy of the last tile not waited for",
        f"""
#define STAGES 3
extern "C" __global__ void run({_ROWS}) {{
  __shared__ float buf[STAGES][THREADS], part[32];
  const float* row = x + (long long)blockIdx.x * cols;
  const int tiles = (cols + THREADS - 1) / THREADS, tid = threadIdx.x;
  auto load = [&](int t) {{
    const int c = t * THREADS + tid;
    if (t < tiles && c < cols) copy_async(&buf[t % STAGES][tid], row + c);
    else if (t < tiles) buf[t % STAGES][tid] = 0.f;
  }};
  for (int s = 0; s < STAGES - 1; s++) {{
    load(s);
    asm volatile("cp.async.commit_group;");
  }}
  float acc = 0.f;
  for (int t = 0; t < tiles; t++) {{
    asm volatile("cp.async.wait_group %0;" :: "n"(STAGES - 2));
    __syncthreads();
    const float v = buf[t % STAGES][(tid + 33) % THREADS];
    acc += v * v;
    load(t + STAGES - 1);
    @<if (t + STAGES - 1 < tiles)||>@ asm volatile("cp.async.commit_group;");
  }}
  acc = block_sum(acc, part);
  if (tid == 0) y[blockIdx.x] = acc;
}}""",
    )


def _stale_tile(draw: random.Random) -> Planted:
    return _tiles(draw, "rest of a partial tile not cleared", f"""
extern "C" __global__ void run({_ROWS}) {{
  __shared__ float buf[THREADS], part[32];
  const float* row = x + (long long)blockIdx.x * cols;
  float acc = 0.f;
  for (int base = 0; base < cols; base += THREADS) {{
    const int c = base + threadIdx.x;
    @<if (c < cols) buf[threadIdx.x] = row[c];||buf[threadIdx.x] = c < cols ? row[c] : 0.f;>@
    __syncthreads();
    const float v = buf[(threadIdx.x + 33) % THREADS];
    acc += v * v;
    __syncthreads();
  }}
  acc = block_sum(acc, part);
  if (threadIdx.x == 0) y[blockIdx.x] = acc;
}}""", tiles=2)  # fmt: skip


def _scan(draw: random.Random) -> Planted:
    return _tiles(draw, "carry of the previous tile without a barrier", f"""
extern "C" __global__ void run({_ROWS}) {{
  __shared__ float tile[THREADS], carry;
  const long long row = (long long)blockIdx.x * cols;
  if (threadIdx.x == 0) carry = 0.f;
  for (int base = 0; base < cols; base += THREADS) {{
    const int c = base + threadIdx.x;
    tile[threadIdx.x] = c < cols ? x[row + c] * x[row + c] : 0.f;
    __syncthreads();
    float sum = carry;
    for (int j = 0; j <= threadIdx.x; j++) sum += tile[j];
    if (c < cols) y[row + c] = sum;
    @<||__syncthreads();>@
    if (base + THREADS < cols && threadIdx.x == THREADS - 1) carry = sum;
    __syncthreads();
  }}
}}""", reference="t['x'].square().cumsum(-1)", output="(p.ROWS, p.COLS)")  # fmt: skip


def _maximum(draw: random.Random) -> Planted:
    return _tiles(draw, "maximum of the last tile alone", f"""
extern "C" __global__ void run({_ROWS}) {{
  const float* row = x + (long long)blockIdx.x * cols;
  __shared__ float tile[THREADS];
  float most = -INFINITY;
  for (int base = 0; base < cols; base += THREADS) {{
    const int c = base + threadIdx.x;
    tile[threadIdx.x] = c < cols ? row[c] : -INFINITY;
    __syncthreads();
    float here = -INFINITY;
    for (int j = 0; j < THREADS; j++) here = fmaxf(here, tile[j]);
    most = @<here||fmaxf(most, here)>@;
    __syncthreads();
  }}
  if (threadIdx.x == 0) y[blockIdx.x] = most;
}}""", reference="t['x'].amax(-1)")  # fmt: skip


def _mask(draw: random.Random) -> Planted:
    return _flat(draw, "tail mask off by one", """
extern "C" __global__ void run(const float* x, float* y, int n) {
  const int i = blockIdx.x * THREADS + threadIdx.x;
  if (i @<<=||<>@ n) y[i] = 2.f * x[i] + 1.f;
}""", "-(-p.N // c.THREADS)", tail=draw.random() < 0.5)  # fmt: skip


def _lost_tail(draw: random.Random) -> Planted:
    return _flat(draw, "no block for the tail", """
extern "C" __global__ void run(const float* x, float* y, int n) {
  const int i = blockIdx.x * THREADS + threadIdx.x;
  if (i < n) y[i] = 2.f * x[i] + 1.f;
}""", "@<max(1, p.N // c.THREADS)||-(-p.N // c.THREADS)>@", tail=draw.random() < 0.5)  # fmt: skip


def _narrow_index(draw: random.Random) -> Planted:
    return _flat(draw, "index of 16 bits", """
extern "C" __global__ void run(const float* x, float* y, int n) {
  const @<unsigned short||unsigned>@ i = blockIdx.x * THREADS + threadIdx.x;
  if (i < n) y[i] = 2.f * x[i] + 1.f;
}""", "-(-p.N // c.THREADS)", tail=True, scale=60)  # fmt: skip


def _step(draw: random.Random) -> Planted:
    grid = draw.randint(9, 14)
    return _flat(draw, "wrong step from the second round", """
extern "C" __global__ void run(const float* x, float* y, int n) {
  for (int i = blockIdx.x * THREADS + threadIdx.x; i < n; i += gridDim.x * THREADS @<+ 1||>@) y[i] = 2.f * x[i] + 1.f;
}""", str(grid), tail=True, scale=2)  # fmt: skip


def _chunks(draw: random.Random) -> Planted:
    return _flat(draw, "last block without the remainder", """
extern "C" __global__ void run(const float* x, float* y, int n) {
  const int each = n / gridDim.x, begin = blockIdx.x * each;
  const int end = @<begin + each||blockIdx.x + 1 == gridDim.x ? n : begin + each>@;
  for (int i = begin + threadIdx.x; i < end; i += THREADS) y[i] = 2.f * x[i] + 1.f;
}""", str(draw.choice((4, 8, 16))), tail=True)  # fmt: skip


def _stride(draw: random.Random) -> Planted:
    return _aligned(draw, "row stride rounded up", f"""
extern "C" __global__ void run({_ROWS}) {{
  const int stride = @<(cols + 15) / 16 * 16||cols>@;
  for (int c = threadIdx.x; c < cols; c += THREADS)
    y[(long long)blockIdx.x * cols + c] = 2.f * x[(long long)blockIdx.x * stride + c];
}}""", reference="2 * t['x']", output="(p.ROWS, p.COLS)")  # fmt: skip


def _fence(draw: random.Random) -> Planted:
    threads = draw.choice((64, 128))
    return Planted("partial sums published without a fence", """
extern "C" __global__ void run(const float* x, float* y, float* sums, unsigned* count, int n) {
  __shared__ float part[32];
  __shared__ bool last;
  float v = 0.f;
  for (int i = blockIdx.x * THREADS + threadIdx.x; i < n; i += gridDim.x * THREADS) v += x[i] * x[i];
  v = block_sum(v, part);
  if (threadIdx.x == 0) {
    sums[blockIdx.x] = v;
    @<||__threadfence();>@
    last = atomicAdd(count, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (last && threadIdx.x == 0) {
    __threadfence();
    float total = 0.f;
    for (int b = 0; b < gridDim.x; b++) total += sums[b];
    y[0] = total;
  }
}""", threads, str(threads * draw.randint(40, 90) + 5), (str(threads), str(threads - 9)),
        f"min({draw.randint(6, 12)}, -(-p.N // c.THREADS))", "t['x'].square().sum().view(1)", "(1,)", "N", "(p.N,)",
        ', "sums": Tensor("f32", (16,), "workspace"), "count": Tensor("i32", (1,), "workspace", initial="zero")',
        ', "sums", "count"')  # fmt: skip


def _transpose(draw: random.Random) -> Planted:
    grid = draw.randint(4, 9)
    return Planted("tile of the previous round overwritten", """
extern "C" __global__ void run(const float* x, float* y, int rows, int cols) {
  __shared__ float tile[16][17];
  const int across = (cols + 15) / 16, all = across * ((rows + 15) / 16);
  const int i = threadIdx.x / 16, j = threadIdx.x % 16;
  for (int t = blockIdx.x; t < all; t += gridDim.x) {
    const int r = t / across * 16, c = t % across * 16;
    if (r + i < rows && c + j < cols) tile[i][j] = x[(long long)(r + i) * cols + c + j];
    __syncthreads();
    if (r + j < rows && c + i < cols) y[(long long)(c + i) * rows + r + j] = tile[j][i];
    @<||__syncthreads();>@
  }
}""", 256, f"{draw.randint(80, 130)},{draw.randint(80, 130)}", ("16,40", "30,32"), str(grid), "t['x'].T.contiguous()",
        "(p.COLS, p.ROWS)")  # fmt: skip


def _weights(draw: random.Random) -> Planted:
    return _walk(draw, "weights changed by the first row", """
extern "C" __global__ void run(const float* x, float* y, const float* w, int rows, int cols) {
  __shared__ float scale[1024];
  for (int c = threadIdx.x; c < cols && c < 1024; c += THREADS) scale[c] = w[c];
  __syncthreads();
  for (int r = blockIdx.x; r < rows; r += gridDim.x)
    for (int c = threadIdx.x; c < cols; c += THREADS) {
      if (c >= 1024) y[(long long)r * cols + c] = w[c] + x[(long long)r * cols + c];
      else y[(long long)r * cols + c] = @<scale[c] +=||scale[c] +>@ x[(long long)r * cols + c];
    }
}""", reference="t['x'] + t['w']", output="(p.ROWS, p.COLS)", further=', "w": Tensor("f32", (p.COLS,))',
        arguments=', "w"')  # fmt: skip


def _prefetch(draw: random.Random) -> Planted:
    return _walk(draw, "prefetched row not taken over", f"""
extern "C" __global__ void run({_ROWS}) {{
  for (int c = threadIdx.x; c < cols; c += THREADS) {{
    float now = blockIdx.x < rows ? x[(long long)blockIdx.x * cols + c] : 0.f;
    for (int r = blockIdx.x; r < rows; r += gridDim.x) {{
      const int following = r + gridDim.x;
      const float next = following < rows ? x[(long long)following * cols + c] : 0.f;
      y[(long long)r * cols + c] = 2.f * now;
      @<if (next > 1e30f)||>@ now = next;
    }}
  }}
}}""", reference="2 * t['x']", output="(p.ROWS, p.COLS)")  # fmt: skip


KINDS: tuple[Callable[[random.Random], Planted], ...] = (
    _scratch, _mask, _parity, _fence, _broadcast, _lost_tail, _unguarded_buffer, _transpose, _accumulator,
    _narrow_index, _async_wait, _weights, _bins, _step, _stale_tile, _prefetch, _stride, _chunks, _scan, _maximum,
)  # fmt: skip


def planted(number: int) -> Planted:
    """Return the case with a number; cases of the same kind differ in their sizes."""
    return KINDS[number % len(KINDS)](random.Random(f"planted {number}"))
