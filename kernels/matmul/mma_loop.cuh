// The steps of a block with mma.sync; each warp reads its own fragments.
#pragma once

// Start of this lane's rows of the warp's fragments within a stage.
struct FragmentOffsets {
  int row_a, chunk_a;          // within the tile of A
#if NT
  int row_b, chunk_b;          // within the tile of B; its rows are columns of C
#else
  uint32_t b[TILES_N / 2];     // offsets within the tile of B
#endif

  __device__ __forceinline__ FragmentOffsets(int warp_m, int warp_n) {
    const int lane = threadIdx.x % 32;
    row_a = warp_m + lane % 16;
    chunk_a = lane / 16;
#if NT
    row_b = warp_n + lane / 16 * 8 + lane % 8;
    chunk_b = lane / 8 % 2;
#else
#pragma unroll
    for (int n = 0; n < TILES_N / 2; n++) {
      b[n] = A_STAGE + chunk_offset<BLOCK_K, B_PITCH>(lane % 16, warp_n / CHUNK + n * 2 + lane / 16);
      asm("" : "+r"(b[n]));  // pinned, so that the swizzle is not recomputed in every step
    }
#endif
  }
};

// One warp's operands for 16 elements of K.
struct Fragments {
  uint32_t a[TILES_M][4], b[TILES_N / 2][4];

  __device__ __forceinline__ void read(uint32_t stage, int k, const FragmentOffsets& at) {
    const uint32_t tile_a = stage + chunk_offset<BLOCK_M, A_PITCH>(at.row_a, k * 2 + at.chunk_a);
#pragma unroll
    for (int m = 0; m < TILES_M; m++) ldmatrix_x4(a[m], tile_a + m * 16 * (A_PITCH * 2));
#if NT
    const uint32_t tile_b = stage + A_STAGE + chunk_offset<BLOCK_N, B_PITCH>(at.row_b, k * 2 + at.chunk_b);
#pragma unroll
    for (int n = 0; n < TILES_N / 2; n++) ldmatrix_x4(b[n], tile_b + n * 16 * (B_PITCH * 2));
#else
#pragma unroll
    for (int n = 0; n < TILES_N / 2; n++) ldmatrix_x4_trans(b[n], stage + at.b[n] + k * 16 * (B_PITCH * 2));
#endif
  }
};

// Adds the products of all steps of a tile to this warp's sums. `stage` is the offset of the first step's stage; on return,
// that of the next tile.
__device__ __forceinline__ void accumulate(Sum (&sum)[TILES_M][TILES_N], Pipeline& pipeline, uint32_t& stage, int steps,
                                           int warp_m, int warp_n) {
  const FragmentOffsets offsets(warp_m, warp_n);
  Fragments fragments[AHEAD ? 2 : 1];
  const uint32_t shared = pipeline.shared;
  if constexpr (AHEAD) {
    pipeline.wait();
    fragments[0].read(shared + stage, 0, offsets);
  }
#pragma unroll 1
  for (int step = 0; step < steps; step++) {
#pragma unroll
    for (int k = 0; k < DEPTHS; k++) {
      Fragments& now = fragments[AHEAD ? k % 2 : 0];
      if constexpr (!AHEAD) {
        if (k == 0) pipeline.wait();
        now.read(shared + stage, k, offsets);
      } else if (k + 1 < DEPTHS) {
        fragments[(k + 1) % 2].read(shared + stage, k + 1, offsets);
      } else if (step + 1 < steps) {
        pipeline.wait();
        fragments[(k + 1) % 2].read(shared + pipeline.next_stage(stage), 0, offsets);
      }
      if (k == 0) pipeline.load_next();
#pragma unroll
      for (int m = 0; m < TILES_M; m++)
#pragma unroll
        for (int n = 0; n < TILES_N; n++)
          mma(sum[m][n], now.a[m], now.b[n / 2][n % 2 * 2], now.b[n / 2][n % 2 * 2 + 1]);
    }
    stage = pipeline.next_stage(stage);
  }
}
