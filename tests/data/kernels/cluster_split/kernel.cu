// y[m] = sum over k of x[m * K + k], the sum split over the blocks of a cluster along y.
//
// SPLIT  blocks of a cluster: each adds up its part of K, and stores a part of the rows
// WRONG  nothing, barrier (one of the block stands where one of the cluster belongs), end (blocks end too early)
#ifndef SPLIT
#error "SPLIT must be defined"
#endif
#ifndef WRONG
#error "WRONG must be defined"
#endif

constexpr int ROWS = 64;

// Not aligned: parts of a warp meet the others at instructions of their own.
__device__ __forceinline__ void meet() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

extern "C" __global__ void split_sum(const float* x, float* y, int k) {
  __shared__ float part[ROWS];
  const int t = threadIdx.x, row = blockIdx.x * ROWS + t, share = k / SPLIT;
  unsigned rank = 0;
  if constexpr (SPLIT > 1) asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  float sum = 0.f;
  for (int i = rank * share; i < (rank + 1) * share; i++) sum += x[row * k + i];
  if constexpr (SPLIT > 1) {
    if constexpr (WRONG == WRONG_BARRIER) meet();  // all blocks have started
    part[t] = sum;
    if constexpr (WRONG == WRONG_BARRIER) {
      __syncthreads();
    } else {
      meet();
    }
    if (t / (ROWS / SPLIT) != rank) {
      if constexpr (WRONG != WRONG_END) meet();
      return;
    }
    sum = 0.f;
    for (int r = 0; r < SPLIT; r++) {
      unsigned own = (unsigned)__cvta_generic_to_shared(part + t), there;
      asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(own), "r"(r));
      float value;
      asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(there) : "memory");
      sum += value;
    }
    if constexpr (WRONG != WRONG_END) meet();
  }
  y[row] = sum;
}
