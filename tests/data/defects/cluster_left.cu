// A block may have ended, and its shared memory be gone, while another one of its cluster still reads there.
// launch: grid=1,4,1 block=96,1,1 shared=0
// arch: compute_90a
// args: out=f32[384] in=f32[384]r
// expect: cluster_lifetime
// Build with -DFIXED for the clean twin.
#include <cooperative_groups.h>

extern "C" __global__ void __cluster_dims__(1, 2, 1) kernel(float* out, const float* in) {
  __shared__ float half[96];
  const auto cluster = cooperative_groups::this_cluster();
  const int t = threadIdx.x, at = blockIdx.y * 96 + t;
  half[t] = in[at];
  cluster.sync();
  if (cluster.block_rank() == 0) {
    const float* other = cluster.map_shared_rank(half, 1);
    out[at] = half[t] + other[t];  // BUG
  }
#ifdef FIXED
  cluster.sync();
#endif
}
