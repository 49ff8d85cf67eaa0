// Prefetch of rows before their sums, into registers or into a ring in shared memory.
#pragma once

#include "row.cuh"

constexpr int VECTOR_BYTES = 4 * WORDS, ROW_BYTES = SHARE * VECTOR_BYTES;  // in shared memory

// Each thread fetches the vectors that it uses, so it waits only for its own copies.
struct Ahead {
  const Half* const (&input)[INPUTS];
  int rows;
  u32 shared;  // of this thread's row, in the first stage
  Vector loaded[INPUTS][LOADED_AHEAD ? PER_THREAD : 1] = {};
  int filled = 0, used = STAGES - 1;  // stages of the next copy and of the current row

  __device__ u32 stage(int number, int t) const { return shared + (number * INPUTS + t) * (ROWS * ROW_BYTES); }

  __device__ static void copy(u32 target, const Half* row, int index) {
    cp_async_zfill<VECTOR_BYTES>(target, row + index * (2 * WORDS), true);
  }
  /// Returns the address of the current row.
  __device__ u32 next_stage() {
    used = used + 1 < STAGES ? used + 1 : 0;
    return stage(used, 0);
  }
  /// Starts to fetch the row of a group, if it exists.
  __device__ __forceinline__ void fetch(int group, const OwnSpan& span) {
    if constexpr (!LOADED_AHEAD && !COPIED_AHEAD) return;
    if (group * ROWS < rows) {
      const Row row(group, rows);
#pragma unroll
      for (int t = 0; t < INPUTS; t++)
#pragma unroll(LOADED_AHEAD ? UNROLLED : BATCH)
        for (int i = 0; i < PER_THREAD; i++)
          if (span.has(i)) {
            if constexpr (LOADED_AHEAD) loaded[t][i] = load(input[t] + row.first, span.vector(i));
            else copy(stage(filled, t) + span.place(i) * VECTOR_BYTES, input[t] + row.first, span.vector(i));
          }
    }
    if constexpr (COPIED_AHEAD) {
      cp_async_commit_group();
      filled = filled + 1 < STAGES ? filled + 1 : 0;
    }
  }
};
