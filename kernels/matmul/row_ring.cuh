// A warp's steps on their way through its part of shared memory, in long pieces of rows: those of B (columns of C), then of A.
#pragma once

#if LANES == LANES_ROW && PRODUCTS == PRODUCTS_MMA
struct RowRing {
  static constexpr int CHUNKS = DEPTH / CHUNK;            // 16-byte chunks of a row in a step
  static constexpr int ROWS_AT_ONCE = 32 / CHUNKS;        // rows of which a warp asks for a chunk a lane
  static constexpr int ROWS = WARP_COLUMNS + ROW_TILES * 8, STAGE = ROWS * DEPTH * 2;  // rows of a step, and their bytes
  const char *next, *next_a;  // this lane's chunk of the next step, in its first row of B (of the warp, in parts of blocks) and A
  int row, chunk;             // its place among the rows that a warp asks for at once
  int columns;                // columns of C from the warp's first to the end
  int left;                   // elements of K from this lane's chunk to the end
  uint32_t stages;            // the warp's first stage
  u64 policy;                 // of its loads of weights, where they have one

  __device__ __forceinline__ RowRing(const uint16_t* a, const uint16_t* b, uint32_t shared, int column0, int depth0) {
    const int lane = threadIdx.x % 32, depth = depth0 + lane % CHUNKS * CHUNK;
    row = lane / CHUNKS, chunk = lane % CHUNKS;
    const int first = WHOLE_BLOCKS ? column0 : min(column0, N - 1);
    columns = N - first, left = K - depth;
    stages = shared + threadIdx.x / 32 * (STAGES * STAGE);
    policy = EVICT_FIRST ? evict_first_policy() : 0;
    next = reinterpret_cast<const char*>(b) + static_cast<size_t>(WHOLE_BLOCKS ? first + row : first) * ROW_BYTES + 2ll * depth;
    next_a = reinterpret_cast<const char*>(a + static_cast<size_t>(row) * K + depth);
  }

  // Byte of a chunk in a stage. The chunks of a row are permuted by the row, so that eight rows that one ldmatrix reads fall into
  // eight different groups of banks.
  __device__ __forceinline__ static uint32_t at(int row, int chunk) { return row * (DEPTH * 2) + (chunk ^ row % 8) * 16; }

  // Asks for a step. Past the last column it is repeated: what comes of it is never stored.
  __device__ __forceinline__ void start(int stage) {
    const uint32_t to = stages + stage * STAGE;
#pragma unroll
    for (int first = 0; first < WARP_COLUMNS; first += ROWS_AT_ONCE)
#pragma unroll
      for (int part = 0; part < CHUNK / VECTOR; part++) {
        const uint32_t further = (WHOLE_BLOCKS ? first : min(first + row, columns - 1)) * ROW_BYTES;
        const uint32_t place = to + at(first + row, chunk) + part * VECTOR * 2;
        const bool inside = WHOLE_STEPS || part * VECTOR < left;
        if constexpr (ASYNC_POLICY)
          cp_async_zfill_policy<2 * VECTOR>(place, next + further + part * VECTOR * 2, inside, policy);
        else
          cp_async_zfill<2 * VECTOR, WEIGHT_POLICY == WEIGHT_POLICY_PREFETCH>(place, next + further + part * VECTOR * 2, inside);
      }
#pragma unroll
    for (int first = 0; first < ROW_TILES * 8; first += ROWS_AT_ONCE)
#pragma unroll
      for (int part = 0; part < CHUNK / VECTOR; part++) {
        const bool inside = (M % 8 == 0 || first + row < M) && (WHOLE_STEPS || part * VECTOR < left);
        cp_async_zfill<2 * VECTOR>(to + at(WARP_COLUMNS + first + row, chunk) + part * VECTOR * 2,
                                   next_a + (first * K + part * VECTOR) * 2, inside);
      }
    next += DEPTH * 2, next_a += DEPTH * 2, left -= DEPTH;
  }

  // Waits for the next step and adds its products.
  __device__ __forceinline__ void multiply(MmaSums& sums, int stage, int) const {
    cp_async_wait_group<STAGES - 1>();
    __syncwarp();  // lanes read what others have copied
    const uint32_t from = stages + stage * STAGE;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < DEPTH / 16; k++) {
      uint32_t rows[ROW_TILES][2];
#pragma unroll
      for (int i = 0; i < ROW_TILES; i += 2) {
        uint32_t pair[4];  // of a single tile both halves are read twice
        const int second = i + 1 < ROW_TILES ? lane / 16 * 8 : 0;
        ldmatrix_x4(pair, from + at(WARP_COLUMNS + i * 8 + second + lane % 8, k * 2 + lane / 8 % 2));
        rows[i][0] = pair[0], rows[i][1] = pair[1];
        if (i + 1 < ROW_TILES) rows[i + 1][0] = pair[2], rows[i + 1][1] = pair[3];
      }
#pragma unroll
      for (int tile = 0; tile < WARP_COLUMNS / 16; tile++) {
        uint32_t weights[4];
        ldmatrix_x4(weights, from + at(tile * 16 + lane % 16, k * 2 + lane / 16));
#pragma unroll
        for (int i = 0; i < ROW_TILES; i++) mma(sums.v[i][tile], weights, rows[i][0], rows[i][1]);
      }
    }
    __syncwarp();  // the stage is no longer read
  }
};
using WeightRing = RowRing;
#else
using WeightRing = Ring;
#endif
