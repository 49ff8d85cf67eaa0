// A tail runs past the end of another block's shared memory.
// launch: grid=1,2,1 block=64,1,1 shared=0
// arch: compute_90a
// args: out=f32[128] n=i32:70
// expect: out_of_bounds
// Build with -DFIXED for the clean twin.
#include <cooperative_groups.h>

extern "C" __global__ void __cluster_dims__(1, 2, 1) kernel(float* out, int n) {
  __shared__ float half[64];
  const auto cluster = cooperative_groups::this_cluster();
  const int t = threadIdx.x;
  half[t] = t;
  cluster.sync();
#ifdef FIXED
  if (n > 64) n = 64;
#endif
  const float* other = cluster.map_shared_rank(half, cluster.block_rank() ^ 1);
  float sum = 0.0f;
  for (int i = t; i < n; i += 64) sum += other[i];  // BUG
  cluster.sync();
  out[blockIdx.y * 64 + t] = sum;
}
