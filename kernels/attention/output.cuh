// Stores of the output, and the merge of partial outputs if the keys are split.
#pragma once

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
          store_shared(staging + chunk_offset<TILE_ROWS>(row, n) + 4 * at.column_pair(), pair);
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
        store_global(o + row * D + chunk * 8, load_shared_chunk(staging + chunk_offset<TILE_ROWS>(row, chunk)).v);
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
        store_shared_floats(exchange + (at.split * TILE_ROWS + row) * 8, rows.reference[m][half], sum);
      const float factor = rcp_approx(sum);  // normalised partial outputs have the range of the inputs
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        const OutputFragment& f = rows.output[m][n];
        const int column = n * 8 + 2 * at.column_pair();
        const u32 to = partial + row * PARTIAL_ROW_BYTES + column * (MERGE_HALVES ? 2 : 4);
        if constexpr (MERGE_HALVES) store_shared(to, scaled_pair(f, half, factor));
        else store_shared_floats(to, element(f, 2 * half), element(f, 2 * half + 1));
      }
    }
}
