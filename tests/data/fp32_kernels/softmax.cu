#include "common.cuh"
extern "C" __global__ void run(const float* x, float* y, int M, int N) {
  int row = blockIdx.x * BLOCK + threadIdx.x;
  if (row >= M) return;
  const float* in = x + row * N;
  float most = -INFINITY, total = 0.f;
#if ONLINE
  for (int step = 0; step < N - BUG; ++step) {
    float value = in[term_of(step, N - BUG)], larger = fmaxf(most, value);
    total = total * exponential(most - larger) + exponential(value - larger);
    most = larger;
  }
#else
  for (int i = 0; i < N; ++i) most = fmaxf(most, in[i]);
  total = add_up(N - BUG, [=](int i) { return exponential(in[i] - most); });
#endif
  for (int i = 0; i < N; ++i) y[row * N + i] = divide(exponential(in[i] - most), total);
}
