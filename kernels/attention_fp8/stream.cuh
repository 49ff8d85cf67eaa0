// The rows and keys of a block's warps, and the copies of K and V to shared memory.
//
// The block's warps form WARPS_M x KEY_SPLITS: along the query rows, and along the keys. Each split has its own keys,
// shared memory and named barrier.
#pragma once

constexpr int SPLIT_THREADS = 32 * WARPS_M;
constexpr int UNROLL_STEPS = UNROLL;     // #pragma unroll reads constants, not macros
constexpr int KEY_TILES = BLOCK_N / 16;  // tiles of 16 keys: the depth of one P V mma
constexpr bool KEY_TAIL = SEQ_LEN == 0 || SEQ_LEN % STEP_KEYS != 0;
constexpr bool ROW_TAIL = SEQ_LEN == 0 || SEQ_LEN % BLOCK_M != 0;
constexpr bool EDGES = CAUSAL || KEY_TAIL;  // some scores must be masked
constexpr bool IDLE_SPLITS = EDGES && KEY_SPLITS > 1;

/// Position of this thread: its rows, keys and fragment elements.
struct ThreadCoord {
  u32 thread, lane, warp_m, split;  // unsigned: divisions by powers of two are shifts
  __device__ __forceinline__ ThreadCoord() {
    thread = threadIdx.x;
    lane = thread % 32;
    warp_m = thread / 32 % WARPS_M;
    split = thread / SPLIT_THREADS;
  }
  __device__ __forceinline__ int row(int m, int half) const {  // row of accumulator elements 2 * half, 2 * half + 1
    return (warp_m * TILES_M + m) * 16 + half * 8 + lane / 4;
  }
};

/// Synchronises the warps that read the same keys. Named barrier 0 is __syncthreads().
__device__ __forceinline__ void sync_split(int split) {
  if constexpr (KEY_SPLITS == 1) __syncthreads();
  else if constexpr (WARPS_M == 1) __syncwarp();
  else named_barrier_sync<SPLIT_THREADS>(1 + split);
}

/// The keys of one split, step by step. Load group g is {V of step g - 1, K of step g}, because the scores of step g are
/// computed while the output of step g - 1 is accumulated.
struct KeyStream {
  const Byte *k, *v;
  u32 memory;
  u32 thread, split;
  int steps, length;

  __device__ __forceinline__ int buffer(int step) const {
    return RESIDENT ? step : static_cast<int>(static_cast<u32>(step) % BUFFERS);
  }
  __device__ __forceinline__ u32 k_tile(int step) const { return memory + buffer(step) * TILE_BYTES; }
  __device__ __forceinline__ u32 v_tile(int step) const { return memory + (BUFFERS + buffer(step)) * TILE_BYTES; }
  __device__ __forceinline__ int first_key(int step) const {
    return step * STEP_KEYS + static_cast<int>(split) * BLOCK_N;
  }
  __device__ __forceinline__ void load(u32 tile, const Byte* tensor, int first) const {
    load_tile<BLOCK_N, SPLIT_THREADS, KEY_TAIL>(tile, tensor + first * D, length - first, thread);
  }
  __device__ __forceinline__ void load_group(int group) const {
    if (group >= 1 && group <= steps) load(v_tile(group - 1), v, first_key(group - 1));
    if (group < steps) load(k_tile(group), k, first_key(group));
  }

  /// Starts the first groups. Copies before this call complete with the first group.
  __device__ __forceinline__ void start() const {
#pragma unroll
    for (int group = 0; group < at_least(AHEAD, 1); ++group) {
      load_group(group);
      cp_async_commit_group();
    }
  }
  /// Waits for K of step 0 and for all copies of the warps before start().
  __device__ __forceinline__ void wait_first() const {
    cp_async_wait_group<at_least(AHEAD, 1) - 1>();
    __syncthreads();
  }
  /// Starts the next group after the scores of `step`, whose buffers are free now.
  __device__ __forceinline__ void load_next(int step) const {
    if constexpr (AHEAD == 0) sync_split(split);  // the only buffer must have been read by every warp
    load_group(step + at_least(AHEAD, 1));
    cp_async_commit_group();  // also past the end, so that the number of pending groups is constant
  }
  /// Waits until V of `step` and K of the next step are visible to all warps of the split.
  __device__ __forceinline__ void wait() const {
    cp_async_wait_group<at_least(AHEAD - 1, 0)>();
    sync_split(split);
  }
  /// Passes the barriers of steps that only the longest split has, because race checkers count barriers per warp.
  __device__ __forceinline__ void sync_skipped_steps(int longest) const {
    if constexpr (IDLE_SPLITS) {
      for (int step = steps; step < longest; ++step) {
        if constexpr (AHEAD == 0) sync_split(split);
        sync_split(split);
      }
    }
  }
};
