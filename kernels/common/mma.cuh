// Tensor cores with mma.sync: a warp multiplies fragments, which are matrices distributed over the registers of its lanes.
//
// PTX ISA, "Matrix Fragments for mma.m16n8k16" and "m16n8k32": with g = lane / 4 and t = lane % 4, accumulator element i
// is at row g + 8 * (i / 2), column 2 * t + i % 2. An fp16 accumulator packs elements 2i and 2i + 1. Register r of A
// holds row g + 8 * (r % 2), and register r of B column g. Both hold the depths of word t in half r / 2 (A) or half r (B)
// of the step.
//
// Halves are bfloat16 if BF16 is 1 (half.cuh); bfloat16 products accumulate only in fp32.
#pragma once

#include "../common/half.cuh"

/// Accumulators of one lane for a 16x8 tile.
template <int BITS>
struct Accumulator;
template <>
struct Accumulator<32> {
  using type = float[4];
};
template <>
struct Accumulator<16> {
  using type = Half2[2];
};
using Fragment32 = Accumulator<32>::type;
using Fragment16 = Accumulator<16>::type;
__device__ __forceinline__ float element(const Fragment32& f, int i) { return f[i]; }
__device__ __forceinline__ float element(const Fragment16& f, int i) {
  return i % 2 ? high2float(f[i / 2]) : low2float(f[i / 2]);
}

// ---- c += a b with 16 rows, 8 columns and a depth of 32 bytes

__device__ __forceinline__ void mma(Fragment32& c, const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32." HALF_TYPE "." HALF_TYPE ".f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#if !BF16
__device__ __forceinline__ void mma(Fragment16& c, const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0,%1}, {%2,%3,%4,%5}, {%6,%7}, {%0,%1};"
      : "+r"(c[0]), "+r"(c[1]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#endif
__device__ __forceinline__ void mma_e4m3(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
/// Multiplies signed by unsigned bytes; the accumulators' bits are integer sums.
__device__ __forceinline__ void mma_int8(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm("{ .reg .b32 x, y, z, w; mov.b32 x, %0; mov.b32 y, %1; mov.b32 z, %2; mov.b32 w, %3;"
      " mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {x,y,z,w}, {%4,%5,%6,%7}, {%8,%9}, {x,y,z,w};"
      " mov.b32 %0, x; mov.b32 %1, y; mov.b32 %2, z; mov.b32 %3, w; }"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// ---- fragments from shared memory: four 8x8 matrices of 16-bit elements; each lane gives the address of one row

__device__ __forceinline__ void ldmatrix_x4(u32 (&r)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_trans(u32 (&r)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}
/// The reverse: stores four 8x8 matrices ("stmatrix", compute capability 9.0).
__device__ __forceinline__ void stmatrix_x4(u32 address, const u32 (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};"
               ::"r"(address), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
}
__device__ __forceinline__ void stmatrix_x4_transposed(u32 address, const u32 (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};"
               ::"r"(address), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
}
