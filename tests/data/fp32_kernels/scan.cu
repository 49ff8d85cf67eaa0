#include "common.cuh"
extern "C" __global__ void run(const float* x, float* y, int M, int N) {
  int at = blockIdx.x * BLOCK + threadIdx.x;
  if (at >= M * N) return;
  const float* in = x + at / N * N;
  int count = max(1, at % N + 1 - BUG), whole = count / CHUNK;
  float before = add_up(whole, [=](int chunk) {
    float sum = 0.f;
    for (int i = 0; i < CHUNK; ++i) sum += in[chunk * CHUNK + i];
    return sum;
  });
  float rest = 0.f;
  for (int i = whole * CHUNK; i < count; ++i) rest += in[i];
  y[at] = before + rest;
}
