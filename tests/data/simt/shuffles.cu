// Every shuffle of the half types, whose headers ask PTX for WARP_SZ, and warpSize itself.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
template <class T>
__device__ void every_shuffle(T* out, T value) {
  const int t = threadIdx.x;
  out[t] = __shfl_sync(0xffffffffu, value, 3);
  out[t + 32] = __shfl_up_sync(0xffffffffu, value, 2);
  out[t + 64] = __shfl_down_sync(0xffffffffu, value, 2);
  out[t + 96] = __shfl_xor_sync(0xffffffffu, value, 5);
  out[t + 128] = __shfl_xor_sync(0xffffffffu, value, 5, 8);
}
extern "C" __global__ void half1(half* out) { every_shuffle(out, __float2half(threadIdx.x)); }
extern "C" __global__ void half2x(half2* out) {
  every_shuffle(out, __floats2half2_rn(threadIdx.x, 64.f + threadIdx.x));
}
extern "C" __global__ void brain1(__nv_bfloat16* out) { every_shuffle(out, __float2bfloat16(threadIdx.x)); }
extern "C" __global__ void brain2(__nv_bfloat162* out) {
  every_shuffle(out, __floats2bfloat162_rn(threadIdx.x, 64.f + threadIdx.x));
}
extern "C" __global__ void sizes(int* out) {
  int lanes;
  asm("mov.u32 %0, WARP_SZ;" : "=r"(lanes));
  out[threadIdx.x] = threadIdx.x / warpSize * 1000 + lanes;
}
