// Conversions and arithmetic of halves, and approximate functions, one PTX instruction each. Names follow cuda_fp16.h.
// Halves are IEEE halves, or bfloat16 if the kernel's problem macro BF16 is 1.
#pragma once

#include "../common/types.cuh"

#if BF16
#define HALF_TYPE "bf16"
#else
#define HALF_TYPE "f16"
#endif

/// Defines a function of one instruction with one, two or three operands of a type.
#define UNARY_FUNCTION(NAME, TYPE, REGISTER, INSTRUCTION)                                                             \
  __device__ __forceinline__ TYPE NAME(TYPE a) {                                                                      \
    TYPE y;                                                                                                           \
    asm(INSTRUCTION " %0, %1;" : "=" REGISTER(y) : REGISTER(a));                                                      \
    return y;                                                                                                         \
  }
#define BINARY_FUNCTION(NAME, TYPE, REGISTER, INSTRUCTION)                                                            \
  __device__ __forceinline__ TYPE NAME(TYPE a, TYPE b) {                                                              \
    TYPE y;                                                                                                           \
    asm(INSTRUCTION " %0, %1, %2;" : "=" REGISTER(y) : REGISTER(a), REGISTER(b));                                     \
    return y;                                                                                                         \
  }

// ---- two halves at a time

__device__ __forceinline__ Half2 pack_half2(float low, float high) {
  Half2 x;
  asm("cvt.rn." HALF_TYPE "x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
  return x;
}
__device__ __forceinline__ Half2 fma_half2(Half2 a, Half2 b, Half2 c) {
  Half2 y;
  asm("fma.rn." HALF_TYPE "x2 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(c));
  return y;
}
BINARY_FUNCTION(max_half2, Half2, "r", "max." HALF_TYPE "x2")
#if BF16
// bfloat16 is the upper half of a float. cvt.f32.bf16 and plain additions and products of pairs need compute capability
// 9.0. The shifts and fused operations used here need only 8.0.
__device__ __forceinline__ float low2float(Half2 a) { return __uint_as_float(a << 16); }
__device__ __forceinline__ float high2float(Half2 a) { return __uint_as_float(a & 0xFFFF0000u); }
__device__ __forceinline__ Half2 add_half2(Half2 a, Half2 b) { return fma_half2(a, 0x3F803F80u, b); }  // a 1 + b
__device__ __forceinline__ Half2 mul_half2(Half2 a, Half2 b) { return fma_half2(a, b, 0x80008000u); }  // a b + -0
UNARY_FUNCTION(exp2_half2, Half2, "r", "ex2.approx.ftz.bf16x2")  // compute capability 9.0
#else
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
BINARY_FUNCTION(add_half2, Half2, "r", "add.rn.f16x2")
BINARY_FUNCTION(mul_half2, Half2, "r", "mul.rn.f16x2")
UNARY_FUNCTION(exp2_half2, Half2, "r", "ex2.approx.f16x2")
#endif

// ---- floats

UNARY_FUNCTION(exp2_approx, float, "f", "ex2.approx.ftz.f32")
UNARY_FUNCTION(rcp_approx, float, "f", "rcp.approx.ftz.f32")
