// The halves of a warp run two aligned instructions of their cluster's barrier, each its own.
// launch: grid=2,1,1 block=64,1,1 shared=0
// arch: compute_90a
// args: out=f32[128]
// expect: barrier_divergence
// Build with -DFIXED for the clean twin.
extern "C" __global__ void __cluster_dims__(2, 1, 1) kernel(float* out) {
  float value = 1.0f;
  if (threadIdx.x % 32 < 16) {
#ifndef FIXED
    asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");  // BUG
#endif
    value += out == nullptr;
  } else {
#ifndef FIXED
    asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");  // BUG
#endif
    value += 2.0f;
  }
#ifdef FIXED
  asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
#endif
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
  out[blockIdx.x * 64 + threadIdx.x] = value;
}
