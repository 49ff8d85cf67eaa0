"""Kernels in the style of user files: VARIANT 1 is the default, 2 a right variant, and 4 lacks a term."""

from __future__ import annotations

from dataclasses import dataclass

_REDUCE = """
__device__ float warp_sum(float v) {
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
  return v;
}
__device__ float block_sum(float v) {
  __shared__ float part[32];
  v = warp_sum(v);
  __syncthreads();
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
  __syncthreads();
  float s = 0.f;
#if VARIANT == 2
  for (int i = (blockDim.x + 31) / 32 - 1; i >= 0; i--) s += part[i];
#else
  for (int i = 0; i < (blockDim.x + 31) / 32; i++) s += part[i];
#endif
  return s;
}
__device__ float block_max(float v) {
  __shared__ float part[32];
  for (int o = 16; o; o >>= 1) v = fmaxf(v, __shfl_xor_sync(~0u, v, o));
  __syncthreads();
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
  __syncthreads();
  float s = part[0];
  for (int i = 1; i < (blockDim.x + 31) / 32; i++) s = fmaxf(s, part[i]);
  return s;
}
"""
_ROW = "const float* a = x + (size_t)blockIdx.x * cols;"
_ALL = "for (int i = threadIdx.x; i < cols; i += blockDim.x)"
_LESS = "for (int i = threadIdx.x; i < cols - (VARIANT == 4); i += blockDim.x)"
_POINTWISE = """
__global__ void {name}(const float* x, const float* r, float* y, int n) {{
  for (int i = blockIdx.x * 128 + threadIdx.x; i < n; i += gridDim.x * 128) {{
    float v = x[i];
#if VARIANT == 2
    float g = {right};
#elif VARIANT == 4
    float g = {wrong};
#else
    float g = {default};
#endif
    y[i] = g + r[i];
  }}
}}
"""


@dataclass(frozen=True)
class ForeignKernel:
    """One kernel and what computes the same."""

    source: str
    """CUDA source; the entry point has the kernel's name."""
    fields: str
    """Names of the problem's fields."""
    problems: tuple[str, ...]
    """Problems at which the variants are compared."""
    tensors: str
    """Declarations of the buffers, as entries of a dictionary."""
    arguments: str
    """Arguments of the launch: names of buffers, and of fields."""
    grid: str
    """Blocks, as an expression of the problem p."""
    block: str
    """Threads of a block."""
    reference: str
    """Output, as an expression of the problem p and the inputs t."""
    output: str = "y"
    """Name of the output."""
    more: str = ""
    """Further launches, as expressions."""
    right: str = "same"
    """Verdict on the right variant."""
    wrong: str = "different"
    """Verdict on the variant without a term."""
    default: str = "equal"
    """Beginning of the comparison of the default with the reference."""


def _rows(source: str, reference: str, *, output: str = "(p.R,)", block: str = "96", more: str = "") -> ForeignKernel:
    """Return a kernel with one block for each row of x."""
    given = f'"x": Tensor("f32", (p.R, p.C)),{more} "y": Tensor("f32", {output}, role="output")'
    names = "x " + " ".join(one.split('"')[1] for one in more.split("),") if '"' in one)
    return ForeignKernel(_REDUCE + source, "R C", ("3,167", "2,384"), given, f"{names} y R C", "p.R", block, reference)


def _pointwise(name: str, default: str, right: str, wrong: str, reference: str, helper: str = "") -> ForeignKernel:
    source = helper + _POINTWISE.format(name=name, default=default, right=right, wrong=wrong)
    tensors = '"x": Tensor("f32", (p.N,)), "r": Tensor("f32", (p.N,)), "y": Tensor("f32", (p.N,), role="output")'
    return ForeignKernel(source, "N", ("700",), tensors, "x r y N", "2", "128", f"{reference} + t['r']")


def _gemm(source: str, grid: str, block: str, kind: str = "f32") -> ForeignKernel:
    tensors = (
        f'"a": Tensor("{kind}", (p.M, p.K)), "b": Tensor("{kind}", (p.K, p.N)), '
        '"c": Tensor("f32", (p.M, p.N), role="output")'
    )
    problems = ("32,32,48",) if kind != "f32" else ("33,35,40",)
    return ForeignKernel(source, "M N K", problems, tensors, "a b c M N K", grid, block, "t['a'] @ t['b']", "c")


_W = ' "w": Tensor("f32", (p.C,)),'
_FLAT = '"x": Tensor("f32", (p.N,)),'

KERNELS: dict[str, ForeignKernel] = {
    "softmax": _rows(
        f"""
__global__ void softmax(const float* x, float* y, int rows, int cols) {{
  {_ROW}
#if VARIANT == 2
  float m = -1e30f, s = 0.f;
  for (int i = 0; i < cols; i++) {{
    float n = fmaxf(m, a[i]);
    s = s * expf(m - n) + expf(a[i] - n);
    m = n;
  }}
#else
  float m = -1e30f, s = 0.f;
  {_ALL} m = fmaxf(m, a[i]);
  m = block_max(m);
  {_LESS} s += expf(a[i] - m);
  s = block_sum(s);
#endif
  {_ALL} y[(size_t)blockIdx.x * cols + i] = expf(a[i] - m) / s;
}}""",
        "torch.softmax(t['x'], -1)",
        output="(p.R, p.C)",
    ),
    "log_softmax": _rows(
        f"""
__global__ void log_softmax(const float* x, float* y, int rows, int cols) {{
  {_ROW}
  float m = -1e30f, s = 0.f;
  {_ALL} m = fmaxf(m, a[i]);
  m = block_max(m);
  {_LESS} s += __expf(a[i] - m);
  s = block_sum(s);
#if VARIANT == 2
  {_ALL} y[(size_t)blockIdx.x * cols + i] = logf(expf(a[i] - m) / s);
#else
  {_ALL} y[(size_t)blockIdx.x * cols + i] = a[i] - m - logf(s);
#endif
}}""",
        "torch.log_softmax(t['x'], -1)",
        output="(p.R, p.C)",
    ),
    "cross_entropy": _rows(
        f"""
__global__ void cross_entropy(const float* x, const int* k, float* y, int rows, int cols) {{
  {_ROW}
  float s = 0.f, m = 0.f;
#if VARIANT == 2
  m = -1e30f;
  {_ALL} m = fmaxf(m, a[i]);
  m = block_max(m);
#endif
  {_LESS} s += __expf(a[i] - m);
  s = block_sum(s);
  if (threadIdx.x == 0) y[blockIdx.x] = __logf(s) + m - a[k[blockIdx.x]];
}}""",
        "-torch.log_softmax(t['x'], -1).gather(-1, t['k'].long().unsqueeze(-1)).squeeze(-1)",
        more=' "k": Tensor("i32", (p.R,), low=0, high=p.C - 1),',
    ),
    "layer_norm": _rows(
        f"""
__global__ void layer_norm(const float* x, const float* w, float* y, int rows, int cols) {{
  {_ROW}
  float s = 0.f, q = 0.f;
  {_ALL} s += a[i];
  s = block_sum(s) / cols;
#if VARIANT == 2
  {_ALL} q += a[i] * a[i];
  q = block_sum(q) / cols - s * s;
#else
  {_LESS} q += (a[i] - s) * (a[i] - s);
  q = block_sum(q) / cols;
#endif
  {_ALL} y[(size_t)blockIdx.x * cols + i] = (a[i] - s) * rsqrtf(q + 1e-5f) * w[i];
}}""",
        "torch.nn.functional.layer_norm(t['x'], (p.C,), t['w'], None, 1e-5)",
        output="(p.R, p.C)",
        more=_W,
    ),
    "rms_norm": _rows(
        f"""
__global__ void rms_norm(const float* x, const float* w, float* y, int rows, int cols) {{
  {_ROW}
  float s = 0.f;
  {_LESS} s += a[i] * a[i];
  s = rsqrtf(block_sum(s) / cols + 1e-6f);
#if VARIANT == 2
  {_ALL} y[(size_t)blockIdx.x * cols + i] = a[i] * (w[i] * s);
#else
  {_ALL} y[(size_t)blockIdx.x * cols + i] = a[i] * s * w[i];
#endif
}}""",
        "torch.nn.functional.rms_norm(t['x'], (p.C,), t['w'], 1e-6)",
        output="(p.R, p.C)",
        more=_W,
    ),
    "row_variance": _rows(
        f"""
__global__ void row_variance(const float* x, float* y, int rows, int cols) {{
  {_ROW}
#if VARIANT == 2
  float mean = 0.f, sum = 0.f;
  for (int i = 0; i < cols; i++) {{
    float d = a[i] - mean;
    mean += d / (i + 1);
    sum += d * (a[i] - mean);
  }}
#else
  float s = 0.f, sum = 0.f;
  {_ALL} s += a[i];
  s = block_sum(s) / cols;
  {_LESS} sum += (a[i] - s) * (a[i] - s);
  sum = block_sum(sum);
#endif
  if (threadIdx.x == 0) y[blockIdx.x] = sum / cols;
}}""",
        "t['x'].var(-1, correction=0)",
    ),
    "row_sum": _rows(
        f"""
__global__ void row_sum(const float* x, float* y, int rows, int cols) {{
  {_ROW}
  float s = 0.f;
#if VARIANT == 2
  __shared__ float part[96];
  {_ALL} s += a[i];
  part[threadIdx.x] = s;
  __syncthreads();
  for (int o = 48; o >= 3; o /= 2) {{
    if (threadIdx.x < o) part[threadIdx.x] += part[threadIdx.x + o];
    __syncthreads();
  }}
  s = part[0] + part[1] + part[2];
#else
  {_LESS} s += a[i];
  s = block_sum(s);
#endif
  if (threadIdx.x == 0) y[blockIdx.x] = s;
}}""",
        "t['x'].sum(-1)",
    ),
    "relu_bias_sum": _rows(
        f"""
__global__ void relu_bias_sum(const float* x, const float* w, float* y, int rows, int cols) {{
  {_ROW}
  float s = 0.f;
  {_LESS} s += fmaxf(a[i] + w[i], 0.f);
  s = block_sum(s);
  if (threadIdx.x == 0) y[blockIdx.x] = s;
}}""",
        "torch.relu(t['x'] + t['w']).sum(-1)",
        more=_W,
    ),
    "running_sum": _rows(
        f"""
__global__ void running_sum(const float* x, float* y, int rows, int cols) {{
  {_ROW}
  float* b = y + (size_t)blockIdx.x * cols;
#if VARIANT == 2
  if (threadIdx.x == 0) {{
    float s = 0.f;
    for (int i = 0; i < cols; i++) b[i] = s += a[i];
  }}
#else
  float carried = 0.f;
  for (int start = 0; start < cols; start += 32) {{
    int i = start + threadIdx.x;
    float v = i < cols ? a[i] : 0.f;
    for (int o = 1; o < 32; o *= 2) {{
      float before = __shfl_up_sync(~0u, v, o);
      if ((int)threadIdx.x >= o) v += before;
    }}
    if (i < cols) b[i] = v + carried;
#if VARIANT == 4
    carried = __shfl_sync(~0u, v, 31);
#else
    carried += __shfl_sync(~0u, v, 31);
#endif
  }}
#endif
}}""",
        "t['x'].cumsum(-1)",
        output="(p.R, p.C)",
        block="32",
    ),
    "gelu": _pointwise(
        "gelu",
        "0.5f * v * (1.f + erff(v * 0.70710678f))",
        "v * normcdff(v)",
        "0.5f * v * erff(v * 0.70710678f)",
        "torch.nn.functional.gelu(t['x'])",
    ),
    "gelu_tanh": _pointwise(
        "gelu_tanh",
        "0.5f * v * (1.f + tanhf(0.79788456f * (v + 0.044715f * v * v * v)))",
        "v / (1.f + expf(-2.f * 0.79788456f * (v + 0.044715f * powf(v, 3.f))))",
        "0.5f * v * (1.f + tanhf(0.79788456f * v))",
        "torch.nn.functional.gelu(t['x'], approximate='tanh')",
    ),
    "silu": _pointwise(
        "silu",
        "v / (1.f + expf(-v))",
        "v * (0.5f * tanhf(0.5f * v) + 0.5f)",
        "1.f / (1.f + expf(-v))",
        "torch.nn.functional.silu(t['x'])",
    ),
    "softplus": _pointwise(
        "softplus",
        "logf(1.f + expf(v))",
        "fmaxf(v, 0.f) + log1pf(expf(-fabsf(v)))",
        "log1pf(expf(-fabsf(v)))",
        "torch.nn.functional.softplus(t['x'])",
    ),
    "mish": _pointwise(
        "mish",
        "v * tanhf(log1pf(expf(v)))",
        "v - 2.f * v / ((1.f + expf(v)) * (1.f + expf(v)) + 1.f)",
        "v * tanhf(v)",
        "torch.nn.functional.mish(t['x'])",
    ),
    "elu": _pointwise(
        "elu",
        "v > 0.f ? v : expm1f(v)",
        "v > 0.f ? v : expf(v) - 1.f",
        "v > 0.f ? v : expf(v)",
        "torch.nn.functional.elu(t['x'])",
    ),
    "rotary": ForeignKernel(
        """
__global__ void rotary(const float* x, float* y, int rows, int half) {
  for (int n = blockIdx.x * 64 + threadIdx.x; n < rows * half; n += gridDim.x * 64) {
#if VARIANT == 2
    int row = n % rows, i = n / rows;
    float angle = row / powf(10000.f, (float)i / half), sine = __sinf(angle), cosine = __cosf(angle);
#else
    int row = n / half, i = n % half;
    float angle = row * powf(10000.f, -(float)i / half), sine, cosine;
    sincosf(angle, &sine, &cosine);
#endif
    float a = x[row * 2 * half + i], b = x[row * 2 * half + i + half];
    y[row * 2 * half + i] = VARIANT == 4 ? a * cosine : a * cosine - b * sine;
    y[row * 2 * half + i + half] = b * cosine + a * sine;
  }
}""",
        "R H",
        ("5,16",),
        '"x": Tensor("f32", (p.R, 2 * p.H)), "y": Tensor("f32", (p.R, 2 * p.H), role="output")',
        "x y R H",
        "2",
        "64",
        "rotary(t['x'])",
    ),
    "gemm_tiled": _gemm(
        """
__global__ void gemm_tiled(const float* a, const float* b, float* c, int m, int n, int k) {
  constexpr int T = VARIANT == 2 ? 8 : 16;
  __shared__ float left[16][T], right[T][17];
  int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
  float s = 0.f;
  for (int start = 0; start < k; start += T) {
    if (threadIdx.x < T) left[threadIdx.y][threadIdx.x] =
        row < m && start + threadIdx.x < k ? a[row * k + start + threadIdx.x] : 0.f;
    if (threadIdx.y < T) right[threadIdx.y][threadIdx.x] =
        col < n && start + threadIdx.y < k ? b[(start + threadIdx.y) * n + col] : 0.f;
    __syncthreads();
    for (int i = 0; i < T - (VARIANT == 4); i++) s += left[threadIdx.y][i] * right[i][threadIdx.x];
    __syncthreads();
  }
  if (row < m && col < n) c[row * n + col] = s;
}""",
        "((p.N + 15) // 16, (p.M + 15) // 16)",
        "(16, 16)",
    ),
    "gemm_registers": _gemm(
        """
__global__ void gemm_registers(const float* a, const float* b, float* c, int m, int n, int k) {
  int row = (blockIdx.y * 8 + threadIdx.y) * 4, col = (blockIdx.x * 16 + threadIdx.x) * 2;
  float sums[4][2] = {};
  for (int step = 0; step < k; step++) {
    int at = VARIANT == 2 ? k - 1 - step : step;
    float x[4], y[2];
    for (int i = 0; i < 4; i++) x[i] = row + i < m ? a[(row + i) * k + at] : 0.f;
    for (int j = 0; j < 2; j++) y[j] = col + j < n ? b[at * n + col + j] : 0.f;
    for (int i = 0; i < 4; i++)
      for (int j = 0; j < 2; j++) sums[i][j] += x[i] * y[j];
  }
  for (int i = 0; i < 4; i++)
    for (int j = 0; j < 2; j++)
      if (row + i < m && col + j < n) c[(row + i) * n + col + j] = sums[VARIANT == 4 && i == 3 ? 2 : i][j];
}""",
        "((p.N + 31) // 32, (p.M + 31) // 32)",
        "(16, 8)",
    ),
    "gemm_wmma": _gemm(
        """
#include <mma.h>
using namespace nvcuda::wmma;
__global__ void gemm_wmma(const __half* a, const __half* b, float* c, int m, int n, int k) {
  fragment<accumulator, 16, 16, 16, float> sum;
  fill_fragment(sum, 0.f);
  for (int step = 0; step < k - 16 * (VARIANT == 4); step += 16) {
    int at = VARIANT == 2 ? k - 16 - step : step;
    fragment<matrix_a, 16, 16, 16, __half, row_major> x;
    fragment<matrix_b, 16, 16, 16, __half, row_major> y;
    load_matrix_sync(x, a + blockIdx.y * 16 * k + at, k);
    load_matrix_sync(y, b + at * n + blockIdx.x * 16, n);
    mma_sync(sum, x, y, sum);
  }
  store_matrix_sync(c + blockIdx.y * 16 * n + blockIdx.x * 16, sum, n, mem_row_major);
}""",
        "(p.N // 16, p.M // 16)",
        "32",
        "f16",
    ),
    "attention": ForeignKernel(
        """
__global__ void attention(const float* q, const float* k, const float* v, float* y, int keys) {
  constexpr int D = 64;
  int row = blockIdx.x * 4 + threadIdx.y, lane = threadIdx.x;
  if (row >= keys) return;
  float q0 = q[row * D + lane] * 0.125f, q1 = q[row * D + lane + 32] * 0.125f;
  float m = -1e30f, l = 0.f, a0 = 0.f, a1 = 0.f;
  for (int step = 0; step < keys - (VARIANT == 4); step++) {
    int j = VARIANT == 2 ? keys - 1 - step : step;
    float s = q0 * k[j * D + lane] + q1 * k[j * D + lane + 32];
    for (int o = 16; o; o /= 2) s += __shfl_xor_sync(~0u, s, o);
    float n = fmaxf(m, s), c = __expf(m - n), w = __expf(s - n);
    l = l * c + w, a0 = a0 * c + w * v[j * D + lane], a1 = a1 * c + w * v[j * D + lane + 32], m = n;
  }
  y[row * D + lane] = a0 / l, y[row * D + lane + 32] = a1 / l;
}""",
        "S",
        ("37",),
        '**{name: Tensor("f32", (p.S, 64)) for name in "qkv"}, "y": Tensor("f32", (p.S, 64), role="output")',
        "q k v y S",
        "(p.S + 3) // 4",
        "(32, 4)",
        "torch.softmax(t['q'] @ t['k'].T * 0.125, -1) @ t['v']",
    ),
    "sum_atomic": ForeignKernel(
        _REDUCE
        + """
__global__ void sum_atomic(const float* x, float* y, int n) {
  float s = 0.f;
  for (int i = blockIdx.x * 96 + threadIdx.x; i < n - (VARIANT == 4); i += gridDim.x * 96) s += x[i];
#if VARIANT == 2
  atomicAdd(y, s);
#else
  s = block_sum(s);
  if (threadIdx.x == 0) atomicAdd(y, s);
#endif
}""",
        "N",
        ("1061",),
        _FLAT + ' "y": Tensor("f32", (1,), role="inout")',
        "x y N",
        "3",
        "96",
        "t['y'] + t['x'].sum()",
    ),
    "bin_sums": ForeignKernel(
        """
__global__ void bin_sums(const float* x, const int* k, float* y, int n) {
  __shared__ float part[16];
  if (threadIdx.x < 16) part[threadIdx.x] = 0.f;
  __syncthreads();
  for (int i = blockIdx.x * 64 + threadIdx.x; i < n - (VARIANT == 4); i += gridDim.x * 64)
    atomicAdd(VARIANT == 2 ? &y[k[i]] : &part[k[i]], x[i]);
  __syncthreads();
  if (threadIdx.x < 16) atomicAdd(&y[threadIdx.x], part[threadIdx.x]);
}""",
        "N",
        ("1061",),
        _FLAT + ' "k": Tensor("i32", (p.N,), low=0, high=15), "y": Tensor("f32", (16,), role="inout")',
        "x k y N",
        "3",
        "64",
        "t['y'].index_add(0, t['k'].long(), t['x'])",
    ),
    "scaled_transpose": ForeignKernel(
        """
__global__ void scaled_transpose(const float* x, const float* w, float* y, int rows, int cols) {
#if VARIANT == 2
  int row = blockIdx.x, col = threadIdx.x;
  for (; col < cols; col += 64) y[col * rows + row] = w[col] * x[row * cols + col];
#else
  __shared__ float tile[64];
  int row = blockIdx.x;
  for (int start = 0; start < cols; start += 64) {
    int col = start + threadIdx.x;
    if (col < cols) tile[threadIdx.x] = x[row * cols + col];
    __syncthreads();
    if (col < cols) y[col * rows + row] = tile[threadIdx.x] * (VARIANT == 4 && row == 2 ? 1.f : w[col]);
    __syncthreads();
  }
#endif
}""",
        "R C",
        ("5,150",),
        '"x": Tensor("f32", (p.R, p.C)), "w": Tensor("f32", (p.C,)), "y": Tensor("f32", (p.C, p.R), role="output")',
        "x w y R C",
        "p.R",
        "64",
        "(t['x'] * t['w']).T",
    ),
    "convolution": ForeignKernel(
        """
__global__ void convolution(const float* x, const float* w, float* y, int n) {
  int i = blockIdx.x * 64 + threadIdx.x;
  if (i >= n) return;
  float s = 0.f;
  for (int step = 0; step < 5 - (VARIANT == 4); step++) {
    int k = VARIANT == 2 ? 4 - step : step;
    s += w[k] * (i + k < n ? x[i + k] : 0.f);
  }
  y[i] = s;
}""",
        "N",
        ("300",),
        _FLAT + ' "w": Tensor("f32", (5,)), "y": Tensor("f32", (p.N,), role="output")',
        "x w y N",
        "(p.N + 63) // 64",
        "64",
        "torch.conv1d(torch.nn.functional.pad(t['x'], (0, 4))[None, None], t['w'][None, None])[0, 0]",
    ),
    # Kinds that nobody named.
    "two_level_scan": ForeignKernel(
        """
__global__ void two_level_scan(const float* x, float* sums, float* y, int n) {
  int i = blockIdx.x * 32 + threadIdx.x;
  float v = i < n ? x[i] : 0.f;
  for (int o = 1; o < 32; o *= 2) {
    float before = __shfl_up_sync(~0u, v, o);
    if ((int)threadIdx.x >= o) v += before;
  }
  if (i < n) y[i] = v;
  if (threadIdx.x == 31) sums[blockIdx.x] = v;
}
__global__ void add_before(const float* sums, float* y, int n) {
  int i = blockIdx.x * 32 + threadIdx.x;
  float s = 0.f;
  for (int b = 0; b < (int)blockIdx.x; b++) s += sums[VARIANT == 2 ? blockIdx.x - 1 - b : b];
  if (i < n) y[i] += VARIANT == 4 && blockIdx.x == 5 ? s - sums[0] : s;
}""",
        "N",
        ("250",),
        _FLAT + ' "sums": Tensor("f32", ((p.N + 31) // 32,), role="workspace"), '
        '"y": Tensor("f32", (p.N,), role="output")',
        "x sums y N",
        "(p.N + 31) // 32",
        "32",
        "t['x'].cumsum(-1)",
        more='Launch("add_before", (p.N + 31) // 32, 32, ("sums", "y", i32(p.N))),',
    ),
    "batched_gemv": ForeignKernel(
        _REDUCE
        + """
__global__ void batched_gemv(const float* a, const float* x, float* y, int batch, int rows, int cols) {
  const float *row = a + ((size_t)blockIdx.y * rows + blockIdx.x) * cols, *v = x + blockIdx.y * cols;
  float s = 0.f;
#if VARIANT == 2
  for (int i = threadIdx.x * 4; i < cols; i += 128)
    for (int j = i; j < i + 4 && j < cols; j++) s = fmaf(row[j], v[j], s);
#else
  for (int i = threadIdx.x; i < cols - (VARIANT == 4); i += 32) s += row[i] * v[i];
#endif
  s = warp_sum(s);
  if (threadIdx.x == 0) y[blockIdx.y * rows + blockIdx.x] = s;
}""",
        "B R C",
        ("2,3,70",),
        '"a": Tensor("f32", (p.B, p.R, p.C)), "x": Tensor("f32", (p.B, p.C)), '
        '"y": Tensor("f32", (p.B, p.R), role="output")',
        "a x y B R C",
        "(p.R, p.B)",
        "32",
        "torch.einsum('brc,bc->br', t['a'], t['x'])",
    ),
    "group_norm": ForeignKernel(
        _REDUCE
        + """
__global__ void group_norm(const float* x, const float* w, float* y, int batch, int size) {
  const float* a = x + (size_t)blockIdx.x * 2 * size;
  float s = 0.f, q = 0.f;
  for (int i = threadIdx.x; i < 2 * size; i += 64) s += a[i], q += a[i] * a[i];
  s = block_sum(s) / (2 * size);
  q = block_sum(q) / (2 * size) - s * s;
#if VARIANT == 2
  float r = 1.f / sqrtf(q + 1e-5f);
#else
  float r = rsqrtf(VARIANT == 4 ? q : q + 1e-5f);
#endif
  for (int i = threadIdx.x; i < 2 * size; i += 64)
    y[(size_t)blockIdx.x * 2 * size + i] = (a[i] - s) * r * w[blockIdx.x % 4 * 2 + i / size];
}""",
        "B S",
        ("2,45",),
        '"x": Tensor("f32", (p.B, 8, p.S)), "w": Tensor("f32", (8,)), "y": Tensor("f32", (p.B, 8, p.S), role="output")',
        "x w y B S",
        "4 * p.B",
        "64",
        "torch.nn.functional.group_norm(t['x'], 4, t['w'])",
    ),
    "depthwise": ForeignKernel(
        """
__global__ void depthwise(const float* x, const float* w, float* y, int channels, int size) {
  const float* a = x + blockIdx.x * size * size;
  for (int n = threadIdx.x; n < size * size; n += 64) {
    int row = n / size, col = n % size;
    float s = 0.f;
    for (int step = 0; step < 9 - (VARIANT == 4); step++) {
      int k = VARIANT == 2 ? step / 3 + step % 3 * 3 : step, i = row + k / 3 - 1, j = col + k % 3 - 1;
      if (i >= 0 && i < size && j >= 0 && j < size) s += w[blockIdx.x * 9 + k] * a[i * size + j];
    }
    y[blockIdx.x * size * size + n] = s;
  }
}""",
        "C S",
        ("3,11",),
        '"x": Tensor("f32", (p.C, p.S, p.S)), "w": Tensor("f32", (p.C, 1, 3, 3)), '
        '"y": Tensor("f32", (p.C, p.S, p.S), role="output")',
        "x w y C S",
        "p.C",
        "64",
        "torch.conv2d(t['x'][None], t['w'], padding=1, groups=p.C)[0]",
    ),
    "row_argmax": ForeignKernel(
        """
__global__ void row_argmax(const float* x, int* y, int rows, int cols) {
  const float* a = x + (size_t)blockIdx.x * cols;
  float best = -INFINITY;
  int at = 0;
#if VARIANT == 2
  for (int i = 0; i < cols; i++) if (a[i] > best) best = a[i], at = i;
#else
  for (int i = threadIdx.x + (VARIANT == 4) * 32; i < cols; i += 32)
    if (a[i] > best) best = a[i], at = i;
  for (int o = 16; o; o /= 2) {
    float other = __shfl_xor_sync(~0u, best, o);
    int where = __shfl_xor_sync(~0u, at, o);
    if (other > best || (other == best && where < at)) best = other, at = where;
  }
#endif
  if (threadIdx.x == 0) y[blockIdx.x] = at;
}""",
        "R C",
        ("12,40",),
        '"x": Tensor("f32", (p.R, p.C)), "y": Tensor("i32", (p.R,), role="output")',
        "x y R C",
        "p.R",
        "32",
        "t['x'].argmax(-1).int()",
        default="it is not a floating-point output",
    ),
    # Other formats.
    "double_exponential": ForeignKernel(
        """
__global__ void double_exponential(const double* x, double* y, int n) {
  int i = blockIdx.x * 64 + threadIdx.x;
  if (i >= n) return;
  double v = x[i];
  y[i] = VARIANT == 2 ? exp(v) * exp(v) / (1 + exp(2 * v)) : VARIANT == 4 ? 1 / (1 + exp(v)) : 1 / (1 + exp(-2 * v));
}""",
        "N",
        ("130",),
        '"x": Tensor("f64", (p.N,)), "y": Tensor("f64", (p.N,), role="output")',
        "x y N",
        "(p.N + 63) // 64",
        "64",
        "torch.sigmoid(2 * t['x'])",
    ),
    "half_pairs": ForeignKernel(
        """
#include <cuda_fp16.h>
__global__ void half_pairs(const __half2* x, const __half2* w, __half2* y, int n) {
  int i = blockIdx.x * 64 + threadIdx.x;
  if (i >= n / 2) return;
#if VARIANT == 2
  y[i] = __hfma2(w[i], x[i], __hmul2(x[i], x[i]));
#else
  y[i] = VARIANT == 4 ? __hmul2(x[i], w[i]) : __hmul2(x[i], __hadd2(x[i], w[i]));
#endif
}""",
        "N",
        ("300",),
        '"x": Tensor("f16", (p.N,)), "w": Tensor("f16", (p.N,)), "y": Tensor("f16", (p.N,), role="output")',
        "x w y N",
        "(p.N + 127) // 128",
        "64",
        "t['x'] * (t['x'] + t['w'])",
    ),
    "bfloat_pairs": ForeignKernel(
        """
#include <cuda_bf16.h>
__global__ void bfloat_pairs(const __nv_bfloat162* x, __nv_bfloat162* y, int n) {
  int i = blockIdx.x * 64 + threadIdx.x;
  if (i >= n / 2) return;
#if VARIANT == 2
  float2 v = __bfloat1622float2(x[i]);
  y[i] = __floats2bfloat162_rn(v.x * v.x + v.x, v.y * v.y + v.y);
#else
  y[i] = VARIANT == 4 ? __hmul2(x[i], x[i]) : __hfma2(x[i], x[i], x[i]);
#endif
}""",
        "N",
        ("300",),
        '"x": Tensor("bf16", (p.N,)), "y": Tensor("bf16", (p.N,), role="output")',
        "x y N",
        "(p.N + 127) // 128",
        "64",
        "t['x'] * t['x'] + t['x']",
    ),
    "half_exponential": ForeignKernel(
        """
#include <cuda_fp16.h>
__global__ void half_exponential(const __half2* x, __half2* y, int n) {
  int i = blockIdx.x * 64 + threadIdx.x;
  if (i >= n / 2) return;
  __half2 one = __float2half2_rn(1.f);
#if VARIANT == 2
  y[i] = __h2div(h2exp(x[i]), __hadd2(one, h2exp(x[i])));
#else
  y[i] = VARIANT == 4 ? h2exp(x[i]) : h2rcp(__hadd2(one, h2exp(__hneg2(x[i]))));
#endif
}""",
        "N",
        ("300",),
        '"x": Tensor("f16", (p.N,)), "y": Tensor("f16", (p.N,), role="output")',
        "x y N",
        "(p.N + 127) // 128",
        "64",
        "torch.sigmoid(t['x'])",
    ),
}
