// Stores of the output, and the merge of partial outputs if the keys are split.
#pragma once

/// Stores the output without a split of the keys; each thread stores its elements, one run of columns at a time.
__device__ __forceinline__ void store_output(Half* o, const Rows& rows, int rows_left, float v_scale,
                                             const ThreadCoord& at) {
#pragma unroll
  for (int m = 0; m < TILES_M; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = at.row(m, half);
      if (ROW_TAIL && row >= rows_left) continue;
      const float factor = rcp_approx(rows.sum[m][2 * half]) * v_scale;
#pragma unroll
      for (int run = 0; run < OutputColumns::RUNS; ++run) {
        Half2 pairs[OutputColumns::PAIRS];
        OutputColumns::scaled(pairs, rows.output[m], run, half, factor, -OUTPUT_OFFSET * v_scale);
        store_global(o + row * D + OutputColumns::column(run, at.lane), pairs);
      }
    }
}

/// Stores this warp's partial output in its split's memory, and its references and row sums in the exchange.
__device__ __forceinline__ void store_partial(const Rows& rows, u32 partial, u32 exchange, const ThreadCoord& at) {
#pragma unroll
  for (int m = 0; m < TILES_M; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = at.row(m, half);
      const float sum = rows.sum[m][2 * half];
      if (at.lane % 4 == 0)
        store_shared_floats(exchange + (at.split * BLOCK_M + row) * 8, rows.reference[m][half], sum);
      const float factor = rcp_approx(sum);  // normalised partial outputs have the range of the inputs
#pragma unroll
      for (int run = 0; run < OutputColumns::RUNS; ++run) {
        Half2 pairs[OutputColumns::PAIRS];
        OutputColumns::scaled(pairs, rows.output[m], run, half, factor, -OUTPUT_OFFSET);
        store_shared(partial + row * PARTIAL_ROW_BYTES + 2 * OutputColumns::column(run, at.lane), pairs);
      }
    }
}
