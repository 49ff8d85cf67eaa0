// y = 2 x, tile by tile.
#include "evokern_genes.h"

#include "../common/bulk_copy.cuh"
#include "../common/cluster.cuh"
#include "../common/mbarrier.cuh"

extern "C" __global__ void __launch_bounds__(128)
mapped(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap y, int bytes) {
  __shared__ __align__(1024) float tile[ROWS * COLUMNS];
  __shared__ __align__(8) u64 full;
  const u32 shared = static_cast<u32>(__cvta_generic_to_shared(tile)), barrier = static_cast<u32>(__cvta_generic_to_shared(&full));
  const int column = blockIdx.x * COLUMNS, row = blockIdx.y * ROWS;
  if (threadIdx.x == 0) {
    mbarrier_init(barrier, 1);
    fence_mbarrier_init();
  }
  __syncthreads();
  if (threadIdx.x / 32 == 0 && elect_one()) {
    mbarrier_arrive_expect(barrier, bytes);
    tile_load(shared, x, barrier, column, row);
  }
  mbarrier_wait(barrier, 0);
  for (int i = threadIdx.x; i < ROWS * COLUMNS; i += 128) tile[i] *= 2;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) {
    tile_store(y, shared, column, row);
    bulk_commit_group();
    bulk_wait_read<0>();
  }
}
