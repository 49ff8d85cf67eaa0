// Instructions as functions: each body is one PTX instruction, so that kernel.cu reads as the algorithm.
// 16-bit floats travel as raw bits, alone (Half) or two to a register (Pair): cuda_fp16.h would cost 0.2 s a compile.
#pragma once

using u32 = unsigned int;
using Half = unsigned short;  // bits of one IEEE half
using Pair = unsigned int;    // two halves, the lower one first in memory

struct __align__(16) Chunk {  // 16 bytes: 8 halves
  u32 v[4];
};

constexpr Pair ONES = 0x3C003C00u;  // 1.0, 1.0

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
__device__ __forceinline__ Pair max_pair(Pair a, Pair b) {
  Pair y;
  asm("max.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  return y;
}
__device__ __forceinline__ Pair fma_pair(Pair a, Pair b, Pair c) {
  Pair y;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(c));
  return y;
}
__device__ __forceinline__ Pair mul_pair(Pair a, Pair b) {
  Pair y;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  return y;
}
__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// ---- memory. Vector accesses are spelled out: the compiler splits *(uint4*)p = make_uint4(...) into 4-byte stores, and
// copies of a Chunk into 8-byte loads.

/// Hides how a pointer came about: the compiler would otherwise merge offsets into it and add in 64 bits each time.
__device__ __forceinline__ void keep_as_base(const Half*& pointer) { asm("" : "+l"(pointer)); }
__device__ __forceinline__ u32 shared_address(const void* pointer) {
  return static_cast<u32>(__cvta_generic_to_shared(pointer));
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
__device__ __forceinline__ void store_shared_pair(u32 address, Pair pair) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(pair) : "memory");
}
__device__ __forceinline__ void store_shared_half(u32 address, Half half) {
  asm volatile("st.shared.b16 [%0], %1;" ::"r"(address), "h"(half) : "memory");
}
__device__ __forceinline__ void store_shared_float(u32 address, float x) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(x) : "memory");
}
__device__ __forceinline__ Chunk load_global_chunk(const Half* pointer) {
  Chunk c;
  asm volatile("ld.global.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(c.v[0]), "=r"(c.v[1]), "=r"(c.v[2]), "=r"(c.v[3]) : "l"(pointer) : "memory");
  return c;
}
/// The same from memory that nobody writes during the launch: it may take the read-only path.
__device__ __forceinline__ Chunk load_unwritten_chunk(const Half* pointer) {
  Chunk c;
  asm volatile("ld.global.nc.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(c.v[0]), "=r"(c.v[1]), "=r"(c.v[2]), "=r"(c.v[3]) : "l"(pointer));
  return c;
}
__device__ __forceinline__ void store_global_chunk(Half* pointer, const Chunk& c) {
  asm volatile("st.global.v4.b32 [%0], {%1,%2,%3,%4};"
               ::"l"(pointer), "r"(c.v[0]), "r"(c.v[1]), "r"(c.v[2]), "r"(c.v[3]) : "memory");
}
__device__ __forceinline__ void store_global_pairs(Half* pointer, Pair a, Pair b) {
  asm volatile("st.global.v2.b32 [%0], {%1,%2};" ::"l"(pointer), "r"(a), "r"(b) : "memory");
}
__device__ __forceinline__ void store_global_pair(Half* pointer, Pair a) {
  asm volatile("st.global.b32 [%0], %1;" ::"l"(pointer), "r"(a) : "memory");
}

// ---- asynchronous copies; .cg keeps K and V out of L1, which shares its memory with the tiles

__device__ __forceinline__ void copy_async(u32 shared, const Half* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

/// What this thread wrote to shared memory before is there for wgmma, which reads by another way, after a barrier.
__device__ __forceinline__ void show_to_wgmma() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- barriers over some of the warps; id 0 is __syncthreads()

template <int THREADS>
__device__ __forceinline__ void sync_named(int id) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(THREADS) : "memory");
}
template <int THREADS>
__device__ __forceinline__ void arrive_named(int id) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"(THREADS) : "memory");
}

// ---- tensor cores. PTX ISA, "Matrix Fragments for mma.m16n8k16": with g = lane / 4 and t = lane % 4, accumulator
// element i stands at row g + 8 * (i / 2), column 2 * t + i % 2; an fp16 accumulator packs elements 2i and 2i + 1.

struct Fragment32 {
  float v[4];
};
struct Fragment16 {
  Pair v[2];
};
template <int BITS>
struct Accumulator;
template <>
struct Accumulator<32> {
  using type = Fragment32;
};
template <>
struct Accumulator<16> {
  using type = Fragment16;
};

__device__ __forceinline__ void mma(Fragment32& c, const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c.v[0]), "+f"(c.v[1]), "+f"(c.v[2]), "+f"(c.v[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma(Fragment16& c, const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0,%1}, {%2,%3,%4,%5}, {%6,%7}, {%0,%1};"
      : "+r"(c.v[0]), "+r"(c.v[1]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void clear(Fragment32& c) { c.v[0] = c.v[1] = c.v[2] = c.v[3] = 0.f; }
__device__ __forceinline__ void clear(Fragment16& c) { c.v[0] = c.v[1] = 0u; }

__device__ __forceinline__ void load_matrices(u32 (&r)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(u32 (&r)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}

// ---- wmma: the same tensor cores through fragments whose elements stand nobody knows where. Strides in elements.

struct WmmaOperand {
  u32 v[8];
};
struct WmmaFloats {
  float v[8];
};
struct WmmaHalves {
  Pair v[4];
};
#define REGISTERS_OF(r) \
  "r"(r.v[0]), "r"(r.v[1]), "r"(r.v[2]), "r"(r.v[3]), "r"(r.v[4]), "r"(r.v[5]), "r"(r.v[6]), "r"(r.v[7])
#define WMMA_LOAD(name, operand, order)                                                                          \
  __device__ __forceinline__ WmmaOperand name(u32 address, int stride) {                                         \
    WmmaOperand r;                                                                                               \
    asm volatile("wmma.load." operand ".sync.aligned." order                                                     \
                 ".m16n16k16.shared.f16 {%0,%1,%2,%3,%4,%5,%6,%7}, [%8], %9;"                                    \
                 : "=r"(r.v[0]), "=r"(r.v[1]), "=r"(r.v[2]), "=r"(r.v[3]), "=r"(r.v[4]), "=r"(r.v[5]),           \
                   "=r"(r.v[6]), "=r"(r.v[7]) : "r"(address), "r"(stride) : "memory");                           \
    return r;                                                                                                    \
  }
WMMA_LOAD(wmma_load_a, "a", "row")
WMMA_LOAD(wmma_load_b, "b", "row")
WMMA_LOAD(wmma_load_b_columns, "b", "col")
#undef WMMA_LOAD

#define WMMA_MULTIPLY(name, b_order)                                                                             \
  __device__ __forceinline__ void name(WmmaFloats& c, const WmmaOperand& a, const WmmaOperand& b) {              \
    asm("wmma.mma.sync.aligned.row." b_order ".m16n16k16.f32.f32 {%0,%1,%2,%3,%4,%5,%6,%7}, "                    \
        "{%8,%9,%10,%11,%12,%13,%14,%15}, {%16,%17,%18,%19,%20,%21,%22,%23}, {%0,%1,%2,%3,%4,%5,%6,%7};"         \
        : "+f"(c.v[0]), "+f"(c.v[1]), "+f"(c.v[2]), "+f"(c.v[3]), "+f"(c.v[4]), "+f"(c.v[5]), "+f"(c.v[6]),      \
          "+f"(c.v[7]) : REGISTERS_OF(a), REGISTERS_OF(b));                                                      \
  }                                                                                                              \
  __device__ __forceinline__ void name(WmmaHalves& c, const WmmaOperand& a, const WmmaOperand& b) {              \
    asm("wmma.mma.sync.aligned.row." b_order ".m16n16k16.f16.f16 {%0,%1,%2,%3}, {%4,%5,%6,%7,%8,%9,%10,%11}, "   \
        "{%12,%13,%14,%15,%16,%17,%18,%19}, {%0,%1,%2,%3};"                                                      \
        : "+r"(c.v[0]), "+r"(c.v[1]), "+r"(c.v[2]), "+r"(c.v[3]) : REGISTERS_OF(a), REGISTERS_OF(b));            \
  }
WMMA_MULTIPLY(wmma_multiply, "row")
WMMA_MULTIPLY(wmma_multiply_columns, "col")
#undef WMMA_MULTIPLY
#undef REGISTERS_OF

__device__ __forceinline__ void wmma_load(WmmaFloats& c, u32 address, int stride) {
  asm volatile("wmma.load.c.sync.aligned.row.m16n16k16.shared.f32 {%0,%1,%2,%3,%4,%5,%6,%7}, [%8], %9;"
               : "=f"(c.v[0]), "=f"(c.v[1]), "=f"(c.v[2]), "=f"(c.v[3]), "=f"(c.v[4]), "=f"(c.v[5]), "=f"(c.v[6]),
                 "=f"(c.v[7]) : "r"(address), "r"(stride) : "memory");
}
__device__ __forceinline__ void wmma_store(u32 address, int stride, const WmmaFloats& c) {
  asm volatile("wmma.store.d.sync.aligned.row.m16n16k16.shared.f32 [%0], {%2,%3,%4,%5,%6,%7,%8,%9}, %1;"
               ::"r"(address), "r"(stride), "f"(c.v[0]), "f"(c.v[1]), "f"(c.v[2]), "f"(c.v[3]), "f"(c.v[4]),
                 "f"(c.v[5]), "f"(c.v[6]), "f"(c.v[7]) : "memory");
}
__device__ __forceinline__ void wmma_store(u32 address, int stride, const WmmaHalves& c) {
  asm volatile("wmma.store.d.sync.aligned.row.m16n16k16.shared.f16 [%0], {%2,%3,%4,%5}, %1;"
               ::"r"(address), "r"(stride), "r"(c.v[0]), "r"(c.v[1]), "r"(c.v[2]), "r"(c.v[3]) : "memory");
}

// ---- warp

__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, distance));
  return x;
}
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(~0u, x, distance);
  return x;
}
