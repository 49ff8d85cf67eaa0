// Fragments of one warp: Q, K loaded directly from global memory, and the running softmax.
#pragma once

/// A lane's part of rows loaded directly from global memory: 16-byte chunks lane % 4, lane % 4 + 4 ... of a row. The four
/// words of a chunk serve two mma of depth 16. Q and K use the same changed order of the depth, so products are the same.
struct DirectRow {
  Chunk chunk[D / 32];

  __device__ __forceinline__ void fetch(const Half* row) {
#pragma unroll
    for (int i = 0; i < D / 32; ++i) chunk[i] = load_chunk(row + 32 * i);
  }
  /// Returns word `half` for the k-th mma.
  __device__ __forceinline__ u32 word(int k, int half) const { return chunk[k / 2].v[k % 2 * 2 + half]; }
};

/// This lane's part of K loaded directly from global memory: row lane / 4 of each tile of 8 keys.
struct DirectKeys {
  DirectRow row[DIRECT ? TILE_KEYS / 8 : 1];

  __device__ __forceinline__ void fetch(const KeyStream& keys, const ThreadCoord& at) {
    const int key = keys.first_key(0) + static_cast<int>(at.lane / 4);
    const Half* const k = keys.k + at.column_pair() * 8;
    const Half* own = k + key * D;
    pin_base(own);
#pragma unroll
    for (int n = 0; n < TILE_KEYS / 8; ++n)
      row[n].fetch(KEY_TAIL ? k + min(key + n * 8, keys.length - 1) * D : own + n * 8 * D);
  }
};

/// Q of this warp: fragments in registers, or read from shared memory for every use.
struct Query {
  u32 address;
  u32 fragment[Q_LOCATION == Q_LOCATION_REGISTERS ? TILES_M : 1][D / 16][4];

  __device__ __forceinline__ void read(u32 (&a)[4], int m, int k, const ThreadCoord& at) const {
    const int row = (BULK ? at.warp_m % 4 : at.warp_m * TILES_M + m) * 16 + at.lane % 16;
    ldmatrix_x4(a, address + chunk_offset<QUERY_ROWS>(row, 2 * k + at.lane / 16));
  }
  __device__ __forceinline__ void prepare(const ThreadCoord& at) {
    if constexpr (Q_LOCATION == Q_LOCATION_REGISTERS) {
#pragma unroll
      for (int m = 0; m < TILES_M; ++m)
#pragma unroll
        for (int k = 0; k < D / 16; ++k) read(fragment[m][k], m, k, at);
    }
  }
  /// Loads the fragments directly from global memory; rows past the end repeat the last row.
  __device__ __forceinline__ void fetch(const Half* q, int rows_left, const ThreadCoord& at) {
    q += at.column_pair() * 8;
    const Half* own = q + at.row(0, 0) * D;
    pin_base(own);
#pragma unroll
    for (int m = 0; m < TILES_M; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        DirectRow row;
        row.fetch(ROW_TAIL ? q + min(at.row(m, half), rows_left - 1) * D : own + (m * 2 + half) * 8 * D);
#pragma unroll
        for (int k = 0; k < D / 16; ++k) fragment[m][k][half] = row.word(k, 0), fragment[m][k][2 + half] = row.word(k, 1);
      }
  }
};
