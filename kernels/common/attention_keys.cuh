// Copies of K and V to shared memory. The kernel defines Element and load_tile(), DIRECT (whether K is loaded directly into
// fragments), RESIDENT (whether each step has its own buffer) and ROTATED (whether row blocks start at different steps).
#pragma once

#include "../common/attention_warps.cuh"
#include "../common/cp_async.cuh"

/// Waits until at most the last PENDING groups of this thread's copies are in flight. The completed copies are visible
/// after the next barrier, also to wgmma.
template <int PENDING>
__device__ __forceinline__ void wait_group_visible() {
  cp_async_wait_group<PENDING>();
  if constexpr (WGMMA) fence_proxy_async();
}

/// The keys of one split, step by step. Load group g is {V of step g - 1, K of step g}, because the scores of step g are
/// computed while the output of step g - 1 is accumulated.
struct KeyStream {
  const Element *k, *v;
  u32 memory;
  u32 thread, split;
  int steps, length, shift;

  __device__ __forceinline__ int buffer(int step) const {
    return RESIDENT ? step : static_cast<int>(static_cast<u32>(step) % BUFFERS);
  }
  __device__ __forceinline__ u32 k_tile(int step) const { return memory + buffer(step) * TILE_BYTES; }
  __device__ __forceinline__ u32 v_tile(int step) const { return memory + (BUFFERS + buffer(step)) * TILE_BYTES; }
  /// Returns the first key of a step. Different starting steps spread reads over L2.
  __device__ __forceinline__ int first_key(int step) const {
    int walked = step;
    if constexpr (ROTATED) walked = step + shift < steps ? step + shift : step + shift - steps;
    return walked * STEP_KEYS + static_cast<int>(split) * TILE_KEYS;
  }
  template <int COPIERS>
  __device__ __forceinline__ void load(u32 tile, const Element* tensor, int first) const {
    load_tile<TILE_KEYS, COPIERS, KEY_TAIL>(tile, tensor + first * D, length - first, thread);
  }
  template <int COPIERS>
  __device__ __forceinline__ void load_group(int group) const {
    if (group >= 1 && group <= steps) load<COPIERS>(v_tile(group - 1), v, first_key(group - 1));
    if (group < steps && !DIRECT) load<COPIERS>(k_tile(group), k, first_key(group));
  }

  /// Starts the first groups. Copies before this call complete with the first group.
  __device__ __forceinline__ void start() const {
    if constexpr (SPECIALISED) {
      cp_async_commit_group();
    } else {
#pragma unroll
      for (int group = 0; group < at_least(AHEAD, 1); ++group) {
        load_group<SPLIT_THREADS>(group);
        cp_async_commit_group();
      }
    }
  }
  /// Waits for K of step 0 and for all copies of consumer warps before start().
  __device__ __forceinline__ void wait_first() const {
    if constexpr (DIRECT) return;
    wait_group_visible<SPECIALISED ? 0 : at_least(AHEAD, 1) - 1>();
    sync_consumer_warps();
    if constexpr (SPECIALISED) named_barrier_sync<THREADS>(FIRST_FULL_BARRIER);
  }
  /// Starts the next group after the scores of `step`, whose buffers are free now.
  __device__ __forceinline__ void load_next(int step) const {
    if constexpr (!SPECIALISED) {
      if constexpr (AHEAD == 0) sync_split(split);  // the only buffer must have been read by every warp
      load_group<SPLIT_THREADS>(step + at_least(AHEAD, 1));
      cp_async_commit_group();  // also past the end, so that the number of pending groups is constant
    }
  }
  /// Waits until V of `step` and K of the next step are visible to all warps of the split.
  __device__ __forceinline__ void wait(int step) const {
    if constexpr (SPECIALISED) {
      named_barrier_sync<THREADS>(FIRST_FULL_BARRIER + (step + 1) % STAGES);
    } else {
      wait_group_visible<at_least(AHEAD - 1, 0)>();
      sync_split(split);
    }
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
  /// Signals that this warp has read load group `group` (K of that step, V of the previous step), if producer warps will
  /// wait for it.
  __device__ __forceinline__ void release(int group) const {
    if constexpr (SPECIALISED) {
      if (group + STAGES <= steps) named_barrier_arrive<THREADS>(FIRST_EMPTY_BARRIER + group % STAGES);
    }
  }
};
