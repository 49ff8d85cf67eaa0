// A named barrier waits for more threads than ever arrive.
// launch: grid=1,1,1 block=64,1,1 shared=0
// args: out=f32[64] in=f32[64]r
// expect: deadlock
// Build with -DFIXED for the clean twin.
extern "C" __global__ void kernel(float* out, const float* in) {
  __shared__ float tile[64];
  int t = threadIdx.x;
  tile[t] = in[t];
#ifdef FIXED
  asm volatile("bar.sync 1, 64;" ::: "memory");
#else
  asm volatile("bar.sync 1, 96;" ::: "memory");  // BUG
#endif
  out[t] = tile[63 - t];
}
