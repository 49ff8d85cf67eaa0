// The warps of a block of attention: their rows, their keys, and their barriers.
//
// The block's warps form ROW_WARPS x SPLITS: along the query rows, and along the keys. Each split has its own keys,
// shared memory and named barrier. The kernel defines SPECIALISED (whether producer warps load the keys), CONSUMER_THREADS,
// WGMMA, and ONLY_SPLIT (whether the index of the split is the constant 0).
#pragma once

#include "../common/barrier.cuh"
#include "../common/numbers.cuh"
#include "../common/types.cuh"

constexpr int SPLIT_THREADS = 32 * ROW_WARPS;
constexpr int UNROLL_STEPS = UNROLL;     // #pragma unroll reads constants, not macros
constexpr int KEY_TILES = TILE_KEYS / 16;  // tiles of 16 keys: the depth of one P V mma
constexpr bool KEY_TAIL = SEQ_LEN == 0 || SEQ_LEN % STEP_KEYS != 0;
constexpr bool ROW_TAIL = SEQ_LEN == 0 || SEQ_LEN % TILE_ROWS != 0;
constexpr bool EDGES = CAUSAL || KEY_TAIL;  // some scores must be masked
constexpr bool IDLE_SPLITS = EDGES && SPLITS > 1 && !SPECIALISED;

/// Position of this thread: its rows, keys and fragment elements.
struct ThreadCoord {
  u32 thread, lane, warp_m, split;  // unsigned: divisions by powers of two are shifts
  __device__ __forceinline__ ThreadCoord() {
    thread = threadIdx.x;
    lane = thread % 32;
    // wgmma needs matrix descriptors in uniform registers; a shuffle makes the value uniform for the compiler.
    const u32 warp = WGMMA ? __shfl_sync(~0u, thread / 32, 0) : thread / 32;
    warp_m = warp % ROW_WARPS;
    split = ONLY_SPLIT ? 0 : warp / ROW_WARPS;
  }
  __device__ __forceinline__ int row(int m, int half) const {  // row of accumulator elements 2 * half, 2 * half + 1
    return (warp_m * TILES_M + m) * 16 + half * 8 + lane / 4;
  }
  __device__ __forceinline__ int column_pair() const { return lane % 4; }
};

// Named barriers (0 is __syncthreads()). Without producer warps, each split has its own barrier. With producer warps, each
// buffer of the ring has a full and an empty barrier, which count all warps of the block.
constexpr int FIRST_SPLIT_BARRIER = 1;
constexpr int FIRST_FULL_BARRIER = 1;
constexpr int FIRST_EMPTY_BARRIER = FIRST_FULL_BARRIER + 4;
constexpr int CONSUMER_BARRIER = 15;

__device__ __forceinline__ void sync_consumer_warps() {
  if constexpr (SPECIALISED) named_barrier_sync<CONSUMER_THREADS>(CONSUMER_BARRIER);
  else __syncthreads();
}
/// Synchronises the warps that read the same keys.
__device__ __forceinline__ void sync_split(int split) {
  if constexpr (SPLITS == 1 || SPECIALISED) sync_consumer_warps();
  else if constexpr (ROW_WARPS == 1) __syncwarp();
  else named_barrier_sync<SPLIT_THREADS>(FIRST_SPLIT_BARRIER + split);
}

/// Returns the steps of a split for the keys visible to the block's last row. Producer warps treat all splits alike.
__device__ __forceinline__ int steps_of(u32 split, int first_row, int length) {
  if constexpr (!EDGES) return SEQ_LEN / STEP_KEYS;
  if constexpr (SPECIALISED) split = 0;
  if constexpr (SEQ_LEN == 0 && TOTAL_STEPS != 0 && !CAUSAL) {
    if (SPLITS == 1 || SPECIALISED) return TOTAL_STEPS;
    const int last_key = (TOTAL_STEPS - 1) * STEP_KEYS + static_cast<int>(split) * TILE_KEYS;
    return TOTAL_STEPS - (last_key >= length);  // of the last step, some splits may have no keys
  }
  const int visible = CAUSAL ? min(length, first_row + TILE_ROWS) : length;
  return ceil_div(max(visible - static_cast<int>(split) * TILE_KEYS, 0), STEP_KEYS);
}
