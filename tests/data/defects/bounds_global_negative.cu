// A stencil reads one element before its input.
// launch: grid=1,1,1 block=64,1,1 shared=0
// args: out=f32[64] in=f32[64]r n=i32:64
// expect: out_of_bounds memcheck
// Build with -DFIXED for the clean twin.
extern "C" __global__ void kernel(float* out, const float* in, int n) {
  int i = threadIdx.x;
#ifdef FIXED
  int left = i > 0 ? i - 1 : 0;
#else
  int left = i - 1;
#endif
  float before = in[left];  // BUG
  out[i] = in[i] - before;
}
