// Attention of one block of query rows on tensor cores with scores in registers, with mma.sync (compute capability 8.0
// and above) or wgmma (9.0). They differ only in the loop over the keys: mma_loop.cuh or wgmma_loop.cuh.
//
// The block's warps form WARPS_M x KEY_SPLITS: along the query rows, and along the keys. Each split has its own keys,
// shared memory and named barrier; partial outputs are merged at the end. Scores remain in registers: after the
// exponential, the accumulators of Q K^T are the A fragments of P V.
#pragma once

#include "../common/barrier.cuh"
#include "../common/mma.cuh"
#include "../common/warp.cuh"
#if TENSOR_CORES == TENSOR_CORES_WGMMA
#include "../common/wgmma.cuh"
#endif

constexpr int SPLIT_THREADS = 32 * WARPS_M;
constexpr int KEY_TILES = BLOCK_N / 16;     // tiles of 16 keys: the depth of one P V mma
constexpr bool KEY_TAIL = SEQ_LEN == 0 || SEQ_LEN % STEP_KEYS != 0;
constexpr bool ROW_TAIL = SEQ_LEN == 0 || SEQ_LEN % BLOCK_M != 0;
constexpr bool EDGES = CAUSAL || KEY_TAIL;  // some scores must be masked
constexpr bool SPECIALISED = WARP_ROLES == WARP_ROLES_LOADERS;
constexpr bool DIRECT = QK_PATH == QK_PATH_DIRECT;   // Q and K directly into fragments
constexpr bool IDLE_SPLITS = EDGES && KEY_SPLITS > 1 && !SPECIALISED;
constexpr int PRODUCER_THREADS = SPECIALISED ? 32 * LOAD_WARPS : 32;

// A power of two, so that its product with the scale is exact, and a completely masked row gives 2^0 instead of NaN.
constexpr float MASKED_SCORE = QK_ACC == QK_ACC_FP32 ? -1.2676506e30f : -32768.f;
// Powers of two by which a score may exceed its row's reference before the lazy rescale; P stays below 2^8.
constexpr float LAZY_THRESHOLD = 8.f;
constexpr float LARGEST_HALF = 65504.f;  // of fp16; also used for bf16, because P V overflows near the end of bf16's range

using Fragment32 = Accumulator<32>::type;
using Fragment16 = Accumulator<16>::type;
using ScoreFragment = Accumulator<QK_ACC == QK_ACC_FP32 ? 32 : 16>::type;
using OutputFragment = Accumulator<PV_ACC == PV_ACC_FP32 ? 32 : 16>::type;
template <int TILES>  // of 8 keys
using ScoresOf = ScoreFragment[TILES_M][TILES];
using Scores = ScoresOf<BLOCK_N / 8>;
using Probabilities = u32[TILES_M][4];  // A fragments of one tile of 16 keys

/// Position of this thread: its rows, keys and fragment elements.
struct ThreadCoord {
  u32 thread, lane, warp_m, split;  // unsigned: divisions by powers of two are shifts
  __device__ __forceinline__ ThreadCoord() {
    thread = threadIdx.x;
    lane = thread % 32;
    // wgmma needs matrix descriptors in uniform registers; a shuffle makes the value uniform for the compiler.
    const u32 warp = WGMMA ? __shfl_sync(~0u, thread / 32, 0) : thread / 32;
    warp_m = warp % WARPS_M;
    split = KEY_SPLITS == 1 && !SPECIALISED ? 0 : warp / WARPS_M;
  }
  __device__ __forceinline__ int row(int m, int half) const {  // row of accumulator elements 2 * half, 2 * half + 1
    return (warp_m * TILES_M + m) * 16 + half * 8 + lane / 4;
  }
  __device__ __forceinline__ int column_pair() const { return lane % 4; }
};

// Named barriers (0 is __syncthreads()). Without producer warps, each split has its own barrier. With producer warps, each
// buffer of the ring has a full and an empty barrier, which count all warps of the block.
constexpr int FIRST_SPLIT_BARRIER = 1;
constexpr int FIRST_FULL_BARRIER = 1;
constexpr int FIRST_EMPTY_BARRIER = FIRST_FULL_BARRIER + 4;
constexpr int CONSUMER_BARRIER = 15;

__device__ __forceinline__ void sync_consumer_warps() {
  if constexpr (SPECIALISED) named_barrier_sync<CONSUMER_THREADS>(CONSUMER_BARRIER);
  else __syncthreads();
}
/// Synchronises the warps that read the same keys.
__device__ __forceinline__ void sync_split(int split) {
  if constexpr (KEY_SPLITS == 1 || SPECIALISED) sync_consumer_warps();
  else if constexpr (WARPS_M == 1) __syncwarp();
  else named_barrier_sync<SPLIT_THREADS>(FIRST_SPLIT_BARRIER + split);
}

#include "key_stream.cuh"
#include "fragments.cuh"
#include "softmax.cuh"
#if TENSOR_CORES == TENSOR_CORES_WGMMA
#include "wgmma_loop.cuh"
#else
#include "mma_loop.cuh"
#endif
#include "output.cuh"

/// Returns the steps of a split for the keys visible to the block's last row. Producer warps treat all splits alike.
__device__ __forceinline__ int steps_of(u32 split, int first_row, int length) {
  if constexpr (!EDGES) return SEQ_LEN / STEP_KEYS;
  if constexpr (SPECIALISED) split = 0;
  const int visible = CAUSAL ? min(length, first_row + BLOCK_M) : length;
  return ceil_div(max(visible - static_cast<int>(split) * BLOCK_N, 0), STEP_KEYS);
}

/// Loads and processes all keys of a split.
__device__ __forceinline__ void process_keys(const KeyStream& keys, Query& q, const Half* rows_of_q, Rows& rows,
                                             int first_row, int longest, float scale, const ThreadCoord& at) {
  DirectKeys direct;
  if constexpr (DIRECT) {
    q.fetch(rows_of_q, keys.length - first_row, at);
    direct.fetch(keys, at);
  }
  keys.start();
  keys.wait_first();
  rows.reset();
  if (!IDLE_SPLITS || keys.steps > 0) {
    if constexpr (!DIRECT) q.prepare(at);
    consumer_loop(keys, q, direct, rows, first_row, scale, at);
  } else {
    rows.reset_without_keys();
  }
  keys.sync_skipped_steps(longest);
}

/// Processes all keys of a split again, 16 at a time, with references that follow every score. Overflowed blocks are rare,
/// so this code is short instead of fast; every candidate that may need it compiles it. Q stays in shared memory, because
/// the assembler of CUDA 13.0 would assign some of its registers to P (README.md).
__device__ __forceinline__ void process_keys_again(const KeyStream& keys, const Query& q, Rows& rows, int first_row, int longest,
                                                   float scale, const ThreadCoord& at) {
  rows.reset_without_keys();  // start with references below every score
  rows.reset();
#pragma unroll 1
  for (int step = 0; step < longest; ++step) {  // same for all splits; see sync_skipped_steps()
    const int first = keys.first_key(step);
    if (step < keys.steps) {
#pragma unroll 1
      for (int i = 0; i < 2; ++i) {  // K, then V, so that the copy is compiled once
        const u32 tile = i == 0 ? keys.k_tile(0) : keys.v_tile(0);
        keys.load<SPLIT_THREADS>(tile, i == 0 ? keys.k : keys.v, first);
      }
    }
    cp_async_commit_group();
    wait_group_visible<0>();
    sync_split(at.split);
    if (step < keys.steps) {
#pragma unroll 1
      for (int n = 0; n < KEY_TILES; ++n) {
        ScoresOf<2> s;
        Probabilities p[1];
        compute_scores<2, false>(s, q, {}, keys.k_tile(0) + n * 16 * PITCH, at);
        mask_edges(s, first + n * 16, first_row, keys.length, at);
        update_reference<RESCALE_ALWAYS>(rows, s, scale);
        exponentiate(s, 0, rows, scale);
        pack_probabilities(p[0], s, 0);
        add_output(rows, p, keys.v_tile(0) + n * 16 * PITCH, at);
      }
    }
    sync_split(at.split);  // all warps have read the buffers
  }
  if (IDLE_SPLITS && keys.steps == 0) rows.reset_without_keys();
  else reduce_row_sums(rows);
}

/// Computes attention for rows [m_block * BLOCK_M, ...) of one head.
__device__ __forceinline__ void attend(const Tensors& head, unsigned char* shared, int m_block, int length,
                                       float scale) {
  const ThreadCoord at;
  const u32 memory = shared_address(shared);
  const int first_row = m_block * BLOCK_M, rows_left = length - first_row;
  const u32 splits = memory + BLOCK_M * ROW_BYTES, exchange = splits + KEY_SPLITS * SPLIT_BYTES;
  const int steps = steps_of(at.split, first_row, length);
  const int shift = KEY_WALK == KEY_WALK_ROTATED && steps > 0 ? m_block % steps : 0;
  if constexpr (SPECIALISED) {
    if (at.thread >= CONSUMER_THREADS) {
      producer_loop(head.k, head.v, splits, steps, length, shift);
      return;
    }
  }
  const KeyStream keys{head.k, head.v, splits + at.split * SPLIT_BYTES, at.thread % SPLIT_THREADS, at.split, steps,
                       length, shift};

  const Half* const rows_of_q = head.q + first_row * D;
  if constexpr (!DIRECT) load_tile<BLOCK_M, CONSUMER_THREADS, ROW_TAIL>(memory, rows_of_q, rows_left, at.thread);
  const int longest = steps_of(0, first_row, length);
  Query q{memory};
  Rows rows;
  process_keys(keys, q, rows_of_q, rows, first_row, longest, scale, at);
  // A single step uses its own maximum as the reference, so it cannot overflow.
  if constexpr (RESCALE == RESCALE_RESTART && TOTAL_STEPS != 1) {
    if (__syncthreads_or(rows.overflowed())) process_keys_again(keys, q, rows, first_row, longest, scale, at);
  }

  Half* o = head.o + first_row * D;
  if constexpr (KEY_SPLITS == 1) {
    store_output(o, rows, memory, rows_left, at);
  } else {
    sync_split(at.split);  // all reads of this split's keys are done
    store_partial(rows, keys.memory, exchange, at);
    sync_consumer_warps();
    merge_partials(o, splits, exchange, rows_left, at);
  }
}
