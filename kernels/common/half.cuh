// Conversions and arithmetic of halves, and approximate functions, one PTX instruction each. Names follow cuda_fp16.h.
// Halves are IEEE halves, or bfloat16 if the kernel's problem macro BF16 is 1.
#pragma once

#include "../common/types.cuh"

#if BF16
// ---- conversions of bfloat16, the upper half of a float. cvt.f32.bf16 and plain additions and products of pairs need
// compute capability 9.0. The shifts and fused operations used here need only 8.0.

__device__ __forceinline__ Half2 pack_half2(float low, float high) {
  Half2 x;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
  return x;
}
__device__ __forceinline__ float low2float(Half2 a) { return __uint_as_float(a << 16); }
__device__ __forceinline__ float high2float(Half2 a) { return __uint_as_float(a & 0xFFFF0000u); }

// ---- two bfloat16 at a time

__device__ __forceinline__ Half2 fma_half2(Half2 a, Half2 b, Half2 c) {
  Half2 y;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(c));
  return y;
}
__device__ __forceinline__ Half2 add_half2(Half2 a, Half2 b) { return fma_half2(a, 0x3F803F80u, b); }  // a 1 + b
__device__ __forceinline__ Half2 mul_half2(Half2 a, Half2 b) { return fma_half2(a, b, 0x80008000u); }  // a b + -0
__device__ __forceinline__ Half2 max_half2(Half2 a, Half2 b) {
  Half2 y;
  asm("max.bf16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  return y;
}
__device__ __forceinline__ Half2 exp2_half2(Half2 x) {  // compute capability 9.0
  Half2 y;
  asm("ex2.approx.ftz.bf16x2 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}
#else
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
/// Converts E4M3 bytes 0 and 1, and bytes 2 and 3, to halves; exact. Compute capability 8.9 and above.
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
#endif

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
