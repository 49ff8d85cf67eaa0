// All lanes of a warp arrive at a barrier object that expects one arrival.
// launch: grid=1,1,1 block=64,1,1 shared=0
// arch: compute_90a
// args: out=f32[64] in=f32[256]r
// expect: barrier_arrivals
// Build with -DFIXED for the clean twin.
__device__ __forceinline__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

extern "C" __global__ void __launch_bounds__(64, 1) kernel(float* out, const float* in) {
  __shared__ __align__(128) float tile[256];
  __shared__ unsigned long long done;
  const int t = threadIdx.x;
  if (t == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at(&done)) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (t < 32) {
#ifdef FIXED
    if (t == 0)
#endif
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at(&done)) : "memory");  // BUG
  }
  tile[t] = in[t];
  unsigned ended = 0;
  for (int tries = 0; tries < 4 && !ended; tries++)  // Without the bound, a phase that never ends is a deadlock.
    asm volatile("{ .reg .pred P; mbarrier.try_wait.parity.shared::cta.b64 P, [%1], 0; selp.u32 %0, 1, 0, P; }"
                 : "=r"(ended) : "r"(at(&done)) : "memory");
  out[t] = ended;
}
