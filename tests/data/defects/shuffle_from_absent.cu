// A lane reads from one that is not in the mask.
// launch: grid=1,1,1 block=32,1,1 shared=0
// args: out=f32[32] in=f32[32]r
// expect: inactive_shuffle
// Build with -DFIXED for the clean twin.
extern "C" __global__ void kernel(float* out, const float* in) {
  int t = threadIdx.x;
  float v = in[t];
  if (t < 16) {
#ifdef FIXED
    v += __shfl_sync(0x0000ffff, v, (t + 1) % 16);
#else
    v += __shfl_sync(0x0000ffff, v, t + 1);  // BUG
#endif
  }
  out[t] = v;
}
