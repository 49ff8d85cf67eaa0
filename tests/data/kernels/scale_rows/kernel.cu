// y[r][c] = factor * x[r][c] / max_c |x[r][c]|, for x and y of ROWS x COLS floats in row-major order.
//
// LOADS           scalar, vector4   floats that a thread moves at once: 4-byte or 16-byte transactions
// REDUCE          warps, block      the row's maximum by shuffles, or by a tree in shared memory
// WARPS           1, 2, 4, 8        warps of a block: threads that share a row
// ROWS_PER_BLOCK  1, 2, 4           rows that a block walks through: fewer blocks, more work for each
// UNROLL          1, 2, 4           loads in flight of a thread
#if !defined(LOADS) || !defined(REDUCE) || !defined(WARPS) || !defined(ROWS_PER_BLOCK) || !defined(UNROLL)
#error "scale_rows needs the macros LOADS, REDUCE, WARPS, ROWS_PER_BLOCK and UNROLL"
#endif

constexpr int kThreads = 32 * WARPS;
constexpr int kWidth = LOADS == LOADS_VECTOR4 ? 4 : 1;

struct alignas(4 * kWidth) Chunk {
  float part[kWidth];
};

__device__ float row_maximum(float own, float* scratch) {
  if constexpr (REDUCE == REDUCE_WARPS) {
    for (int distance = 16; distance > 0; distance /= 2) own = fmaxf(own, __shfl_xor_sync(0xffffffffu, own, distance));
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = own;
    __syncthreads();
    own = scratch[0];
    for (int warp = 1; warp < WARPS; ++warp) own = fmaxf(own, scratch[warp]);
  } else {
    scratch[threadIdx.x] = own;
    __syncthreads();
    for (int half = kThreads / 2; half > 0; half /= 2) {
      if (threadIdx.x < half) scratch[threadIdx.x] = fmaxf(scratch[threadIdx.x], scratch[threadIdx.x + half]);
      __syncthreads();
    }
    own = scratch[0];
  }
  __syncthreads();
  return own;
}

extern "C" __global__ void __launch_bounds__(kThreads)
scale_rows(const float* __restrict__ x, float* __restrict__ y, int rows, int cols, float factor) {
  __shared__ float scratch[REDUCE == REDUCE_WARPS ? WARPS : kThreads];
  constexpr int kUnroll = UNROLL;
  const int chunks = cols / kWidth;
  for (int row = blockIdx.x * ROWS_PER_BLOCK; row < min(rows, int(blockIdx.x + 1) * ROWS_PER_BLOCK); ++row) {
    const Chunk* from = reinterpret_cast<const Chunk*>(x + size_t(row) * cols);
    Chunk* to = reinterpret_cast<Chunk*>(y + size_t(row) * cols);
    float largest = 1e-30f;
#pragma unroll kUnroll
    for (int i = threadIdx.x; i < chunks; i += kThreads) {
      const Chunk chunk = from[i];
      for (int j = 0; j < kWidth; ++j) largest = fmaxf(largest, fabsf(chunk.part[j]));
    }
    const float scale = row_maximum(largest, scratch);
#pragma unroll kUnroll
    for (int i = threadIdx.x; i < chunks; i += kThreads) {
      Chunk chunk = from[i];
      for (int j = 0; j < kWidth; ++j) chunk.part[j] = factor * (chunk.part[j] / scale);
      to[i] = chunk;
    }
  }
}
