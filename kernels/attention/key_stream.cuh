// K and V on their way into shared memory.
#pragma once

/// Waits until at most the last PENDING groups of this thread's copies are in flight, and makes the rest visible, to
/// wgmma too, after the next barrier.
template <int PENDING>
__device__ __forceinline__ void wait_group_visible() {
  cp_async_wait_group<PENDING>();
  if constexpr (WGMMA) fence_proxy_async();
}

/// The keys of one split, step by step. Load group g is {V of step g - 1, K of step g}: what the loop needs next when
/// the scores of step g are computed while the output of step g - 1 is accumulated.
struct KeyStream {
  const Half *k, *v;
  u32 memory;
  u32 thread, split;
  int steps, length, shift;

  __device__ __forceinline__ int buffer(int step) const {
    return resident(CHOICE) ? step : static_cast<int>(static_cast<u32>(step) % BUFFERS);
  }
  __device__ __forceinline__ u32 k_tile(int step) const { return memory + buffer(step) * TILE_BYTES; }
  __device__ __forceinline__ u32 v_tile(int step) const { return memory + (BUFFERS + buffer(step)) * TILE_BYTES; }
  /// First key of a step; rotated walks start elsewhere in each row block, which spreads their reads over L2.
  __device__ __forceinline__ int first_key(int step) const {
    int walked = step;
    if constexpr (KEY_WALK == KEY_WALK_ROTATED) walked = step + shift < steps ? step + shift : step + shift - steps;
    return walked * STEP_KEYS + static_cast<int>(split) * BLOCK_N;
  }
  template <int COPIERS>
  __device__ __forceinline__ void load(u32 tile, const Half* tensor, int first) const {
    load_tile<BLOCK_N, COPIERS, KEY_TAIL>(tile, tensor + first * D, length - first, thread);
  }
  template <int COPIERS>
  __device__ __forceinline__ void load_group(int group) const {
    if (group >= 1 && group <= steps) load<COPIERS>(v_tile(group - 1), v, first_key(group - 1));
    if (group < steps && !DIRECT) load<COPIERS>(k_tile(group), k, first_key(group));
  }

  /// Starts the first groups; what was copied before this call arrives with the first of them.
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
  /// Waits for K of step 0 and for whatever every consumer warp copied before start().
  __device__ __forceinline__ void wait_first() const {
    if constexpr (DIRECT) return;
    wait_group_visible<SPECIALISED ? 0 : at_least(AHEAD, 1) - 1>();
    sync_consumer_warps();
    if constexpr (SPECIALISED) named_barrier_sync<THREADS>(FIRST_FULL_BARRIER);
  }
  /// After the scores of `step`: starts the group that this step's reads have made room for.
  __device__ __forceinline__ void load_next(int step) const {
    if constexpr (!SPECIALISED) {
      if constexpr (AHEAD == 0) sync_split(split);  // the only buffer must have been read by every warp
      load_group<SPLIT_THREADS>(step + at_least(AHEAD, 1));
      cp_async_commit_group();  // past the end too: the count of pending groups stays a constant
    }
  }
  /// Waits until V of `step` and K of the next one are there for all warps of the split.
  __device__ __forceinline__ void wait(int step) const {
    if constexpr (SPECIALISED) {
      named_barrier_sync<THREADS>(FIRST_FULL_BARRIER + (step + 1) % STAGES);
    } else {
      wait_group_visible<at_least(AHEAD - 1, 0)>();
      sync_split(split);
    }
  }
  /// Passes the barriers of the steps that this split has not, but the longest has: race checkers count barriers by warp.
  __device__ __forceinline__ void sync_skipped_steps(int longest) const {
    if constexpr (IDLE_SPLITS) {
      for (int step = steps; step < longest; ++step) {
        if constexpr (AHEAD == 0) sync_split(split);
        sync_split(split);
      }
    }
  }
  /// Arrives at the empty barrier of load group `group`, K of that step and V of the step before, where producer warps
  /// still wait for it: this warp has read them.
  __device__ __forceinline__ void release(int group) const {
    if constexpr (SPECIALISED) {
      if (group + STAGES <= steps) named_barrier_arrive<THREADS>(FIRST_EMPTY_BARRIER + group % STAGES);
    }
  }
};

/// Producer warps: fill the ring of every split, a group as soon as the one whose buffers it takes has been read.
/// Consumers that compute scores and output of a step together release a group only when the next one is there.
__device__ __forceinline__ void producer_loop(const Half* k, const Half* v, u32 memory, int steps, int length,
                                              int shift) {
  constexpr int IN_FLIGHT = LOOP_ORDER == LOOP_ORDER_PLAIN ? STAGES - 2 : STAGES - 1;
  const u32 thread = threadIdx.x - CONSUMER_THREADS;
  for (int group = 0; group <= steps + IN_FLIGHT; ++group) {
    if (group <= steps) {
      if (group >= STAGES) named_barrier_sync<THREADS>(FIRST_EMPTY_BARRIER + group % STAGES);
#pragma unroll 1
      for (u32 split = 0; split < KEY_SPLITS; ++split) {
        const KeyStream keys{k, v, memory + split * SPLIT_BYTES, thread, split, steps, length, shift};
        keys.load_group<PRODUCER_THREADS>(group);
      }
    }
    cp_async_commit_group();
    if (group >= IN_FLIGHT) {
      wait_group_visible<IN_FLIGHT>();
      named_barrier_arrive<THREADS>(FIRST_FULL_BARRIER + (group - IN_FLIGHT) % STAGES);
    }
  }
}
