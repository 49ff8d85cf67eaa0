// FlashAttention forward: O = softmax(scale * Q K^T) V for each head.
//
// Q, K, V, O: 16-bit floats, [batch, heads, S, HEAD_DIM], contiguous. S is any length from 1; tails are masked. CAUSAL
// hides keys after the row. Softmax uses base 2 (scale_log2e = scale * log2 e) and a running reference per row.
// mma_path.cuh has the fast algorithms, ring_loop.cuh those with the copy engine, and tile_path.cuh the path through shared
// memory; kernel.py computes the sizes that are macros.
//
// Problem macros: HEAD_DIM 64 or 128; CAUSAL 0 or 1; SEQ_LEN the length and TOTAL_STEPS the number of steps over all keys,
// each 0 if known only at run time; BF16 1 if the tensors and P are bfloat16, 0 if they are fp16. "fp16" below means either
// type, except for accumulators, exponentials and scores in shared memory, for which 8 significant bits are too few.
// kernel.py describes the genes; the generated header defines them, and asserts the constraints.

#include "evokern_genes.h"

#include "../common/cp_async.cuh"
#include "../common/half.cuh"
#include "../common/memory.cuh"
#include "../common/numbers.cuh"

#if BF16
constexpr Half2 ONES = 0x3F803F80u;  // 1.0, 1.0
#else
constexpr Half2 ONES = 0x3C003C00u;  // 1.0, 1.0
#endif
using Element = Half;
constexpr int D = HEAD_DIM;
constexpr bool BULK = PATH == PATH_BULK;              // the copy engine loads Q, K and V
constexpr bool WGMMA = BULK || TENSOR_CORES == TENSOR_CORES_WGMMA;
constexpr bool PANELS = WGMMA && D > 64;              // wgmma reads rows of 128 bytes; longer rows use panels
constexpr int PITCH = PANELS ? 128 : ROW_BYTES;       // bytes from a row to the next

/// Pointers to the first row of one head in each tensor.
struct Tensors {
  const Half *q, *k, *v;
  Half* o;
};

/// Position of a 16-byte chunk: within its row of a tile, in chunks; and from the start of a tile of ROWS rows, in bytes.
__device__ __forceinline__ int swizzled_chunk(int row, int chunk) {
  if constexpr (PANELS) chunk %= 8;
  return SMEM_LAYOUT == SMEM_LAYOUT_XOR_SWIZZLE ? chunk ^ (row & 7) : chunk;
}
template <int ROWS>
__device__ __forceinline__ u32 panel_offset(int chunk) {
  return PANELS ? chunk / 8 * (ROWS * PITCH) : 0;
}
template <int ROWS>
__device__ __forceinline__ u32 chunk_offset(int row, int chunk) {
  return panel_offset<ROWS>(chunk) + row * PITCH + swizzled_chunk(row, chunk) * 16;
}

/// Loads 16 bytes of a tensor, by the read-only path if the tensor is declared unaliased.
__device__ __forceinline__ Chunk load_chunk(const Half* from) {
  return RESTRICT ? load_global_nc_chunk(from) : load_global_chunk(from);
}

/// Copies ROWS rows starting at `source` into a tile of shared memory. Rows beyond `rows_left` (negative: past the end)
/// repeat the last row, so that values that are masked later are finite.
template <int ROWS, int WORKERS, bool BOUNDED>
__device__ __forceinline__ void load_tile(u32 tile, const Half* source, int rows_left, u32 thread) {
  const int last = rows_left - 1;
  if constexpr (KV_LOAD == KV_LOAD_CP_ASYNC || KV_LOAD == KV_LOAD_VECTOR16) {
    constexpr int PER_ROW = D / 8, ROWS_AT_ONCE = WORKERS / PER_ROW, CHUNKS = ceil_div(ROWS, ROWS_AT_ONCE);
    const int chunk = thread % PER_ROW, first = thread / PER_ROW;
    const Half* const from = source + chunk * 8;
    const Half* own = from + first * D;
    if constexpr (KV_LOAD == KV_LOAD_CP_ASYNC) pin_base(own);  // further rows are then constant offsets
    const auto in_range = [&](int i) { return ROWS % ROWS_AT_ONCE == 0 || first + i * ROWS_AT_ONCE < ROWS; };
    const auto from_row = [&](int i) {
      return BOUNDED ? from + min(first + i * ROWS_AT_ONCE, last) * D : own + i * ROWS_AT_ONCE * D;
    };
    const auto target = [&](int i) {
      return tile + panel_offset<ROWS>(chunk) + first * PITCH + swizzled_chunk(first + i * ROWS_AT_ONCE, chunk) * 16 +
             i * (ROWS_AT_ONCE * PITCH);
    };
    if constexpr (KV_LOAD == KV_LOAD_CP_ASYNC) {
      // With direct loads the loop is not unrolled, because the assembler would move the copies after Q K^T.
      constexpr int UNROLLED = QK_PATH == QK_PATH_DIRECT ? 1 : 16;
#pragma unroll UNROLLED
      for (int i = 0; i < CHUNKS; ++i)
        if (in_range(i)) cp_async(target(i), from_row(i));
    } else {
      constexpr int TOGETHER = 4;  // loads in flight, with four registers each
#pragma unroll 1
      for (int begin = 0; begin < CHUNKS; begin += TOGETHER) {
        Chunk held[TOGETHER];
#pragma unroll
        for (int i = 0; i < TOGETHER; ++i)
          if (begin + i < CHUNKS && in_range(begin + i))
            held[i] = load_chunk(from_row(begin + i));
#pragma unroll
        for (int i = 0; i < TOGETHER; ++i)
          if (begin + i < CHUNKS && in_range(begin + i)) store_shared(target(begin + i), held[i].v);
      }
    }
  } else {
#pragma unroll 4
    for (u32 index = thread; index < ROWS * D; index += WORKERS) {
      const int row = KV_LOAD == KV_LOAD_SCALAR_COALESCED ? index / D : index % ROWS;
      const int column = KV_LOAD == KV_LOAD_SCALAR_COALESCED ? index % D : index / ROWS;
      store_shared_half(tile + chunk_offset<ROWS>(row, column / 8) + column % 8 * 2,
                        source[(BOUNDED ? min(row, last) : row) * D + column]);
    }
  }
}

constexpr bool PERSISTENT = SCHEDULE == SCHEDULE_PERSISTENT, REVERSED_ROUNDS = CAUSAL && PERSISTENT && BULK;

/// Returns the row block for an index in launch order. Causal row blocks differ in work, so the longest ones go first.
/// With `folded`, the second half is in reverse order, so that blocks on the same SM have about the same total work.
__device__ __forceinline__ int row_block(int index, int blocks) {
  if constexpr (!CAUSAL) return index;
  const int half = CAUSAL_ORDER == CAUSAL_ORDER_FOLDED ? ceil_div(blocks, 2) : blocks;
  return index < half ? blocks - 1 - index : index - half;
}
/// Calls work(head, index) for each task of this block. On the bulk path, blocks with several tasks take every second round
/// of causal tasks in reverse, so that their total work is about the same.
template <typename Work>
__device__ __forceinline__ void for_each_task(int heads, int blocks, const Work& work) {
  if constexpr (PERSISTENT) {
    const int stride = gridDim.x;
    int next = REVERSED_ROUNDS ? 2 * (stride - static_cast<int>(blockIdx.x)) - 1 : stride;
    for (int task = blockIdx.x; task < heads * blocks; task += next, next = REVERSED_ROUNDS ? 2 * stride - next : stride) {
      if (GRID_ORDER == GRID_ORDER_ROWS_FAST) work(task / blocks, task % blocks);
      else work(task % heads, task / heads);
    }
  } else {
    if (GRID_ORDER == GRID_ORDER_ROWS_FAST) work(blockIdx.y, blockIdx.x);
    else work(blockIdx.x, blockIdx.y);
  }
}

#if TENSOR_CORES == TENSOR_CORES_MMA_SYNC || TENSOR_CORES == TENSOR_CORES_WGMMA
#include "mma_path.cuh"
#else
#include "tile_path.cuh"
#endif

#if PATH == PATH_WARPS
#if RESTRICT
#define UNALIASED __restrict__
#else
#define UNALIASED
#endif

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
attention(const Half* UNALIASED q, const Half* UNALIASED k, const Half* UNALIASED v, Half* UNALIASED o, int heads,
          int seq_len, float scale_log2e) {
  extern __shared__ __align__(1024) unsigned char memory[];  // wgmma's swizzle repeats after 1024 bytes
  const int length = SEQ_LEN != 0 ? SEQ_LEN : seq_len;
  const int blocks = ceil_div(length, TILE_ROWS);
  const auto work = [&](int head, int index) {
    const size_t offset = static_cast<size_t>(head) * length * D;
    attend({q + offset, k + offset, v + offset, o + offset}, memory, row_block(index, blocks), length, scale_log2e);
    if constexpr (PERSISTENT) __syncthreads();  // all reads of this task's shared memory are done
  };
  for_each_task(heads, blocks, work);
}
#endif
