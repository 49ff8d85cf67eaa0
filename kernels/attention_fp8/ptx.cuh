// Instructions as functions: each body is one PTX instruction or a few, so that the rest reads as the algorithm.
// Halves travel as raw bits, alone (Half) or two to a register (Pair): cuda_fp16.h would cost 0.2 s a compile.
#pragma once

using u32 = unsigned int;
using Byte = unsigned char;   // bits of one E4M3 number, or a biased integer
using Half = unsigned short;  // bits of one IEEE half
using Pair = unsigned int;    // two halves, the lower one first in memory

struct __align__(16) Chunk {  // 16 bytes: 16 elements in 8 bits, 8 in fp16
  u32 v[4];
};

// ---- conversions and arithmetic

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
__device__ __forceinline__ Pair add_pair(Pair a, Pair b) {
  Pair y;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  return y;
}
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ Pair exp2_pair(Pair x) {
  Pair y;
  asm("ex2.approx.f16x2 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}
__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
/// Bytes of a and b (0 to 3 and 4 to 7) picked by the selector's digits, the lowest first.
__device__ __forceinline__ u32 pick_bytes(u32 a, u32 b, u32 selector) { return __byte_perm(a, b, selector); }
/// The E4M3 numbers in bytes 0 and 1, and those in bytes 2 and 3, as halves; exact. Compute capability 8.9 and above.
__device__ __forceinline__ void halves_of_e4m3(u32 word, Pair& low, Pair& high) {
  asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2; cvt.rn.f16x2.e4m3x2 %0, l; cvt.rn.f16x2.e4m3x2 %1, h; }"
      : "=r"(low), "=r"(high) : "r"(word));
}

// ---- memory. Vector accesses are spelled out: nvcc 13.0 splits copies of 16-byte structures into 4-byte ones.

/// Hides how a pointer came about: the compiler would otherwise merge offsets into it and add in 64 bits each time.
__device__ __forceinline__ void keep_as_base(const Byte*& pointer) { asm("" : "+l"(pointer)); }
__device__ __forceinline__ u32 shared_address(const void* pointer) {
  return static_cast<u32>(__cvta_generic_to_shared(pointer));
}
__device__ __forceinline__ Chunk load_global_chunk(const Byte* pointer) {
  Chunk c;
  asm("ld.global.nc.v4.b32 {%0,%1,%2,%3}, [%4];"
      : "=r"(c.v[0]), "=r"(c.v[1]), "=r"(c.v[2]), "=r"(c.v[3]) : "l"(pointer));
  return c;
}
__device__ __forceinline__ u32 load_shared_word(u32 address) {
  u32 word;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
  return word;
}
__device__ __forceinline__ Chunk load_shared_chunk(u32 address) {
  Chunk c;
  asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(c.v[0]), "=r"(c.v[1]), "=r"(c.v[2]), "=r"(c.v[3]) : "r"(address) : "memory");
  return c;
}
__device__ __forceinline__ void load_shared_floats(u32 address, float& x, float& y) {
  asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(x), "=f"(y) : "r"(address) : "memory");
}
__device__ __forceinline__ void store_shared_chunk(u32 address, const Chunk& c) {
  asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};"
               ::"r"(address), "r"(c.v[0]), "r"(c.v[1]), "r"(c.v[2]), "r"(c.v[3]) : "memory");
}
__device__ __forceinline__ void store_shared_floats(u32 address, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1,%2};" ::"r"(address), "f"(x), "f"(y) : "memory");
}
__device__ __forceinline__ void store_shared_half(u32 address, u32 half) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(address), "h"(static_cast<Half>(half)) : "memory");
}
__device__ __forceinline__ void store_shared_byte(u32 address, u32 byte) {
  asm volatile("st.shared.u8 [%0], %1;" ::"r"(address), "r"(byte) : "memory");
}
/// 1, 2 or 4 pairs side by side.
__device__ __forceinline__ void store_shared(u32 address, const Pair (&p)[1]) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(p[0]) : "memory");
}
__device__ __forceinline__ void store_shared(u32 address, const Pair (&p)[2]) {
  asm volatile("st.shared.v2.b32 [%0], {%1,%2};" ::"r"(address), "r"(p[0]), "r"(p[1]) : "memory");
}
__device__ __forceinline__ void store_shared(u32 address, const Pair (&p)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};"
               ::"r"(address), "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]) : "memory");
}
__device__ __forceinline__ void store_global(Half* pointer, const Pair (&p)[1]) {
  asm volatile("st.global.b32 [%0], %1;" ::"l"(pointer), "r"(p[0]) : "memory");
}
__device__ __forceinline__ void store_global(Half* pointer, const Pair (&p)[2]) {
  asm volatile("st.global.v2.b32 [%0], {%1,%2};" ::"l"(pointer), "r"(p[0]), "r"(p[1]) : "memory");
}
__device__ __forceinline__ void store_global(Half* pointer, const Pair (&p)[4]) {
  asm volatile("st.global.v4.b32 [%0], {%1,%2,%3,%4};"
               ::"l"(pointer), "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]) : "memory");
}

// ---- asynchronous copies; .cg keeps K and V out of L1, which shares its memory with the tiles

__device__ __forceinline__ void copy_async(u32 shared, const Byte* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

/// Barrier over some of the warps; id 0 is __syncthreads().
template <int THREADS>
__device__ __forceinline__ void sync_named(int id) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(THREADS) : "memory");
}

// ---- tensor cores. PTX ISA, "Matrix Fragments for mma.m16n8k16" and "m16n8k32": with g = lane / 4 and t = lane % 4,
// accumulator element i stands at row g + 8 * (i / 2), column 2 * t + i % 2. Register r of A holds row g + 8 * (r % 2)
// and register r of B column g, both at the depths of word t in the (r / 2)-th, or r-th, half of the step.

struct Fragment {
  float v[4];
};

__device__ __forceinline__ void mma_fp16(Fragment& c, const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c.v[0]), "+f"(c.v[1]), "+f"(c.v[2]), "+f"(c.v[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma_e4m3(Fragment& c, const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c.v[0]), "+f"(c.v[1]), "+f"(c.v[2]), "+f"(c.v[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
/// Signed times unsigned; the sums are integers in the fragment's bits.
__device__ __forceinline__ void mma_int8(Fragment& c, const u32 (&a)[4], u32 b0, u32 b1) {
  asm("{ .reg .b32 x, y, z, w; mov.b32 x, %0; mov.b32 y, %1; mov.b32 z, %2; mov.b32 w, %3;"
      " mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {x,y,z,w}, {%4,%5,%6,%7}, {%8,%9}, {x,y,z,w};"
      " mov.b32 %0, x; mov.b32 %1, y; mov.b32 %2, z; mov.b32 %3, w; }"
      : "+f"(c.v[0]), "+f"(c.v[1]), "+f"(c.v[2]), "+f"(c.v[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void fill(Fragment& c, float x) { c.v[0] = c.v[1] = c.v[2] = c.v[3] = x; }

__device__ __forceinline__ void load_matrices(u32 (&r)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(u32 (&r)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}

// ---- the four lanes that share a row

__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
