// The kernel scales its input in place.
// launch: grid=1,1,1 block=64,1,1 shared=0
// args: out=f32[64] in=f32[64]r
// expect: input_write
// Build with -DFIXED for the clean twin.
extern "C" __global__ void kernel(float* out, float* in) {
  int t = threadIdx.x;
#ifdef FIXED
  float v = in[t] * 0.5f;
#else
  in[t] *= 0.5f;  // BUG
  float v = in[t];
#endif
  out[t] = v;
}
