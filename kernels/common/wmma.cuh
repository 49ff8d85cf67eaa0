// Tensor cores with wmma: products of 16x16x16 on rows in shared memory. Fragments are opaque: the mapping of elements to
// lanes is unspecified. Strides are in elements. Halves are bfloat16 if BF16 is 1 (half.cuh); bfloat16 products accumulate
// only in fp32, so WmmaHalves then has no product.
#pragma once

#include "../common/types.cuh"

#if BF16
struct WmmaOperand {
  u32 v[4];
};
#else
struct WmmaOperand {
  u32 v[8];
};
#endif
struct WmmaFloats {
  float v[8];
};
struct WmmaHalves {
  Half2 v[4];
};
#if BF16
#define REGISTERS_OF(r) "r"(r.v[0]), "r"(r.v[1]), "r"(r.v[2]), "r"(r.v[3])
#define WMMA_LOAD(name, operand, order)                                                                          \
  __device__ __forceinline__ WmmaOperand name(u32 address, int stride) {                                         \
    WmmaOperand r;                                                                                               \
    asm volatile("wmma.load." operand ".sync.aligned." order ".m16n16k16.shared.bf16 {%0,%1,%2,%3}, [%4], %5;"   \
                 : "=r"(r.v[0]), "=r"(r.v[1]), "=r"(r.v[2]), "=r"(r.v[3])                                        \
                 : "r"(address), "r"(stride) : "memory");                                                        \
    return r;                                                                                                    \
  }
#else
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
#endif
WMMA_LOAD(wmma_load_a, "a", "row")
WMMA_LOAD(wmma_load_b, "b", "row")
WMMA_LOAD(wmma_load_b_columns, "b", "col")
#undef WMMA_LOAD

#if BF16
#define WMMA_MULTIPLY(name, b_order)                                                                             \
  __device__ __forceinline__ void name(WmmaFloats& c, const WmmaOperand& a, const WmmaOperand& b) {              \
    asm("wmma.mma.sync.aligned.row." b_order ".m16n16k16.f32.bf16.bf16.f32 {%0,%1,%2,%3,%4,%5,%6,%7}, "          \
        "{%8,%9,%10,%11}, {%12,%13,%14,%15}, {%0,%1,%2,%3,%4,%5,%6,%7};"                                         \
        : "+f"(c.v[0]), "+f"(c.v[1]), "+f"(c.v[2]), "+f"(c.v[3]), "+f"(c.v[4]), "+f"(c.v[5]), "+f"(c.v[6]),      \
          "+f"(c.v[7]) : REGISTERS_OF(a), REGISTERS_OF(b));                                                      \
  }
#else
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
#endif
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
