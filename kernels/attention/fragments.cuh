// Fragments of one warp: Q, K loaded directly from global memory, and the running softmax.
#pragma once

__device__ __forceinline__ void clear(Fragment32& c) { c[0] = c[1] = c[2] = c[3] = 0.f; }
__device__ __forceinline__ void clear(Fragment16& c) { c[0] = c[1] = 0u; }

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
  DirectRow row[DIRECT ? BLOCK_N / 8 : 1];

  __device__ __forceinline__ void fetch(const KeyStream& keys, const ThreadCoord& at) {
    const int key = keys.first_key(0) + static_cast<int>(at.lane / 4);
    const Half* const k = keys.k + at.column_pair() * 8;
    const Half* own = k + key * D;
    pin_base(own);
#pragma unroll
    for (int n = 0; n < BLOCK_N / 8; ++n)
      row[n].fetch(KEY_TAIL ? k + min(key + n * 8, keys.length - 1) * D : own + n * 8 * D);
  }
};

/// Q of this warp: fragments in registers, or read from shared memory for every use.
struct Query {
  u32 address;
  u32 fragment[Q_LOCATION == Q_LOCATION_REGISTERS ? TILES_M : 1][D / 16][4];

  __device__ __forceinline__ void read(u32 (&a)[4], int m, int k, const ThreadCoord& at) const {
    const int row = (at.warp_m * TILES_M + m) * 16 + at.lane % 16;
    ldmatrix_x4(a, address + chunk_offset<BLOCK_M>(row, 2 * k + at.lane / 16));
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

/// Running softmax of this warp's rows: output, row sums, and the references that are subtracted from exponents (log2).
struct Rows {
  OutputFragment output[TILES_M][D / 8];
  Fragment32 sum[TILES_M];  // elements 0 and 2 are used
  float reference[TILES_M][2];

  __device__ __forceinline__ void reset() {
#pragma unroll
    for (int m = 0; m < TILES_M; ++m) {
      clear(sum[m]);
#pragma unroll
      for (int n = 0; n < D / 8; ++n) clear(output[m][n]);
    }
  }
  /// Returns whether some P may have exceeded LARGEST_HALF. A sum bounds all its summands. NaN counts as overflow.
  __device__ __forceinline__ bool overflowed() const {
    bool beyond = false;
#pragma unroll
    for (int m = 0; m < TILES_M; ++m) beyond |= !(sum[m][0] <= LARGEST_HALF) || !(sum[m][2] <= LARGEST_HALF);
    return beyond;
  }
  /// Resets a split without keys: finite values with weight 0 in the merge.
  __device__ __forceinline__ void reset_without_keys() {
#pragma unroll
    for (int m = 0; m < TILES_M; ++m) {
      sum[m][0] = sum[m][2] = 1.f;
      reference[m][0] = reference[m][1] = MASKED_SCORE;
    }
  }
};
