// The tail of the grid writes past the end of its output.
// launch: grid=2,1,1 block=64,1,1 shared=0
// args: out=f32[100] in=f32[128]r n=i32:100
// expect: out_of_bounds memcheck
// Build with -DFIXED for the clean twin.
extern "C" __global__ void kernel(float* out, const float* in, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
#ifdef FIXED
  if (i >= n) return;
#endif
  out[i] = in[i] + 1.0f;  // BUG
}
