// y = x - mean(x) in one launch whose blocks meet once, between the sum and the subtraction.
// THREADS: threads of a block. BLOCKS: blocks of the grid. BARRIER: grid_sync of a cooperative launch, a counter that
// all blocks raise and then watch, or none, which is a race.
#include <cooperative_groups.h>
#if !defined(THREADS) || !defined(BLOCKS) || !defined(BARRIER)
#error "THREADS, BLOCKS and BARRIER must be defined"
#endif

__device__ void meet(unsigned* arrived) {
  if constexpr (BARRIER == BARRIER_GRID_SYNC) {
    cooperative_groups::this_grid().sync();
  } else if constexpr (BARRIER == BARRIER_COUNTER) {
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
      atomicAdd(arrived, 1u);
      while (*(volatile unsigned*)arrived < BLOCKS) {
      }
      __threadfence();
    }
    __syncthreads();
  }
}

extern "C" __global__ void grid_mean(const float* x, float* part, unsigned* arrived, float* y, int n) {
  __shared__ float sums[THREADS];
  float sum = 0.f;
  for (int i = blockIdx.x * THREADS + threadIdx.x; i < n; i += BLOCKS * THREADS) sum += x[i];
  sums[threadIdx.x] = sum;
  __syncthreads();
  for (int k = THREADS / 2; k > 0; k /= 2) {
    if (threadIdx.x < k) sums[threadIdx.x] += sums[threadIdx.x + k];
    __syncthreads();
  }
  if (threadIdx.x == 0) part[blockIdx.x] = sums[0];
  meet(arrived);
  float total = 0.f;
  for (int b = 0; b < BLOCKS; b++) total += part[b];
  for (int i = blockIdx.x * THREADS + threadIdx.x; i < n; i += BLOCKS * THREADS) y[i] = x[i] - total / n;
}
