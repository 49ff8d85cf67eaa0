// Two groups wait at two named barriers for each other.
// launch: grid=1,1,1 block=64,1,1 shared=0
// args: out=f32[64] in=f32[64]r
// expect: deadlock
// Build with -DFIXED for the clean twin.
extern "C" __global__ void kernel(float* out, const float* in) {
  int t = threadIdx.x;
#ifdef FIXED
  int mine = 1;
#else
  int mine = 1 + t / 32;
#endif
  asm volatile("bar.sync %0, 64;" ::"r"(mine) : "memory");  // BUG
  out[t] = in[t];
}
