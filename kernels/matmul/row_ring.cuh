// Ring of a warp's steps in its part of shared memory, as long pieces of rows: first rows of B, then rows of A.
//
// With NT, rows of B are columns of C, and a piece is as deep as a step. Otherwise rows are depths, and a piece has all
// columns of the warp. ldmatrix then transposes, because an mma needs neighbouring depths in a word.
#pragma once

#if LANES == LANES_ROW && PRODUCTS == PRODUCTS_MMA
struct RowRing {
  // COUNT rows of LENGTH elements; a lane copies 16 bytes at a time.
  template <int COUNT, int LENGTH>
  struct Pieces {
    static constexpr int ROWS = COUNT, BYTES = ROWS * LENGTH * 2;
    static constexpr int CHUNKS = LENGTH / CHUNK;     // 16-byte chunks of a row
    static constexpr int ROWS_AT_ONCE = 32 / CHUNKS;  // rows per access of a warp, one chunk per lane
    // Byte offset of a chunk. The chunks of a row are permuted by the row's 128-byte line, so that the eight rows of one
    // ldmatrix are in eight different groups of banks.
    __device__ __forceinline__ static uint32_t at(int row, int chunk) {
      return row * (LENGTH * 2) + (chunk ^ (CHUNKS >= 8 ? row % 8 : row / 2 % 4)) * 16;
    }
    __device__ __forceinline__ static int lane_row() { return threadIdx.x % 32 / CHUNKS; }
    __device__ __forceinline__ static int lane_chunk() { return threadIdx.x % CHUNKS; }
  };
  using Weights = Pieces<NT ? WARP_COLUMNS : DEPTH, NT ? DEPTH : WARP_COLUMNS>;
  using Rows = Pieces<ROW_TILES * 8, DEPTH>;  // of A
  static constexpr int STAGE = Weights::BYTES + Rows::BYTES;

  const char *next, *next_a;  // this lane's first chunk of the next step in B and A (NT without WHOLE_BLOCKS: in the warp's first row of B)
  int columns;                // columns of C to the end, from the warp's first (NT) or this lane's first
  int left, left_a;           // elements of K from this lane's first chunks to the end
  uint32_t stages;            // the warp's first stage
  u64 policy;                 // cache policy of weight loads, if any
  Extent extent;

  __device__ __forceinline__ RowRing(const uint16_t* a, const uint16_t* b, Extent given, uint32_t shared, int column0, int depth0)
      : extent(given) {
    const int row = Weights::lane_row(), chunk = Weights::lane_chunk(), depth_a = depth0 + Rows::lane_chunk() * CHUNK;
    stages = shared + threadIdx.x / 32 * (STAGES * STAGE);
    policy = EVICT_FIRST ? evict_first_policy() : 0;
    const char* weights = reinterpret_cast<const char*>(b);
    if constexpr (NT) {
      const int first = WHOLE_BLOCKS ? column0 : min(column0, extent.n() - 1);
      columns = extent.n() - first, left = K - depth0 - chunk * CHUNK;
      next = weights + static_cast<size_t>(WHOLE_BLOCKS ? first + row : first) * extent.row_bytes() + 2ll * (depth0 + chunk * CHUNK);
    } else {
      const int column = column0 + chunk * CHUNK;
      columns = extent.n() - column, left = K - depth0 - row;
      next = weights + static_cast<size_t>(depth0 + row) * extent.row_bytes() + 2 * column;
    }
    next_a = reinterpret_cast<const char*>(a + static_cast<size_t>(Rows::lane_row()) * K + depth_a);
    left_a = K - depth_a;
  }

  // Starts the loads of a step. Columns past the end repeat the last ones; their results are never stored.
  __device__ __forceinline__ void start(int stage) {
    const uint32_t to = stages + stage * STAGE;
#pragma unroll
    for (int first = 0; first < Weights::ROWS; first += Weights::ROWS_AT_ONCE)
#pragma unroll
      for (int part = 0; part < CHUNK / VECTOR; part++) {
        const int row = Weights::lane_row();
        const uint32_t place = to + Weights::at(first + row, Weights::lane_chunk()) + part * VECTOR * 2;
        const int rows = NT && !WHOLE_BLOCKS ? min(first + row, columns - 1) : first;
        const int elements = NT || WHOLE_BLOCKS ? part * VECTOR : min(part * VECTOR, columns - VECTOR);
        const char* from = next + (rows * static_cast<int>(extent.row_bytes()) + elements * 2);
        const bool inside = WHOLE_STEPS || (NT ? part * VECTOR : first) < left;
        copy_weights<VECTOR>(place, from, inside, policy);
      }
#pragma unroll
    for (int first = 0; first < Rows::ROWS; first += Rows::ROWS_AT_ONCE)
#pragma unroll
      for (int part = 0; part < CHUNK / VECTOR; part++) {
        const int row = first + Rows::lane_row();
        const bool inside = (WHOLE_TILES || row < extent.m()) && (WHOLE_STEPS || part * VECTOR < left_a);
        cp_async_zfill<2 * VECTOR>(to + Weights::BYTES + Rows::at(row, Rows::lane_chunk()) + part * VECTOR * 2,
                                   next_a + (first * K + part * VECTOR) * 2, inside);
      }
    next += static_cast<size_t>(DEPTH) * (NT ? 2 : extent.row_bytes()), next_a += DEPTH * 2;
    left -= DEPTH, left_a -= DEPTH;
  }

  // Waits for the next step and adds its products.
  __device__ __forceinline__ void multiply(MmaSums& sums, int stage, int) const {
    cp_async_wait_group<STAGES - 1>();
    __syncwarp();  // lanes read the copies of other lanes
    const uint32_t from = stages + stage * STAGE, from_a = from + Weights::BYTES;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < DEPTH / 16; k++) {
      uint32_t rows[ROW_TILES][2];
#pragma unroll
      for (int i = 0; i < ROW_TILES; i += 2) {
        uint32_t pair[4];  // for a single tile, both halves are read twice
        const int second = i + 1 < ROW_TILES ? lane / 16 * 8 : 0;
        ldmatrix_x4(pair, from_a + Rows::at(i * 8 + second + lane % 8, k * 2 + lane / 8 % 2));
        rows[i][0] = pair[0], rows[i][1] = pair[1];
        if (i + 1 < ROW_TILES) rows[i + 1][0] = pair[2], rows[i + 1][1] = pair[3];
      }
#pragma unroll
      for (int tile = 0; tile < WARP_COLUMNS / 16; tile++) {
        uint32_t weights[4];
        if constexpr (NT)
          ldmatrix_x4(weights, from + Weights::at(tile * 16 + lane % 16, k * 2 + lane / 16));
        else
          ldmatrix_x4_trans(weights, from + Weights::at(k * 16 + lane / 16 * 8 + lane % 8, tile * 2 + lane / 8 % 2));
#pragma unroll
        for (int i = 0; i < ROW_TILES; i++) mma(sums.v[i][tile], weights, rows[i][0], rows[i][1]);
      }
    }
    __syncwarp();  // all reads of the stage are done
  }
};
using WeightRing = RowRing;
#else
using WeightRing = Ring;
#endif
