// The steps of a block with wgmma: a warpgroup multiplies 64 rows, with tiles read directly from shared memory. The tiles
// are swizzled and the sums are fp32, because SMEM_LAYOUT and ACCUMULATOR are choices of mma.sync.
#pragma once

// Adds the products of all steps of a tile to this warp's sums. `offset` is that of the first step's stage; on return, that
// of the next tile.
__device__ __forceinline__ void accumulate(Sum (&sum)[TILES_M][TILES_N], Pipeline& pipeline, uint32_t& offset, int steps,
                                           int warp_m, int warp_n) {
  // With NT, B has the layout of A, a row for each column of C; otherwise panels of 64 columns, a row for each depth.
  const uint32_t first_a = warp_m / 64 * 64 * (2 * BLOCK_K);
  const uint32_t first_b = A_STAGE + (NT ? warp_n * (2 * BLOCK_K) : warp_n / PANEL * (BLOCK_K * PANEL * 2));
#pragma unroll 1
  for (int step = 0; step < steps; step++) {
    pipeline.wait();
    const uint32_t stage = pipeline.shared + offset;
    const MatrixDescriptor<2 * BLOCK_K> rows(stage + first_a, 16);
    const MatrixDescriptor<2 * (NT ? BLOCK_K : PANEL)> columns(stage + first_b, NT ? 16 : BLOCK_K * PANEL * 2);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < DEPTHS; k++)
#pragma unroll
      for (int m = 0; m < TILES_M; m++)
        wgmma_accumulate<!NT>(sum[m], rows.at(m * 64 * (2 * BLOCK_K) + k * 32), columns.at(k * (NT ? 32 : 32 * PANEL)));
    wgmma_commit_group();
    if constexpr (!PRODUCERS) pipeline.load_next();
    wgmma_wait_group<AHEAD ? 1 : 0>();
    if constexpr (PRODUCERS) {
      if (!AHEAD || step > 0) pipeline.release();
      pipeline.awaited = pipeline.awaited == STAGES - 1 ? 0 : pipeline.awaited + 1;
    }
    offset = pipeline.next_stage(offset);
  }
  wgmma_wait_group<0>();
  if constexpr (PRODUCERS && AHEAD) pipeline.release();
#pragma unroll
  for (int m = 0; m < TILES_M; m++) pin_accumulators(sum[m]);
}
