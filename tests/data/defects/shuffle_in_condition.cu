// A shuffle names all lanes, but only half of them call it.
// launch: grid=1,1,1 block=32,1,1 shared=0
// args: out=f32[32] in=f32[32]r
// expect: inactive_shuffle
// Build with -DFIXED for the clean twin.
extern "C" __global__ void kernel(float* out, const float* in) {
  int t = threadIdx.x;
  float v = in[t];
#ifdef FIXED
  v += __shfl_xor_sync(0xffffffff, v, 8);
#else
  if (t < 16) v += __shfl_xor_sync(0xffffffff, v, 8);  // BUG
#endif
  out[t] = v;
}
