// The loop over the keys with wgmma: a warpgroup has 64 rows, and exponentials overlap with the products.
#pragma once

/// P of one step. The tensor cores read it asynchronously, so it is written only after they have read the previous P.
using StepProbabilities = Probabilities[KEY_TILES];

__device__ __forceinline__ void exponentiate_step(Scores& s, Rows& rows, float scale) {
#pragma unroll
  for (int n = 0; n < KEY_TILES; ++n) exponentiate(s, n, rows, scale);
}
__device__ __forceinline__ void pack_step(StepProbabilities& p, const Scores& s) {
#pragma unroll
  for (int n = 0; n < KEY_TILES; ++n) pack_probabilities(p[n], s, n);
}

/// Starts s = Q K^T for all keys of a step, or the first ones. HELD: Q is in registers.
template <int TILES, bool HELD = Q_LOCATION == Q_LOCATION_REGISTERS>
__device__ __forceinline__ void start_scores(ScoresOf<TILES>& s, const Query& q, u32 k_tile, const ThreadCoord& at) {
  const MatrixDescriptor<128> keys(k_tile), queries(q.address + (BULK ? 0 : at.warp_m / 4 * (64 * PITCH)));
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    const u32 panel = k / 4, within = k % 4 * 32;
    const auto b = keys.at(panel * (TILE_KEYS * PITCH) + within);
    if constexpr (HELD) wgmma<0>(s[0], q.fragment[0][k], b, k > 0);
    else wgmma<0>(s[0], queries.at(panel * (QUERY_ROWS * PITCH) + within), b, k > 0);
  }
  wgmma_commit_group();
}

/// Starts output += P V for 16 TILES keys, and with ROW_SUM_ONES_MMA the row sums as P times ones.
template <int TILES>
__device__ __forceinline__ void start_output(Rows& rows, const Probabilities (&p)[TILES], u32 v_tile) {
  const MatrixDescriptor<128> values(v_tile, TILE_KEYS * PITCH);
#pragma unroll
  for (int n = 0; n < TILES; ++n) wgmma<1>(rows.output[0], p[n][0], values.at(n * 16 * PITCH), true);
  wgmma_commit_group();
  if constexpr (ROW_SUM == ROW_SUM_ONES_MMA) {
#pragma unroll
    for (int n = 0; n < TILES; ++n) mma(rows.sum[0], p[n][0], ONES, ONES);
  }
}

/// The two products above, completed before the return.
template <int TILES, bool HELD = Q_LOCATION == Q_LOCATION_REGISTERS>
__device__ __forceinline__ void compute_scores(ScoresOf<TILES>& s, const Query& q, const DirectKeys&, u32 k_tile,
                                               const ThreadCoord& at) {
  wgmma_fence();
  start_scores<TILES, HELD>(s, q, k_tile, at);
  wgmma_wait_group<0>();
  pin_accumulators(s[0]);
}
template <int TILES>
__device__ __forceinline__ void add_output(Rows& rows, const Probabilities (&p)[TILES], u32 v_tile, const ThreadCoord&) {
  wgmma_fence();
  start_output(rows, p, v_tile);
  wgmma_wait_group<0>();
  pin_accumulators(rows.output[0]);
}

/// Processes the keys of one split: scores, softmax with the running reference, output.
__device__ __forceinline__ void consumer_loop(const KeyStream& keys, const Query& q, const DirectKeys& direct,
                                              Rows& rows, int first_row, float scale, const ThreadCoord& at) {
  Scores s;
  StepProbabilities p;
  if constexpr (LOOP_ORDER == LOOP_ORDER_PLAIN) {
#pragma unroll UNROLL_STEPS
    for (int step = 0; step < keys.steps; ++step) {
      compute_scores(s, q, direct, keys.k_tile(step), at);
      keys.load_next(step);
      mask_edges(s, keys.first_key(step), first_row, keys.length, at);
      if (step == 0) init_reference(rows, s, scale);
      else update_reference<RESCALE>(rows, s, scale);
      exponentiate_step(s, rows, scale);
      pack_step(p, s);
      keys.wait(step);
      add_output(rows, p, keys.v_tile(step), at);
      keys.release(step);
    }
  } else {
    compute_scores(s, q, direct, keys.k_tile(0), at);
    keys.release(0);
    keys.load_next(0);
    mask_edges(s, keys.first_key(0), first_row, keys.length, at);
    init_reference(rows, s, scale);
    exponentiate_step(s, rows, scale);
    pack_step(p, s);
#pragma unroll UNROLL_STEPS
    for (int step = 0; step + 1 < keys.steps; ++step) {
      keys.wait(step);
      wgmma_fence();
      start_scores(s, q, keys.k_tile(step + 1), at);
      start_output(rows, p, keys.v_tile(step));
      keys.load_next(step + 1);  // the buffers for this load were read before wait()
      wgmma_wait_group<1>();
      pin_accumulators(s[0]);
      mask_edges(s, keys.first_key(step + 1), first_row, keys.length, at);
      Factors factor;
      const bool outgrown = raise_reference<RESCALE>(rows, s, scale, factor);
      exponentiate_step(s, rows, scale);
      wgmma_wait_group<0>();
      pin_accumulators(rows.output[0]);
      pin_accumulators(s[0]);  // P may be written from here on; the completed products have read it
      keys.release(step + 1);
      if (outgrown) rescale_output(rows, factor);
      pack_step(p, s);
    }
    keys.wait(keys.steps - 1);
    add_output(rows, p, keys.v_tile(keys.steps - 1), at);
  }
  reduce_row_sums(rows);
}
