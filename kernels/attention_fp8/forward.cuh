// Attention of one block of query rows on tensor cores (compute capability 8.0 and above).
//
// Scores remain in registers: after the exponential, the accumulators of Q K^T are the A fragments of P V.
#pragma once

// Integer scores start from this float's bits. They stay below 2^22, so the sum read as a float is exactly 12582912 plus
// the score, without a conversion. Softmax ignores a constant that is added to a whole row.
constexpr float FIRST_SCORE = MMA == MMA_INT8 ? 12582912.f : 0.f;
// A power of two, so that its product with the scale is exact, and a completely masked row gives 2^0 instead of NaN.
constexpr float MASKED_SCORE = -1152921504606846976.f;
// Below this scale all keys have the same weight within 1e-4, and masked keys would get a weight (2^-40).
constexpr float LEAST_SCALE = 9.0949470177e-13f;
// Powers of two by which a score may exceed its row's reference before the lazy rescale. P then stays below 2^8. Exponents
// in fp16 lose one bit of precision with each power, so their limit is smaller.
constexpr float LAZY_THRESHOLD = EXP == EXP_F16X2 ? 1.f : 8.f;
constexpr Half2 ONES = 0x3C003C00u;  // 1.0, 1.0
// Offset of each output in units of UNIT, to be subtracted; see MAGIC_HIGH_BYTES in fragments.cuh.
constexpr float OUTPUT_OFFSET = FOLDED ? 1152.f : 0.f;

constexpr int RESCALE_RESTART = -1;  // not a choice of this kernel

using ScoreFragment = Fragment32;
using OutputFragment = Fragment32;

template <int TILES>
__device__ __forceinline__ void thread_max(float (&top)[2], const Fragment32 (&s)[TILES]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    top[half] = fmaxf(s[0][2 * half], s[0][2 * half + 1]);
#pragma unroll
    for (int n = 1; n < TILES; ++n) top[half] = fmaxf(top[half], fmaxf(s[n][2 * half], s[n][2 * half + 1]));
  }
}

#include "../common/attention_keys.cuh"
#include "../common/attention_softmax.cuh"

__device__ __forceinline__ void fill(Fragment32& c, float x) { c[0] = c[1] = c[2] = c[3] = x; }

/// One head: pointers to its first row, the factor from raw scores to exponents of 2, and the value of one unit of V.
struct Head {
  const Byte *q, *k, *v;
  Half* o;
  float score_scale, v_scale;
};

// ---- the steps of the algorithm for one warp's fragments

/// Q of this warp as A fragments, for each mma of each block of 32 columns.
struct Query {
  u32 fragment[TILES_M][D / 32][MMA_OF_32][4];

  __device__ __forceinline__ void read(u32 tile, const ThreadCoord& at) {
#pragma unroll
    for (int m = 0; m < TILES_M; ++m)
#pragma unroll
      for (int block = 0; block < D / 32; ++block) {
        const Rows32 rows = read_rows(tile + (at.warp_m * TILES_M + m) * 16 * ROW_BYTES, block, at.lane);
#pragma unroll
        for (int i = 0; i < MMA_OF_32; ++i)
#pragma unroll
          for (int r = 0; r < 4; ++r) fragment[m][block][i][r] = without_bias(rows.v[i][r % 2][r / 2]);
      }
  }
  /// Subtracts the zero point; the other factor of the product may keep its zero point.
  static __device__ __forceinline__ u32 without_bias(u32 x) {
    if constexpr (MMA == MMA_INT8) return x ^ 0x80808080u;  // u - 128 as a signed byte
    else if constexpr (FOLDED) return add_half2(x, MINUS_1152);
    else return x;
  }
};

__device__ __forceinline__ void multiply(Fragment32& c, const u32 (&a)[4], const u32 (&b)[2]) {
  if constexpr (MMA == MMA_FP16) mma(c, a, b[0], b[1]);
  else if constexpr (MMA == MMA_E4M3) mma_e4m3(c, a, b[0], b[1]);
  else mma_int8(c, a, b[0], b[1]);
}

/// Computes the scores of 16 keys: s[.][2n, 2n + 1] = Q K^T.
__device__ __forceinline__ void multiply_qk(Scores& s, const Query& q, u32 k_tile, int n, const ThreadCoord& at) {
#pragma unroll
  for (int m = 0; m < TILES_M; ++m) fill(s[m][2 * n], FIRST_SCORE), fill(s[m][2 * n + 1], FIRST_SCORE);
#pragma unroll
  for (int block = 0; block < D / 32; ++block) {
    const Rows32 keys = read_rows(k_tile + n * 16 * ROW_BYTES, block, at.lane);
#pragma unroll
    for (int i = 0; i < MMA_OF_32; ++i)
#pragma unroll
      for (int m = 0; m < TILES_M; ++m) {
        multiply(s[m][2 * n], q.fragment[m][block][i], keys.v[i][0]);
        multiply(s[m][2 * n + 1], q.fragment[m][block][i], keys.v[i][1]);
      }
  }
}

/// Computes output += P V over 16 keys. The row sums are products of the same rounded P with ones on tensor cores, so that
/// an offset common to all of V cancels exactly.
__device__ __forceinline__ void multiply_pv(Rows& rows, const Probabilities& p, u32 v_tile, int n,
                                            const ThreadCoord& at) {
#pragma unroll
  for (int m = 0; m < TILES_M; ++m) mma(rows.sum[m], p[m], ONES, ONES);
#pragma unroll
  for (int block = 0; block < D / 32; ++block) {
    const Columns32 columns = read_columns(v_tile + n * 16 * ROW_BYTES, block, at.lane);
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int m = 0; m < TILES_M; ++m) mma(rows.output[m][4 * block + i], p[m], columns.v[i][0], columns.v[i][1]);
  }
}

/// Computes P of 16 keys as A fragments: 2^(score * scale - reference).
__device__ __forceinline__ void exponentiate(Probabilities& p, const Scores& s, int n, const Rows& rows, float scale) {
#pragma unroll
  for (int m = 0; m < TILES_M; ++m)
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // i: rows g and g + 8 of keys 0 to 7, then of keys 8 to 15
      const Fragment32& f = s[m][2 * n + i / 2];
      const float reference = rows.reference[m][i % 2];
      const float x = fmaf(f[i % 2 * 2], scale, -reference), y = fmaf(f[i % 2 * 2 + 1], scale, -reference);
      p[m][i] = EXP == EXP_F16X2 ? exp2_half2(pack_half2(x, y)) : pack_half2(exp2_approx(x), exp2_approx(y));
    }
}

/// Masks keys past the end and, if causal, keys after the row; only tiles on such an edge do work.
__device__ __forceinline__ void mask_edges(Scores& s, int first_key, int first_row, int length, const ThreadCoord& at) {
  if constexpr (EDGES) {
    const bool cut = KEY_TAIL && first_key + BLOCK_N > length;
    const bool diagonal = CAUSAL && first_key + BLOCK_N - 1 > first_row + static_cast<int>(at.warp_m * TILES_M * 16);
    if (!cut && !diagonal) return;
#pragma unroll
    for (int m = 0; m < TILES_M; ++m)
#pragma unroll
      for (int n = 0; n < BLOCK_N / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int key = first_key + n * 8 + static_cast<int>(2 * (at.lane % 4)) + i % 2;
          const bool hidden = (KEY_TAIL && key >= length) || (CAUSAL && key > first_row + at.row(m, i / 2));
          s[m][n][i] = hidden ? MASKED_SCORE : s[m][n][i];
        }
  }
}

#include "output.cuh"

// ---- the algorithm

/// Processes the keys of one split: scores, softmax with the running reference, output.
__device__ __forceinline__ void consumer_loop(const KeyStream& keys, const Query& q, Rows& rows, int first_row,
                                              float scale, const ThreadCoord& at) {
  Scores s;
#pragma unroll
  for (int n = 0; n < KEY_TILES; ++n) multiply_qk(s, q, keys.k_tile(0), n, at);
  keys.load_next(0);
  mask_edges(s, keys.first_key(0), first_row, keys.length, at);
  init_reference(rows, s, scale);
#pragma unroll UNROLL_STEPS
  for (int step = 0; step + 1 < keys.steps; ++step) {
    keys.wait(step);
#pragma unroll
    for (int n = 0; n < KEY_TILES; ++n) {
      Probabilities p;
      exponentiate(p, s, n, rows, scale);
      // The scores of the next step replace scores that have become P, so that exponentials overlap with both products.
      if constexpr (LOOP_ORDER == LOOP_ORDER_QK_FIRST) multiply_qk(s, q, keys.k_tile(step + 1), n, at);
      multiply_pv(rows, p, keys.v_tile(step), n, at);
    }
    if constexpr (LOOP_ORDER == LOOP_ORDER_PLAIN) {
#pragma unroll
      for (int n = 0; n < KEY_TILES; ++n) multiply_qk(s, q, keys.k_tile(step + 1), n, at);
    }
    keys.load_next(step + 1);
    mask_edges(s, keys.first_key(step + 1), first_row, keys.length, at);
    raise_reference<RESCALE>(rows, s, scale,
                             [&](int m, int half, float factor) { rescale_output(rows, m, half, factor); });
  }
  keys.wait(keys.steps - 1);
#pragma unroll
  for (int n = 0; n < KEY_TILES; ++n) {
    Probabilities p;
    exponentiate(p, s, n, rows, scale);
    multiply_pv(rows, p, keys.v_tile(keys.steps - 1), n, at);
  }
}

/// Computes attention for rows [m_block * BLOCK_M, ...) of one head.
__device__ __forceinline__ void attend(const Head& head, unsigned char* shared, int m_block, int length) {
  const ThreadCoord at;
  const u32 memory = shared_address(shared);
  const int first_row = m_block * BLOCK_M, rows_left = length - first_row;
  const u32 splits = memory + BLOCK_M * ROW_BYTES, exchange = splits + KEY_SPLITS * SPLIT_BYTES;
  const int steps = steps_of(at.split, first_row, length);
  const KeyStream keys{head.k, head.v, splits + at.split * SPLIT_BYTES, at.thread % SPLIT_THREADS, at.split, steps,
                       length, 0};

  load_tile<BLOCK_M, THREADS, ROW_TAIL>(memory, head.q + first_row * D, rows_left, at.thread);
  keys.start();
  keys.wait_first();

  Rows rows;
  rows.reset();
  if (!IDLE_SPLITS || steps > 0) {
    Query q;
    q.read(memory, at);
    const float scale = fmaxf(head.score_scale * (MMA == MMA_FP16 ? UNIT * UNIT : 1.f), LEAST_SCALE);
    consumer_loop(keys, q, rows, first_row, scale, at);
  } else {
    rows.reset_without_keys();
  }
  keys.sync_skipped_steps(steps_of(0, first_row, length));

  Half* const o = head.o + first_row * D;
  if constexpr (KEY_SPLITS == 1) {
    store_output(o, rows, rows_left, head.v_scale * UNIT, at);
  } else {
    sync_split(at.split);  // all reads of this split's keys are done
    store_partial(rows, keys.memory, exchange, at);
    __syncthreads();
    merge_partials(o, splits, exchange, rows_left, at, head.v_scale * UNIT);
  }
}
