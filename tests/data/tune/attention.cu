// Attention with an online softmax: a thread owns a query; keys and values pass through shared memory in tiles.
#include <cuda_fp16.h>

template <int S, int D>
__global__ void attention(const half* q, const half* k, const half* v, half* out) {
  __shared__ float keys[BLOCK_N][D], values[BLOCK_N][D];
  const int head = blockIdx.x * S * D, query = blockIdx.y * BLOCK_M + threadIdx.x;
  float own[D], sums[D] = {}, most = -INFINITY, total = 0;
  for (int i = 0; i < D; i++) own[i] = __half2float(q[head + query * D + i]) * rsqrtf(D);
  for (int first = 0; first < S; first += BLOCK_N) {
    __syncthreads();
    for (int i = threadIdx.x; i < BLOCK_N * D; i += BLOCK_M) {
      keys[i / D][i % D] = __half2float(k[head + first * D + i]);
      values[i / D][i % D] = __half2float(v[head + first * D + i]);
    }
    __syncthreads();
    for (int j = 0; j < BLOCK_N; j++) {
      float score = 0;
      for (int i = 0; i < D; i++) score += own[i] * keys[j][i];
      const float higher = fmaxf(most, score), kept = expf(most - higher), weight = expf(score - higher);
      for (int i = 0; i < D; i++) sums[i] = sums[i] * kept + weight * values[j][i];
      total = total * kept + weight, most = higher;
    }
  }
  for (int i = 0; i < D; i++) out[head + query * D + i] = __float2half(sums[i] / total);
}
