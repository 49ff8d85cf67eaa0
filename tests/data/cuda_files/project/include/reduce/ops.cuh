#pragma once
#include <vector>
struct MaxOp {
  static __device__ float apply(float a, float b) { return fmaxf(a, b); }
};
struct SumOp {
  static __device__ float apply(float a, float b) { return a + b; }
  static float reference(const std::vector<float>& values) {
    float total = 0;
    for (float v : values) total += v;
    return total;
  }
};
