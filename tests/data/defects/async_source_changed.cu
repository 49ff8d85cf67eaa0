// The source of an asynchronous copy is overwritten before the copy is waited for.
// launch: grid=1,1,1 block=64,1,1 shared=0
// args: out=f32[256] data=f32[256]
// expect: async_not_waited
// Build with -DFIXED for the clean twin.
__device__ __forceinline__ void copy16(void* to, const void* from) {
  unsigned address = (unsigned)__cvta_generic_to_shared(to);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");  // BUG
}
extern "C" __global__ void kernel(float* out, float* data) {
  __shared__ __align__(16) float tile[256];
  int t = threadIdx.x;
  copy16(tile + 4 * t, data + 4 * t);
  asm volatile("cp.async.commit_group;" ::: "memory");
#ifdef FIXED
  asm volatile("cp.async.wait_group 0;" ::: "memory");
#endif
  data[4 * t] = -1.0f;
  asm volatile("cp.async.wait_group 0;" ::: "memory");
  __syncthreads();
  for (int j = t; j < 256; j += 64) out[j] = tile[j];
}
