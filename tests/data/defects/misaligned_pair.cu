// A 64-bit store goes to a 4-byte boundary.
// launch: grid=1,1,1 block=16,1,1 shared=0
// args: out=f32[40] in=f32[32]r
// expect: misaligned memcheck
// Build with -DFIXED for the clean twin.
extern "C" __global__ void kernel(float* out, const float* in) {
  int t = threadIdx.x;
#ifdef FIXED
  float* to = out + 2 * t;
#else
  float* to = out + 2 * t + 1;
#endif
  *(float2*)to = make_float2(in[2 * t], in[2 * t + 1]);  // BUG
}
