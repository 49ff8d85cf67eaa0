// Threads arrive a second time at their cluster's barrier without having waited in between.
// launch: grid=2,1,1 block=64,1,1 shared=0
// arch: compute_90a
// args: out=f32[128]
// expect: barrier_divergence
// Build with -DFIXED for the clean twin.
extern "C" __global__ void __cluster_dims__(2, 1, 1) kernel(float* out) {
  asm volatile("barrier.cluster.arrive;" ::: "memory");
#ifdef FIXED
  asm volatile("barrier.cluster.wait;" ::: "memory");
#endif
  asm volatile("barrier.cluster.arrive;" ::: "memory");  // BUG
  asm volatile("barrier.cluster.wait;" ::: "memory");
  out[blockIdx.x * 64 + threadIdx.x] = 1.0f;
}
