// What another block of the cluster never wrote is read from it.
// launch: grid=4,1,1 block=64,1,1 shared=0
// arch: compute_90a
// args: out=f32[256] n=i32:60
// expect: uninitialised
// Build with -DFIXED for the clean twin.
#include <cooperative_groups.h>

extern "C" __global__ void __cluster_dims__(2, 1, 1) kernel(float* out, int n) {
  __shared__ float half[64];
  const auto cluster = cooperative_groups::this_cluster();
  const int t = threadIdx.x;
  half[t] = t;
  __shared__ float more[64];
#ifdef FIXED
  more[t] = t;
#else
  if (t < n) more[t] = t;
#endif
  cluster.sync();
  const float sum = half[t] + cluster.map_shared_rank(more, cluster.block_rank() ^ 1)[t];  // BUG
  cluster.sync();
  out[blockIdx.x * 64 + t] = sum;
}
