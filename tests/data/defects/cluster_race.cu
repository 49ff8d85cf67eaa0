// A block reads its neighbour's half from distributed shared memory before that block has stored it.
// launch: grid=2,4,1 block=128,1,1 shared=0
// arch: compute_90a
// args: out=f32[1024] in=f32[1024]r
// expect: shared_race
// Build with -DFIXED for the clean twin.
__device__ __forceinline__ void meet() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

extern "C" __global__ void __cluster_dims__(1, 2, 1) kernel(float* out, const float* in) {
  __shared__ float half[128];
  const int t = threadIdx.x, at = (blockIdx.y * gridDim.x + blockIdx.x) * 128 + t;
  unsigned rank, other;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  half[t] = 0.0f;
  meet();
  half[t] = in[at];
#ifdef FIXED
  meet();
#endif
  const unsigned own = (unsigned)__cvta_generic_to_shared(half + t);
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(other) : "r"(own), "r"(rank ^ 1));
  float value;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(other) : "memory");  // BUG
  meet();
  out[at] = value;
}
