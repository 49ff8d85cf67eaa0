#include "common.cuh"
extern "C" __global__ void run(const float* a, const float* b, float* c, int M, int N, int K) {
  int at = blockIdx.x * BLOCK + threadIdx.x;
  if (at >= M * N) return;
  int row = at / N, column = at % N;
  c[at] = add_up(K - BUG, [=](int k) { return multiply(a[row * K + k], b[k * N + column]); });
}
