#include "common.cuh"
extern "C" __global__ void run(const float* x, float* y, int M, int N) {
  for (int item = 0; item < ITEMS; ++item) {
    int at = (blockIdx.x * ITEMS + item) * BLOCK + threadIdx.x;
    if (at >= M * N) return;
    int row = at / N, column = at % N;
    float result = 0.f;
    if (row > 0 && row < M - 1 && column > 0 && column < N - 1 - BUG) {
      float c = x[at], n = x[at - N], s = x[at + N], w = x[at - 1], e = x[at + 1];
#if FORM == 0
      result = multiply(.15f, n + s + e + w) + multiply(.4f, c);
#elif FORM == 1
      result = multiply(.15f, n) + multiply(.15f, s) + multiply(.15f, e) + multiply(.15f, w) + multiply(.4f, c);
#elif FORM == 2
      result = multiply(.4f, c) + multiply(.15f, w + e) + multiply(.15f, s + n);
#else
      result = c + multiply(.15f, (n - c) + (s - c) + (e - c) + (w - c));
#endif
    }
    y[at] = result;
  }
}
