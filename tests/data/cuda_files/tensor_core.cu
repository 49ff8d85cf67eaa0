// wmma, cp.async through the pipeline primitives, cuda::barrier, bf16 and fp8 headers, inline PTX.
#include <cuda/barrier>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_pipeline.h>
#include <mma.h>
#include <cooperative_groups/memcpy_async.h>

#include <cassert>
#include <cmath>

#if !defined(TILE_M) || !defined(TILE_N)
#error "give TILE_M and TILE_N"
#endif
#ifndef STAGES
#error "give STAGES"
#endif

using namespace nvcuda;
using Half8 = int4;
using Barrier = cuda::barrier<cuda::thread_scope_block>;

static constexpr int kChunk = 16 / sizeof(half);
static const float kLogE = 1.4426950408889634f;

__device__ __forceinline__ float fast_exp2(float x) {
  float y;
  asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

extern "C" __global__ void __launch_bounds__(128) tile(const half* __restrict__ a, const half* __restrict__ b, float* __restrict__ c) {
  __shared__ __align__(128) half buffer[STAGES][TILE_M * 16 + TILE_N * 16];
  __shared__ Barrier bar;
  if (threadIdx.x == 0) init(&bar, blockDim.x);
  __syncthreads();
  for (int i = threadIdx.x; i < TILE_M * 16 / kChunk; i += blockDim.x) {
    __pipeline_memcpy_async(&buffer[0][i * kChunk], a + i * kChunk, sizeof(Half8));
  }
  __pipeline_commit();
  __pipeline_wait_prior(0);
  bar.arrive_and_wait();
  wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> fa;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> fb;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> fc;
  wmma::fill_fragment(fc, 0.0f);
  wmma::load_matrix_sync(fa, buffer[0], 16);
  wmma::load_matrix_sync(fb, b, 16);
  wmma::mma_sync(fc, fa, fb, fc);
  for (int i = 0; i < fc.num_elements; ++i) fc.x[i] = fast_exp2(fc.x[i] * kLogE) + std::sqrt(fabsf(fc.x[i])) + (isnan(fc.x[i]) ? NAN : 0.f);
  wmma::store_matrix_sync(c, fc, 16, wmma::mem_row_major);
}

__global__ void convert(const __nv_bfloat16* in, __nv_fp8_e4m3* out, std::size_t n) {
  for (std::size_t i = threadIdx.x; i < n; i += blockDim.x) out[i] = __nv_fp8_e4m3(__bfloat162float(in[i]));
}
