// Running softmax of attention: fragments, masks, references, and the merge of the splits' outputs.
//
// The kernel defines the fragment types ScoreFragment and OutputFragment, MASKED_SCORE, LAZY_THRESHOLD, MERGE_HALVES (whether
// partial outputs have 16 bits), and thread_max(), a thread's largest score in each of its two rows.
#pragma once

#include "../common/attention_warps.cuh"
#include "../common/half.cuh"
#include "../common/memory.cuh"
#include "../common/warp.cuh"

template <int TILES>  // of 8 keys
using ScoresOf = ScoreFragment[TILES_M][TILES];
using Scores = ScoresOf<TILE_KEYS / 8>;
using Probabilities = u32[TILES_M][4];  // A fragments of one tile of 16 keys

__device__ __forceinline__ void clear(Fragment32& c) { c[0] = c[1] = c[2] = c[3] = 0.f; }
__device__ __forceinline__ void clear(Fragment16& c) { c[0] = c[1] = 0u; }

/// Running softmax of this warp's rows: output, row sums, and the references that are subtracted from exponents (log2).
struct Rows {
  OutputFragment output[TILES_M][D / 8];
  Fragment32 sum[TILES_M];  // elements 0 and 2 are used
  float reference[TILES_M][2];

  __device__ __forceinline__ void reset() {
#pragma unroll
    for (int m = 0; m < TILES_M; ++m) {
      clear(sum[m]);
#pragma unroll
      for (int n = 0; n < D / 8; ++n) clear(output[m][n]);
    }
  }
  /// Resets a split without keys: finite values with weight 0 in the merge.
  __device__ __forceinline__ void reset_without_keys() {
#pragma unroll
    for (int m = 0; m < TILES_M; ++m) {
      sum[m][0] = sum[m][2] = 1.f;
      reference[m][0] = reference[m][1] = MASKED_SCORE;
    }
  }
};

__device__ __forceinline__ void scale_row(Fragment32& f, int half, float factor) {
  f[2 * half] *= factor;
  f[2 * half + 1] *= factor;
}
__device__ __forceinline__ void scale_row(Fragment16& f, int half, float factor) {
  f[half] = mul_half2(f[half], pack_half2(factor, factor));
}

/// Sets the references to the row maxima of the first scores.
template <int TILES>
__device__ __forceinline__ void init_reference(Rows& rows, const ScoresOf<TILES>& s, float scale) {
#pragma unroll
  for (int m = 0; m < TILES_M; ++m) {
    float top[2];
    thread_max(top, s[m]);
    rows.reference[m][0] = quad_max(top[0]) * scale;
    rows.reference[m][1] = quad_max(top[1]) * scale;
  }
}

/// Scales the output of one row.
__device__ __forceinline__ void rescale_output(Rows& rows, int m, int half, float factor) {
#pragma unroll
  for (int n = 0; n < D / 8; ++n) scale_row(rows.output[m][n], half, factor);
}

/// Raises the references to the new scores according to RULE (a value of RESCALE), and scales the current row sums. Returns
/// whether the output must also be scaled: by the factor of each row, which is passed to use(m, half, factor).
template <int RULE, int TILES, typename Use>
__device__ __forceinline__ bool raise_reference(Rows& rows, const ScoresOf<TILES>& s, float scale, Use use) {
  if constexpr (RULE == RESCALE_RESTART) return false;
  float top[TILES_M][2];
  bool outgrown = RULE == RESCALE_ALWAYS;
#pragma unroll
  for (int m = 0; m < TILES_M; ++m) {
    thread_max(top[m], s[m]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // The lazy test needs no shuffle: each thread votes on its own scores, and the vote covers the row.
      if constexpr (RULE != RESCALE_LAZY) top[m][half] = quad_max(top[m][half]);
      const float growth = fmaf(top[m][half], scale, -rows.reference[m][half]);
      outgrown |= growth > (RULE == RESCALE_LAZY ? LAZY_THRESHOLD : 0.f);
    }
  }
  if constexpr (RULE != RESCALE_ALWAYS) {
    if (!__any_sync(~0u, outgrown)) return false;
  }
#pragma unroll
  for (int m = 0; m < TILES_M; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if constexpr (RULE == RESCALE_LAZY) top[m][half] = quad_max(top[m][half]);
      const float raised = fmaxf(rows.reference[m][half], top[m][half] * scale);
      const float factor = exp2_approx(rows.reference[m][half] - raised);
      rows.reference[m][half] = raised;
      scale_row(rows.sum[m], half, factor);
      use(m, half, factor);
    }
  return true;
}
/// Adds the splits' partial outputs, weighted by their share of the row's sum; each thread reads 16 bytes at a time.
__device__ __forceinline__ void merge_partials(Half* o, u32 memory, u32 exchange, int rows_left,
                                               const ThreadCoord& at, float scale_of_output = 1.f) {
  constexpr int COLUMNS = MERGE_HALVES ? 8 : 4, PER_ROW = D / COLUMNS, TASKS = TILE_ROWS * PER_ROW;
#pragma unroll
  for (int i = 0; i < ceil_div(TASKS, CONSUMER_THREADS); ++i) {
    const int task = i * CONSUMER_THREADS + at.thread, row = task / PER_ROW, part = task % PER_ROW;
    if (TASKS % CONSUMER_THREADS != 0 && task >= TASKS) break;
    if (ROW_TAIL && row >= rows_left) continue;
    float reference[SPLITS], weight[SPLITS], top = 0.f, total = 0.f, sum[COLUMNS] = {};
#pragma unroll
    for (int s = 0; s < SPLITS; ++s) {
      load_shared_floats(exchange + (s * TILE_ROWS + row) * 8, reference[s], weight[s]);
      top = s == 0 ? reference[s] : fmaxf(top, reference[s]);
    }
#pragma unroll
    for (int s = 0; s < SPLITS; ++s) {
      const float scale = exp2_approx(reference[s] - top);
      total += scale * weight[s];
      weight[s] = MERGE_HALVES ? scale * weight[s] : scale;
      const Chunk c = load_shared_chunk(memory + s * SPLIT_BYTES + row * PARTIAL_ROW_BYTES + part * 16);
#pragma unroll
      for (int x = 0; x < COLUMNS; ++x) {
        float value;
        if constexpr (MERGE_HALVES) value = x % 2 ? high2float(c.v[x / 2]) : low2float(c.v[x / 2]);
        else value = __uint_as_float(c.v[x]);
        sum[x] = fmaf(weight[s], value, sum[x]);
      }
    }
    const float factor = rcp_approx(total) * scale_of_output;
    Half2 result[COLUMNS / 2];
#pragma unroll
    for (int x = 0; x < COLUMNS / 2; ++x) result[x] = pack_half2(sum[2 * x] * factor, sum[2 * x + 1] * factor);
    store_global(o + row * D + part * COLUMNS, result);
  }
}
