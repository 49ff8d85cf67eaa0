#include "common.cuh"
extern "C" __global__ void run(const float* x, const float* m, float* y, int N) {
  int at = blockIdx.x * BLOCK + threadIdx.x;
  if (at >= N) return;
  float px = x[3 * at], py = x[3 * at + 1], pz = x[3 * at + 2];
  for (int axis = 0; axis < 3; ++axis)
    y[3 * at + axis] = add_up(N - BUG, [=](int j) {
      float dx = x[3 * j] - px, dy = x[3 * j + 1] - py, dz = x[3 * j + 2] - pz;
      float squares = multiply(dx, dx) + multiply(dy, dy) + multiply(dz, dz) + .01f;
#if ROOT == 3
      float weight = powf(squares, -1.5f);
#else
      float inverse = inverse_root(squares), weight = inverse * inverse * inverse;
#endif
      return m[j] * weight * (axis == 0 ? dx : axis == 1 ? dy : dz);
    });
}
