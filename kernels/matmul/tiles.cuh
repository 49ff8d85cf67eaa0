// Tiles of A and B: layout in shared memory, and copies from global memory.
#pragma once

constexpr int SWIZZLE_ROWS = 8;  // rows after which the swizzle repeats, so that further rows have constant offsets

// Elements from a row to the next. wgmma reads rows of at most 128 bytes; longer rows are stored in consecutive panels of
// 64 columns.
constexpr int PANEL = 64;
template <int PITCH>
constexpr int ROW_PITCH = WGMMA && PITCH > PANEL ? PANEL : PITCH;

// Returns the byte offset of a 16-byte chunk in a tile of ROWS rows. The swizzle permutes the chunks of a row by the row's
// 128-byte line, so that eight rows of one ldmatrix or wgmma are in eight different groups of banks.
template <int ROWS, int PITCH>
__device__ __forceinline__ uint32_t chunk_offset(int row, int chunk) {
  constexpr int per_row = ROW_PITCH<PITCH> / CHUNK;              // chunks per row
  constexpr int rows_a_line = per_row >= 8 ? 1 : 8 / per_row;    // rows per 128-byte line
  constexpr int mask = per_row >= 8 ? 7 : per_row - 1;
  uint32_t panel = 0;
  if constexpr (ROW_PITCH<PITCH> != PITCH) panel = chunk / per_row * (ROWS * PANEL * 2), chunk %= per_row;
  if constexpr (SMEM_LAYOUT == SMEM_LAYOUT_XOR_SWIZZLE) chunk ^= (row / rows_a_line) & mask;
  return panel + row * (ROW_PITCH<PITCH> * 2) + chunk * 16;
}

// One thread's part of a block's ROWS x COLUMNS tiles of a row-major matrix, one tile per BLOCK_K: along the rows of A and
// (NT) of B, otherwise down the columns of B. Elements past the end of K are zero. Elements past the other edge repeat the
// last row or column; products with them are never stored.
template <int ROWS, int COLUMNS, int PITCH, bool ALONG_ROWS>
struct TileLoader {
  static constexpr int PER_ROW = COLUMNS / CHUNK;
  static constexpr int ROWS_AT_ONCE = LOADERS / PER_ROW;
  static constexpr int CHUNKS = ROWS / ROWS_AT_ONCE;  // chunks per thread, in one column
  static constexpr int PARTS = CHUNK / VECTOR;        // accesses per chunk
  const char* next;                                   // address of the next tile
  uint32_t row_offset[CHUNKS], part_offset[PARTS];    // byte offsets of this thread's rows, and within a row
  uint32_t step_bytes;                                // bytes from one tile to the next
  int left;                                           // elements of K from this thread's first one to the end
  uint32_t held[ASYNC ? 1 : CHUNKS][4];

  __device__ __forceinline__ TileLoader(const uint16_t* matrix, int row0, int column0, int rows, int columns) {
    next = reinterpret_cast<const char*>(matrix + static_cast<size_t>(row0) * columns + column0);
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
      const int row = first_row() + i * ROWS_AT_ONCE;
      row_offset[i] = static_cast<uint32_t>(ALONG_ROWS ? min(row, rows - row0 - 1) : row) * columns * 2;
    }
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
      const int column = chunk() * CHUNK + part * VECTOR;
      part_offset[part] = 2 * (ALONG_ROWS ? column : min(column, columns - column0 - VECTOR));
    }
    step_bytes = 2 * BLOCK_K * (ALONG_ROWS ? 1 : columns);
    left = ALONG_ROWS ? columns - column0 - chunk() * CHUNK : rows - row0 - first_row();
  }
  __device__ __forceinline__ static int chunk() { return (threadIdx.x - FIRST_LOADER) % PER_ROW; }
  __device__ __forceinline__ static int first_row() { return (threadIdx.x - FIRST_LOADER) / PER_ROW; }
  __device__ __forceinline__ static uint32_t target(int i) {
    if constexpr (ROWS_AT_ONCE % SWIZZLE_ROWS == 0)
      return chunk_offset<ROWS, PITCH>(first_row(), chunk()) + i * ROWS_AT_ONCE * (ROW_PITCH<PITCH> * 2);
    else
      return chunk_offset<ROWS, PITCH>(first_row() + i * ROWS_AT_ONCE, chunk());
  }

  // Starts the loads of the next tile.
  __device__ __forceinline__ void start(uint32_t shared) {
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
#pragma unroll
      for (int part = 0; part < PARTS; part++) {
        const bool inside = (ALONG_ROWS ? part * VECTOR : i * ROWS_AT_ONCE) < left;
        const char* from = next + (row_offset[i] + part_offset[part]);
        if constexpr (ASYNC) {
          cp_async_zfill<2 * VECTOR>(shared + target(i) + part * VECTOR * 2, from, inside);
        } else if constexpr (VECTOR == 1) {
          const uint32_t v = inside ? *reinterpret_cast<const uint16_t*>(from) : 0;
          held[i][part / 2] = part % 2 ? held[i][part / 2] | v << 16 : v;
        } else {
          uint32_t* to = held[i] + part * VECTOR / 2;
#pragma unroll
          for (int word = 0; word < VECTOR / 2; word++) to[word] = 0;
          if (inside) load_global_nc<2 * VECTOR>(to, from);
        }
      }
    }
    next += step_bytes;
    left -= BLOCK_K;
  }

  // Stores the values that start() loaded into registers.
  __device__ __forceinline__ void finish(uint32_t shared) const {
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) store_shared(shared + target(i), held[i]);
  }
};
