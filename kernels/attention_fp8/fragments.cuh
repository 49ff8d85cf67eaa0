// From bytes in global memory to operands of the tensor cores: loading, conversion, reading fragments.
//
// Two facts make operands from bytes cheap. First, the order of the depth does not matter if both factors agree: a thread
// that reads 4 consecutive bytes of a row uses two as depths (2t, 2t + 1) of a 16-deep mma and two as (2t + 8, 2t + 9),
// for both Q and K. Second, ldmatrix.trans moves 16-bit units: with bytes, a thread gets columns 2g and 2g + 1 of V, which
// become column g of two mma, one for even and one for odd columns.
#pragma once

/// Position of a 16-byte chunk within its row, swizzled so that the same chunk of 8 rows is in 8 different groups of
/// banks. A line of 128 bytes holds two rows of 64 bytes.
__device__ __forceinline__ int swizzled_chunk(int row, int chunk) {
  constexpr int SPAN = at_most(D * ELEMENT_BYTES / 16, 8), ROWS_OF_LINE = 8 / SPAN;
  return SMEM_LAYOUT == SMEM_LAYOUT_XOR_SWIZZLE ? chunk ^ (row / ROWS_OF_LINE % SPAN) : chunk;
}
__device__ __forceinline__ u32 chunk_offset(int row, int chunk) {
  return row * ROW_BYTES + swizzled_chunk(row, chunk) * 16;
}

// ---- 8 bits to fp16

// Magic-number conversion: with 0x64 as its upper byte, a biased byte u is the half 1024 + u. Subtracting 1152 gives
// u - 128. With a folded zero point nothing is subtracted: in K the offset adds a constant to every score of a row, which
// softmax ignores; in V it adds 1152 to every output, which is subtracted at the end. All steps are exact.
constexpr u32 MAGIC_HIGH_BYTES = 0x64646464u;
constexpr Half2 MINUS_1152 = 0xE480E480u;

// If the bits of an E4M3 number are moved to the positions of a half, the exponent's bias is 15 instead of 7. The values
// are then in units of 2^-8, exactly, including subnormal numbers.
constexpr bool BY_BITS = !BIASED && E4M3_TO_FP16 == E4M3_TO_FP16_BITS;
constexpr float UNIT = BY_BITS ? 256.f : 1.f;  // value of a 1 in fp16

/// Converts bytes 1 and 3 (E4M3) of a word to halves in units of 2^-8.
__device__ __forceinline__ Half2 shift_e4m3_bits(u32 word) {
  return (word & 0x80008000u) | ((word & 0x7F007F00u) >> 1);
}
/// Converts the four bytes of a word to halves: bytes 0 and 1, bytes 2 and 3.
__device__ __forceinline__ void to_half2(u32 word, Half2& low, Half2& high) {
  if constexpr (BIASED) {
    low = __byte_perm(word, MAGIC_HIGH_BYTES, 0x4140);
    high = __byte_perm(word, MAGIC_HIGH_BYTES, 0x4342);
    if constexpr (!FOLDED) low = add_half2(low, MINUS_1152), high = add_half2(high, MINUS_1152);
  } else if constexpr (BY_BITS) {
    low = shift_e4m3_bits(__byte_perm(word, 0, 0x1404));
    high = shift_e4m3_bits(__byte_perm(word, 0, 0x3424));
  } else {
    e4m3_to_half2(word, low, high);
  }
}
/// Converts the four bytes of a word to halves: bytes 0 and 2, bytes 1 and 3.
__device__ __forceinline__ void to_half2_alternate(u32 word, Half2& even, Half2& odd) {
  if constexpr (BIASED) {
    even = __byte_perm(word, MAGIC_HIGH_BYTES, 0x4240);
    odd = __byte_perm(word, MAGIC_HIGH_BYTES, 0x4341);
    if constexpr (!FOLDED) even = add_half2(even, MINUS_1152), odd = add_half2(odd, MINUS_1152);
  } else if constexpr (BY_BITS) {
    even = shift_e4m3_bits(word << 8);
    odd = shift_e4m3_bits(word);
  } else {
    to_half2(__byte_perm(word, 0, 0x3120), even, odd);
  }
}

// ---- global to shared memory

/// Stores 16 elements of 8 bits at a 16-byte chunk of a row; with dequantisation they need two chunks.
__device__ __forceinline__ void store_elements(u32 row_start, int row, int chunk, const Chunk& bytes) {
  if constexpr (DEQUANTISE == DEQUANTISE_IN_REGISTERS) {
    store_shared(row_start + swizzled_chunk(row, chunk) * 16, bytes.v);
  } else {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Chunk wide;
      to_half2(bytes.v[2 * half], wide.v[0], wide.v[1]);
      to_half2(bytes.v[2 * half + 1], wide.v[2], wide.v[3]);
      store_shared(row_start + swizzled_chunk(row, 2 * chunk + half) * 16, wide.v);
    }
  }
}
__device__ __forceinline__ void store_element(u32 row_start, int row, int column, Byte byte) {
  constexpr int OF_CHUNK = 16 / ELEMENT_BYTES;
  const u32 to = row_start + swizzled_chunk(row, column / OF_CHUNK) * 16 + column % OF_CHUNK * ELEMENT_BYTES;
  if constexpr (DEQUANTISE == DEQUANTISE_IN_REGISTERS) {
    store_shared_byte(to, byte);
  } else {
    Half2 low, high;
    to_half2(byte, low, high);
    store_shared_half(to, static_cast<Half>(low));
  }
}

/// Copies ROWS rows starting at `source` into a tile of shared memory. Rows beyond `rows_left` (negative: past the end)
/// repeat the last row, so that values that are masked later are finite.
template <int ROWS, int WORKERS, bool BOUNDED>
__device__ __forceinline__ void load_tile(u32 tile, const Byte* source, int rows_left, u32 thread) {
  const int last = rows_left - 1;
  if constexpr (KV_LOAD == KV_LOAD_SCALAR) {
#pragma unroll 4
    for (u32 index = thread; index < ROWS * D; index += WORKERS) {
      const int row = index / D, column = index % D;
      store_element(tile + row * ROW_BYTES, row, column, source[(BOUNDED ? min(row, last) : row) * D + column]);
    }
  } else {
    constexpr int PER_ROW = D / 16, ROWS_AT_ONCE = WORKERS / PER_ROW;
    const int chunk = thread % PER_ROW, first = thread / PER_ROW;
    const Byte* const from = source + chunk * 16;
    const Byte* own = from + first * D;
    if constexpr (KV_LOAD == KV_LOAD_CP_ASYNC) pin_base(own);  // further rows are then constant offsets
    // Few loads into registers are in flight at a time; asynchronous copies need no registers.
    constexpr int AT_A_TIME = KV_LOAD == KV_LOAD_CP_ASYNC ? 16 : 4;
#pragma unroll AT_A_TIME
    for (int i = 0; i < ceil_div(ROWS, ROWS_AT_ONCE); ++i) {
      const int row = first + i * ROWS_AT_ONCE;
      if (ROWS % ROWS_AT_ONCE != 0 && row >= ROWS) break;
      const Byte* const data = BOUNDED ? from + min(row, last) * D : own + i * ROWS_AT_ONCE * D;
      const u32 row_start = tile + row * ROW_BYTES;
      if constexpr (KV_LOAD == KV_LOAD_CP_ASYNC) cp_async(row_start + swizzled_chunk(row, chunk) * 16, data);
      else store_elements(row_start, row, chunk, load_global_nc_chunk(data));
    }
  }
}

// ---- shared memory to operands

/// Reads word t of chunks `chunk` and `chunk` + 1 (second index) of rows g and g + 8 (first index) of a tile.
__device__ __forceinline__ void read_words(u32 (&w)[2][2], u32 rows, int chunk, u32 lane) {
  if constexpr (FRAGMENT_LOAD == FRAGMENT_LOAD_LDMATRIX) {
    u32 r[4];
    ldmatrix_x4(r, rows + chunk_offset(lane / 16 * 8 + lane % 8, chunk + lane / 8 % 2));
    w[0][0] = r[0], w[0][1] = r[1], w[1][0] = r[2], w[1][1] = r[3];
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      w[i / 2][i % 2] = load_shared_word(rows + chunk_offset(i / 2 * 8 + lane / 4, chunk + i % 2) + lane % 4 * 4);
  }
}

/// 16 rows of Q or K, 32 columns deep: for each mma, registers of rows g and g + 8, for both halves of its depth.
constexpr int MMA_OF_32 = MMA == MMA_FP16 ? 2 : 1;  // number of mma for 32 columns
struct Rows32 {
  u32 v[MMA_OF_32][2][2];
};
__device__ __forceinline__ Rows32 read_rows(u32 rows, int column_block, u32 lane) {
  Rows32 result;
  if constexpr (DEQUANTISE == DEQUANTISE_ON_LOAD) {
#pragma unroll
    for (int i = 0; i < 2; ++i) read_words(result.v[i], rows, 4 * column_block + 2 * i, lane);
  } else if constexpr (MMA == MMA_FP16) {
    u32 w[2][2];
    read_words(w, rows, 2 * column_block, lane);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      Half2(&pairs)[2] = result.v[i % 2][i / 2];  // the cheaper pairing of bytes
      if constexpr (BY_BITS) to_half2_alternate(w[i / 2][i % 2], pairs[0], pairs[1]);
      else to_half2(w[i / 2][i % 2], pairs[0], pairs[1]);
    }
  } else {
    read_words(result.v[0], rows, 2 * column_block, lane);
  }
  return result;
}

/// 16 keys of V, 32 columns wide: for each of 4 mma, keys 0 to 7 and 8 to 15. OutputColumns describes the columns.
struct Columns32 {
  Half2 v[4][2];
};
__device__ __forceinline__ Columns32 read_columns(u32 rows, int column_block, u32 lane) {
  constexpr bool WIDE = DEQUANTISE == DEQUANTISE_ON_LOAD;
  Columns32 result;
  if constexpr (FRAGMENT_LOAD == FRAGMENT_LOAD_LDMATRIX) {
#pragma unroll
    for (int part = 0; part < (WIDE ? 2 : 1); ++part) {
      const int chunk = (WIDE ? 4 : 2) * column_block + 2 * part + lane / 16;
      u32 r[4];  // keys 0 to 7 and 8 to 15 of one chunk, then of the next chunk
      ldmatrix_x4_trans(r, rows + chunk_offset(lane % 16, chunk));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if constexpr (WIDE) result.v[2 * part + i / 2][i % 2] = r[i];
        else to_half2_alternate(r[i], result.v[i / 2 * 2][i % 2], result.v[i / 2 * 2 + 1][i % 2]);
      }
    }
  } else {
    const int key = lane % 4 * 2, word = lane / 4;  // a word of two consecutive keys, transposed by bytes
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int part = 0; part < (WIDE ? 2 : 1); ++part) {
        const int chunk = (WIDE ? 4 : 2) * column_block + 2 * part + word / 4;
        u32 w[2];
#pragma unroll
        for (int i = 0; i < 2; ++i)
          w[i] = load_shared_word(rows + chunk_offset(half * 8 + key + i, chunk) + word % 4 * 4);
        if constexpr (WIDE) {
          result.v[2 * part][half] = __byte_perm(w[0], w[1], 0x5410);
          result.v[2 * part + 1][half] = __byte_perm(w[0], w[1], 0x7632);
        } else {
          to_half2(__byte_perm(w[0], w[1], 0x5140), result.v[0][half], result.v[1][half]);
          to_half2(__byte_perm(w[0], w[1], 0x7362), result.v[2][half], result.v[3][half]);
        }
      }
  }
  return result;
}

/// Columns in the accumulators of P V. A thread has runs of RUN consecutive columns. Run r starts at column
/// 4 * RUN * r + RUN * t. Its x-th column is element x / (RUN / 2) of a row, in mma r * RUN / 2 + x % (RUN / 2).
struct OutputColumns {
  static constexpr int RUN = COLUMNS_OF_THREAD, RUNS = D / (4 * RUN), PAIRS = RUN / 2;
  static __device__ __forceinline__ int column(int run, u32 lane) { return 4 * RUN * run + RUN * (lane % 4); }
  /// Returns the columns of one run and row as fp16: value * factor + shift.
  static __device__ __forceinline__ void scaled(Half2 (&pairs)[PAIRS], const Fragment32 (&f)[D / 8], int run, int half,
                                                float factor, float shift) {
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) {
      float x[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int at = 2 * i + j;
        x[j] = fmaf(f[run * PAIRS + at % PAIRS][2 * half + at / PAIRS], factor, shift);
      }
      pairs[i] = pack_half2(x[0], x[1]);
    }
  }
};
