// A block adds into its neighbour's sums in distributed shared memory while that block still reads them.
// launch: grid=4,1,1 block=64,1,1 shared=0
// arch: compute_90a
// args: out=f32[256] in=f32[256]r
// expect: shared_race
// Build with -DFIXED for the clean twin.
#define ARRIVE(how) asm volatile("barrier.cluster.arrive." how ".aligned;" ::: "memory")
#define WAIT() asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory")

extern "C" __global__ void __cluster_dims__(4, 1, 1) kernel(float* out, const float* in) {
  __shared__ float sums[64];
  const int t = threadIdx.x, at = blockIdx.x * 64 + t;
  unsigned rank, other;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  sums[t] = in[at];
  ARRIVE("release");
  WAIT();
  float first = sums[t];
#ifdef FIXED
  ARRIVE("release");
#else
  ARRIVE("relaxed");  // tells nobody that the sums have been read
#endif
  WAIT();
  const unsigned own = (unsigned)__cvta_generic_to_shared(sums + t);
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(other) : "r"(own), "r"((rank + 1) % 4));
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(other), "f"(first) : "memory");  // BUG
  ARRIVE("release");
  WAIT();
  out[at] = first + sums[t];
}
