// Kernels that use the CUDA headers, for the tests of the PTX machine.
#include <cooperative_groups.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_pipeline.h>
#include <mma.h>

#include <cuda/barrier>
namespace cg = cooperative_groups;
using namespace nvcuda;

extern "C" __global__ void groups(float* x) {
  auto block = cg::this_thread_block();
  auto warp = cg::tiled_partition<32>(block);
  float v = x[block.thread_rank()];
  for (int o = 16; o; o >>= 1) v += warp.shfl_xor(v, o);
  block.sync();
  auto eight = cg::tiled_partition<8>(block);
  v += eight.shfl((float)eight.meta_group_rank(), 3);
  eight.sync();
  x[block.thread_rank()] = v;
}

extern "C" __global__ void whole_grid(float* x) {
  auto grid = cg::this_grid();
  x[grid.thread_rank()] = grid.thread_rank();
  grid.sync();
  x[grid.thread_rank() + grid.size()] = x[grid.size() - 1 - grid.thread_rank()];
}

extern "C" __global__ void barrier_object(float* x) {
  __shared__ cuda::barrier<cuda::thread_scope_block> barrier;
  __shared__ float s[128];
  if (threadIdx.x == 0) init(&barrier, blockDim.x);
  __syncthreads();
  s[threadIdx.x] = x[threadIdx.x];
  barrier.arrive_and_wait();
  x[threadIdx.x] = s[127 - threadIdx.x];
}

extern "C" __global__ void pipeline(float* x, const float* y, int n) {
  __shared__ float s[128];
  int t = threadIdx.x;
  __pipeline_memcpy_async(&s[t], &y[t], 4, t < n ? 0 : 4);
  __pipeline_commit();
  __pipeline_wait_prior(0);
  __syncthreads();
  x[t] = s[127 - t];
}

extern "C" __global__ void fragments(float* d, const half* a, const half* b) {
  wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> fa;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> fb;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> fc;
  wmma::fill_fragment(fc, 1.0f);
  wmma::load_matrix_sync(fa, a, 16);
  wmma::load_matrix_sync(fb, b, 16);
  wmma::mma_sync(fc, fa, fb, fc);
  wmma::store_matrix_sync(d, fc, 16, wmma::mem_row_major);
}

extern "C" __global__ void bytes(float* x, const unsigned char* y, __nv_fp8_e4m3* z, __nv_fp8_e5m2* w) {
  int i = threadIdx.x;
  __nv_fp8_e4m3 q;
  q.__x = y[i];
  x[i] = float(q);
  z[i] = __nv_fp8_e4m3(x[i] * 1.3f);
  w[i] = __nv_fp8_e5m2(x[i] * 0.7f);
}

extern "C" __global__ void halves(half* x, const half* y, __nv_bfloat16* p, const __nv_bfloat16* q) {
  int i = threadIdx.x;
  half2 a = ((const half2*)y)[i];
  half2 b = __hmul2(__hfma2(a, a, a), __hmax2(a, __hneg2(a)));
  ((half2*)x)[i] = __hadd2(b, __habs2(a));
  p[i] = __hfma(q[i], q[i], q[i]);
  if (__hlt(y[i], y[i + 1])) x[64 + i] = __hsub(y[i], y[i + 1]);
}

extern "C" __global__ void half_atomics(half2* h, half* s, __nv_bfloat162* b) {
  atomicAdd(h, __floats2half2_rn(1, 2));
  atomicAdd(s, __float2half(0.5f));
  atomicAdd(b, __floats2bfloat162_rn(1, 2));
}
