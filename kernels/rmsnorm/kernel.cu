// Root-mean-square normalisation: y[r][c] = x[r][c] * rsqrt(mean_c(x[r][c]^2) + eps) * weight[c]
//
//   x, y    16-bit floats [ROWS, COLS], row-major, contiguous        weight  [COLS], alike
//   statistics in fp32; any ROWS, COLS a multiple of VECTOR
//
// Memory-bound: each element is read once and written once, so what matters is how many bytes are in flight.
//
//   THREADS_PER_ROW  threads that share a row; a row's sum needs no shared memory when it is one warp
//   ROWS_PER_BLOCK   rows of a block, one group of threads each
//   VECTOR           elements that a thread moves at once (8 = 16 bytes)
//   ROW_STORAGE      where a row waits between the sum and the scaling: in registers, in shared memory, or nowhere (the row
//                    is read a second time, from L2)
//   WEIGHT_LOAD      weights fetched before the row's sum (more bytes in flight) or after it (fewer registers)
//   STORE_POLICY     stores as usual, or marked as streaming so that they leave L2 first
//   LOAD_POLICY      loads of x as usual, or marked as streaming
//   MIN_BLOCKS       resident blocks promised to the compiler, which bounds the registers of a thread
//
// Problem macros: COLS (columns of a row, known at compile time so that a row's share of registers is a constant); BF16
// (1 where the tensors are bfloat16, 0 where they are fp16).

#include <stdint.h>

#if !defined(THREADS_PER_ROW) || !defined(ROWS_PER_BLOCK) || !defined(VECTOR) || !defined(MIN_BLOCKS)
#error "THREADS_PER_ROW, ROWS_PER_BLOCK, VECTOR and MIN_BLOCKS must be defined"
#endif
#if !defined(ROW_STORAGE) || !defined(WEIGHT_LOAD) || !defined(STORE_POLICY) || !defined(LOAD_POLICY)
#error "ROW_STORAGE, WEIGHT_LOAD, STORE_POLICY and LOAD_POLICY must be defined"
#endif
#if !defined(COLS) || !defined(BF16)
#error "COLS and BF16 must be defined"
#endif

constexpr int THREADS = THREADS_PER_ROW * ROWS_PER_BLOCK;
constexpr int WARPS_PER_ROW = (THREADS_PER_ROW + 31) / 32;
constexpr int WORDS = VECTOR / 2;                                              // 32-bit words of one access
constexpr int VECTORS = COLS / VECTOR;                                         // accesses that cover a row
constexpr int PER_THREAD = (VECTORS + THREADS_PER_ROW - 1) / THREADS_PER_ROW;  // accesses of one thread
constexpr bool IN_REGISTERS = ROW_STORAGE == ROW_STORAGE_REGISTERS;
constexpr bool IN_SHARED = ROW_STORAGE == ROW_STORAGE_SHARED;
constexpr bool WEIGHT_FIRST = WEIGHT_LOAD == WEIGHT_LOAD_BEFORE_SUM;

static_assert(COLS % VECTOR == 0, "whole_vectors: a row must be a whole number of vectors, or accesses are misaligned");
static_assert(THREADS_PER_ROW % 32 == 0, "whole_warps: threads of one row must be whole warps to reduce by shuffles");

struct Vector {
  uint32_t word[WORDS];
};

__device__ __forceinline__ Vector load(const uint32_t* source, bool streaming) {
  Vector v;
  if constexpr (WORDS == 4) {
    if (streaming)
      asm volatile("ld.global.cs.v4.u32 {%0,%1,%2,%3}, [%4];"
                   : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3]) : "l"(source));
    else
      asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                   : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3]) : "l"(source));
  } else if constexpr (WORDS == 2) {
    if (streaming)
      asm volatile("ld.global.cs.v2.u32 {%0,%1}, [%2];" : "=r"(v.word[0]), "=r"(v.word[1]) : "l"(source));
    else
      asm volatile("ld.global.v2.u32 {%0,%1}, [%2];" : "=r"(v.word[0]), "=r"(v.word[1]) : "l"(source));
  } else {
    if (streaming)
      asm volatile("ld.global.cs.u32 %0, [%1];" : "=r"(v.word[0]) : "l"(source));
    else
      asm volatile("ld.global.u32 %0, [%1];" : "=r"(v.word[0]) : "l"(source));
  }
  return v;
}

__device__ __forceinline__ void store(uint32_t* target, const Vector& v) {
  constexpr bool streaming = STORE_POLICY == STORE_POLICY_STREAMING;
  if constexpr (WORDS == 4) {
    if constexpr (streaming)
      asm volatile("st.global.cs.v4.u32 [%0], {%1,%2,%3,%4};"
                   ::"l"(target), "r"(v.word[0]), "r"(v.word[1]), "r"(v.word[2]), "r"(v.word[3]) : "memory");
    else
      asm volatile("st.global.v4.u32 [%0], {%1,%2,%3,%4};"
                   ::"l"(target), "r"(v.word[0]), "r"(v.word[1]), "r"(v.word[2]), "r"(v.word[3]) : "memory");
  } else if constexpr (WORDS == 2) {
    if constexpr (streaming)
      asm volatile("st.global.cs.v2.u32 [%0], {%1,%2};" ::"l"(target), "r"(v.word[0]), "r"(v.word[1]) : "memory");
    else
      asm volatile("st.global.v2.u32 [%0], {%1,%2};" ::"l"(target), "r"(v.word[0]), "r"(v.word[1]) : "memory");
  } else {
    if constexpr (streaming)
      asm volatile("st.global.cs.u32 [%0], %1;" ::"l"(target), "r"(v.word[0]) : "memory");
    else
      asm volatile("st.global.u32 [%0], %1;" ::"l"(target), "r"(v.word[0]) : "memory");
  }
}

#if BF16
// A bfloat16 is the upper half of a float: shifts serve every chip, where cvt.f32.bf16 would need compute capability 9.0.
__device__ __forceinline__ void unpack(uint32_t word, float& low, float& high) {
  low = __uint_as_float(word << 16);
  high = __uint_as_float(word & 0xFFFF0000u);
}

__device__ __forceinline__ uint32_t pack(float low, float high) {
  uint32_t word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
#else
__device__ __forceinline__ void unpack(uint32_t word, float& low, float& high) {
  asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h; }" : "=f"(low), "=f"(high) : "r"(word));
}

__device__ __forceinline__ uint32_t pack(float low, float high) {
  uint32_t word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
#endif

__device__ __forceinline__ float sum_of_squares(const Vector& v, float sum) {
#pragma unroll
  for (int i = 0; i < WORDS; i++) {
    float low, high;
    unpack(v.word[i], low, high);
    sum = fmaf(low, low, fmaf(high, high, sum));
  }
  return sum;
}

__device__ __forceinline__ Vector scaled(const Vector& v, const Vector& weight, float scale) {
  Vector result;
#pragma unroll
  for (int i = 0; i < WORDS; i++) {
    float low, high, weight_low, weight_high;
    unpack(v.word[i], low, high);
    unpack(weight.word[i], weight_low, weight_high);
    result.word[i] = pack(low * scale * weight_low, high * scale * weight_high);
  }
  return result;
}

// Sum over the threads of one row; every thread gets it. `partial` holds one float per warp of the block.
__device__ __forceinline__ float row_sum(float value, float* partial, int row_in_block) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) value += __shfl_xor_sync(0xffffffffu, value, offset);
  if constexpr (WARPS_PER_ROW > 1) {
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
    __syncthreads();
    value = 0.f;
#pragma unroll
    for (int warp = 0; warp < WARPS_PER_ROW; warp++) value += partial[row_in_block * WARPS_PER_ROW + warp];
  }
  return value;
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
rmsnorm(const uint32_t* __restrict__ x, const uint32_t* __restrict__ weight, uint32_t* __restrict__ y, int rows, float eps) {
  extern __shared__ __align__(16) uint32_t staged[];  // ROWS_PER_BLOCK rows, where ROW_STORAGE is shared
  __shared__ float partial[THREADS / 32];

  const int row_in_block = threadIdx.x / THREADS_PER_ROW, lane = threadIdx.x % THREADS_PER_ROW;
  const int row = blockIdx.x * ROWS_PER_BLOCK + row_in_block;
  const bool present = row < rows;  // the last block may have rows to spare; its threads still meet the barriers
  const uint32_t* source = x + static_cast<size_t>(row) * (COLS / 2);
  uint32_t* target = y + static_cast<size_t>(row) * (COLS / 2);
  uint32_t* mine = staged + row_in_block * (COLS / 2);
  constexpr bool stream_loads = LOAD_POLICY == LOAD_POLICY_STREAMING;

  Vector kept[IN_REGISTERS ? PER_THREAD : 1], weights[WEIGHT_FIRST ? PER_THREAD : 1];
  float sum = 0.f;
  if (present) {
    if constexpr (IN_REGISTERS) {  // all loads first, so that they are in flight together
#pragma unroll
      for (int i = 0; i < PER_THREAD; i++) {
        const int v = i * THREADS_PER_ROW + lane;
        if (v < VECTORS) kept[i] = load(source + v * WORDS, stream_loads);
      }
    }
    if constexpr (WEIGHT_FIRST) {
#pragma unroll
      for (int i = 0; i < PER_THREAD; i++) {
        const int v = i * THREADS_PER_ROW + lane;
        if (v < VECTORS) weights[i] = load(weight + v * WORDS, false);
      }
    }
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
      const int v = i * THREADS_PER_ROW + lane;
      if (v < VECTORS) {
        Vector value;
        if constexpr (IN_REGISTERS) value = kept[i];
        else value = load(source + v * WORDS, stream_loads);
        sum = sum_of_squares(value, sum);
        if constexpr (IN_SHARED) {
#pragma unroll
          for (int w = 0; w < WORDS; w++) mine[w * VECTORS + v] = value.word[w];  // word-major: no bank conflicts
        }
      }
    }
  }
  const float scale = rsqrtf(row_sum(sum, partial, row_in_block) / COLS + eps);
  if (!present) return;
#pragma unroll
  for (int i = 0; i < PER_THREAD; i++) {
    const int v = i * THREADS_PER_ROW + lane;
    if (v < VECTORS) {
      Vector value, factor;
      if constexpr (IN_REGISTERS) value = kept[i];
      else if constexpr (IN_SHARED) {
#pragma unroll
        for (int w = 0; w < WORDS; w++) value.word[w] = mine[w * VECTORS + v];  // this thread's own words
      } else value = load(source + v * WORDS, stream_loads);
      if constexpr (WEIGHT_FIRST) factor = weights[i];
      else factor = load(weight + v * WORDS, false);
      store(target + v * WORDS, scaled(value, factor, scale));
    }
  }
}
