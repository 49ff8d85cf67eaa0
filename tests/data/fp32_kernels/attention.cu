#include "common.cuh"
#define D 16
extern "C" __global__ void run(const float* q, const float* k, const float* v, float* o, int S) {
  int row = blockIdx.x * BLOCK + threadIdx.x;
  if (row >= S) return;
  auto score = [=](int j) {
#if SCALED
    return add_up(D, [=](int d) { return q[row * D + d] * .25f * k[j * D + d]; });
#else
    return .25f * add_up(D, [=](int d) { return q[row * D + d] * k[j * D + d]; });
#endif
  };
  float most = -INFINITY, total = 0.f, sums[D];
  for (int d = 0; d < D; ++d) sums[d] = 0.f;
  int n = S - BUG;
#if !ONLINE
  for (int j = 0; j < n; ++j) most = fmaxf(most, score(j));
#endif
  for (int step = 0; step < n; ++step) {
    int j = term_of(step, n);
    float value = score(j), larger = fmaxf(most, value);
#if ONLINE
    float factor = exponential(most - larger);
    total *= factor;
    for (int d = 0; d < D; ++d) sums[d] *= factor;
#endif
    float weight = exponential(value - larger);
    most = larger;
    total += weight;
    for (int d = 0; d < D; ++d) sums[d] += weight * v[j * D + d];
  }
  for (int d = 0; d < D; ++d) o[row * D + d] = divide(sums[d], total);
}
