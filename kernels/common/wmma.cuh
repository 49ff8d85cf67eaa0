// Tensor cores with wmma: products of 16x16x16 on rows in shared memory. Fragments are opaque: the mapping of elements to
// lanes is unspecified. Strides are in elements. Halves are bfloat16 if BF16 is 1 (half.cuh); bfloat16 products accumulate
// only in fp32, so WmmaHalves then has no product.
#pragma once

#include "../common/half.cuh"

#define FOUR(constraint, r) constraint(r.v[0]), constraint(r.v[1]), constraint(r.v[2]), constraint(r.v[3])
#define EIGHT(constraint, r) \
  FOUR(constraint, r), constraint(r.v[4]), constraint(r.v[5]), constraint(r.v[6]), constraint(r.v[7])
#if BF16
#define OPERAND_REGISTERS 4
#define OPERAND FOUR
#define LOADED "{%0,%1,%2,%3}, [%4], %5;"
#define TYPES ".f32.bf16.bf16.f32"
#define FACTORS "{%8,%9,%10,%11}, {%12,%13,%14,%15}"
#else
#define OPERAND_REGISTERS 8
#define OPERAND EIGHT
#define LOADED "{%0,%1,%2,%3,%4,%5,%6,%7}, [%8], %9;"
#define TYPES ".f32.f32"
#define FACTORS "{%8,%9,%10,%11,%12,%13,%14,%15}, {%16,%17,%18,%19,%20,%21,%22,%23}"
#endif

struct WmmaOperand {
  u32 v[OPERAND_REGISTERS];
};
struct WmmaFloats {
  float v[8];
};
struct WmmaHalves {
  Half2 v[4];
};

#define WMMA_LOAD(name, operand, order)                                                                          \
  __device__ __forceinline__ WmmaOperand name(u32 address, int stride) {                                         \
    WmmaOperand r;                                                                                               \
    asm volatile("wmma.load." operand ".sync.aligned." order ".m16n16k16.shared." HALF_TYPE " " LOADED           \
                 : OPERAND("=r", r) : "r"(address), "r"(stride) : "memory");                                     \
    return r;                                                                                                    \
  }
WMMA_LOAD(wmma_load_a, "a", "row")
WMMA_LOAD(wmma_load_b, "b", "row")
WMMA_LOAD(wmma_load_b_columns, "b", "col")

#define WMMA_MULTIPLY(name, b_order)                                                                             \
  __device__ __forceinline__ void name(WmmaFloats& c, const WmmaOperand& a, const WmmaOperand& b) {              \
    asm("wmma.mma.sync.aligned.row." b_order ".m16n16k16" TYPES " {%0,%1,%2,%3,%4,%5,%6,%7}, " FACTORS           \
        ", {%0,%1,%2,%3,%4,%5,%6,%7};" : EIGHT("+f", c) : OPERAND("r", a), OPERAND("r", b));                     \
  }
WMMA_MULTIPLY(wmma_multiply, "row")
WMMA_MULTIPLY(wmma_multiply_columns, "col")
#if !BF16
#define WMMA_MULTIPLY_HALVES(name, b_order)                                                                      \
  __device__ __forceinline__ void name(WmmaHalves& c, const WmmaOperand& a, const WmmaOperand& b) {              \
    asm("wmma.mma.sync.aligned.row." b_order ".m16n16k16.f16.f16 {%0,%1,%2,%3}, {%4,%5,%6,%7,%8,%9,%10,%11}, "   \
        "{%12,%13,%14,%15,%16,%17,%18,%19}, {%0,%1,%2,%3};" : FOUR("+r", c) : EIGHT("r", a), EIGHT("r", b));     \
  }
WMMA_MULTIPLY_HALVES(wmma_multiply, "row")
WMMA_MULTIPLY_HALVES(wmma_multiply_columns, "col")
#endif

__device__ __forceinline__ void wmma_load(WmmaFloats& c, u32 address, int stride) {
  asm volatile("wmma.load.c.sync.aligned.row.m16n16k16.shared.f32 {%0,%1,%2,%3,%4,%5,%6,%7}, [%8], %9;"
               : EIGHT("=f", c) : "r"(address), "r"(stride) : "memory");
}
__device__ __forceinline__ void wmma_store(u32 address, int stride, const WmmaFloats& c) {
  asm volatile("wmma.store.d.sync.aligned.row.m16n16k16.shared.f32 [%0], {%2,%3,%4,%5,%6,%7,%8,%9}, %1;"
               ::"r"(address), "r"(stride), EIGHT("f", c) : "memory");
}
__device__ __forceinline__ void wmma_store(u32 address, int stride, const WmmaHalves& c) {
  asm volatile("wmma.store.d.sync.aligned.row.m16n16k16.shared.f16 [%0], {%2,%3,%4,%5}, %1;"
               ::"r"(address), "r"(stride), FOUR("r", c) : "memory");
}
