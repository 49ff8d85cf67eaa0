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

/// Adds the splits' partial outputs, weighted by their share of the row's sum; 8 columns per thread.
__device__ __forceinline__ void merge_partials(Half* o, u32 memory, u32 exchange, int rows_left, float v_scale,
                                               const ThreadCoord& at) {
  constexpr int PER_ROW = D / 8, TASKS = BLOCK_M * PER_ROW;
#pragma unroll
  for (int i = 0; i < ceil_div(TASKS, THREADS); ++i) {
    const int task = i * THREADS + at.thread, row = task / PER_ROW, part = task % PER_ROW;
    if (TASKS % THREADS != 0 && task >= TASKS) break;
    if (ROW_TAIL && row >= rows_left) continue;
    float reference[KEY_SPLITS], weight[KEY_SPLITS], top = 0.f, total = 0.f, sum[8] = {};
#pragma unroll
    for (int s = 0; s < KEY_SPLITS; ++s) {
      load_shared_floats(exchange + (s * BLOCK_M + row) * 8, reference[s], weight[s]);
      top = s == 0 ? reference[s] : fmaxf(top, reference[s]);
    }
#pragma unroll
    for (int s = 0; s < KEY_SPLITS; ++s) {
      weight[s] *= exp2_approx(reference[s] - top);
      total += weight[s];
      const Chunk c = load_shared_chunk(memory + s * SPLIT_BYTES + row * PARTIAL_ROW_BYTES + part * 16);
#pragma unroll
      for (int x = 0; x < 8; ++x)
        sum[x] = fmaf(weight[s], x % 2 ? high2float(c.v[x / 2]) : low2float(c.v[x / 2]), sum[x]);
    }
    const float factor = rcp_approx(total) * v_scale;
    Half2 result[4];
#pragma unroll
    for (int x = 0; x < 4; ++x) result[x] = pack_half2(sum[2 * x] * factor, sum[2 * x + 1] * factor);
    store_global(o + row * D + part * 8, result);
  }
}
