// A vector: the elements of one access, WORDS pairs, in registers.
//
// In odd rows only single elements are aligned. There a vector is one pair with two accesses, and the last pair of a row is
// one element and a zero.
#pragma once

#include "../common/cp_async.cuh"
#include "../common/half.cuh"
#include "../common/memory.cuh"

struct Vector {
  u32 word[WORDS];
};

// ---- global memory; volatile, because the compiler must not keep a row in registers that is to be read again

template <bool STREAMING>
__device__ __forceinline__ u32 load_half(const Half* source) {
  Half half;
  if constexpr (STREAMING) asm volatile("ld.global.cs.u16 %0, [%1];" : "=h"(half) : "l"(source));
  else asm volatile("ld.global.u16 %0, [%1];" : "=h"(half) : "l"(source));
  return half;
}
__device__ __forceinline__ void store_half(Half* target, u32 half) {
  if constexpr (STREAM_STORES) asm volatile("st.global.cs.u16 [%0], %1;" ::"l"(target), "h"((Half)half) : "memory");
  else asm volatile("st.global.u16 [%0], %1;" ::"l"(target), "h"((Half)half) : "memory");
}

/// Loads vector `index` of a row or of the weights.
template <bool STREAMING = STREAM_LOADS>
__device__ __forceinline__ Vector load(const Half* row, int index) {
  const Half* source = row + index * (2 * WORDS);
  Vector v;
  if constexpr (WIDTH == 1) {
    v.word[0] = load_half<STREAMING>(source);
    if (2 * index + 1 < COLS) v.word[0] |= load_half<STREAMING>(source + 1) << 16;
  } else if constexpr (STREAMING) {
    LOAD_BYTES(4 * WORDS, v.word, "ld.global.cs", "l"(source))
  } else {
    LOAD_BYTES(4 * WORDS, v.word, "ld.global", "l"(source))
  }
  return v;
}

__device__ __forceinline__ void store(Half* row, int index, const Vector& v) {
  Half* target = row + index * (2 * WORDS);
  if constexpr (WIDTH == 1) {
    store_half(target, v.word[0]);
    if (2 * index + 1 < COLS) store_half(target + 1, v.word[0] >> 16);
  } else if constexpr (STREAM_STORES) {
    STORE_BYTES(4 * WORDS, target, v.word, "st.global.cs", "l")
  } else {
    store_global(target, v.word);
  }
}

// ---- shared memory

__device__ __forceinline__ Vector load_shared(u32 address) {
  Vector v;
  LOAD_BYTES(4 * WORDS, v.word, "ld.shared", "r"(address) : "memory")
  return v;
}

// ---- arithmetic

/// Returns a + b, with each element rounded once to the element type.
__device__ __forceinline__ Vector plus(const Vector& a, const Vector& b) {
  Vector result;
#pragma unroll
  for (int i = 0; i < WORDS; i++) result.word[i] = add_half2(a.word[i], b.word[i]);
  return result;
}

/// Returns `sum` plus the squares of the elements.
__device__ __forceinline__ float plus_squares(float sum, const Vector& v) {
#pragma unroll
  for (int i = 0; i < WORDS; i++) {
    const float low = low2float(v.word[i]), high = high2float(v.word[i]);
    sum = fmaf(low, low, fmaf(high, high, sum));
  }
  return sum;
}

__device__ __forceinline__ Vector scaled(const Vector& v, const Vector& weight, float scale) {
  Vector result;
#pragma unroll
  for (int i = 0; i < WORDS; i++) {
    const float low = low2float(v.word[i]) * scale * low2float(weight.word[i]);
    result.word[i] = pack_half2(low, high2float(v.word[i]) * scale * high2float(weight.word[i]));
  }
  return result;
}
