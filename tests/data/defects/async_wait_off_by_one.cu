// A two-stage pipeline leaves the group in flight that it is about to use.
// launch: grid=1,1,1 block=64,1,1 shared=0
// args: out=f32[64] in=f32[1024]r
// expect: async_not_waited
// Build with -DFIXED for the clean twin.
__device__ __forceinline__ void copy16(void* to, const void* from) {
  unsigned address = (unsigned)__cvta_generic_to_shared(to);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
}
__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> __device__ __forceinline__ void wait_group() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

extern "C" __global__ void kernel(float* out, const float* in) {
  __shared__ __align__(16) float tile[2][256];
  int t = threadIdx.x;
  float sum = 0.0f;
  copy16(tile[0] + 4 * t, in + 4 * t);
  commit();
#pragma unroll 1
  for (int k = 0; k < 4; k++) {
    if (k + 1 < 4) copy16(tile[(k + 1) & 1] + 4 * t, in + (k + 1) * 256 + 4 * t);
    commit();
#ifdef FIXED
    wait_group<1>();
#else
    wait_group<2>();
#endif
    __syncthreads();
    sum += tile[k & 1][255 - t];  // BUG
    __syncthreads();
  }
  out[t] = sum;
}
