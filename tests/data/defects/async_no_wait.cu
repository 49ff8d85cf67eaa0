// Data of an asynchronous copy is used behind a barrier alone.
// launch: grid=1,1,1 block=64,1,1 shared=0
// args: out=f32[256] in=f32[256]r
// expect: async_not_waited
// Build with -DFIXED for the clean twin.
__device__ __forceinline__ void copy16(void* to, const void* from) {
  unsigned address = (unsigned)__cvta_generic_to_shared(to);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
}
__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> __device__ __forceinline__ void wait_group() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

extern "C" __global__ void kernel(float* out, const float* in) {
  __shared__ __align__(16) float tile[256];
  int t = threadIdx.x;
  copy16(tile + 4 * t, in + 4 * t);
  commit();
#ifdef FIXED
  wait_group<0>();
#endif
  __syncthreads();
  for (int j = 0; j < 4; j++) out[j * 64 + t] = tile[j * 64 + t];  // BUG
}
