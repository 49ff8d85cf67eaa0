// The sum of a row whose parts belong to the blocks of a cluster, through distributed shared memory (compute capability
// 9.0).
#pragma once

#include "../common/cluster.cuh"
#include "row.cuh"

/// Returns the sum over the blocks of a row to every thread; each block has called cluster_arrive() before. Every block
/// adds up the parts in the same order.
__device__ __forceinline__ float cluster_sum(float part, float (&parts)[ROWS][BLOCKS]) {
  const int row = threadIdx.x / THREADS, thread = threadIdx.x % THREADS;
  cluster_wait();  // all blocks have started
#pragma unroll
  for (int first = 0; first < BLOCKS; first += THREADS)
    if (first + thread < BLOCKS)
      store_cluster(cluster_address(shared_address(&parts[row][blockIdx.y]), first + thread), part);
  cluster_sync();
  float total = 0.f;
#pragma unroll
  for (int block = 0; block < BLOCKS; block++) total += parts[row][block];
  return total;
}
