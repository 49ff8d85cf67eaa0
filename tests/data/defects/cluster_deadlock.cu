// Some threads of a cluster wait at its barrier, the others at their block's.
// launch: grid=2,1,1 block=64,1,1 shared=0
// arch: compute_90a
// args: out=f32[128] n=i32:32
// expect: deadlock
// Build with -DFIXED for the clean twin.
extern "C" __global__ void __cluster_dims__(2, 1, 1) kernel(float* out, int n) {
#ifdef FIXED
  n = 0;
#endif
  if (threadIdx.x >= n) {
    asm volatile("barrier.cluster.arrive;" ::: "memory");
    asm volatile("barrier.cluster.wait;" ::: "memory");  // BUG
  } else {
    asm volatile("bar.sync 1, 64;" ::: "memory");  // BUG
  }
  out[blockIdx.x * 64 + threadIdx.x] = n;
}
