// Stores of the output, and the merge of partial outputs if the keys are split.
#pragma once

__device__ __forceinline__ float element(const Fragment32& f, int i) { return f[i]; }
__device__ __forceinline__ float element(const Fragment16& f, int i) {
  return i % 2 ? high2float(f[i / 2]) : low2float(f[i / 2]);
}
__device__ __forceinline__ Half2 scaled_pair(const OutputFragment& f, int half, float factor) {
  return pack_half2(element(f, 2 * half) * factor, element(f, 2 * half + 1) * factor);
}

/// Stores the output without a split of the keys. Each warp owns its rows and stages its fragments in Q's memory.
__device__ __forceinline__ void store_output(Half* o, const Rows& rows, u32 staging, int rows_left,
                                             const ThreadCoord& at) {
  // All reads of this warp's rows of Q must be done; wgmma reads them for four warps together.
  if constexpr (OUTPUT == OUTPUT_STAGED && WGMMA && Q_LOCATION == Q_LOCATION_SHARED) sync_consumer_warps();
  else if constexpr (OUTPUT == OUTPUT_STAGED) __syncwarp();
#pragma unroll
  for (int m = 0; m < TILES_M; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = at.row(m, half);
      const float factor = rcp_approx(rows.sum[m][2 * half]);
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        const Half2 pair = scaled_pair(rows.output[m][n], half, factor);
        if constexpr (OUTPUT == OUTPUT_STAGED) {
          store_shared(staging + chunk_offset<BLOCK_M>(row, n) + 4 * at.column_pair(), pair);
        } else if (!ROW_TAIL || row < rows_left) {
          store_global(o + row * D + n * 8 + 2 * at.column_pair(), pair);
        }
      }
    }
  if constexpr (OUTPUT == OUTPUT_STAGED) {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < TILES_M * 16 * (D / 8) / 32; ++i) {
      const int index = i * 32 + at.lane, row = at.warp_m * TILES_M * 16 + index / (D / 8), chunk = index % (D / 8);
      if (!ROW_TAIL || row < rows_left)
        store_global(o + row * D + chunk * 8, load_shared_chunk(staging + chunk_offset<BLOCK_M>(row, chunk)).v);
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
      if (at.column_pair() == 0)
        store_shared_floats(exchange + (at.split * BLOCK_M + row) * 8, rows.reference[m][half], sum);
      const float factor = rcp_approx(sum);  // normalised partial outputs have the range of the inputs
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        const OutputFragment& f = rows.output[m][n];
        const int column = n * 8 + 2 * at.column_pair();
        const u32 to = partial + row * PARTIAL_ROW_BYTES + column * (MERGE == MERGE_FP16 ? 2 : 4);
        if constexpr (MERGE == MERGE_FP16) store_shared(to, scaled_pair(f, half, factor));
        else store_shared_floats(to, element(f, 2 * half), element(f, 2 * half + 1));
      }
    }
}

/// Adds the splits' partial outputs, weighted by their share of the row's sum; each thread reads 16 bytes at a time.
__device__ __forceinline__ void merge_partials(Half* o, u32 memory, u32 exchange, int rows_left,
                                               const ThreadCoord& at) {
  constexpr int COLUMNS = MERGE == MERGE_FP16 ? 8 : 4, PER_ROW = D / COLUMNS, TASKS = BLOCK_M * PER_ROW;
#pragma unroll
  for (int i = 0; i < ceil_div(TASKS, CONSUMER_THREADS); ++i) {
    const int task = i * CONSUMER_THREADS + at.thread, row = task / PER_ROW, part = task % PER_ROW;
    if (TASKS % CONSUMER_THREADS != 0 && task >= TASKS) break;
    if (ROW_TAIL && row >= rows_left) continue;
    float reference[KEY_SPLITS], weight[KEY_SPLITS], top = 0.f, total = 0.f, sum[COLUMNS] = {};
#pragma unroll
    for (int s = 0; s < KEY_SPLITS; ++s) {
      load_shared_floats(exchange + (s * BLOCK_M + row) * 8, reference[s], weight[s]);
      top = s == 0 ? reference[s] : fmaxf(top, reference[s]);
    }
#pragma unroll
    for (int s = 0; s < KEY_SPLITS; ++s) {
      const float scale = exp2_approx(reference[s] - top);
      total += scale * weight[s];
      weight[s] = MERGE == MERGE_FP16 ? scale * weight[s] : scale;
      const Chunk c = load_shared_chunk(memory + s * SPLIT_BYTES + row * PARTIAL_ROW_BYTES + part * 16);
#pragma unroll
      for (int x = 0; x < COLUMNS; ++x) {
        float value;
        if constexpr (MERGE == MERGE_FP16) value = x % 2 ? high2float(c.v[x / 2]) : low2float(c.v[x / 2]);
        else value = __uint_as_float(c.v[x]);
        sum[x] = fmaf(weight[s], value, sum[x]);
      }
    }
    const float factor = rcp_approx(total);
    Half2 result[COLUMNS / 2];
#pragma unroll
    for (int x = 0; x < COLUMNS / 2; ++x) result[x] = pack_half2(sum[2 * x] * factor, sum[2 * x + 1] * factor);
    store_global(o + row * D + part * COLUMNS, result);
  }
}
