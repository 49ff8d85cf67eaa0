// Conversions and arithmetic of halves, and approximate functions: one PTX instruction each. Names follow cuda_fp16.h.
#pragma once

#include "../common/types.cuh"

// ---- conversions

__device__ __forceinline__ Half2 pack_half2(float low, float high) {
  Half2 x;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
  return x;
}
__device__ __forceinline__ float low2float(Half2 a) {
  float x;
  asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l; }" : "=f"(x) : "r"(a));
  return x;
}
__device__ __forceinline__ float high2float(Half2 a) {
  float x;
  asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, h; }" : "=f"(x) : "r"(a));
  return x;
}
/// The E4M3 numbers in bytes 0 and 1, and those in bytes 2 and 3, as halves; exact. Compute capability 8.9 and above.
__device__ __forceinline__ void e4m3_to_half2(u32 word, Half2& low, Half2& high) {
  asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2; cvt.rn.f16x2.e4m3x2 %0, l; cvt.rn.f16x2.e4m3x2 %1, h; }"
      : "=r"(low), "=r"(high) : "r"(word));
}

// ---- two halves at a time

__device__ __forceinline__ Half2 add_half2(Half2 a, Half2 b) {
  Half2 y;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  return y;
}
__device__ __forceinline__ Half2 mul_half2(Half2 a, Half2 b) {
  Half2 y;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  return y;
}
__device__ __forceinline__ Half2 fma_half2(Half2 a, Half2 b, Half2 c) {
  Half2 y;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(c));
  return y;
}
__device__ __forceinline__ Half2 max_half2(Half2 a, Half2 b) {
  Half2 y;
  asm("max.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  return y;
}
__device__ __forceinline__ Half2 exp2_half2(Half2 x) {
  Half2 y;
  asm("ex2.approx.f16x2 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

// ---- floats

__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float rcp_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
