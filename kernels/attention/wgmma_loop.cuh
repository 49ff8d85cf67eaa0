// The loop over the keys with wgmma: four warps take 64 rows, and exponentials run while the tensor cores multiply.
#pragma once

/// P of one step. The tensor cores read it meanwhile, so it is written only once they are done with the one before.
using StepProbabilities = Probabilities[KEY_CHUNKS];

__device__ __forceinline__ void exponentiate_step(Scores& s, Rows& rows, float scale) {
#pragma unroll
  for (int n = 0; n < KEY_CHUNKS; ++n) exponentiate(s, n, rows, scale);
}
__device__ __forceinline__ void collect_step(StepProbabilities& p, const Scores& s) {
#pragma unroll
  for (int n = 0; n < KEY_CHUNKS; ++n) collect(p[n], s, n);
}

/// Starts s = Q K^T for all keys of a step.
__device__ __forceinline__ void start_scores(Scores& s, const Query& q, u32 k_tile, const Place& at) {
  const Operand<128> keys(k_tile), queries(q.address + at.warp_m / 4 * (64 * PITCH));
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    const u32 panel = k / 4, within = k % 4 * 32;
    const auto b = keys.at(panel * (BLOCK_N * PITCH) + within);
    if constexpr (Q_LOCATION == Q_LOCATION_REGISTERS) multiply<0>(s[0], q.fragment[0][k], b, k > 0);
    else multiply<0>(s[0], queries.at(panel * (BLOCK_M * PITCH) + within), b, k > 0);
  }
  commit_products();
}

/// Starts output += P V for all keys of a step; row sums come from the same P where an mma with ones adds them up.
__device__ __forceinline__ void start_output(Rows& rows, const StepProbabilities& p, u32 v_tile) {
  const Operand<128> values(v_tile, BLOCK_N * PITCH);
#pragma unroll
  for (int n = 0; n < KEY_CHUNKS; ++n) multiply<1>(rows.output[0], p[n][0], values.at(n * 16 * PITCH), true);
  commit_products();
  if constexpr (ROW_SUM == ROW_SUM_ONES_MMA) {
#pragma unroll
    for (int n = 0; n < KEY_CHUNKS; ++n) mma(rows.sum[0], p[n][0], ONES, ONES);
  }
}

/// One split's keys: scores, softmax against the running reference, output.
template <int RULE>
__device__ __forceinline__ void consume(const KeyStream& keys, const Query& q, const DirectKeys&, Rows& rows,
                                        int first_row, float scale, const Place& at) {
  constexpr int UNROLL_STEPS = RULE == RESCALE ? UNROLL : 1;  // #pragma unroll reads constants, not macros
  Scores s;
  StepProbabilities p;
  if constexpr (LOOP_ORDER == LOOP_ORDER_PLAIN) {
#pragma unroll UNROLL_STEPS
    for (int step = 0; step < keys.steps; ++step) {
      begin_products();
      start_scores(s, q, keys.k_tile(step), at);
      wait_products<0>();
      take(s[0]);
      keys.advance(step);
      mask_edges(s, keys.first_key(step), first_row, keys.length, at);
      if (step == 0) begin_reference(rows, s, scale);
      else update_reference<RULE>(rows, s, scale);
      exponentiate_step(s, rows, scale);
      collect_step(p, s);
      keys.arrive(step);
      begin_products();
      start_output(rows, p, keys.v_tile(step));
      wait_products<0>();
      take(rows.output[0]);
      keys.release(step);
    }
  } else {
    begin_products();
    start_scores(s, q, keys.k_tile(0), at);
    wait_products<0>();
    take(s[0]);
    keys.release(0);
    keys.advance(0);
    mask_edges(s, keys.first_key(0), first_row, keys.length, at);
    begin_reference(rows, s, scale);
    exponentiate_step(s, rows, scale);
    collect_step(p, s);
#pragma unroll UNROLL_STEPS
    for (int step = 0; step + 1 < keys.steps; ++step) {
      keys.arrive(step);
      begin_products();
      start_scores(s, q, keys.k_tile(step + 1), at);
      start_output(rows, p, keys.v_tile(step));
      keys.advance(step + 1);  // the buffers that it fills were read before arrive()
      wait_products<1>();
      take(s[0]);
      mask_edges(s, keys.first_key(step + 1), first_row, keys.length, at);
      float factor[MT][2];
      const bool outgrown = raise_reference<RULE>(rows, s, scale, factor);
      exponentiate_step(s, rows, scale);
      wait_products<0>();
      take(rows.output[0]);
      take(s[0]);  // P is written from here on: the products that have ended were still reading it
      keys.release(step + 1);
      if (outgrown) rescale_output(rows, factor);
      collect_step(p, s);
    }
    keys.arrive(keys.steps - 1);
    begin_products();
    start_output(rows, p, keys.v_tile(keys.steps - 1));
    wait_products<0>();
    take(rows.output[0]);
  }
  finish_sums(rows);
}
