#include "common.cuh"
extern "C" __global__ void run(const float* x, float* y, int M, int N) {
  __shared__ float shared[BLOCK];
  const float* in = x + blockIdx.x * N;
  int n = N - BUG, each = (n + BLOCK - 1) / BLOCK, t = threadIdx.x;
#if STRIDED
  int count = t < n ? (n - t + BLOCK - 1) / BLOCK : 0;
  float mine = add_up(count, [=](int i) { return in[t + i * BLOCK]; });
#else
  int count = min(each, max(0, n - t * each));
  float mine = add_up(count, [=](int i) { return in[t * each + i]; });
#endif
#if TREE == 0
  for (int width = 16; width > 0; width /= 2) mine += __shfl_down_sync(~0u, mine, width);
  shared[t] = mine;
  __syncthreads();
  if (t == 0) {
    float total = 0.f;
    for (int warp = 0; warp < BLOCK / 32; ++warp) total += shared[warp * 32];
    y[blockIdx.x] = total;
  }
#else
  shared[t] = mine;
  __syncthreads();
#if TREE == 1
  for (int width = BLOCK / 2; width > 0; width /= 2) {
    if (t < width) shared[t] += shared[t + width];
    __syncthreads();
  }
#else
  if (t == 0)
    for (int i = 1; i < BLOCK; ++i) shared[0] += shared[i];
#endif
  if (t == 0) y[blockIdx.x] = shared[0];
#endif
}
