// FlashAttention forward on 8-bit inputs: O = softmax(Q K^T |q_scale k_scale| / sqrt(D)) V |v_scale| for each head.
//
// Q, K, V: 8 bits per element, [batch, heads, S, HEAD_DIM], contiguous: E4M3, or a byte u that means u - 128.
// q_scale, k_scale, v_scale: float, [batch * heads]; a scale is a magnitude, and its sign is ignored. O: fp16, like Q.
// S is any length from 1; tails are masked. CAUSAL hides keys after the row. Softmax uses base 2 and a running reference
// per row. fragments.cuh converts bytes to operands of the tensor cores, stream.cuh copies K and V, forward.cuh has the
// algorithm, output.cuh merges and stores, kernel.py has rules and computes the sizes that are macros.
//
// Problem macros: HEAD_DIM 64 or 128; CAUSAL 0 or 1; SEQ_LEN the length, or 0 if known only at run time; BIASED 1 for
// biased bytes, 0 for E4M3.
// Tunables (values in kernel.py; named values are GENE_VALUE constants):
//   DEQUANTISE    conversion of bytes to fp16 before the store to shared memory, or in registers after a fragment is read
//   MMA           (in registers) operand type for Q K^T: fp16 after conversion, or an 8-bit type. P V always uses fp16,
//                 because P in 8 bits would exceed the tolerance
//   E4M3_TO_FP16  (E4M3) conversion by the cvt instruction, or by moving bits
//   ZERO_POINT    (BIASED) 128 subtracted from each element, or folded into softmax and the final result
//   KV_LOAD       copies of tiles to shared memory: single bytes, 16-byte vectors, cp.async
//   STATIC_SEQ    passed to the source as SEQ_LEN
//   SMEM_LAYOUT   chunks of a row XOR-swizzled by the row, or rows padded by ROW_PAD bytes. If the stride is not a
//                 multiple of 16, only byte stores and word loads are aligned
//   FRAGMENT_LOAD ldmatrix, or 32-bit words
//   EXP           exponentials in fp32, or in pairs in fp16
//   RESCALE       rescale the output always, if a row's maximum changed, or if it grew by more than a threshold
//   LOOP_ORDER    plain, or Q K^T of the next step issued concurrently with P V of the current step
//   GRID_ORDER    fastest index over the grid: row blocks or heads
//   BLOCK_M WARPS_M BLOCK_N   query rows per block, warps along them, keys per split and step
//   KEY_SPLITS    warps along the keys, each with a part of every step; the partial outputs are merged in fp16
//   STAGES        buffers for K and for V (at most the number of steps)
//   UNROLL        number of unrolled steps;  MIN_BLOCKS  minimum blocks per SM, which limits the registers

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
constexpr bool SPECIALISED = false, WGMMA = false, DIRECT = false, ROTATED = false;  // choices of attention only
constexpr bool MERGE_HALVES = true, ONLY_SPLIT = false;

static_assert(ROW_BYTES % 16 == 0 || (KV_LOAD == KV_LOAD_SCALAR && FRAGMENT_LOAD == FRAGMENT_LOAD_WORDS),
              "16-byte accesses need rows of shared memory at multiples of 16 bytes");

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
