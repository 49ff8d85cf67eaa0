// A block stores into the shared memory of another one that may not have started yet.
// launch: grid=2,1,1 block=64,1,1 shared=256
// arch: compute_90a
// args: out=f32[128] in=f32[128]r
// expect: cluster_lifetime
// Build with -DFIXED for the clean twin.
#include <cooperative_groups.h>

extern "C" __global__ void __cluster_dims__(2, 1, 1) kernel(float* out, const float* in) {
  extern __shared__ float inbox[];
  const auto cluster = cooperative_groups::this_cluster();
  const int t = threadIdx.x, at = blockIdx.x * 64 + t;
#ifdef FIXED
  cluster.sync();
#endif
  cluster.map_shared_rank(inbox, cluster.block_rank() ^ 1)[t] = in[at];  // BUG
  cluster.sync();
  out[at] = inbox[t];
}
