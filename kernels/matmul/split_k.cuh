// Split along K: partial sums of C in a workspace of SPLIT_PARTS x M x N floats, and their merge.
#pragma once

constexpr int SPLIT_PARTS = BULK ? SPLITS : SPLIT_K;

// Stores two neighbouring elements of C, one by one if N is odd, because pairs are then unaligned.
__device__ __forceinline__ void store_pair(uint16_t* c, int row, int column, int M, int N, uint32_t pair) {
  if (row >= M || column >= N) return;
  uint16_t* target = c + static_cast<size_t>(row) * N + column;
  if constexpr (VECTOR > 1) {
    *reinterpret_cast<uint32_t*>(target) = pair;
  } else {
    target[0] = static_cast<uint16_t>(pair);
    if (column + 1 < N) target[1] = static_cast<uint16_t>(pair >> 16);
  }
}

// Stores two neighbouring partial sums of this block's part of K.
__device__ __forceinline__ void store_partial_pair(float* partial, int row, int column, int M, int N, float low, float high,
                                                   unsigned part = blockIdx.y) {
  if (row >= M || column >= N) return;
  float* target = partial + (static_cast<size_t>(part) * M + row) * N + column;
  if constexpr (VECTOR > 1) {
    *reinterpret_cast<float2*>(target) = make_float2(low, high);
  } else {
    target[0] = low;
    if (column + 1 < N) target[1] = high;
  }
}

// Adds the partial sums of two neighbouring elements of C, including this block's, and stores the results. The order is that
// of K, independent of the last block, so that results are reproducible.
__device__ __forceinline__ void merge_pair(uint16_t* c, const float* partial, int row, int column, int M, int N, float low, float high,
                                           unsigned part = blockIdx.y) {
  if (row >= M || column >= N) return;
  float2 share[SPLIT_PARTS];
#pragma unroll
  for (int split = 0; split < SPLIT_PARTS; split++) {
    const float* from = partial + (static_cast<size_t>(split) * M + row) * N + column;
    share[split] = make_float2(low, high);
    if (split == part) continue;
    if constexpr (VECTOR > 1)
      share[split] = *reinterpret_cast<const float2*>(from);
    else
      share[split] = make_float2(from[0], column + 1 < N ? from[1] : 0.f);
  }
  float2 sum = share[0];
#pragma unroll
  for (int split = 1; split < SPLIT_PARTS; split++) sum.x += share[split].x, sum.y += share[split].y;
  store_pair(c, row, column, M, N, pack_half2(sum.x, sum.y));
}

// A counter for each tile of C. All are zero at the start of a launch, because the last block of a tile resets its counter.
static __device__ unsigned int tickets[TICKETS];

// Returns to every thread whether its block is the last to store partial sums of a tile of C; that block sees all sums.
__device__ __forceinline__ bool last_of_split(int tile) {
  __threadfence();  // makes this thread's stores visible before the block's ticket
  __syncthreads();
  int last = 0;
  if (threadIdx.x == 0) last = atomicInc(&tickets[tile], SPLIT_K - 1) == SPLIT_K - 1;
  last = __syncthreads_or(last);
  __threadfence();
  return last;
}

// Second launch for MERGE=launch and SPLIT_K above 1: adds the partial sums in fixed order, so that results are reproducible.
extern "C" __global__ void __launch_bounds__(256) add_partial_sums(const float* __restrict__ partial, uint16_t* __restrict__ c, long long count) {
  const long long i = blockIdx.x * 256ll + threadIdx.x;
  if (i >= count) return;
  float sum = 0.f;
#pragma unroll
  for (int split = 0; split < SPLIT_K; split++) sum += partial[split * count + i];
  c[i] = static_cast<uint16_t>(pack_half2(sum, 0.f));
}
