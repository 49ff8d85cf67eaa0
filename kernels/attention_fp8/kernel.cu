// FlashAttention forward on 8-bit inputs: O = softmax(Q K^T |q_scale k_scale| / sqrt(D)) V |v_scale| for each head.
//
// Q, K, V: 8 bits per element, [batch, heads, S, HEAD_DIM], contiguous: E4M3, or a byte u that means u - 128.
// q_scale, k_scale, v_scale: float, [batch * heads]; a scale is a magnitude, and its sign is ignored. O: fp16, like Q.
// S is any length from 1; tails are masked. CAUSAL hides keys after the row. Softmax uses base 2 and a running reference
// per row. fragments.cuh converts bytes to operands of the tensor cores, forward.cuh has the algorithm, output.cuh stores,
// kernel.py computes the sizes that are macros.
//
// Problem macros: HEAD_DIM 64 or 128; CAUSAL 0 or 1; SEQ_LEN the length and TOTAL_STEPS the number of steps over all keys,
// each 0 if known only at run time; BIASED 1 for biased bytes, 0 for E4M3.
// kernel.py describes the genes; the generated header defines them, and asserts the constraints. P V always uses fp16,
// because P in 8 bits would exceed the tolerance.

#include "evokern_genes.h"

#include "../common/cp_async.cuh"
#include "../common/memory.cuh"
#include "../common/mma.cuh"
#include "../common/numbers.cuh"

using Byte = unsigned char;  // bits of one E4M3 number, or a biased integer
using Element = Byte;

constexpr int D = HEAD_DIM;
constexpr bool FOLDED = BIASED && ZERO_POINT == ZERO_POINT_FOLDED;
constexpr int CONSUMER_THREADS = THREADS;
constexpr int TILE_ROWS = BLOCK_M, ROW_WARPS = WARPS_M, TILE_KEYS = BLOCK_N, SPLITS = KEY_SPLITS;
constexpr bool SPECIALISED = false, WGMMA = false, DIRECT = false, ROTATED = false;  // choices of attention only
constexpr bool MERGE_HALVES = true, ONLY_SPLIT = false;

#include "fragments.cuh"
#include "forward.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
attention_fp8(const Byte* q, const Byte* k, const Byte* v, const float* q_scale, const float* k_scale,
              const float* v_scale, Half* o, int seq_len, float scale_log2e) {
  extern __shared__ __align__(128) unsigned char memory[];
  const int length = SEQ_LEN != 0 ? SEQ_LEN : seq_len;
  const int head = GRID_ORDER == GRID_ORDER_ROWS_FAST ? blockIdx.y : blockIdx.x;
  const int index = GRID_ORDER == GRID_ORDER_ROWS_FAST ? blockIdx.x : blockIdx.y;
  const int row_block = CAUSAL ? ceil_div(length, BLOCK_M) - 1 - index : index;  // causal: the longest go first
  const size_t offset = static_cast<size_t>(head) * length * D;
  const float score_scale = scale_log2e * fabsf(q_scale[head]) * fabsf(k_scale[head]);
  attend({q + offset, k + offset, v + offset, o + offset, score_scale, fabsf(v_scale[head])}, memory, row_block,
         length);
}
