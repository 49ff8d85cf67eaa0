// Conversions and arithmetic of halves, and approximate functions: one PTX instruction each.
#pragma once

#include "../common/types.cuh"

// ---- conversions

__device__ __forceinline__ Pair pack(float low, float high) {
  Pair pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
__device__ __forceinline__ float low_half(Pair pair) {
  float x;
  asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l; }" : "=f"(x) : "r"(pair));
  return x;
}
__device__ __forceinline__ float high_half(Pair pair) {
  float x;
  asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, h; }" : "=f"(x) : "r"(pair));
  return x;
}
/// The E4M3 numbers in bytes 0 and 1, and those in bytes 2 and 3, as halves; exact. Compute capability 8.9 and above.
__device__ __forceinline__ void halves_of_e4m3(u32 word, Pair& low, Pair& high) {
  asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2; cvt.rn.f16x2.e4m3x2 %0, l; cvt.rn.f16x2.e4m3x2 %1, h; }"
      : "=r"(low), "=r"(high) : "r"(word));
}

// ---- two halves at a time

__device__ __forceinline__ Pair add_pair(Pair a, Pair b) {
  Pair y;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  return y;
}
__device__ __forceinline__ Pair mul_pair(Pair a, Pair b) {
  Pair y;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  return y;
}
__device__ __forceinline__ Pair fma_pair(Pair a, Pair b, Pair c) {
  Pair y;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(c));
  return y;
}
__device__ __forceinline__ Pair max_pair(Pair a, Pair b) {
  Pair y;
  asm("max.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  return y;
}
__device__ __forceinline__ Pair exp2_pair(Pair x) {
  Pair y;
  asm("ex2.approx.f16x2 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

// ---- floats

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
