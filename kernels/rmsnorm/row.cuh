// A thread's part of a row: its vectors, the row's sum of squares, and the scaling.
#pragma once

#include "../common/barrier.cuh"
#include "vector.cuh"

constexpr int BATCH = 8;  // most loads per input and thread in flight

// Some vectors of a row; a thread has every THREADS-th vector, at most COUNT.
template <int COUNT>
struct Span {
  int begin, end;  // vectors
  __device__ int place(int i) const { return i * THREADS + threadIdx.x % THREADS; }  // counted from `begin`
  __device__ int vector(int i) const { return begin + place(i); }
  __device__ bool has(int i) const { return i < COUNT && vector(i) < end; }
};
using OwnSpan = Span<PER_THREAD>;

// The part of a row that this block scales.
__device__ __forceinline__ OwnSpan own_span() {
  const int begin = BLOCKS == 1 ? 0 : blockIdx.y * SHARE;
  return {begin, min(begin + SHARE, VECTORS)};
}

// The row of this thread. The last group may have more threads than rows: extra ones repeat the last row and do not store.
struct Row {
  bool present;
  int number;
  size_t first;  // element
  __device__ Row(int group, int rows) {
    number = group * ROWS + threadIdx.x / THREADS;
    present = number < rows;
    number = min(number, rows - 1);
    first = static_cast<size_t>(number) * COLS;
  }
};

// Fills a batch of vectors of h; read(t, i) returns vector i of input t.
template <int COUNT, typename Read>
__device__ __forceinline__ void read_batch(Vector (&h)[BATCH], const Span<COUNT>& span, int first, Read read) {
#pragma unroll
  for (int j = 0; j < BATCH; j++)
    if (span.has(first + j)) h[j] = read(0, first + j);
  if constexpr (RESIDUAL) {
    Vector added[BATCH];  // all loads first, so that they are in flight concurrently
#pragma unroll
    for (int j = 0; j < BATCH; j++)
      if (span.has(first + j)) added[j] = read(1, first + j);
#pragma unroll
    for (int j = 0; j < BATCH; j++)
      if (span.has(first + j)) h[j] = plus(h[j], added[j]);
  }
}

// Returns the sum of squares of a thread's vectors; calls keep(i, h) for each vector.
template <int COUNT, typename Read, typename Keep>
__device__ __forceinline__ float sum_of_squares(const Span<COUNT>& span, Read read, Keep keep) {
  float sum = 0.f;
#pragma unroll(IN_REGISTERS ? COUNT : 1)
  for (int first = 0; first < COUNT; first += BATCH) {
    Vector h[BATCH];
    read_batch(h, span, first, read);
#pragma unroll
    for (int j = 0; j < BATCH; j++)
      if (span.has(first + j)) {
        sum = plus_squares(sum, h[j]);
        keep(first + j, h[j]);
      }
  }
  return sum;
}

// Returns the sum over LANES neighbouring lanes of a warp (a power of two) to each of them.
template <int LANES>
__device__ __forceinline__ float lane_sum(float value) {
#pragma unroll
  for (int offset = LANES / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}

// Returns the sum over the threads of one row to every thread. Consecutive rows use different halves of `partial`, so one
// barrier is enough: a thread that writes a half again has passed the other half's barrier together with all readers.
__device__ __forceinline__ float row_sum(float value, float (&partial)[ROWS * WARPS_PER_ROW]) {
  value = lane_sum<THREADS < 32 ? THREADS : 32>(value);
  if constexpr (WARPS_PER_ROW > 1) {
    const int row_in_block = threadIdx.x / THREADS, lane = threadIdx.x % 32;
    const float* warps = partial + row_in_block * WARPS_PER_ROW;
    if (lane == 0) partial[threadIdx.x / 32] = value;
    named_barrier_sync<THREADS>(row_in_block);  // the rows of a block do not wait for each other
    if constexpr (WARPS_PER_ROW <= 8) {
      value = 0.f;
#pragma unroll
      for (int warp = 0; warp < WARPS_PER_ROW; warp++) value += warps[warp];
    } else {  // shuffles are faster than loading the sum of each warp from shared memory
      value = lane_sum<32>(lane < WARPS_PER_ROW ? warps[lane] : 0.f);
    }
  }
  return value;
}

// The weights of a thread's vectors: kept in registers, or loaded when they are used.
struct Weights {
  const Half* weight;
  Vector kept[WEIGHT_FIRST ? PER_THREAD : 1];
  __device__ Weights(const Half* source, const OwnSpan& span) : weight(source) {
    if constexpr (WEIGHT_FIRST) {
#pragma unroll
      for (int i = 0; i < PER_THREAD; i++)
        if (span.has(i)) kept[i] = load<false>(weight, span.vector(i));
    }
  }
};

// Writes the block's part of y, and of `sum` with a residual. If the row is not stored, read(t, i) reads it again;
// otherwise kept(i) is vector i of h.
template <typename Read, typename Kept>
__device__ __forceinline__ void scale_row(Half* y, Half* sum, const Weights& weights, float scale, const OwnSpan& span,
                                          bool present, Read read, Kept kept) {
  if (!present) return;
#pragma unroll(IN_REGISTERS || WEIGHT_FIRST ? UNROLLED : 1)
  for (int first = 0; first < PER_THREAD; first += BATCH) {
    Vector h[BATCH];
    if constexpr (IN_REGISTERS || IN_SHARED) {
#pragma unroll
      for (int j = 0; j < BATCH; j++)
        if (span.has(first + j)) h[j] = kept(first + j);
    } else {
      read_batch(h, span, first, read);
    }
    if constexpr (RESIDUAL) {  // before all of y, because alternating stores are slower (docs/lab/2026-11-27-kernels.md)
#pragma unroll
      for (int j = 0; j < BATCH; j++)
        if (span.has(first + j)) store(sum, span.vector(first + j), h[j]);
    }
#pragma unroll
    for (int j = 0; j < BATCH; j++)
      if (span.has(first + j)) {
        const int vector = span.vector(first + j);
        if constexpr (WEIGHT_FIRST) store(y, vector, scaled(h[j], weights.kept[first + j], scale));
        else store(y, vector, scaled(h[j], load<false>(weights.weight, vector), scale));
      }
  }
}
