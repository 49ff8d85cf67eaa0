// The loop over the keys with mma.sync; each warp reads its own fragments for both products.
#pragma once

/// Computes the scores of 16 keys: s[.][2n, 2n + 1] = Q K^T. HELD: Q is in registers.
template <int TILES, bool HELD = Q_LOCATION == Q_LOCATION_REGISTERS>
__device__ __forceinline__ void multiply_qk(ScoresOf<TILES>& s, const Query& q, const DirectKeys& direct, u32 k_tile, int n,
                                            const ThreadCoord& at) {
  const int row = at.lane / 16 * 8 + at.lane % 8, chunk = at.lane / 8 % 2;
#pragma unroll
  for (int m = 0; m < TILES_M; ++m) clear(s[m][2 * n]), clear(s[m][2 * n + 1]);
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    u32 b[4];
    if constexpr (DIRECT) {
#pragma unroll
      for (int i = 0; i < 4; ++i) b[i] = direct.row[2 * n + i / 2].word(k, i % 2);
    } else {
      ldmatrix_x4(b, k_tile + n * 16 * ROW_BYTES + chunk_offset<TILE_KEYS>(row, 2 * k + chunk));
    }
#pragma unroll
    for (int m = 0; m < TILES_M; ++m) {
      if constexpr (HELD) {
        mma(s[m][2 * n], q.fragment[m][k], b[0], b[1]);
        mma(s[m][2 * n + 1], q.fragment[m][k], b[2], b[3]);
      } else {
        u32 a[4];
        q.read(a, m, k, at);
        mma(s[m][2 * n], a, b[0], b[1]);
        mma(s[m][2 * n + 1], a, b[2], b[3]);
      }
    }
  }
}

/// Computes output += P V over 16 keys, and with ROW_SUM_ONES_MMA also the row sums as P times ones.
__device__ __forceinline__ void multiply_pv(Rows& rows, const Probabilities& p, u32 v_tile, int n,
                                            const ThreadCoord& at) {
  if constexpr (ROW_SUM == ROW_SUM_ONES_MMA) {
#pragma unroll
    for (int m = 0; m < TILES_M; ++m) mma(rows.sum[m], p[m], ONES, ONES);
  }
#pragma unroll
  for (int d = 0; d < D / 16; ++d) {
    u32 b[4];
    ldmatrix_x4_trans(b, v_tile + n * 16 * ROW_BYTES + chunk_offset<TILE_KEYS>(at.lane % 16, 2 * d + at.lane / 16));
#pragma unroll
    for (int m = 0; m < TILES_M; ++m) {
      mma(rows.output[m][2 * d], p[m], b[0], b[1]);
      mma(rows.output[m][2 * d + 1], p[m], b[2], b[3]);
    }
  }
}

/// Computes the scores of all keys of a step, or of the first ones.
template <int TILES, bool HELD = Q_LOCATION == Q_LOCATION_REGISTERS>
__device__ __forceinline__ void compute_scores(ScoresOf<TILES>& s, const Query& q, const DirectKeys& direct, u32 k_tile,
                                               const ThreadCoord& at) {
#pragma unroll
  for (int n = 0; n < TILES / 2; ++n) multiply_qk<TILES, HELD>(s, q, direct, k_tile, n, at);
}
/// Computes output += P V over 16 TILES keys.
template <int TILES>
__device__ __forceinline__ void add_output(Rows& rows, const Probabilities (&p)[TILES], u32 v_tile, const ThreadCoord& at) {
#pragma unroll
  for (int n = 0; n < TILES; ++n) multiply_pv(rows, p[n], v_tile, n, at);
}

/// Processes the keys of one split: scores, softmax with the running reference, output.
__device__ __forceinline__ void consumer_loop(const KeyStream& keys, const Query& q, const DirectKeys& direct,
                                              Rows& rows, int first_row, float scale, const ThreadCoord& at) {
  Scores s;
  if constexpr (LOOP_ORDER == LOOP_ORDER_PLAIN) {
#pragma unroll UNROLL_STEPS
    for (int step = 0; step < keys.steps; ++step) {
      compute_scores(s, q, direct, keys.k_tile(step), at);
      keys.load_next(step);
      mask_edges(s, keys.first_key(step), first_row, keys.length, at);
      if (step == 0) init_reference(rows, s, scale);
      else update_reference<RESCALE>(rows, s, scale);
      keys.wait(step);
#pragma unroll
      for (int n = 0; n < KEY_TILES; ++n) {
        Probabilities p;
        exponentiate(s, n, rows, scale);
        pack_probabilities(p, s, n);
        multiply_pv(rows, p, keys.v_tile(step), n, at);
      }
      keys.release(step);
    }
  } else {
    compute_scores(s, q, direct, keys.k_tile(0), at);
    keys.release(0);
    keys.load_next(0);
    mask_edges(s, keys.first_key(0), first_row, keys.length, at);
    init_reference(rows, s, scale);
#pragma unroll UNROLL_STEPS
    for (int step = 0; step + 1 < keys.steps; ++step) {
      keys.wait(step);
#pragma unroll
      for (int n = 0; n < KEY_TILES; ++n) {  // one basic block, so that exponentials overlap with both products
        Probabilities p;
        exponentiate(s, n, rows, scale);
        pack_probabilities(p, s, n);
        multiply_qk(s, q, direct, keys.k_tile(step + 1), n, at);
        multiply_pv(rows, p, keys.v_tile(step), n, at);
      }
      keys.release(step + 1);
      keys.load_next(step + 1);
      mask_edges(s, keys.first_key(step + 1), first_row, keys.length, at);
      update_reference<RESCALE>(rows, s, scale);
    }
    keys.wait(keys.steps - 1);
#pragma unroll
    for (int n = 0; n < KEY_TILES; ++n) {
      Probabilities p;
      exponentiate(s, n, rows, scale);
      pack_probabilities(p, s, n);
      multiply_pv(rows, p, keys.v_tile(keys.steps - 1), n, at);
    }
  }
  reduce_row_sums(rows);
}
