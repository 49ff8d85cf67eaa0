// Root-mean-square normalisation: y[r][c] = h[r][c] * rsqrt(mean_c(h[r][c]^2) + eps) * weight[c]
//
//   h = x, or with a residual h = x + residual rounded to the element type, which is also the output `sum`
//   x, residual, y, sum  16-bit floats [ROWS, COLS], row-major, contiguous        weight  [COLS], the same type
//   statistics in fp32; any ROWS, any COLS
//
// Memory-bound: each element is read once and written once, so the speed depends on the bytes in flight.
//
// kernel.py describes the genes; the generated header defines them, and asserts the constraints. Other macros are the
// problem's (COLS: columns of a row, so that the registers per row are constant; BF16: 1 for bfloat16, 0 for fp16; RESIDUAL:
// 1 if `residual` and `sum` exist) and sizes:
// WIDTH elements per access, WORDS pairs of elements of a vector, VECTORS of a row, BLOCKS per row, SHARE vectors that one
// block scales, PER_THREAD vectors that one thread scales, THREADS per row, ROWS per block.

#include "evokern_genes.h"

constexpr int UNROLLED = PER_THREAD;  // nvcc's #pragma unroll reads constants, not macros
constexpr int WARPS_PER_ROW = (THREADS + 31) / 32;
constexpr int INPUTS = RESIDUAL ? 2 : 1;
constexpr bool LOADED_AHEAD = PREFETCH == PREFETCH_REGISTERS, COPIED_AHEAD = PREFETCH == PREFETCH_CP_ASYNC;
constexpr bool IN_CLUSTER = ROW_SUM == ROW_SUM_CLUSTER, READ_ONCE = BLOCKS == 1 || IN_CLUSTER;
constexpr bool IN_REGISTERS = READ_ONCE && ROW_STORAGE == ROW_STORAGE_REGISTERS;
constexpr bool IN_SHARED = READ_ONCE && ROW_STORAGE == ROW_STORAGE_SHARED;
constexpr bool WEIGHT_FIRST = WEIGHT_LOAD == WEIGHT_LOAD_BEFORE_SUM;
constexpr bool STREAM_LOADS = LOAD_POLICY == LOAD_POLICY_STREAMING;
constexpr bool STREAM_STORES = STORE_POLICY == STORE_POLICY_STREAMING;

#include "ahead.cuh"
#include "cluster.cuh"
#include "row.cuh"

extern __shared__ __align__(16) unsigned char memory[];  // stored or prefetched rows

// Blocks that have whole rows, share them in a cluster, or add up whole rows themselves.
__device__ __forceinline__ void normalise(const Half* const (&input)[INPUTS], const Half* weight, Half* y, Half* sum,
                                          int rows, float eps) {
  __shared__ float partial[2][ROWS * WARPS_PER_ROW];
  __shared__ float parts[ROWS][BLOCKS];
  if constexpr (IN_CLUSTER) cluster_arrive();
  const OwnSpan span = own_span();
  const Weights weights(weight, span);
  Ahead ahead{input, rows, shared_address(memory) + static_cast<u32>(threadIdx.x / THREADS * ROW_BYTES)};
#pragma unroll
  for (int step = 0; step < (COPIED_AHEAD ? STAGES - 1 : 1); step++) ahead.fetch(blockIdx.x + step * gridDim.x, span);

  for (int group = blockIdx.x, half = 0; group * ROWS < rows; group += gridDim.x, half ^= 1) {
    const Row row(group, rows);
    u32 waiting = ahead.shared;  // address of this row in shared memory
    if constexpr (COPIED_AHEAD) {
      ahead.fetch(group + (STAGES - 1) * gridDim.x, span);  // into the stage of the previous row
      cp_async_wait_group<COPIED_AHEAD ? STAGES - 1 : 0>();
      waiting = ahead.next_stage();
    }
    const auto read = [&](int t, int i) {
      if constexpr (LOADED_AHEAD) return ahead.loaded[t][i];
      else if constexpr (COPIED_AHEAD) return load_shared(waiting + t * (ROWS * ROW_BYTES) + span.place(i) * VECTOR_BYTES);
      else return load(input[t] + row.first, span.vector(i));
    };
    Vector registers[IN_REGISTERS ? PER_THREAD : 1];
    const auto keep = [&](int i, const Vector& h) {
      if constexpr (IN_REGISTERS) registers[i] = h;
      else if constexpr (IN_SHARED && (RESIDUAL || !COPIED_AHEAD))  // a prefetched row of x is already there
        store_shared(waiting + span.place(i) * VECTOR_BYTES, h.word);
    };
    const auto kept = [&](int i) {
      if constexpr (IN_REGISTERS) return registers[i];
      else return load_shared(waiting + span.place(i) * VECTOR_BYTES);
    };

    float squares;
    if constexpr (READ_ONCE) {
      squares = sum_of_squares(span, read, keep);
    } else {
      const Span<(VECTORS + THREADS - 1) / THREADS> whole{0, VECTORS};
      squares = sum_of_squares(whole, [&](int t, int i) { return load(input[t] + row.first, whole.vector(i)); }, keep);
    }
    if constexpr (LOADED_AHEAD) ahead.fetch(group + gridDim.x, span);
    float total = row_sum(squares, partial[half]);
    if constexpr (IN_CLUSTER) total = cluster_sum(total, parts);
    const float scale = rsqrtf(total / COLS + eps);
    scale_row(y + row.first, sum + row.first, weights, scale, span, row.present, read, kept);
    if constexpr (ROW_STEPS == 1) break;
  }
}

// First launch of two_launches: each block adds up its part of a row.
__device__ __forceinline__ void sum_parts(const Half* const (&input)[INPUTS], float* partial_sums, int rows) {
  __shared__ float partial[ROWS * WARPS_PER_ROW];
  const OwnSpan span = own_span();
  const Row row(blockIdx.x, rows);
  const float squares = sum_of_squares(span, [&](int t, int i) { return load(input[t] + row.first, span.vector(i)); },
                                       [](int, const Vector&) {});
  const float total = row_sum(squares, partial);
  if (row.present && threadIdx.x % THREADS == 0) partial_sums[static_cast<size_t>(row.number) * BLOCKS + blockIdx.y] = total;
}

// Second launch: the scaling; every thread adds up the parts of its row in the same order.
__device__ __forceinline__ void scale_parts(const Half* const (&input)[INPUTS], const Half* weight, Half* y, Half* sum,
                                            const float* partial_sums, int rows, float eps) {
  const OwnSpan span = own_span();
  const Weights weights(weight, span);
  const Row row(blockIdx.x, rows);
  float total = 0.f;
#pragma unroll
  for (int part = 0; part < BLOCKS; part++) total += partial_sums[static_cast<size_t>(row.number) * BLOCKS + part];
  const auto read = [&](int t, int i) { return load(input[t] + row.first, span.vector(i)); };
  scale_row(y + row.first, sum + row.first, weights, rsqrtf(total / COLS + eps), span, row.present, read,
            [](int) { return Vector{}; });
}

#if RESIDUAL
extern "C" __global__ void __launch_bounds__(ROWS * THREADS, MIN_BLOCKS)
add_rmsnorm(const Half* x, const Half* residual, const Half* __restrict__ weight, Half* y, Half* sum, int rows, float eps) {
  normalise({x, residual}, weight, y, sum, rows, eps);
}
extern "C" __global__ void __launch_bounds__(ROWS * THREADS, MIN_BLOCKS)
add_sum_rows(const Half* x, const Half* residual, float* partial_sums, int rows) {
  sum_parts({x, residual}, partial_sums, rows);
}
extern "C" __global__ void __launch_bounds__(ROWS * THREADS, MIN_BLOCKS)
add_scale_rows(const Half* x, const Half* residual, const Half* __restrict__ weight, Half* y, Half* sum,
               const float* __restrict__ partial_sums, int rows, float eps) {
  scale_parts({x, residual}, weight, y, sum, partial_sums, rows, eps);
}
#else
extern "C" __global__ void __launch_bounds__(ROWS * THREADS, MIN_BLOCKS)
rmsnorm(const Half* x, const Half* __restrict__ weight, Half* y, int rows, float eps) {
  normalise({x}, weight, y, nullptr, rows, eps);
}
extern "C" __global__ void __launch_bounds__(ROWS * THREADS, MIN_BLOCKS)
sum_rows(const Half* x, float* partial_sums, int rows) { sum_parts({x}, partial_sums, rows); }
extern "C" __global__ void __launch_bounds__(ROWS * THREADS, MIN_BLOCKS)
scale_rows(const Half* x, const Half* __restrict__ weight, Half* y, const float* __restrict__ partial_sums, int rows,
           float eps) {
  scale_parts({x}, weight, y, nullptr, partial_sums, rows, eps);
}
#endif
