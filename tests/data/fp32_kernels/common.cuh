// Choices that all kernels share: the order of a sum, its partial sums, and contraction into FMA.
#pragma once
#ifndef PARTS
#define PARTS 1
#endif
#ifndef BUG
#define BUG 0
#endif

// Index of the step-th term of n.
__device__ inline int term_of(int step, int n) {
#if ORDER == 0
  return step;
#elif ORDER == 1
  return n - 1 - step;
#elif ORDER == 2  // even terms, then odd ones
  return step < (n + 1) / 2 ? 2 * step : 2 * (step - (n + 1) / 2) + 1;
#else  // from both ends
  return step & 1 ? n - 1 - step / 2 : step / 2;
#endif
}

// Sum of f(0) to f(n - 1) in the chosen order, with PARTS partial sums.
template <class F> __device__ inline float add_up(int n, F f) {
  float part[PARTS];
#pragma unroll
  for (int p = 0; p < PARTS; ++p) part[p] = 0.f;
  for (int step = 0; step < n; step += PARTS) {
#pragma unroll
    for (int p = 0; p < PARTS; ++p)
      if (step + p < n) part[p] += f(term_of(step + p, n));
  }
#pragma unroll
  for (int width = PARTS / 2; width > 0; width /= 2)
#pragma unroll
    for (int p = 0; p < width; ++p) part[p] += part[p + width];
  return part[0];
}

__device__ inline float multiply(float a, float b) {
#if FUSED
  return a * b;
#else
  return __fmul_rn(a, b);
#endif
}

__device__ inline float exponential(float x) {
#if EXPONENTIAL == 0
  return expf(x);
#elif EXPONENTIAL == 1
  return __expf(x);
#else
  return exp2f(x * 1.4426950408889634f);
#endif
}

__device__ inline float divide(float a, float b) {
#if DIVISION == 0
  return a / b;
#elif DIVISION == 1
  return __fdividef(a, b);
#else
  return a * __frcp_rn(b);
#endif
}

__device__ inline float inverse_root(float x) {
#if ROOT == 0
  return rsqrtf(x);
#elif ROOT == 1
  return 1.f / sqrtf(x);
#elif ROOT == 2
  return __frsqrt_rn(x);
#else
  return powf(x, -.5f);
#endif
}
