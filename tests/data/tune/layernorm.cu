// Layer normalisation of rows in half precision, with float32 sums.
#include <cuda_fp16.h>

__global__ void layernorm(const half* x, const half* weight, const half* bias, half* y, int columns) {
  __shared__ float sums[2][THREADS / 32];
  const half* row = x + blockIdx.x * columns;
  float sum = 0, squares = 0;
  for (int i = threadIdx.x; i < columns; i += THREADS) sum += __half2float(row[i]);
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if (threadIdx.x % 32 == 0) sums[0][threadIdx.x / 32] = sum;
  __syncthreads();
  float mean = 0, variance = 0;
  for (int i = 0; i < THREADS / 32; i++) mean += sums[0][i] / columns;
  for (int i = threadIdx.x; i < columns; i += THREADS) {
    const float centred = __half2float(row[i]) - mean;
    squares += centred * centred;
  }
  for (int step = 16; step > 0; step /= 2) squares += __shfl_xor_sync(~0u, squares, step);
  if (threadIdx.x % 32 == 0) sums[1][threadIdx.x / 32] = squares;
  __syncthreads();
  for (int i = 0; i < THREADS / 32; i++) variance += sums[1][i] / columns;
  const float scale = rsqrtf(variance + 1e-5f);
  for (int i = threadIdx.x; i < columns; i += THREADS)
    y[blockIdx.x * columns + i] =
        __float2half((__half2float(row[i]) - mean) * scale * __half2float(weight[i]) + __half2float(bias[i]));
}
