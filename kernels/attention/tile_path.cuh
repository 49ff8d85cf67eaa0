// Attention of one block of query rows with scores, probabilities and the running output in shared memory.
//
// __syncthreads() separates the stages of a step (scores, softmax, output). Products are plain FMAs or wmma. The layout of
// wmma fragments is unspecified, so softmax needs shared memory. This path is slower than mma_path.cuh, but it runs without
// tensor cores and shows the gain of registers and swizzles.
#pragma once

#include "../common/warp.cuh"
#include "../common/wmma.cuh"

constexpr int WARPS = CONSUMER_THREADS / 32;
constexpr bool SPECIALISED = WARP_ROLES == WARP_ROLES_LOADERS;
constexpr int PRODUCER_THREADS = THREADS - (SPECIALISED ? CONSUMER_THREADS : 0);
constexpr bool KEY_TAIL = SEQ_LEN == 0 || SEQ_LEN % BLOCK_N != 0;
constexpr bool ROW_TAIL = SEQ_LEN == 0 || SEQ_LEN % BLOCK_M != 0;
constexpr bool FLOAT_SCORES = SCORE_BUFFER == SCORE_BUFFER_FLOAT;
constexpr float MASKED_SCORE = -1.2676506e30f;

/// Layout of the block's shared memory. Probabilities replace the scores of their row.
struct Layout {
  unsigned char* q;
  unsigned char* ring;    // STAGES times K, V
  unsigned char* scores;
  unsigned char* output;  // float
  float* reference;       // log2 reference of each row
  float* sum;

  __device__ __forceinline__ explicit Layout(unsigned char* memory) {
    q = memory;
    ring = q + BLOCK_M * ROW_BYTES;
    scores = ring + 2 * STAGES * TILE_BYTES;
    output = scores + BLOCK_M * SCORE_ROW_BYTES;
    reference = reinterpret_cast<float*>(output + BLOCK_M * OUTPUT_ROW_BYTES);
    sum = reference + BLOCK_M;
  }
  __device__ __forceinline__ unsigned char* k(int step) const { return ring + step % STAGES * 2 * TILE_BYTES; }
  __device__ __forceinline__ unsigned char* v(int step) const { return k(step) + TILE_BYTES; }
  __device__ __forceinline__ float* output_row(int row) const {
    return reinterpret_cast<float*>(output + row * OUTPUT_ROW_BYTES);
  }
  __device__ __forceinline__ Half* probability_row(int row) const {
    return reinterpret_cast<Half*>(scores + row * SCORE_ROW_BYTES);
  }
  __device__ __forceinline__ float score(int row, int key) const {
    if constexpr (FLOAT_SCORES) return reinterpret_cast<const float*>(scores + row * SCORE_ROW_BYTES)[key];
    else return low2float(probability_row(row)[key]);
  }
};

__device__ __forceinline__ void load_step(const Layout& at, const Tensors& head, int step, int steps, int length) {
  const int thread = threadIdx.x - (SPECIALISED ? CONSUMER_THREADS : 0);
  if (step < steps && thread >= 0) {
    const int first = step * BLOCK_N, left = length - first;
    load_tile<BLOCK_N, PRODUCER_THREADS, KEY_TAIL>(shared_address(at.k(step)), head.k + first * D, left, thread);
    load_tile<BLOCK_N, PRODUCER_THREADS, KEY_TAIL>(shared_address(at.v(step)), head.v + first * D, left, thread);
  }
  cp_async_commit_group();
}

// ---- products with plain FMAs: one score, or two neighbouring columns of the output, at a time

__device__ __forceinline__ void plain_scores(const Layout& at, int step) {
  for (u32 task = threadIdx.x; task < BLOCK_M * BLOCK_N; task += CONSUMER_THREADS) {
    const int row = task / BLOCK_N, key = task % BLOCK_N;
    float score = 0.f;
#pragma unroll 4
    for (int chunk = 0; chunk < D / 8; ++chunk) {
      const Chunk a = load_shared_chunk(shared_address(at.q) + chunk_offset<BLOCK_M>(row, chunk));
      const Chunk b = load_shared_chunk(shared_address(at.k(step)) + chunk_offset<BLOCK_N>(key, chunk));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        score = fmaf(low2float(a.v[i]), low2float(b.v[i]), score);
        score = fmaf(high2float(a.v[i]), high2float(b.v[i]), score);
      }
    }
    if constexpr (FLOAT_SCORES) reinterpret_cast<float*>(at.scores + row * SCORE_ROW_BYTES)[key] = score;
    else at.probability_row(row)[key] = static_cast<Half>(pack_half2(score, 0.f));
  }
}

__device__ __forceinline__ void plain_output(const Layout& at, int step) {
  for (u32 task = threadIdx.x; task < BLOCK_M * D / 2; task += CONSUMER_THREADS) {
    const int row = task / (D / 2), pair = task % (D / 2);
    const Half* p = at.probability_row(row);
    float low = 0.f, high = 0.f;
#pragma unroll 8
    for (int key = 0; key < BLOCK_N; ++key) {
      const Half2 v = *reinterpret_cast<const Half2*>(at.v(step) + chunk_offset<BLOCK_N>(key, pair / 4) + pair % 4 * 4);
      low = fmaf(low2float(p[key]), low2float(v), low);
      high = fmaf(low2float(p[key]), high2float(v), high);
    }
    at.output_row(row)[2 * pair] += low;
    at.output_row(row)[2 * pair + 1] += high;
  }
}

// ---- products with wmma: one 16x16 tile of the result per warp at a time

template <bool FLOAT>
struct WmmaScore {
  using type = WmmaFloats;
};
template <>
struct WmmaScore<false> {
  using type = WmmaHalves;
};

__device__ __forceinline__ void wmma_scores(const Layout& at, int step) {
  const u32 q = shared_address(at.q), k = shared_address(at.k(step)), scores = shared_address(at.scores);
  for (int tile = threadIdx.x / 32; tile < BLOCK_M / 16 * (BLOCK_N / 16); tile += WARPS) {
    const int row = tile / (BLOCK_N / 16) * 16, key = tile % (BLOCK_N / 16) * 16;
    WmmaScore<FLOAT_SCORES>::type score = {};
#pragma unroll
    for (int d = 0; d < D; d += 16)
      wmma_multiply_columns(score, wmma_load_a(q + row * ROW_BYTES + 2 * d, ROW_BYTES / 2),
                            wmma_load_b_columns(k + key * ROW_BYTES + 2 * d, ROW_BYTES / 2));
    constexpr int BYTES = FLOAT_SCORES ? 4 : 2;
    wmma_store(scores + row * SCORE_ROW_BYTES + key * BYTES, SCORE_ROW_BYTES / BYTES, score);
  }
}

__device__ __forceinline__ void wmma_output(const Layout& at, int step) {
  const u32 p = shared_address(at.scores), v = shared_address(at.v(step)), output = shared_address(at.output);
  for (int tile = threadIdx.x / 32; tile < BLOCK_M / 16 * (D / 16); tile += WARPS) {
    const int row = tile / (D / 16) * 16, column = tile % (D / 16) * 16;
    const u32 to = output + row * OUTPUT_ROW_BYTES + column * 4;
    WmmaFloats sum;
    wmma_load(sum, to, OUTPUT_ROW_BYTES / 4);
#pragma unroll
    for (int key = 0; key < BLOCK_N; key += 16)
      wmma_multiply(sum, wmma_load_a(p + row * SCORE_ROW_BYTES + 2 * key, SCORE_ROW_BYTES / 2),
                    wmma_load_b(v + key * ROW_BYTES + 2 * column, ROW_BYTES / 2));
    wmma_store(to, OUTPUT_ROW_BYTES / 4, sum);
  }
}

__device__ __forceinline__ void compute_scores(const Layout& at, int step) {
  if constexpr (TENSOR_CORES == TENSOR_CORES_WMMA) wmma_scores(at, step);
  else plain_scores(at, step);
}
__device__ __forceinline__ void accumulate_output(const Layout& at, int step) {
  if constexpr (TENSOR_CORES == TENSOR_CORES_WMMA) wmma_output(at, step);
  else plain_output(at, step);
}

// ---- softmax: a warp processes one row at a time

constexpr int PER_LANE = ceil_div(BLOCK_N, 32);

/// Returns the lane's i-th scaled score of a row, masked if the key is past the end or, if causal, after the row.
__device__ __forceinline__ float visible_score(const Layout& at, int row, int i, int first_key, int first_row,
                                               int length, float scale) {
  const int key = threadIdx.x % 32 + 32 * i;
  if (BLOCK_N % 32 != 0 && key >= BLOCK_N) return MASKED_SCORE;
  if (KEY_TAIL && first_key + key >= length) return MASKED_SCORE;
  if (CAUSAL && first_key + key > first_row + row) return MASKED_SCORE;
  return at.score(row, key) * scale;
}

__device__ __forceinline__ void softmax(const Layout& at, int first_key, int first_row, int length, float scale) {
  const int lane = threadIdx.x % 32;
  for (int row = threadIdx.x / 32; row < BLOCK_M; row += WARPS) {
    float kept[PER_LANE], top = MASKED_SCORE, sum = 0.f;
#pragma unroll
    for (int i = 0; i < PER_LANE; ++i) {
      kept[i] = visible_score(at, row, i, first_key, first_row, length, scale);
      top = fmaxf(top, kept[i]);
    }
    const float before = at.reference[row];
    const float reference = fmaxf(before, warp_max(top));
    const float factor = exp2_approx(before - reference);
#pragma unroll
    for (int i = 0; i < PER_LANE; ++i) {
      const int key = lane + 32 * i;
      if constexpr (SOFTMAX == SOFTMAX_SHARED)  // read again instead of keeping them
        kept[i] = visible_score(at, row, i, first_key, first_row, length, scale);
      const float p = exp2_approx(kept[i] - reference);
      sum += p;
      __syncwarp();  // these scores have been read; the narrower halves do not overwrite unread floats
      if (BLOCK_N % 32 == 0 || key < BLOCK_N) at.probability_row(row)[key] = static_cast<Half>(pack_half2(p, 0.f));
    }
    sum = warp_sum(sum);
#pragma unroll
    for (int i = 0; i < D / 32; ++i) at.output_row(row)[lane + 32 * i] *= factor;
    __syncwarp();  // every lane has read the old reference
    if (lane == 0) {
      at.reference[row] = reference;
      at.sum[row] = at.sum[row] * factor + sum;
    }
  }
}

__device__ __forceinline__ void clear_rows(const Layout& at) {
  for (u32 task = threadIdx.x; task < BLOCK_M * D; task += THREADS) at.output_row(task / D)[task % D] = 0.f;
  for (u32 row = threadIdx.x; row < BLOCK_M; row += THREADS) {
    at.reference[row] = MASKED_SCORE;
    at.sum[row] = 0.f;
  }
}

__device__ __forceinline__ void store_rows(const Layout& at, Half* o, int rows_left) {
  for (u32 task = threadIdx.x; task < BLOCK_M * (D / 8); task += THREADS) {
    const int row = task / (D / 8), chunk = task % (D / 8);
    if (ROW_TAIL && row >= rows_left) continue;
    const float* from = at.output_row(row) + chunk * 8;
    const float factor = rcp_approx(at.sum[row]);
    Half2 result[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) result[i] = pack_half2(from[2 * i] * factor, from[2 * i + 1] * factor);
    store_global(o + row * D + chunk * 8, result);
  }
}

/// Computes attention for rows [m_block * BLOCK_M, ...) of one head.
__device__ __forceinline__ void attend(const Tensors& head, unsigned char* memory, int m_block, int length,
                                       float scale) {
  const Layout at(memory);
  const int first_row = m_block * BLOCK_M;
  const int visible = CAUSAL ? min(length, first_row + BLOCK_M) : length;
  const int steps = ceil_div(visible, BLOCK_N);
  const bool is_consumer = !SPECIALISED || threadIdx.x < CONSUMER_THREADS;

  load_tile<BLOCK_M, THREADS, ROW_TAIL>(shared_address(at.q), head.q + first_row * D, length - first_row,
                                                threadIdx.x);
  for (int step = 0; step < STAGES - 1; ++step) load_step(at, head, step, steps, length);
  clear_rows(at);

  for (int step = 0; step < steps; ++step) {
    if constexpr (STAGES == 1) {
      __syncthreads();  // the previous step has read its keys
      load_step(at, head, step, steps, length);
      cp_async_wait_group<0>();
      __syncthreads();
    } else {
      cp_async_wait_group<STAGES - 2>();
      __syncthreads();  // this step's keys are loaded, and the previous step has read its keys
      load_step(at, head, step + STAGES - 1, steps, length);
    }
    if (is_consumer) compute_scores(at, step);
    __syncthreads();
    if (is_consumer) softmax(at, step * BLOCK_N, first_row, length, scale);
    __syncthreads();
    if (is_consumer) accumulate_output(at, step);
  }
  __syncthreads();
  store_rows(at, head.o + first_row * D, length - first_row);
}
