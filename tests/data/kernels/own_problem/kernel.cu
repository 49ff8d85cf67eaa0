// y = x w for x[M][K], w[K][N]. CASE_NUMBER picks a way to compute it: below 100 wrong at large problems alone, from 100
// on right. LARGE says that a problem is larger than any of the small ones.
#ifndef CASE_NUMBER
#error "CASE_NUMBER must be defined"
#endif
#include <cuda_fp16.h>

constexpr int WAY = CASE_NUMBER;
#define LARGE (M > 64)

__device__ float dot(const float* x, const float* w, int row, int column, int N, int K, int from, int to) {
  float sum = 0;
  for (int k = from; k < to; ++k) sum += x[row * K + k] * w[k * N + column];
  return sum;
}

__device__ float half_dot(const float* x, const float* w, int row, int column, int N, int K) {
  __half sum = __float2half(0.f);
  for (int k = 0; k < K; ++k) sum = __hadd(sum, __float2half(x[row * K + k] * w[k * N + column]));
  return __half2float(sum);
}

/// Element of a block of 128 threads; -1 for none.
__device__ int element(int M, int N) {
  const long block = blockIdx.x + (long)gridDim.x * (blockIdx.y + (long)gridDim.y * blockIdx.z);
  const long i = block * 128 + threadIdx.x;
  return i < (long)M * N ? (int)i : -1;
}

// ---- wrong: each right wherever the problem is small

__device__ void wrong(const float* x, const float* w, float* y, int M, int N, int K) {
  int i = element(M, N);
  if (i < 0) return;
  int row = i / N, column = i % N;
  const int last = M - 1;
  // 0 to 9: the grid of the launch is too small (kernel.py); the kernel is the right one.
  if constexpr (WAY >= 10 && WAY < 16) {  // one row is lost
    constexpr int LOST[] = {0, 1, 77, 133, 198, 199};
    if (LARGE && row == LOST[WAY - 10]) return;
  }
  if constexpr (WAY >= 16 && WAY < 20) {  // one tile of 128 elements is lost
    constexpr int LOST[] = {1, 50, 100, 150};
    if (LARGE && blockIdx.x == LOST[WAY - 16]) return;
  }
  if constexpr (WAY >= 20 && WAY < 24) {  // one row loses terms
    constexpr int SHORT[] = {3, 99, 150, 199};
    if (LARGE && row == SHORT[WAY - 20]) {
      y[i] = dot(x, w, row, column, N, K, 0, K - 32);
      return;
    }
  }
  if constexpr (WAY >= 24 && WAY < 28) {  // late blocks add up in half
    constexpr int FROM[] = {64, 100, 160, 190};
    if (LARGE && row >= FROM[WAY - 24]) {
      y[i] = half_dot(x, w, row, column, N, K);
      return;
    }
  }
  if constexpr (WAY == 28) row = LARGE ? min(row, 127) : row;                       // a table of 128 rows
  if constexpr (WAY == 29) column = LARGE && column >= 128 ? column - 128 : column;  // a column index of 7 bits
  if constexpr (WAY == 30) i = LARGE ? column * M + row : i;                          // transposed strides of the output
  if constexpr (WAY == 31) i = LARGE && row >= 100 ? row * N + (N - 1 - column) : i;  // the second half mirrored
  if constexpr (WAY == 32) {                                                         // the last row, off by one
    if (LARGE && row >= last) return;
  }
  if constexpr (WAY == 33) {  // the last column
    if (LARGE && column >= N - 1) return;
  }
  if constexpr (WAY == 34) {  // a tail of fewer than 64 columns is dropped
    if (LARGE && column >= N / 64 * 64) return;
  }
  if constexpr (WAY == 35) {  // terms in steps of 64 only
    y[i] = dot(x, w, row, column, N, K, 0, LARGE ? K / 64 * 64 : K);
    return;
  }
  if constexpr (WAY == 36) row = LARGE && row == 111 ? 110 : row;  // one row is another's
  if constexpr (WAY == 37) {                                       // the last element
    if (LARGE && i == M * N - 1) return;
  }
  if constexpr (WAY == 38) {  // every 97th element
    if (LARGE && i % 97 == 96) return;
  }
  if constexpr (WAY == 39) {  // the first term is left out from row 120 on
    y[i] = dot(x, w, row, column, N, K, LARGE && row >= 120, K);
    return;
  }
  y[i] = dot(x, w, row, column, N, K, 0, K);
}

// ---- right, in odd ways

__device__ void right(const float* x, const float* w, float* y, float* scratch, int M, int N, int K) {
  const int total = M * N, threads = gridDim.x * blockDim.x;
  const int flat = blockIdx.x * blockDim.x + threadIdx.x;
  const int i = element(M, N);
  if constexpr (WAY == 100 || WAY == 101 || WAY == 102) {  // persistent: 4, 7 or 13 blocks
    for (int j = flat; j < total; j += threads) y[j] = dot(x, w, j / N, j % N, N, K, 0, K);
  } else if constexpr (WAY == 103) {  // tickets: a block takes tiles as they come; the last one resets them
    __shared__ unsigned mine;
    unsigned* next = reinterpret_cast<unsigned*>(scratch);
    while (true) {
      __syncthreads();
      if (threadIdx.x == 0) mine = atomicAdd(next, 1u);
      __syncthreads();
      const int j = mine * 128 + threadIdx.x;
      if (mine * 128 >= total) break;
      if (j < total) y[j] = dot(x, w, j / N, j % N, N, K, 0, K);
    }
  } else if constexpr (WAY == 104) {  // scattered: elements in the order of a multiplication
    if (i >= 0) {
      const int j = (int)((long)i * 7919 % total);
      y[j] = dot(x, w, j / N, j % N, N, K, 0, K);
    }
  } else if constexpr (WAY == 105) {  // reversed
    if (i >= 0) y[total - 1 - i] = dot(x, w, (total - 1 - i) / N, (total - 1 - i) % N, N, K, 0, K);
  } else if constexpr (WAY == 106) {  // each element written twice, by two blocks with the same value
    const int j = (blockIdx.x / 2) * 128 + threadIdx.x;
    if (j < total) y[j] = dot(x, w, j / N, j % N, N, K, 0, K);
  } else if constexpr (WAY == 107) {  // one block does everything
    for (int j = threadIdx.x; j < total; j += 128) y[j] = dot(x, w, j / N, j % N, N, K, 0, K);
  } else if constexpr (WAY == 108) {  // a warp for each row
    const int row = flat / 32;
    for (int c = threadIdx.x % 32; row < M && c < N; c += 32) y[row * N + c] = dot(x, w, row, c, N, K, 0, K);
  } else if constexpr (WAY == 109) {  // in place: what was there is used and replaced
    if (i >= 0) {
      y[i] = 0;
      for (int k = 0; k < K; ++k) y[i] += x[i / N * K + k] * w[k * N + i % N];
    }
  } else if constexpr (WAY == 110) {  // by atomic exchange
    if (i >= 0) atomicExch(y + i, dot(x, w, i / N, i % N, N, K, 0, K));
  } else if constexpr (WAY == 111) {  // two halves through a workspace of zeros, added by atomics; the second stores
    const int half = blockIdx.y, j = blockIdx.x * 128 + threadIdx.x;
    if (j < total) {
      atomicAdd(scratch + 1 + j, dot(x, w, j / N, j % N, N, K, half * (K / 2), half ? K : K / 2));
      __threadfence();
      const bool second = atomicAdd(reinterpret_cast<unsigned*>(scratch) + 1 + total + j, 1u) == 1;
      if (second) y[j] = atomicAdd(scratch + 1 + j, 0.f);
    }
  } else if constexpr (WAY == 112) {  // in bytes
    if (i >= 0) {
      const float value = dot(x, w, i / N, i % N, N, K, 0, K);
      const unsigned bits = __float_as_uint(value);
      for (int b = 0; b < 4; ++b) reinterpret_cast<unsigned char*>(y)[4 * i + b] = bits >> 8 * b;
    }
  } else if constexpr (WAY == 113) {  // more blocks than are needed
    const int j = flat;
    if (j < total) y[j] = dot(x, w, j / N, j % N, N, K, 0, K);
  } else if constexpr (WAY == 114) {  // even blocks do two tiles, odd ones nothing
    for (int tile = blockIdx.x; blockIdx.x % 2 == 0 && tile < (int)blockIdx.x + 2; ++tile) {
      const int j = tile * 128 + threadIdx.x;
      if (j < total) y[j] = dot(x, w, j / N, j % N, N, K, 0, K);
    }
  } else if constexpr (WAY == 115) {  // a triangle of work: block b does the tiles b (b + 1) / 2 and on
    const int first = blockIdx.x * (blockIdx.x + 1) / 2;
    for (int tile = first; tile <= first + (int)blockIdx.x; ++tile) {
      const int j = tile * 128 + threadIdx.x;
      if (j < total) y[j] = dot(x, w, j / N, j % N, N, K, 0, K);
    }
  } else if constexpr (WAY == 116) {  // a column each
    for (int row = 0; row < M && flat < N; ++row) y[row * N + flat] = dot(x, w, row, flat, N, K, 0, K);
  } else if constexpr (WAY == 117) {  // staged through shared memory
    __shared__ float tile[128];
    if (i >= 0) tile[threadIdx.x] = dot(x, w, i / N, i % N, N, K, 0, K);
    __syncthreads();
    const int from = i - threadIdx.x + (127 - threadIdx.x);
    if (i >= 0 && from < total) y[from] = tile[127 - threadIdx.x];
    const int own = i;
    if (i >= 0 && i - (int)threadIdx.x + 127 >= total) y[own] = tile[threadIdx.x];
  } else {  // 118, 119: grids of two and three dimensions
    if (i >= 0) y[i] = dot(x, w, i / N, i % N, N, K, 0, K);
  }
}

extern "C" __global__ void __launch_bounds__(128) run(const float* x, const float* w, float* y, float* scratch, int M,
                                                      int N, int K) {
  if constexpr (WAY < 100) wrong(x, w, y, M, N, K);
  else right(x, w, y, scratch, M, N, K);
}
