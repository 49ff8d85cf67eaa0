// Attention of one block of query rows on tensor cores with scores in registers, with mma.sync (compute capability 8.0
// and above) or wgmma (9.0). They differ only in the loop over the keys: mma_loop.cuh or wgmma_loop.cuh.
//
// Scores remain in registers: after the exponential, the accumulators of Q K^T are the A fragments of P V.
#pragma once

#include "../common/mma.cuh"
#if PATH == PATH_BULK || TENSOR_CORES == TENSOR_CORES_WGMMA
#include "../common/wgmma.cuh"
#endif

constexpr bool SPECIALISED = BULK || WARP_ROLES == WARP_ROLES_LOADERS;
constexpr bool DIRECT = QK_PATH == QK_PATH_DIRECT;  // Q and K directly into fragments
constexpr bool RESIDENT = KV_BUFFERS == KV_BUFFERS_RESIDENT, ROTATED = KEY_WALK == KEY_WALK_ROTATED;
constexpr bool MERGE_HALVES = MERGE == MERGE_FP16;  // partial outputs in 16 bits instead of fp32
constexpr bool ONLY_SPLIT = SPLITS == 1 && (!SPECIALISED || BULK);
constexpr int QUERY_ROWS = BULK ? 64 : TILE_ROWS;  // rows of a tile of Q
constexpr int PRODUCER_THREADS = SPECIALISED ? 32 * LOAD_WARPS : 32;

// A power of two, so that its product with the scale is exact, and a completely masked row gives 2^0 instead of NaN.
constexpr float MASKED_SCORE = QK_ACC == QK_ACC_FP32 ? -1.2676506e30f : -32768.f;
// Powers of two by which a score may exceed its row's reference before the lazy rescale; P stays below 2^8.
constexpr float LAZY_THRESHOLD = 8.f;
constexpr float LARGEST_HALF = 65504.f;  // of fp16; also used for bf16, because P V overflows near the end of bf16's range

using ScoreFragment = Accumulator<QK_ACC == QK_ACC_FP32 ? 32 : 16>::type;
using OutputFragment = Accumulator<PV_ACC == PV_ACC_FP32 ? 32 : 16>::type;

template <int TILES>
__device__ __forceinline__ void thread_max(float (&top)[2], const Fragment32 (&s)[TILES]) {
  top[0] = fmaxf(s[0][0], s[0][1]);
  top[1] = fmaxf(s[0][2], s[0][3]);
#pragma unroll
  for (int n = 1; n < TILES; ++n) {
    top[0] = fmaxf(top[0], fmaxf(s[n][0], s[n][1]));
    top[1] = fmaxf(top[1], fmaxf(s[n][2], s[n][3]));
  }
}
template <int TILES>
__device__ __forceinline__ void thread_max(float (&top)[2], const Fragment16 (&s)[TILES]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    Half2 best = s[0][half];
#pragma unroll
    for (int n = 1; n < TILES; ++n) best = max_half2(best, s[n][half]);
    top[half] = fmaxf(low2float(best), high2float(best));
  }
}

#include "../common/attention_keys.cuh"
#include "../common/attention_softmax.cuh"
#include "fragments.cuh"
#include "softmax.cuh"
#if PATH == PATH_BULK || TENSOR_CORES == TENSOR_CORES_WGMMA
#include "wgmma_loop.cuh"
#else
#include "mma_loop.cuh"
#endif
#include "output.cuh"
#if PATH == PATH_BULK
#include "ring_loop.cuh"
#endif

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

/// Producer warps: fill the ring of every split. A group is loaded as soon as its buffers have been read. Consumers that
/// compute scores and output of a step together release a group only when the next group is loaded.
__device__ __forceinline__ void producer_loop(const Element* k, const Element* v, u32 memory, int steps, int length,
                                              int shift) {
  constexpr int IN_FLIGHT = LOOP_ORDER == LOOP_ORDER_PLAIN ? STAGES - 2 : STAGES - 1;
  const u32 thread = threadIdx.x - CONSUMER_THREADS;
  for (int group = 0; group <= steps + IN_FLIGHT; ++group) {
    if (group <= steps) {
      if (group >= STAGES) named_barrier_sync<THREADS>(FIRST_EMPTY_BARRIER + group % STAGES);
#pragma unroll 1
      for (u32 split = 0; split < SPLITS; ++split) {
        const KeyStream keys{k, v, memory + split * SPLIT_BYTES, thread, split, steps, length, shift};
        keys.load_group<PRODUCER_THREADS>(group);
      }
    }
    cp_async_commit_group();
    if (group >= IN_FLIGHT) {
      wait_group_visible<IN_FLIGHT>();
      named_barrier_arrive<THREADS>(FIRST_FULL_BARRIER + (group - IN_FLIGHT) % STAGES);
    }
  }
}

/// Computes attention for rows [m_block * TILE_ROWS, ...) of one head.
__device__ __forceinline__ void attend(const Tensors& head, unsigned char* shared, int m_block, int length,
                                       float scale) {
  const ThreadCoord at;
  const u32 memory = shared_address(shared);
  const int first_row = m_block * TILE_ROWS, rows_left = length - first_row;
  const u32 splits = memory + TILE_ROWS * ROW_BYTES, exchange = splits + SPLITS * SPLIT_BYTES;
  const int steps = steps_of(at.split, first_row, length);
  const int shift = ROTATED && steps > 0 ? m_block % steps : 0;
  if constexpr (SPECIALISED) {
    if (at.thread >= CONSUMER_THREADS) {
      producer_loop(head.k, head.v, splits, steps, length, shift);
      return;
    }
  }
  const KeyStream keys{head.k, head.v, splits + at.split * SPLIT_BYTES, at.thread % SPLIT_THREADS, at.split, steps,
                       length, shift};

  const Half* const rows_of_q = head.q + first_row * D;
  if constexpr (!DIRECT) load_tile<TILE_ROWS, CONSUMER_THREADS, ROW_TAIL>(memory, rows_of_q, rows_left, at.thread);
  const int longest = steps_of(0, first_row, length);
  Query q{memory};
  Rows rows;
  process_keys(keys, q, rows_of_q, rows, first_row, longest, scale, at);
  // A single step uses its own maximum as the reference, so it cannot overflow.
  if constexpr (RESCALE == RESCALE_RESTART && TOTAL_STEPS != 1) {
    if (__syncthreads_or(overflowed(rows))) process_keys_again(keys, q, rows, first_row, longest, scale, at);
  }

  Half* o = head.o + first_row * D;
  if constexpr (SPLITS == 1) {
    store_output(o, rows, memory, rows_left, at);
  } else {
    sync_split(at.split);  // all reads of this split's keys are done
    store_partial(rows, keys.memory, exchange, at);
    sync_consumer_warps();
    merge_partials(o, splits, exchange, rows_left, at);
  }
}
