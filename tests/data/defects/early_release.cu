// A thread releases a tile to the copy engine before any instruction uses the loaded value.
// launch: grid=1,1,1 block=64,1,1 shared=0
// arch: compute_90a
// args: out=f32[256] in=f32[256]r
// expect: early_release
// Build with -DFIXED for the clean twin.
__device__ __forceinline__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void wait(const void* b, unsigned parity) {
  asm volatile("{ .reg .pred P; W: mbarrier.try_wait.parity.shared::cta.b64 P, [%0], %1; @P bra D; bra W; D: }" ::"r"(at(b)),
               "r"(parity) : "memory");
}

extern "C" __global__ void __launch_bounds__(64, 1) kernel(float* out, const float* in) {
  __shared__ __align__(128) float tile[32];
  __shared__ unsigned long long full, empty;
  const int t = threadIdx.x;
  if (t == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at(&full)) : "memory");
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 32;" ::"r"(at(&empty)) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  for (int k = 0; k < 8; k++) {
    if (t == 32) {
      wait(&empty, k & 1 ^ 1);
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 128;" ::"r"(at(&full)) : "memory");
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 128, [%2];" ::"r"(at(tile)),
                   "l"(in + 32 * k), "r"(at(&full)) : "memory");
    }
    if (t < 32) {
      wait(&full, k & 1);
      const float v = tile[t];
#ifdef FIXED
      out[32 * k + t] = v;
#endif
      asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at(&empty)) : "memory");  // BUG
#ifndef FIXED
      out[32 * k + t] = v;
#endif
    }
  }
}
