// The sum of a row whose parts belong to the blocks of a cluster, through distributed shared memory (PTX ISA,
// "barrier.cluster", "mapa"; compute capability 9.0).
#pragma once

#include "row.cuh"

/// Arrives at the cluster's barrier; earlier stores are visible to all threads that wait for it.
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

/// Returns the sum over the blocks of a row to every thread; each block has called cluster_arrive() before. Every block
/// adds up the parts in the same order.
__device__ __forceinline__ float cluster_sum(float part, float (&parts)[ROWS][BLOCKS]) {
  const int row = threadIdx.x / THREADS, thread = threadIdx.x % THREADS;
  cluster_wait();  // all blocks have started
#pragma unroll
  for (int first = 0; first < BLOCKS; first += THREADS)
    if (first + thread < BLOCKS) {
      u32 there;
      asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                   : "=r"(there) : "r"(shared_address(&parts[row][blockIdx.y])), "r"(first + thread));
      asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(there), "f"(part) : "memory");
    }
  cluster_arrive();
  cluster_wait();
  float total = 0.f;
#pragma unroll
  for (int block = 0; block < BLOCKS; block++) total += parts[row][block];
  return total;
}
